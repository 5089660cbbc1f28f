"""Streams of Arrow IPC, decoded message after message."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterator
from typing import Any

from ...blocks import Block
from ...errors import FormatError
from .._push import PushDecoder
from .arrow_file import read_options
from .expansion import check_expansion
from .importing import arrow, told
from .messages import Kind, Message, Messages
from .picking import check_rows, pick
from .selection import Choice, Selection, choose

__all__ = ["ArrowStreamDecoder"]


class ArrowStreamDecoder(PushDecoder):
    """Decode record batches as they come.

    Args:
        selection: Which columns and rows are wanted.
        start_sample: Rows of the shard that were had already.
    """

    def __init__(self, selection: Selection, start_sample: int = 0) -> None:
        super().__init__()
        self._selection = selection
        self._start = start_sample
        self._messages = Messages()
        self._queue = _Queue()
        self._reader: Any = None
        self._choice: Choice | None = None
        self._row = 0

    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]:
        for message in self._messages.feed(bytes(chunk)):
            yield from self._take(message)

    def _decode_end(self) -> Iterator[Block]:
        yield from ()
        at = self._messages.at
        if self._messages.is_within:
            raise FormatError("arrow: truncated within a message", offset=at, sample=self._row)
        if self._choice is None:
            raise FormatError("arrow: truncated: the shard ends before its schema", offset=at)
        # pyarrow takes the end of the bytes for the end of the stream; so does one that was cut look whole.
        if not self._messages.ended:
            raise FormatError(
                "arrow: the stream stops before its end marker: it is truncated, or its writer was never "
                "closed; fetch or write it anew",
                offset=at,
                sample=self._row,
            )
        check_rows(self._row, self._start)

    def _take(self, message: Message) -> Iterator[Block]:
        if message.kind == Kind.SCHEMA and self._choice is None:
            self._open(message)
        elif self._choice is None or message.kind not in (Kind.DICTIONARY, Kind.BATCH):
            raise FormatError(f"arrow: a message of kind {message.kind}", offset=self._messages.at)
        else:
            what = "arrow: a batch" if message.kind == Kind.BATCH else "arrow: a dictionary"
            check_expansion(message.metadata, lambda at, size: message.body[at : at + size], what)
            self._queue.put(message)
            if message.kind == Kind.BATCH:
                yield from self._pick(self._choice)

    def _open(self, message: Message) -> None:
        import pyarrow.ipc

        with told("arrow: the schema"):
            schema = pyarrow.ipc.read_schema(arrow().BufferReader(message.prefix + message.metadata))
        self._choice = choose(self._selection, schema)
        self._queue.put(message)
        file = arrow().PythonFile(self._queue, mode="r")
        with told("arrow: the schema"):
            self._reader = pyarrow.ipc.open_stream(file, options=read_options(schema, self._choice))

    def _pick(self, choice: Choice) -> Iterator[Block]:
        with told("arrow: a batch", self._row):
            batch = self._reader.read_next_batch()
            batch.validate(full=True)  # pyarrow would follow any offset
            first, self._row = self._row, self._row + len(batch)
            if self._row > self._start:
                yield from pick(batch, first, self._start, choice)


class _Queue(io.RawIOBase):
    """A file of the messages that were put there, each read once, in the pieces that pyarrow asks for."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: deque[bytes] = deque()
        self._at = 0

    def put(self, message: Message) -> None:
        """Add a message."""
        self._pieces += (piece for piece in (message.prefix, message.metadata, message.body) if piece)

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        taken = []
        while self._pieces and size:
            piece = self._pieces.popleft()
            if len(piece) > size:
                self._pieces.appendleft(piece[size:])
                piece = piece[:size]
            taken.append(piece)
            size -= len(piece)
        content = taken[0] if len(taken) == 1 else b"".join(taken)
        self._at += len(content)
        return content
