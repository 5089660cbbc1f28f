"""Zip archives, by their central directory: which members there are, and where each begins and ends."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeAlias

from ...errors import FormatError
from ...types import Answer, Span
from .._push import describe_bytes
from ..columnar.footers import Footers
from ..columnar.spans import HeldSpans

__all__ = ["LOCAL_BYTES", "ArchiveMember", "Asking", "find_members", "inflated", "locate"]

Asking: TypeAlias = Generator[Span, Answer, bytes]
"""A part of a plan that brings bytes."""

_MEMBER_MAGIC = b"PK\x03\x04"
_END_MAGIC = b"PK\x05\x06"

# Of the record at the very end, before its comment; and of those before it where lengths take 64 bits.
_END_BYTES = 22
_END_64_BYTES = 56 + 20
_MOST_COMMENT_BYTES = 1 << 16

# Ten thousand members: fields of samples are some tens.
_MOST_DIRECTORY_BYTES = 1 << 20
_UNTOLD = 0xFFFFFFFF

_LOCAL = struct.Struct("<4s2xHH16xHH")  # magic, flags, method, lengths of name and of what is behind it

#: Of a member's own header, before its name.
LOCAL_BYTES = _LOCAL.size

_ENCRYPTED, _UTF_8 = 1, 1 << 11


@dataclass(frozen=True, slots=True)
class ArchiveMember:
    """A member as the directory has it.

    Attributes:
        name: As it was given.
        local: Offset of its own header.
        stored_bytes: As many as it takes in the archive.
        size_bytes: As many as it holds.
        is_deflated: Whether these differ; else it is stored as it is.
        crc32: Of what it holds.
        raw_name: As it is written in the archive.
    """

    name: str
    local: int
    stored_bytes: int
    size_bytes: int
    is_deflated: bool
    crc32: int
    raw_name: bytes


def find_members(head: Answer, footers: Footers | None) -> Generator[Span, Answer, list[ArchiveMember]]:
    """Ask for the directory, and say what is in it.

    Args:
        head: The first bytes of the shard.
        footers: Keeps this one, and may have it already.

    Raises:
        FormatError: It is no zip archive, truncated or damaged, or its members are encrypted or compressed by
            something else than deflate.
    """
    if not head.content.startswith((_MEMBER_MAGIC, _END_MAGIC)):
        if not head.content:
            raise FormatError("npz: truncated: the shard is empty", offset=0)
        hint = describe_bytes(head.content)
        raise FormatError(f"npz: expected a zip archive, found {head.content[:6]!r}{hint}", offset=0)
    end = yield from _read_end(head, footers)
    try:
        with zipfile.ZipFile(HeldSpans((), head.length, end)) as archive:
            found = archive.infolist()
    # What the module raises of damaged bytes is not told.
    except (
        zipfile.BadZipFile,
        ValueError,
        OSError,
        struct.error,
        NotImplementedError,
        RuntimeError,
    ) as error:
        raise FormatError(f"npz: the directory of the archive cannot be read: {error}") from error
    members = [_member_of(entry) for entry in found]
    if len({member.name for member in members}) < len(members):
        raise FormatError("npz: two members have one name")
    return members


def locate(member: ArchiveMember, head: bytes, length: int) -> Span:
    """Where the bytes of a member are, by its own header.

    Args:
        member: Which.
        head: The bytes from ``member.local`` on, as many as its header and name take.
        length: Of the shard.

    Raises:
        FormatError: The header is another one's, or the bytes are not in the shard.
    """
    what = f"npz: member {member.name!r}"
    name_end = _LOCAL.size + len(member.raw_name)
    if len(head) < name_end:
        raise FormatError(f"{what}: truncated within its header", offset=member.local + len(head))
    magic, _, method, name_bytes, more_bytes = _LOCAL.unpack_from(head)
    if (
        magic != _MEMBER_MAGIC
        or (method == zipfile.ZIP_DEFLATED) != member.is_deflated
        or name_bytes != len(member.raw_name)
        or head[_LOCAL.size : name_end] != member.raw_name
    ):
        raise FormatError(
            f"{what}: damaged: its header is not where the directory of the archive says", offset=member.local
        )
    begin = member.local + name_end + more_bytes
    if begin + member.stored_bytes > length:
        raise FormatError(
            f"{what}: damaged: it is said to be at bytes {begin} to {begin + member.stored_bytes} of {length}"
        )
    return Span(begin, begin + member.stored_bytes)


def inflated(start: bytes, most: int, what: str) -> bytes:
    """The first bytes, at most so many, of what begins with these deflated ones.

    Raises:
        FormatError: It is no deflated stream.
    """
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(start, most)
    except zlib.error as error:
        raise FormatError(f"{what}: corrupt deflated bytes: {error}") from error


def _read_end(head: Answer, footers: Footers | None) -> Asking:
    """The end of the shard, from the first byte of the directory on."""
    version, length = head.version, head.length
    if footers is not None and version is not None and (kept := footers.find(version, length)) is not None:
        return kept
    end = head.content if length == len(head.content) else b""
    end = yield from _bring_end(end, length, _END_BYTES + _END_64_BYTES + _MOST_COMMENT_BYTES)
    place = end.rfind(_END_MAGIC)
    if place < 0 or len(end) - place < _END_BYTES:
        raise FormatError(
            "npz: truncated or damaged: expected the end of the archive's directory in the last bytes of the "
            "shard, found none",
            offset=length,
        )
    directory_bytes = int.from_bytes(end[place + 12 : place + 16], "little")
    if directory_bytes == _UNTOLD:  # in the record of 64 bits before
        directory_bytes = _MOST_DIRECTORY_BYTES
    if directory_bytes > _MOST_DIRECTORY_BYTES:
        raise FormatError(
            f"npz: the directory of the archive claims {directory_bytes} bytes; at most "
            f"{_MOST_DIRECTORY_BYTES} are read",
            offset=length - len(end) + place,
        )
    size = len(end) - place + _END_64_BYTES + directory_bytes
    if len(end) - place > _END_BYTES:  # a comment, for whose beginning all of the end is looked through
        size = max(size, len(end))
    end = yield from _bring_end(end, length, size)
    if footers is not None and version is not None:
        footers.keep(version, length, end)
    return end


def _bring_end(end: bytes, length: int, size: int) -> Asking:
    """The last ``size`` bytes of a shard, of which the last ones may be there."""
    begin, there = max(length - size, 0), length - len(end)
    if begin < there:
        return (yield Span(begin, there)).content + end
    return end[begin - there :]


def _member_of(entry: zipfile.ZipInfo) -> ArchiveMember:
    what = f"npz: member {entry.filename!r}"
    if entry.header_offset < 0:
        raise FormatError(f"{what}: damaged: it is said to be at byte {entry.header_offset}")
    if entry.flag_bits & _ENCRYPTED:
        raise FormatError(f"{what} is encrypted; encrypted members are not read")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise FormatError(
            f"{what} is compressed by method {entry.compress_type}; numpy.savez stores members, and "
            "numpy.savez_compressed deflates them, and no others are read"
        )
    is_deflated = entry.compress_type == zipfile.ZIP_DEFLATED
    if not is_deflated and entry.compress_size != entry.file_size:
        raise FormatError(f"{what}: damaged: stored, and of {entry.file_size} bytes in {entry.compress_size}")
    raw_name = entry.orig_filename.encode("utf-8" if entry.flag_bits & _UTF_8 else "cp437")
    return ArchiveMember(
        entry.filename,
        entry.header_offset,
        entry.compress_size,
        entry.file_size,
        is_deflated,
        entry.CRC,
        raw_name,
    )
