"""The parts of a tar: headers, PAX records, and the index that may lie beside a tar.

Sources: POSIX.1-2017 ``pax`` (ustar and pax interchange format); GNU tar manual, "Basic Tar Format";
``wds2idx`` of NVIDIA DALI. No number is trusted: one that is out of range raises a
FormatError.
"""

from __future__ import annotations

import re
import struct
from zlib import adler32

import numpy as np
from numpy.typing import NDArray

from ..errors import FormatError
from ..types import Span
from .decoder import MAX_BLOCK_BYTES, describe_bytes

BLOCK = 512
ZERO_BLOCK = bytes(BLOCK)

# Extension bodies are held whole before they are checked. Real ones have some hundred bytes; 1 MiB leaves
# room for stored xattrs.
MAX_EXTENSION_BYTES = 1 << 20
# PATH_MAX is 4096 on Linux, 32767 on Windows. Names are kept as keys.
MAX_NAME_BYTES = 1 << 16
_MAX_NUMBER = (1 << 63) - 1  # what off_t holds

# name, size, checksum, typeflag, magic with version, prefix
_FIELDS = struct.Struct("100s24x12s12x8sc100x8s80x155s12x")
_DECIMAL = re.compile(rb"[0-9]{1,19}")


def parse_header(block: bytes) -> tuple[str, int, bytes]:
    """The name, size and typeflag of a header block that is not all zero.

    Args:
        block: 512 bytes.

    Returns:
        ``(name, size, typeflag)``. Undecodable bytes of the name become surrogate escapes, as in
        :func:`os.fsdecode`, so that different names stay different.

    Raises:
        FormatError: The checksum is wrong, or the size is no number from 0 to 2**63-1.
    """
    name, size_field, sum_field, kind, magic, prefix = _FIELDS.unpack(block)
    # adler32's low half is 1 + the sum of the bytes mod 65521; the standard library has no other C loop that
    # sums bytes. Its own field counts as eight spaces.
    total = (adler32(block) & 0xFFFF) + 256 - (adler32(sum_field) & 0xFFFF)
    if sum_field != b"%06o\0 " % total:  # the usual form, of a usual sum
        _check_sum(block, sum_field)
    size = parse_number(size_field, "size")
    name = name.partition(b"\0")[0]
    # Old GNU headers ("ustar  ") have times in place of the prefix of POSIX.
    if prefix[0] and magic.startswith(b"ustar\0"):
        name = prefix.partition(b"\0")[0] + b"/" + name
    return str(name, "utf-8", "surrogateescape"), size, kind


# The fields of a header as NumPy reads them from many headers; bytes of the numbers one by one.
_HEADER = np.dtype(
    {
        "names": ["name", "size", "size_end", "sum", "sum_end", "kind", "start", "magic", "prefix"],
        "formats": ["S100", "(11,)u1", "u1", "(6,)u1", "S2", "S1", "<u4", "S6", "u1"],
        "offsets": [0, 124, 135, 148, 154, 156, 257, 257, 345],
        "itemsize": BLOCK,
    }
)
_START = int.from_bytes(b"usta", "little")
_PLACES = 8 ** np.arange(11)[::-1]
# The arrays of so many headers stay in the cache, and malloc does not map them anew each time.
_MOST_HEADERS = 255


