"""Tar shards in the WebDataset layout: ``key.field`` members; adjacent ones with the same key are a sample.

Laws:

- A wrong header never ends the shard quietly and never yields wrong bytes: it raises.
- A shard without an end marker is truncated, even if it stops between two members: a cut download
  looks like that, and readers that take it for the end lose samples silently.
- A body is copied once, from its chunk into its own ``bytes``; one in several chunks as they come, so it is
  never held twice.
"""

from __future__ import annotations

import io
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from operator import ne
from typing import ClassVar

from ..blocks import Block, OffsetTrail, Rows
from ..errors import FormatError
from ..types import Sample
from .compression import open_stream
from .decoder import MAX_BLOCK_BYTES, MAX_BLOCK_SAMPLES, Decoder, ShardSpec, describe_bytes, most_unpacked
from .tar_layout import (
    BLOCK,
    MAX_EXTENSION_BYTES,
    ZERO_BLOCK,
    checked_name,
    find_dot,
    parse_decimal,
    parse_header,
    parse_headers,
    parse_pax_records,
)


@dataclass(slots=True, eq=False)
class SampleGroups:
    """The open sample, and the complete ones that wait to be taken as a block.

    Args:
        first: Index in the shard of the first sample to come.
        max_bytes: Most bytes that one sample may have, with its headers.

    Attributes:
        sample: The open sample.
        sample_bytes: Its size, with the member that was opened last and all headers.
        header_offset: Offset of the header that is read or comes next.
        at_member: Whether that is a header of a member which has none in front of it.
    """

    first: int
    max_bytes: int
    sample: Sample = field(default_factory=dict)
    sample_bytes: int = 0
    header_offset: int = 0
    at_member: bool = False
    ended: bool = False
    full: bool = False
    _samples: list[Sample] = field(default_factory=list)
    _ends: list[int] = field(default_factory=list)
    _block_bytes: int = 0
    _key: str | None = None

    @property
    def index(self) -> int:
        """Index in the shard of the sample being read."""
        return self.first + len(self._samples)

    def open_field(self, name: str, begin: int, size: int) -> str | None:
        """Start a member; returns its field, or None if its name is not that of a sample.

        Args:
            name: The member's path.
            begin: Offset of its first header, with extensions.
            size: Length of its body in bytes.

        Raises:
            FormatError: The sample has the field already, or becomes too long.
        """
        dot = find_dot(name)
        if dot < 0:
            return None
        key = name[:dot]
        field = name[dot + 1 :].lower()
        if key != self._key:
            self.close_sample(begin)
            self._key = key
            self.sample = {"__key__": key}
        if field in self.sample:
            raise FormatError(f"tar: duplicate field {field!r} in sample {key!r}")
        self.sample_bytes += size + BLOCK
        if self.sample_bytes > self.max_bytes:
            raise FormatError(
                f"tar: {name!r} of {size} bytes brings its sample over the most of {self.max_bytes} bytes"
            )
        return field

    def goes_on(self, header: bytes) -> bool:
        """Whether a member with this header is one more of the open sample."""
        return self._key is not None and header.startswith(f"{self._key}.".encode("utf-8", "surrogateescape"))

    def close_sample(self, end: int) -> None:
        """Complete the open sample, if there is one; a decoder started at ``end`` continues behind it."""
        if self._key is None:
            return
        self._samples.append(self.sample)
        self._ends.append(end)
        self._block_bytes += self.sample_bytes
        self._key = None
        self.sample_bytes = 0
        if self._block_bytes >= MAX_BLOCK_BYTES or len(self._samples) >= MAX_BLOCK_SAMPLES:
            self.full = True

    def take(self) -> Iterator[Block]:
        """The complete samples as a block, if there are any."""
        if self._samples:
            block = Rows(self._samples, OffsetTrail(self.first, self._ends))
            self.first += len(self._samples)
            self._samples = []
            self._ends = []
            self._block_bytes = 0
            self.full = False
            yield block


