"""The order of a tar's blocks, as a generator that asks for bytes: headers, extensions, bodies, end.

It yields ``n`` to be sent the next ``n`` bytes, or ``-n`` to have ``n`` bytes skipped (and is sent
``b""``); the padding up to the next block is dropped for it. Being a generator, it reads like a
parser over a file, and neither waits nor holds more than the one body it asked for.
"""

from __future__ import annotations

from collections.abc import Generator

from ..errors import FormatError
from ._tar_header import (
    BLOCK,
    MAX_EXTENSION_BYTES,
    ZERO_BLOCK,
    checked_name,
    parse_decimal,
    parse_header,
    parse_pax_records,
)
from ._tar_samples import SampleGroups
from ._tar_sparse import SparsePlan, expand_sparse, pax_sparse_plan, read_old_gnu_plan

__all__ = ["read_members"]

_REGULAR = frozenset((b"0", b"\0", b"7", b"S"))
_BODILESS = frozenset((b"1", b"2", b"3", b"4", b"5", b"6"))  # their size, if any, counts no bytes
_EXTENSIONS = frozenset((b"L", b"K", b"x", b"X", b"g"))  # X: Solaris' name for x
_SPARSE_PAIR = (b"GNU.sparse.offset", b"GNU.sparse.numbytes")


class _Extension:
    """What the headers in front of a member said about it."""

    __slots__ = ("kinds", "long_name", "pairs", "records")

    def __init__(self, shared: dict[bytes, bytes]) -> None:
        self.kinds: set[bytes] = set()
        self.long_name: str | None = None
        self.records = dict(shared)
        self.pairs: list[tuple[bytes, bytes]] = []

    def add(self, kind: bytes, body: bytes) -> None:
        if kind in self.kinds:  # tar programs differ on which one counts
            raise FormatError(f"tar: two {kind.decode()!r} headers in front of one member")
        self.kinds.add(kind)
        if kind == b"L":
            self.long_name = checked_name(body.partition(b"\0")[0])
        elif kind != b"K":
            for key, value in parse_pax_records(body):
                if key in _SPARSE_PAIR:
                    self.pairs.append((key, value))
                else:
                    self.records[key] = value

    def apply(self, name: str, size: int) -> tuple[str, int, SparsePlan | None]:
        # An empty value takes a global record back (POSIX).
        records = {key: value for key, value in self.records.items() if value}
        path = records.get(b"GNU.sparse.name", records.get(b"path"))
        if path is not None and self.long_name is not None:  # tar programs differ here too
            raise FormatError("tar: a member named by both a GNU and a PAX header")
        if path is not None:
            name = checked_name(path)
        elif self.long_name is not None:
            name = self.long_name
        if b"size" in records:
            size = parse_decimal(records[b"size"], "PAX size")
        return name, size, pax_sparse_plan(records, self.pairs)


def read_members(samples: SampleGroups, offset: int) -> Generator[int, bytes, None]:
    """Parse a tar from ``offset`` (a member's first header) on, and group its members in ``samples``.

    Raises:
        FormatError: Without places; ``samples`` knows them.
    """
    shared: dict[bytes, bytes] = {}
    begin = offset
    extension: _Extension | None = None
    while True:
        samples.header_offset = offset
        block = yield BLOCK
        if block == ZERO_BLOCK:
            break
        offset += BLOCK
        name, size, kind = parse_header(block)
        if kind in _EXTENSIONS:
            extension = yield from _read_extension(kind, size, extension, shared, samples)
            offset += size + (-size & 511)
            continue
        plan = None
        if extension is not None or shared:
            name, size, plan = (extension or _Extension(shared)).apply(name, size)
        if kind == b"S":
            plan, map_bytes = yield from read_old_gnu_plan(block)
            offset += map_bytes
        if kind in _REGULAR and (field := samples.open_field(name, begin, size, plan)) is not None:
            body = (yield size) if size else b""
            samples.put(field, body if plan is None else expand_sparse(plan, body))
        else:
            size = _body_size(name, size, kind)
            yield -size
        offset += size + (-size & 511)
        begin = offset
        extension = None
    if extension is not None:
        raise FormatError("tar: an extension header without a member after it")
    yield from _read_end(samples, offset)


def _read_extension(
    kind: bytes, size: int, extension: _Extension | None, shared: dict[bytes, bytes], samples: SampleGroups
) -> Generator[int, bytes, _Extension | None]:
    if size > MAX_EXTENSION_BYTES:
        raise FormatError(
            f"tar: a {kind.decode()!r} header of {size} bytes; at most {MAX_EXTENSION_BYTES} are read"
        )
    body = yield size
    if kind != b"g":
        extension = extension or _Extension(shared)
        extension.add(kind, body)
        return extension
    for key, value in parse_pax_records(body):
        if key.startswith(b"GNU.sparse."):  # would lay one file's map over all that follow
            raise FormatError("tar: a sparse map in a global header")
        if key in (b"path", b"size"):
            shared[key] = value
            # Who restarts behind this header would not know of it.
            samples.restartable = False
    return extension


def _body_size(name: str, size: int, kind: bytes) -> int:
    """The bytes that follow a member which is no sample's field."""
    if kind == b"M":
        raise FormatError(f"tar: {name!r} goes on from another volume; multi-volume tars are not read")
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