def parse_headers(content: bytes | memoryview, at: int) -> tuple[list[str], list[int], list[int]]:
    """The members from ``at`` on whose headers are of the usual form, up to the first that is not.

    The usual form is that of a regular file in a ustar or GNU header, with octal numbers, a right checksum
    and a name without a prefix. NumPy parses all of them at once, in a fraction of the time of
    ``parse_header``, which has to parse the header after them, and to refuse it if it is wrong.

    Args:
        content: Bytes of the tar.
        at: Where the first header is.

    Returns:
        For each member that is in ``content`` with all of its blocks: its name, where its body begins in
        ``content``, and the length of its body. Each begins where the one before it ends.
    """
    count = min(len(content) - at, MAX_BLOCK_BYTES) // BLOCK
    # A body may have blocks that look like headers. Those are dropped by the sizes of the members.
    starts = np.frombuffer(content, _HEADER, count, at)["start"]
    found = np.flatnonzero(starts == _START)[:_MOST_HEADERS]
    headers = np.frombuffer(content, f"V{BLOCK}", count, at)[found]
    fields = headers.view(_HEADER)
    # The sum of half a header fits 16 bits. Its own field counts as eight blanks, and has one.
    halves = headers.view(np.uint8).reshape(-1, 2, BLOCK // 2).sum(2, np.uint16)
    sums, are_sums = _octal(fields["sum"])
    sizes, are_sizes = _octal(fields["size"])
    ends = found + 1 + (sizes + BLOCK - 1) // BLOCK
    usual = (
        (halves.sum(1) + 7 * ord(" ") - fields["sum"].sum(1) == sums)
        & are_sums
        & (fields["sum_end"] == b"\0 ")
        & are_sizes
        & (fields["size_end"] == 0)
        & (fields["kind"] == b"0")
        # Old GNU headers have times in place of the prefix.
        & ((fields["magic"] == b"ustar ") | (fields["magic"] == b"ustar") & (fields["prefix"] == 0))
        & (ends <= count)
        & (found == np.concatenate(([0], ends[:-1])))
    )
    length = len(usual) if usual.all() else int(usual.argmin())
    names = b"\0".join(fields["name"][:length].tolist()).decode("utf-8", "surrogateescape").split("\0")
    if len(names) != length:  # none, or one has other bytes behind its end
        return [], [], []
    return names, (at + BLOCK + BLOCK * found[:length]).tolist(), sizes[:length].tolist()


def _octal(digits: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Numbers ``(n,)`` of octal digits ``(n, digits)``, and whether they are such digits."""
    values = digits - np.uint8(ord("0"))  # below 0 it wraps
    return values @ _PLACES[-digits.shape[1] :], values.max(1, initial=0) < 8


def _check_sum(block: bytes, sum_field: bytes) -> None:
    try:
        stored = parse_number(sum_field, "checksum")
    except FormatError:
        raise FormatError(
            f"expected a tar header, its checksum field reads {sum_field!r}{describe_bytes(block)}"
        ) from None
    total = sum(block) - sum(sum_field) + 256
    if stored == total:
        return
    # Some historic tars summed signed chars. GNU tar accepts both sums, too.
    high = sum(byte > 127 for byte in block[:148] + block[156:])
    if stored != total - 256 * high:
        raise FormatError(
            f"tar header checksum: expected {stored}, computed {total}; the shard is corrupt here"
            f"{describe_bytes(block)}"
        )


def parse_number(field: bytes, what: str) -> int:
    """A numeric header field: octal digits, or GNU's base-256 if the first bit is set.

    Raises:
        FormatError: It is not octal, negative, or above 2**63-1.
    """
    if field[0] & 0x80:
        value = int.from_bytes(bytes((field[0] & 0x7F,)) + field[1:], "big")
        if field[0] & 0x40:
            raise FormatError(f"tar header: expected a {what} of 0 or more, found {field!r}")
    else:
        digits = field.partition(b"\0")[0].strip(b" ")
        if digits.strip(b"01234567"):
            raise FormatError(f"tar header: expected an octal {what}, found {field!r}")
        value = int(digits or b"0", 8)
    if value > _MAX_NUMBER:
        raise FormatError(f"tar header: {what} {value} is larger than any file")
    return value


def parse_decimal(field: bytes, what: str) -> int:
    """A decimal number of a PAX record; only digits, at most 2**63-1."""
    # int() alone accepts signs, underscores and blanks, and takes quadratic time for long input.
    if not _DECIMAL.fullmatch(field) or (value := int(field)) > _MAX_NUMBER:
        raise FormatError(f"tar {what}: expected a decimal number, found {field[:40]!r}")
    return value


def find_dot(name: str) -> int:
    """Where a member's name has the dot between the key of its sample and its field; -1 if it is no field."""
    start = name.rfind("/") + 1
    dot = name.find(".", start)
    return -1 if dot <= start or dot == len(name) - 1 else dot


def checked_name(raw: bytes) -> str:
    """A member's name from an extension header, if it is not too long."""
    if len(raw) > MAX_NAME_BYTES:
        raise FormatError(f"tar: a name of {len(raw)} bytes; at most {MAX_NAME_BYTES} are read")
    if b"\0" in raw or not raw:
        raise FormatError(f"tar: expected a name, found {raw[:40]!r}")
    return str(raw, "utf-8", "surrogateescape")


def parse_pax_records(body: bytes) -> dict[bytes, bytes]:
    """The records ``"%d %s=%s\\n"`` of a PAX header; of one key the last.

    Raises:
        FormatError: A record's length is no number, too short for the record itself, or beyond the
            end. A length of 0 or less once made CPython's tarfile loop forever (CVE-2025-8194).
    """
    records = {}
    at = 0
    while at < len(body):
        if body[at] == 0 and not body[at:].strip(b"\0"):
            break  # some writers include the padding in the size
        space = body.find(b" ", at, at + 20)
        if space < 0:
            raise FormatError(f"tar PAX record: expected a length, found {body[at : at + 40]!r}")
        end = at + parse_decimal(body[at:space], "PAX record length")
        # The end is behind the blank, so every turn of the loop moves forward.
        if not space < end - 1 < len(body) or body[end - 1] != 0x0A:
            raise FormatError(f"tar PAX record: wrong length in {body[at : at + 40]!r}")
        key, equals, value = body[space + 1 : end - 1].partition(b"=")
        if not equals or not key:
            raise FormatError(f"tar PAX record: expected key=value, found {body[at:end][:40]!r}")
        records[key] = value
        at = end
    return records


#: The index of a million samples with four members each.
MOST_IDX_BYTES = 256 << 20

# Behind the last member there are two blocks of zeros, and more to fill a record.
_END_BYTES = 2 * BLOCK
_MOST_END_BYTES = 1 << 20

# The words for each member, by version: extension, offset, size, and name.
_WORDS = {"v1.1": 3, "v1.2": 4}

_STALE = "the .idx beside it is of another shard, or older; make it again, or index without it"


def idx_beside(url: str) -> str:
    """Where the index of a tar is: ``train-000.idx`` beside ``train-000.tar``.

    Raises:
        ValueError: The name does not end with ``.tar``; a tar that is compressed as a whole has no offsets.
    """
    path, mark, query = url.partition("?") if "://" in url else (url, "", "")
    if not path.lower().endswith(".tar"):
        raise ValueError(
            f"an .idx is of a shard whose name ends with .tar, not of {path.rpartition('/')[2]!r}"
        )
    return f"{path[:-4]}.idx{mark}{query}"


def parse_idx(content: bytes, length: int) -> tuple[list[int], list[Span]]:
    """Read an index.

    Args:
        content: The content of the file.
        length: Length of the tar.

    Returns:
        Where each sample ends and a decoder may begin, rising; and where the bodies of some members are, to
        check whether the index is of this tar.

    Raises:
        FormatError: It is no index, has another version, is damaged, or belongs to a tar of another length.
    """
    if len(content) > MOST_IDX_BYTES:
        raise FormatError(f"idx: longer than {MOST_IDX_BYTES} bytes")
    try:
        first, *lines = content.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise FormatError(f"idx: no UTF-8: {error}") from error
    version, _, count = first.partition(" ")
    if version not in _WORDS or not _is_number(count):
        raise FormatError(
            f"idx: expected {' or '.join(_WORDS)} and the number of samples in the first line, found "
            f"{first[:80]!r}"
        )
    if len(lines) != int(count):
        raise FormatError(f"idx: the first line promises {count} samples, found {len(lines)}; truncated?")
    ends, members = [], []
    stop = 0
    for number, line in enumerate(lines):
        found = _members_of(line, _WORDS[version], number)
        for member in found:
            if member.start < stop + BLOCK or member.start % BLOCK:
                raise _fault(number, f"a member at byte {member.start}, where one ends at byte {stop}")
            stop = member.stop + -member.stop % BLOCK
        ends.append(stop)
        members.append(found[0])
    if not lines or not _END_BYTES <= length - stop <= _MOST_END_BYTES:
        raise FormatError(f"the last sample ends at byte {stop} of {length}: {_STALE}")
    return ends, [members[place] for place in {0, len(members) // 2, len(members) - 1}]


def check_member(member: Span, header: bytes) -> None:
    """Compare the place of a member's body with the block before it.

    Raises:
        FormatError: The block is not the header of that member.
    """
    try:
        _, size_bytes, _ = parse_header(header)
    except FormatError as error:
        raise FormatError(
            f"no member is before byte {member.start}: {_STALE}", offset=member.start
        ) from error
    if size_bytes != (wanted := member.stop - member.start):
        raise FormatError(
            f"expected {wanted} bytes at byte {member.start}, found {size_bytes}: {_STALE}",
            offset=member.start,
        )


def check_end(content: bytes, stop: int) -> None:
    """Check the bytes behind the last sample, from byte ``stop`` on.

    Raises:
        FormatError: There is something other than zeros.
    """
    if content.strip(b"\0"):
        raise FormatError(f"the shard continues behind byte {stop}: {_STALE}", offset=stop)


def _members_of(line: str, words: int, number: int) -> list[Span]:
    """Where the bodies of a sample's members are; at least one."""
    found = line.split(" ")
    if len(found) % words or not found[0]:
        raise _fault(number, f"{len(found)} words, which are no members of {words} each")
    members = []
    for at in range(0, len(found), words):
        offset, size = found[at + 1 : at + 3]
        if not (_is_number(offset) and _is_number(size)):
            raise _fault(number, f"no offset and size: {offset[:40]!r}, {size[:40]!r} (no blanks in names)")
        members.append(Span(int(offset), int(offset) + int(size)))
    return members


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


def _fault(number: int, what: str) -> FormatError:
    return FormatError(f"idx: line {number + 2}: {what}", sample=number)