_REGULAR = frozenset((b"0", b"\0", b"7"))
_BODILESS = frozenset((b"1", b"2", b"3", b"4", b"5", b"6"))  # their size, if any, counts no bytes
_EXTENSIONS = frozenset((b"L", b"K", b"x", b"X", b"g"))  # X: Solaris' name for x


def read_members(samples: SampleGroups, offset: int) -> Generator[int, bytes, None]:
    """Parse a tar from ``offset`` (a member's first header) on, and group its members in ``samples``.

    Raises:
        FormatError: Without offset and sample, which ``samples`` has.
    """
    extensions: dict[bytes, dict[bytes, bytes]] = {}  # what those in front of a member state, by their kind
    while True:
        samples.header_offset = offset
        samples.at_member = not extensions
        block = yield BLOCK
        if samples.at_member:  # the decoder may have passed other members meanwhile
            begin = offset = samples.header_offset
        samples.at_member = False
        if block == ZERO_BLOCK:
            break
        offset += BLOCK
        name, size, kind = parse_header(block)
        if kind in _EXTENSIONS:
            yield from _read_extension(kind, size, extensions)
            offset += size + (-size & 511)
            continue
        if extensions:
            name, size, kind = _extended(name, size, kind, extensions)
        if kind in _REGULAR and (field := samples.open_field(name, begin, size)) is not None:
            samples.sample[field] = (yield size) if size else b""
        else:
            size = _body_size(name, size, kind)
            yield -size
        offset += size + (-size & 511)
        extensions = {}
    if extensions:
        raise FormatError("tar: an extension header without a member after it")
    yield from _read_end(samples, offset)


def _read_extension(
    kind: bytes, size: int, extensions: dict[bytes, dict[bytes, bytes]]
) -> Generator[int, bytes, None]:
    if size > MAX_EXTENSION_BYTES:
        raise FormatError(
            f"tar: a {kind.decode()!r} header of {size} bytes; at most {MAX_EXTENSION_BYTES} are read"
        )
    body = yield size
    kind = kind.replace(b"X", b"x")  # Solaris's name of it
    if kind in extensions:  # tar programs differ in which one they use
        raise FormatError(f"tar: two {kind.decode()!r} headers in front of one member")
    if kind == b"L":
        extensions[kind] = {b"path": body.partition(b"\0")[0]}
    elif kind == b"K":  # where a link leads
        extensions[kind] = {}
    elif kind != b"g":
        # An empty value stands for none (POSIX).
        extensions[kind] = {key: value for key, value in parse_pax_records(body).items() if value}
    else:
        for key in parse_pax_records(body):
            if key in (b"path", b"size") or key.startswith(b"GNU.sparse."):  # would hold for all that follow
                raise FormatError(f"tar: {key[:40]!r} of one member in a global header")


def _extended(
    name: str, size: int, kind: bytes, extensions: dict[bytes, dict[bytes, bytes]]
) -> tuple[str, int, bytes]:
    """The name, size and typeflag of a member with extension headers in front of it."""
    if sum(b"path" in records for records in extensions.values()) > 1:  # tar programs differ here too
        raise FormatError("tar: a member named by both a GNU and a PAX header")
    for records in extensions.values():
        if b"path" in records:
            name = checked_name(records[b"path"])
        if b"size" in records:
            size = parse_decimal(records[b"size"], "PAX size")
        if any(key.startswith(b"GNU.sparse.") for key in records):
            kind = b"S"  # as in GNU's older headers
    return name, size, kind


def _body_size(name: str, size: int, kind: bytes) -> int:
    """The bytes behind the header of a member that is no field of a sample."""
    if kind == b"M":
        raise FormatError(f"tar: {name!r} continues another volume; multi-volume tars are not supported")
    if kind == b"S":
        raise FormatError(
            f"tar: {name!r} is stored as a sparse file, which is not supported: pack it with GNU tar without "
            "--sparse, or with bsdtar --no-read-sparse"
        )
    # V7 tar had no type for directories, only the slash.
    return 0 if kind in _BODILESS or (kind == b"\0" and name.endswith("/")) else size


