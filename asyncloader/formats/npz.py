"""``.npz``: a field for each array in a zip archive; the directory first, then the headers, then rows.

Only the wanted rows of stored members are read. Deflated members are expanded from their beginning, and the
rows before the wanted ones are dropped.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial

from ..errors import FormatError
from ..types import Answer, Layout, Planning, Span
from . import npy
from .decoder import HeldSpans, ShardSpec, bring, bring_end, describe_bytes
from .selection import choose_names

_MEMBER_MAGIC = b"PK\x03\x04"
_END_MAGIC = b"PK\x05\x06"

# The end of the archive: with a usual directory or the longest comment, and with ten thousand members.
_END_BYTES = (65 << 10, 1 << 20)
_RECORD_BYTES = 22

_LOCAL = struct.Struct("<4s2xHH16xHH")  # magic, flags, method, lengths of name and of what is behind it

_ENCRYPTED, _UTF_8 = 1, 1 << 11


def find_members(head: Answer, spec: ShardSpec) -> Generator[Span, Answer, list[zipfile.ZipInfo]]:
    """Read the directory of the archive.

    Args:
        head: The first bytes of the shard.
        spec: Keeps the directory, and may have it already.

    Raises:
        FormatError: This is no zip archive, it is truncated or damaged, or its members are encrypted or
            compressed with another method than deflate.
    """
    if not head.content.startswith((_MEMBER_MAGIC, _END_MAGIC)):
        if not head.content:
            raise FormatError("npz: truncated: the shard is empty", offset=0)
        hint = describe_bytes(head.content)
        raise FormatError(f"npz: expected a zip archive, found {head.content[:6]!r}{hint}", offset=0)
    found = yield from _read_directory(head, spec)
    for entry in found:
        _check_member(entry)
    if len({entry.filename for entry in found}) < len(found):
        raise FormatError("npz: two members have the same name")
    return found


def locate(entry: zipfile.ZipInfo, head: bytes, length: int) -> Span:
    """Where the bytes of a member are, by its own header.

    Args:
        entry: The member in the directory.
        head: The bytes from ``entry.header_offset`` on, as many as its header and name take.
        length: Length of the shard.

    Raises:
        FormatError: The header belongs to another member, or the bytes are not in the shard.
    """
    what, name = _what(entry), _raw_name(entry)
    name_end = _LOCAL.size + len(name)
    if len(head) < name_end:
        raise FormatError(f"{what}: truncated within its header", offset=entry.header_offset + len(head))
    magic, _, method, name_bytes, more_bytes = _LOCAL.unpack_from(head)
    if (
        magic != _MEMBER_MAGIC
        or (method == zipfile.ZIP_DEFLATED) != _is_deflated(entry)
        or name_bytes != len(name)
        or head[_LOCAL.size : name_end] != name
    ):
        raise FormatError(
            f"{what}: damaged: its header is not where the directory of the archive places it",
            offset=entry.header_offset,
        )
    begin = entry.header_offset + name_end + more_bytes
    if begin + entry.compress_size > length:
        raise FormatError(
            f"{what}: damaged: its header places it at bytes {begin} to {begin + entry.compress_size}, but "
            f"the shard has {length}"
        )
    return Span(begin, begin + entry.compress_size)


def _read_directory(head: Answer, spec: ShardSpec) -> Generator[Span, Answer, list[zipfile.ZipInfo]]:
    length = head.length
    kept = spec.kept(head)
    end = kept or (head.content if length == len(head.content) else b"")
    for size in _END_BYTES if kept is None else [len(kept)]:
        end = yield from bring_end(end, length, size)
        file = HeldSpans([Span(length - len(end), length)], length)
        file.feed(end)
        try:
            with zipfile.ZipFile(file) as archive:
                # If something is behind the record at the end, zipfile searches 64 KiB for it.
                is_last = end[-_RECORD_BYTES:].startswith(_END_MAGIC) and end.endswith(b"\0\0")
                spec.keep(head, end[archive.start_dir - length :] if is_last else end)
                return archive.infolist()
        # The module does not document what it raises for damaged bytes.
        except (
            zipfile.BadZipFile,
            ValueError,
            OSError,
            struct.error,
            NotImplementedError,
            RuntimeError,
        ) as error:
            fault = error
    raise FormatError(
        f"npz: truncated or damaged: the directory of the archive cannot be read from the last {len(end)} "
        f"bytes: {fault}",
        offset=length,
    ) from fault


def _check_member(entry: zipfile.ZipInfo) -> None:
    what = _what(entry)
    if entry.header_offset < 0:
        raise FormatError(f"{what}: damaged: the directory places it at byte {entry.header_offset}")
    if entry.flag_bits & _ENCRYPTED:
        raise FormatError(f"{what} is encrypted; encrypted members are not supported")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise FormatError(
            f"{what} is compressed by method {entry.compress_type}; only stored members (numpy.savez) and "
            "deflated ones (numpy.savez_compressed) are supported"
        )
    if not _is_deflated(entry) and entry.compress_size != entry.file_size:
        raise FormatError(f"{what}: damaged: stored, but {entry.file_size} bytes in {entry.compress_size}")


def _is_deflated(entry: zipfile.ZipInfo) -> bool:
    return entry.compress_type == zipfile.ZIP_DEFLATED


def _raw_name(entry: zipfile.ZipInfo) -> bytes:
    """The name as the archive has it."""
    return entry.orig_filename.encode("utf-8" if entry.flag_bits & _UTF_8 else "cp437")


_SUFFIX = ".npy"

# All of a small shard.
_HEAD_BYTES = 64 << 10

# How many bytes of an array come before those of the others: enough for a request.
_TURN_BYTES = 4 << 20

# What the header of an array takes at most, deflated or not.
_ARRAY_HEADER_BYTES = 10 << 10

# What is read of each member behind its name: lengths of 64 bits, times, and the header of the array.
_START_BYTES = 12 << 10

# Samples have some tens of fields. For each deflated array a piece of 1 MiB may be held.
_MOST_ARRAYS = 1024


@dataclass(frozen=True, slots=True)
class _ArrayMember:
    """A member whose header was read.

    Attributes:
        field: The name of its field.
        entry: Its entry in the directory.
        header: The header of the array.
        head: The bytes of that header.
        body: Where its bytes are in the shard, from the header on.
    """

    field: str
    entry: zipfile.ZipInfo
    header: npy.ArrayHeader
    head: bytes
    body: Span

    @property
    def what(self) -> str:
        return _what(self.entry)


def plan_npz(spec: ShardSpec) -> Planning:
    """Plan what to read of an archive of arrays.

    Raises:
        FormatError: It is no archive of arrays, truncated, of an unsupported kind, or lacks a wanted array;
            or the wanted arrays differ in their numbers of rows, or are too many or too large.
    """
    head = yield Span(0, _HEAD_BYTES)
    entries = yield from find_members(head, spec)
    by_field = {entry.filename.removesuffix(_SUFFIX): entry for entry in entries}
    fields = choose_names(spec.selection.columns, tuple(by_field))
    if len(fields) > _MOST_ARRAYS:
        raise FormatError(
            f"npz: {len(fields)} arrays would be read; at most {_MOST_ARRAYS} are allowed: choose some with "
            "columns="
        )
    members = []
    for field in fields:
        members.append((yield from _open(field, by_field[field], head)))
    rows = _check_rows(members)
    wanted = npy.wanted_rows(rows, spec)
    arrays, pieces = [], []
    for number, member in enumerate(members):
        come = npy.rows_to_read(member.header, wanted)
        stored = come
        if wanted and _is_deflated(member.entry):
            come, stored = range(come.start, member.header.rows), range(member.header.rows)
        content, parts = partial(_open_content, member, come), ((member.field, None),)
        arrays.append(npy.ArrayRows(member.what, member.header, parts, wanted, come, content))
        if wanted:
            pieces += _pieces(number, member, stored, wanted, alone=len(members) == 1)
    npy.check_held("npz", arrays)
    pieces.sort(key=lambda piece: piece[:2])
    turns = [(number, span.stop - span.start) for _, number, span in pieces]
    requested = tuple(span for _, _, span in pieces)
    return Layout(requested, partial(npy.RowsDecoder, arrays, turns, wanted), samples=rows)


def _open(field: str, entry: zipfile.ZipInfo, head: Answer) -> Generator[Span, Answer, _ArrayMember]:
    """Read the headers of a member: that of the archive, and that of the array."""
    what = _what(entry)
    if not entry.filename.endswith(_SUFFIX):
        raise FormatError(
            f"{what} is no array: its name should end with {_SUFFIX}, as numpy.savez names them; choose "
            "others with columns="
        )
    begin = entry.header_offset
    stop = begin + _LOCAL.size + len(_raw_name(entry)) + _START_BYTES
    start = yield from bring(head, Span(begin, min(stop, head.length)))
    body = locate(entry, start, head.length)
    most = Span(body.start, min(body.start + _ARRAY_HEADER_BYTES, body.stop))
    if begin + len(start) < most.stop:  # some kilobytes are behind the name
        begin, start = body.start, (yield from bring(head, most))
    plain = start[body.start - begin :][: entry.compress_size]
    if _is_deflated(entry):
        try:
            plain = zlib.decompressobj(-zlib.MAX_WBITS).decompress(plain, _START_BYTES)
        except zlib.error as error:
            raise FormatError(f"{what}: corrupt deflated bytes: {error}") from error
    header = npy.parse_rows_header(plain, what)
    if header.size_bytes + header.body_bytes != entry.file_size:
        raise FormatError(
            f"{what}: damaged: shape {header.shape} of {header.dtype} takes "
            f"{header.size_bytes + header.body_bytes} bytes with its header, and the member has "
            f"{entry.file_size}",
            offset=body.start,
        )
    if header.dtype.names is not None:
        raise FormatError(
            f"{what} is a structure, but each array of a .npz is a field; save its fields as arrays"
        )
    return _ArrayMember(field, entry, header, plain[: header.size_bytes], body)


def _check_rows(members: Sequence[_ArrayMember]) -> int:
    """How many rows all arrays have; a row of all of them must fit into memory."""
    row_bytes = sum(member.header.row_bytes for member in members)
    rows = {member.header.rows for member in members}
    if len(rows) > 1:
        found = ", ".join(f"{member.field!r} {member.header.rows}" for member in members[:10])
        raise FormatError(
            f"npz: expected as many rows in each array, along its first axis, found {found}; choose those "
            "that belong together with columns="
        )
    count = rows.pop()
    if count and row_bytes > npy.MOST_ROW_BYTES:
        raise FormatError(
            f"npz: a row of all arrays has {row_bytes} bytes; at most {npy.MOST_ROW_BYTES} are allowed: "
            "choose some with columns="
        )
    return count


def _open_content(member: _ArrayMember, come: range) -> npy.Stored:
    """The object that takes the bytes of a member; it verifies the checksum if all of them come."""
    header, entry = member.header, member.entry
    if _is_deflated(entry) and come:
        skip = header.size_bytes + come.start * header.row_bytes
        return npy.Deflated(entry.compress_size, entry.file_size, skip, entry.CRC)
    if len(come) < header.rows or _is_deflated(entry):
        return npy.Stored()
    return npy.Stored(entry.CRC, zlib.crc32(member.head))


def _pieces(
    number: int, member: _ArrayMember, stored: range, wanted: range, *, alone: bool
) -> list[tuple[int, int, Span]]:
    """Where the stored rows are, cut so that arrays come in turns: each with the row that it is read for."""
    start, stop = member.body
    if not _is_deflated(member.entry):
        start, stop = npy.span_of(member.header, Span(start + member.header.size_bytes, stop), stored)
    cuts = 1 if alone else -(-(stop - start) // _TURN_BYTES)
    bounds = [start + (stop - start) * cut // cuts for cut in range(cuts + 1)]
    rows = [max(stored.start + len(stored) * cut // cuts, wanted.start) for cut in range(cuts)]
    return [
        (row, number, Span(begin, end)) for row, begin, end in zip(rows, bounds, bounds[1:], strict=False)
    ]


def _what(entry: zipfile.ZipInfo) -> str:
    return f"npz: member {entry.filename!r}"
