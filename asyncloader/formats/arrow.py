"""Arrow IPC: streams, and files (Feather is one), which are a stream with a footer behind it.

Whole batches are read, whatever columns are wanted. A position is the number of rows that were read. Only a
batch itself states how many rows it has, so the batches before a position are read again, and not converted.
pyarrow decodes messages, but it blocks on its file; the framing is parsed here, to know when the next message
is complete. Offsets in metadata are never trusted.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..blocks import Block
from ..errors import FormatError
from ..types import Layout, Planning, Span
from .arrow_columns import arrow, pyarrow_errors
from .compression import describe_whole
from .decoder import (
    ByteQueue,
    Decoder,
    Selection,
    ShardSpec,
    check_reached,
    check_unpacked,
    read_footer,
)
from .selection import Choice, choose, pick


class FlatTable:
    """A table in a flatbuffer; every offset is checked.

    Args:
        content: The buffer.
        what: Name of the buffer, for messages.
        at: The place in the buffer of the table's offset; by default the root's.

    Raises:
        FormatError: This is no flatbuffer. Also raised by the methods.
    """

    def __init__(self, content: bytes, what: str, at: int = 0) -> None:
        self._content = content
        self._what = what
        self._at = at + self._read("<I", at)
        self._fields = self._at - self._read("<i", self._at)
        self._fields_bytes = self._read("<H", self._fields)

    def number(self, field: int, kind: str) -> int:
        """The number in a field, whose format is one of ``struct``; 0 if the table lacks the field."""
        at = self._place(field)
        return 0 if at is None else self._read(kind, at)

    def table(self, field: int) -> FlatTable | None:
        """The table in a field; None if this table lacks the field."""
        at = self._place(field)
        return None if at is None else FlatTable(self._content, self._what, at)

    def structs(self, field: int, kind: str) -> list[tuple[int, ...]]:
        """The structs in a vector, whose format is one of ``struct``."""
        at = self._place(field)
        if at is None:
            return []
        vector = at + self._read("<I", at)
        count, size = self._read("<I", vector), struct.calcsize(kind)
        if vector + 4 + count * size > len(self._content):
            raise self._damaged(f"a vector of {count} entries does not fit")
        return [struct.unpack_from(kind, self._content, vector + 4 + nth * size) for nth in range(count)]

    def _place(self, field: int) -> int | None:
        at = 4 + 2 * field
        inside = self._read("<H", self._fields + at) if at < self._fields_bytes else 0
        return self._at + inside if inside else None

    def _read(self, kind: str, at: int) -> int:
        if not 0 <= at <= len(self._content) - struct.calcsize(kind):
            raise self._damaged(f"an offset points to byte {at} of {len(self._content)}")
        value: int = struct.unpack_from(kind, self._content, at)[0]
        return value

    def _damaged(self, how: str) -> FormatError:
        return FormatError(f"arrow: damaged: {self._what}: {how}")


# ``Message.fbs``: the fields of a message, and of its header.
_KIND, _HEADER, _BODY_BYTES = 1, 2, 3
_DATA_OF_DICTIONARY = 1
_BUFFERS, _COMPRESSION = 2, 3
_BUFFER = "<qq"  # offset in the body, and length

# Version 0.17 marked compressed buffers like this, which pyarrow still reads.
_OLD_COMPRESSION = b"ARROW:experimental_compression"

_LENGTH_BYTES = 8


# The headers that a message may have, as far as they matter here.
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3

CONTINUATION = b"\xff\xff\xff\xff"
"""The beginning of messages since Arrow 0.15."""

# Far above the metadata of a batch with a million columns.
_MOST_METADATA_BYTES = 256 << 20
_MOST_BODY_BYTES = 1 << 40


@dataclass(frozen=True, slots=True)
class Message:
    """One message.

    Attributes:
        kind: The kind of its header, such as ``_BATCH``.
        prefix: The marker and the length in front of the metadata.
        metadata: A flatbuffer.
        body: The buffers.
    """

    kind: int
    prefix: bytes
    metadata: bytes
    body: bytes


def check_expansion(message: Message, what: str) -> None:
    """Check how large the compressed buffers of a batch or dictionary would become.

    Raises:
        FormatError: They would take too much memory, or the metadata is damaged.
    """
    table = FlatTable(message.metadata, "the metadata of a message")
    batch = table.table(_HEADER)
    if batch is not None and message.kind == _DICTIONARY:
        batch = batch.table(_DATA_OF_DICTIONARY)
    if batch is None or (batch.table(_COMPRESSION) is None and _OLD_COMPRESSION not in message.metadata):
        return
    found = claimed = 0
    for at, length in batch.structs(_BUFFERS, _BUFFER):
        content = message.body[at : at + _LENGTH_BYTES] if length >= _LENGTH_BYTES and at >= 0 else b""
        if len(content) == _LENGTH_BYTES:
            found += length
            claimed += max(int.from_bytes(content, "little", signed=True), 0)  # -1: not compressed
    check_unpacked(what, found, claimed, "; otherwise write smaller batches")


class Messages:
    """Cuts a stream into messages; feed it bytes in any chunking.

    Args:
        begin: Offset in the shard of the first byte that will be fed.
        front: Bytes of the stream that the shard lacks there.

    Attributes:
        at: Offset behind the last message.
        ended: Whether the end marker came, a length of 0.
    """

    def __init__(self, begin: int, front: bytes) -> None:
        self.at = begin - len(front)
        self.ended = False
        self._held = ByteQueue()
        self._held.put(front)
        self._prefix = b""
        self._metadata = b""
        self._body_bytes = 0

    @property
    def is_within(self) -> bool:
        """Whether a message has begun and is not complete."""
        return not self.ended and (bool(self._prefix) or self._held.size_bytes > 0)

    def feed(self, chunk: bytes | memoryview) -> Iterator[Message]:
        """The messages that ``chunk`` completes.

        Raises:
            FormatError: The bytes are no message, or they follow the end marker.
        """
        held = self._held
        held.put(chunk)
        while not self.ended:
            # Before Arrow 0.15 there was no marker in front of the length.
            while self._prefix in (b"", CONTINUATION):
                if held.size_bytes < 4:
                    return
                self._prefix += b"".join(held.take(4))
            length = int.from_bytes(self._prefix[-4:], "little", signed=True)
            if length == 0:
                self.at += len(self._prefix)
                self.ended = True
                break
            if not 0 < length <= _MOST_METADATA_BYTES:
                raise FormatError(
                    f"arrow: damaged: a message claims {length} bytes of metadata", offset=self.at
                )
            if not self._metadata:
                if held.size_bytes < length:
                    return
                self._metadata = b"".join(held.take(length))
                self._kind, self._body_bytes = _header_of(self._metadata, self.at)
            if held.size_bytes < self._body_bytes:
                return
            body = b"".join(held.take(self._body_bytes))
            message = Message(self._kind, self._prefix, self._metadata, body)
            self.at += len(self._prefix) + length + self._body_bytes
            self._prefix = self._metadata = b""
            yield message
        if self.ended and held.size_bytes:
            raise FormatError("arrow: damaged: bytes follow the stream after its end marker", offset=self.at)


def _header_of(metadata: bytes, offset: int) -> tuple[int, int]:
    """The kind of a message, and the length of its body."""
    try:
        table = FlatTable(metadata, "the metadata of a message")
        kind, body_bytes = table.number(_KIND, "<B"), table.number(_BODY_BYTES, "<q")
    except FormatError as error:
        error.offset = offset
        raise
    if not 0 <= body_bytes <= _MOST_BODY_BYTES:
        raise FormatError(f"arrow: damaged: a message claims a body of {body_bytes} bytes", offset=offset)
    return kind, body_bytes


class ArrowDecoder(Decoder):
    """Decode the record batches of a stream as they come.

    Args:
        selection: Which columns and rows are wanted.
        start_sample: Rows of the shard that were already read.
        begin: Offset in the shard of the first byte that will be fed.
        front: Bytes of the stream that the shard lacks there.
        batches: How many batches there are, by the footer of a file; None for a stream, which ends with its
            end marker.
        rows: How many rows there should be; None if nothing else states it.
    """

    def __init__(
        self,
        selection: Selection,
        start_sample: int = 0,
        *,
        begin: int = 0,
        front: bytes = b"",
        batches: int | None = None,
        rows: int | None = None,
    ) -> None:
        self._selection = selection
        self._start = start_sample
        self._row = 0
        self._messages = Messages(begin, front)
        self._batches = batches
        self._rows = rows
        self._batch = 0
        self._queue = _Queue()
        self._reader: Any = None
        self._choice: Choice | None = None

    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]:
        for message in self._messages.feed(chunk):
            if message.kind == _SCHEMA and self._choice is None:
                self._open(message)
                continue
            if self._choice is None or message.kind not in (_DICTIONARY, _BATCH):
                raise FormatError(f"arrow: a message of kind {message.kind}", offset=self._messages.at)
            of = "" if message.kind == _BATCH else "a dictionary before "
            check_expansion(message, f"arrow: {of}batch {self._batch}")
            self._queue.put(message)
            if message.kind == _BATCH:
                yield from self._read_batch(self._choice)

    def finish(self) -> Iterator[Block]:
        yield from ()
        at = self._messages.at
        if self._messages.is_within:
            raise FormatError("arrow: truncated within a message", offset=at, sample=self._row)
        if self._choice is None:
            raise FormatError("arrow: truncated: the shard ends before its schema", offset=at)
        # pyarrow takes the end of the bytes for the end of the stream, so a truncated stream would look
        # whole.
        if self._batches is None and not self._messages.ended:
            raise FormatError(
                "arrow: the stream stops before its end marker: it is truncated, or its writer was never "
                "closed; fetch or write it again",
                offset=at,
                sample=self._row,
            )
        if self._batches not in (None, self._batch):
            raise FormatError(
                f"arrow: damaged: the footer lists {self._batches} batches, found {self._batch}",
                offset=at,
                sample=self._row,
            )
        check_reached(self._row, self._start, "rows")
        if self._rows not in (None, self._row):
            raise FormatError(f"arrow: damaged: expected {self._rows} rows, found {self._row}", offset=at)

    def _read_batch(self, choice: Choice) -> Iterator[Block]:
        """The blocks of the next batch."""
        with pyarrow_errors(f"arrow: batch {self._batch}", self._row):
            batch = self._reader.read_next_batch()
            batch.validate(full=True)  # pyarrow would follow any offset
            first, self._row = self._row, self._row + len(batch)
            self._batch += 1
            if self._row > self._start:
                yield from pick(batch, first, self._start, choice)

    def _open(self, message: Message) -> None:
        import pyarrow.ipc

        with pyarrow_errors("arrow: the schema"):
            schema = pyarrow.ipc.read_schema(arrow().BufferReader(message.prefix + message.metadata))
        self._choice = choose(self._selection, schema)
        self._queue.put(message)
        file = arrow().PythonFile(self._queue, mode="r")
        # With a list of all columns, pyarrow would copy each that it has read.
        is_all = {*self._choice.read} == {*schema.names}
        fields = None if is_all else sorted(map(schema.get_field_index, self._choice.read))
        options = pyarrow.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
        with pyarrow_errors("arrow: the schema"):
            self._reader = pyarrow.ipc.open_stream(file, options=options)


class _Queue(io.RawIOBase):
    """A file of the messages that were put there, each read once, in the pieces that pyarrow requests."""

    def __init__(self) -> None:
        super().__init__()
        self._held = ByteQueue()
        self._at = 0

    def put(self, message: Message) -> None:
        """Add a message."""
        for piece in (message.prefix, message.metadata, message.body):
            self._held.put(piece)

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        there = self._held.size_bytes
        found = self._held.take(there if size < 0 else min(size, there))
        whole = found[0].obj if len(found) == 1 else None
        # A body that was read whole is not copied.
        content = whole if type(whole) is bytes and len(whole) == len(found[0]) else b"".join(found)
        self._at += len(content)
        return content


_MAGIC = b"ARROW1"
_FEATHER_1_MAGIC = b"FEA1"
_HEAD_BYTES = 4 << 10

# The first message is at a multiple of it, behind the magic and zeros: at 8, or at 64 in files of arrow-rs.
_ALIGNMENT = 8

# Offset, length of the metadata, and length of the body (``File.fbs``).
_BLOCK = "<qi4xq"
_DICTIONARIES, _BATCHES = 2, 3


def plan_arrow(spec: ShardSpec, rows: int | None = None) -> Planning:
    """Plan what to read of a shard of Arrow IPC; all of it, since only a batch states how many rows it has.

    Args:
        spec: What is wanted.
        rows: See ``ArrowDecoder``.

    Raises:
        FormatError: It is no Arrow IPC, or it is truncated.
        ImportError: pyarrow is not installed.
    """
    arrow()
    head = yield Span(0, _HEAD_BYTES)
    open_decoder = partial(ArrowDecoder, spec.selection, spec.start_sample, rows=rows)
    if not head.content.startswith(_MAGIC):
        _check_stream(head.content)
        return Layout((Span(0, head.length),), open_decoder)
    footer = yield from read_footer("arrow", _MAGIC, head, spec)
    stop = head.length - len(footer)
    table = FlatTable(footer[: -len(_MAGIC) - 4], "the footer")
    dictionaries, batches = (table.structs(field, _BLOCK) for field in (_DICTIONARIES, _BATCHES))
    # Dictionaries first: the batches need them, and polars writes them behind these.
    blocks = [Span(start, start + metadata + body) for start, metadata, body in (*dictionaries, *batches)]
    first = min((block.start for block in blocks), default=stop)
    begin = _ALIGNMENT
    while head.content[begin : begin + _ALIGNMENT] == bytes(_ALIGNMENT):
        begin += _ALIGNMENT
    spans: list[Span] = []
    for block in (Span(begin, first), *blocks):
        if not begin <= block.start < block.stop <= stop:
            raise FormatError(f"arrow: damaged: the footer places a batch at {block} of {stop} bytes")
        if spans and block.start == spans[-1].stop:
            spans[-1] = Span(spans[-1].start, block.stop)
        else:
            spans.append(block)
    open_decoder = partial(
        open_decoder,
        begin=begin,
        front=_front_of(head.content[begin : begin + 4], first - begin),
        batches=len(batches),
    )
    return Layout(tuple(spans), open_decoder)


def _front_of(start: bytes, schema_bytes: int) -> bytes:
    """What a file lacks before its schema of so many bytes: polars writes it without marker and length."""
    # Before Arrow 0.15 there was no marker; without batches, an end marker follows.
    if start == CONTINUATION or schema_bytes - int.from_bytes(start, "little") in (4, 8):
        return b""
    return CONTINUATION + schema_bytes.to_bytes(4, "little")


def _check_stream(start: bytes) -> None:
    """Refuse a shard that is no stream of messages, by its first bytes."""
    if not start:
        raise FormatError("arrow: truncated: the shard is empty", offset=0)
    if start.startswith(_FEATHER_1_MAGIC):
        raise FormatError(
            "arrow: Feather version 1 is not supported; write it again with pyarrow.feather.write_feather",
            offset=0,
        )
    hint = describe_whole(start, "Arrow")
    # A stream begins with the length of its schema. Since Arrow 0.15 a marker stands before it.
    if start[:4] != CONTINUATION and start[2:4] != b"\0\0":
        raise FormatError(
            f"arrow: expected the magic {_MAGIC!r} or a stream of messages, found {start[:6]!r}{hint}",
            offset=0,
        )