def _read_end(samples: SampleGroups, offset: int) -> Generator[int, bytes, None]:
    """After the first zero block: a second one, then nothing but zeros (writers fill a record)."""
    samples.close_sample(offset)
    samples.ended = True
    found = "a header after a lone zero block"
    while True:
        offset += BLOCK
        samples.header_offset = offset
        if (yield BLOCK) != ZERO_BLOCK:
            raise FormatError(f"tar: trailing garbage: expected zeros up to the end, found {found}")
        found = "other bytes after the end marker"


# Keys, each with a NUL behind it, in whose names the first dot of a member's name is that behind the key.
_KEYS = re.compile(r"(?:[^.\0]*[^./\0]\0)+")


def _alike(names: list[str]) -> tuple[list[str], list[str]]:
    """The keys of the samples that members belong to, and the fields of each of them; none if those differ.

    The last sample is left out, since more of its members may follow.
    """
    stem = names[0].partition(".")[0]
    ends = [name[len(stem) :] for name in takewhile(lambda name: name.startswith(f"{stem}."), names)]
    fields = [end[1:].lower() for end in ends]
    # Neither without a name, nor two with the same one.
    if not ends or "/" in "".join(fields) or len({"", "__key__", *fields}) < len(fields) + 2:
        return [], []
    keys = [name.removesuffix(ends[0]) for name in names[:: len(ends)]]
    alike = (
        names == [key + end for key in keys for end in ends][: len(names)]
        and all(map(ne, keys, keys[1:]))
        and _KEYS.fullmatch("\0".join([*keys, ""])) is not None
    )
    return (keys[:-1], fields) if alike else ([], [])


# With fewer members than this in the rest of a chunk, parsing them one by one is faster.
_MANY = 48


class TarDecoder(Decoder):
    """Decode a tar shard into samples ``{"__key__": key, field: bytes, ...}``.

    The key is the directory and the base name up to its first dot; the field is what follows, in lower
    case: ``a/b.seg.PNG`` is field ``seg.png`` of sample ``a/b``. Names without a field, names that start
    with a dot, and everything but regular files are skipped: directories, devices, links (a hard link
    holds no bytes of its own; write such shards with ``tar --hard-dereference``). V7, ustar, GNU and PAX
    headers are supported. Sparse members raise: GNU tar writes them with ``--sparse``, bsdtar unless
    ``--no-read-sparse`` is given.

    The end of a tar is two zero blocks. One zero block at the end of the input is accepted, as by GNU
    tar, because it proves that the writer had finished; none is a truncated shard.

    Args:
        start_sample: Index in the shard of the first sample to come.
        start_byte: Offset of the first byte that will be fed, taken from a trail together with
            ``start_sample``; offsets in trails and errors stay those of the whole shard.
    """

    #: Of a sample with its headers. No batch fits a larger one; a header that claims more is refused before
    #: it fills the memory.
    most_sample_bytes: ClassVar[int] = 4 << 30

    def __init__(self, *, start_sample: int = 0, start_byte: int = 0) -> None:
        self._samples = SampleGroups(start_sample, self.most_sample_bytes)
        self._parser = read_members(self._samples, start_byte)
        self._need = next(self._parser)
        self._skip = 0  # bytes to drop before the needed ones
        self._held = io.BytesIO()  # the needed bytes that are there
        self._fed = start_byte
        self._many = True  # whether the last chunk had many samples

    def check_room(self, compressed_bytes: int) -> None:
        # The sample's size counts all that the header of the open member claims.
        held = self._samples.sample_bytes - max(self._need - self._held.tell(), 0)
        if held <= (most := most_unpacked(compressed_bytes)):
            return
        error = FormatError(
            f"tar: {compressed_bytes} bytes of the compressed shard have become a sample of more than {most} "
            "bytes: it is damaged, or made to use up memory; if it is meant, write it without compression"
        )
        self._locate(error)
        raise error

    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]:
        samples = self._samples
        send = self._parser.send
        size = len(chunk)
        self._fed += size
        many, before = self._many, samples.index
        try:
            at = self._complete_pending(chunk)
            need = self._need
            while (end := at + need) <= size:
                if many and samples.at_member and not samples.goes_on(bytes(chunk[at:end])):
                    begin, at = at, (yield from self._read_members(chunk, at))
                    many = at > begin
                elif need >= 0:
                    piece = bytes(chunk[at:end])
                    at = end + (-need & 511)
                    need = send(piece)
                else:
                    at += -need + (need & 511)
                    need = send(b"")
                if samples.full:
                    yield from samples.take()
            self._need = need
        except FormatError as error:
            yield from samples.take()
            self._locate(error)
            raise
        self._many = samples.index >= before + _MANY
        self._skip = max(at - size, 0)
        if at < size:
            # Grows with what comes, not to the length that a header claims.
            self._held.write(memoryview(chunk)[at:])
        yield from samples.take()

    def _read_members(self, chunk: bytes | memoryview, at: int) -> Generator[Block, None, int]:
        """Read many small samples at once; where to go on in ``chunk``, which is ``at`` if there are few."""
        samples = self._samples
        names, begins, sizes = parse_headers(chunk, at)
        keys, fields = _alike(names) if len(names) >= _MANY else ([], [])
        width = len(fields)
        if not keys or width * (max(sizes) + BLOCK) > samples.max_bytes:
            return at
        offset = samples.header_offset - at - BLOCK
        samples.close_sample(samples.header_offset)
        yield from samples.take()
        stop = len(keys) * width
        bodies = [bytes(chunk[at : at + size]) for at, size in zip(begins[:stop], sizes, strict=False)]
        rows = zip(keys, *(bodies[nth::width] for nth in range(width)), strict=True)
        trail = OffsetTrail(samples.first, [offset + begin for begin in begins[width : stop + 1 : width]])
        samples.first += len(keys)
        yield Rows([dict(zip(("__key__", *fields), row, strict=True)) for row in rows], trail)
        samples.header_offset = offset + begins[stop]
        return begins[stop] - BLOCK

    def _complete_pending(self, chunk: bytes | memoryview) -> int:
        """Drop what is to be skipped, finish the piece begun before; where to go on in ``chunk``."""
        if self._skip >= len(chunk):
            return self._skip
        at = self._skip
        there = self._held.tell()
        if not there:
            return at
        end = at + self._need - there
        if end > len(chunk):
            return at
        self._held.write(memoryview(chunk)[at:end])
        # getvalue() does not copy: it returns the buffer, since nothing else uses it.
        whole, self._held = self._held.getvalue(), io.BytesIO()
        at = end + (-self._need & 511)
        self._need = self._parser.send(whole)
        return at

    def finish(self) -> Iterator[Block]:
        samples = self._samples
        yield from samples.take()
        rest = self._held.getvalue() if self._need == BLOCK else b""
        if samples.ended and not rest.strip(b"\0"):
            return
        if samples.ended:
            error = FormatError("tar: trailing garbage: expected zeros up to the end, found other bytes")
        elif self._fed == 0:
            error = FormatError("tar: truncated: the shard is empty")
        else:
            place = "within a member" if self._held.tell() or self._skip else "before its end marker"
            hint = describe_bytes(rest) if self._fed < BLOCK else ""
            error = FormatError(f"tar: truncated: the shard ends {place}{hint}")
            error.offset = self._fed
        self._locate(error)
        raise error

    def _locate(self, error: FormatError) -> None:
        if error.offset is None:
            error.offset = self._samples.header_offset
        if error.sample is None:
            error.sample = self._samples.index


def open_tar(spec: ShardSpec) -> Decoder:
    """The decoder of a shard, compressed or not."""
    return open_stream(spec, TarDecoder)
