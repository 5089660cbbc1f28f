"""One 512-byte tar header, and the records of a PAX header: bytes in, checked values out.

Sources: POSIX.1-2017 ``pax`` (ustar and pax interchange format), GNU tar manual "Basic Tar Format".
Nothing here trusts a number: whatever is out of its range raises FormatError.
"""

from __future__ import annotations

import re
import struct
from zlib import adler32

from ..errors import FormatError
from ._push import describe_bytes

__all__ = [
    "BLOCK",
    "MAX_EXTENSION_BYTES",
    "MAX_NAME_BYTES",
    "ZERO_BLOCK",
    "checked_name",
    "parse_decimal",
    "parse_header",
    "parse_number",
    "parse_pax_records",
]

BLOCK = 512
ZERO_BLOCK = bytes(BLOCK)

# Extension bodies are held whole before anything in them is known to be sane. Real ones are some
# hundred bytes; 1 MiB leaves room for stored xattrs and for fragmented sparse maps.
MAX_EXTENSION_BYTES = 1 << 20
# PATH_MAX is 4096 on Linux, 32767 on Windows: longer is no name, and names are kept as keys.
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
        FormatError: Wrong checksum, or a size that is no number of 0 to 2**63-1.
    """
    name, size_field, sum_field, kind, magic, prefix = _FIELDS.unpack(block)
    # adler32's low half is 1 + the sum of the bytes mod 65521: the one C loop over bytes that the
    # stdlib has. 256 x 255 + 1 < 65521, so the sum is exact of a header that is half of zeros, as they are.
    if block.count(0) >= BLOCK // 2:
        total = adler32(block) & 0xFFFF
    else:
        total = (adler32(block[: BLOCK // 2]) & 0xFFFF) + (adler32(block[BLOCK // 2 :]) & 0xFFFF) - 1
    total += 256 - (adler32(sum_field) & 0xFFFF)  # its own field counts as eight spaces
    if sum_field != b"%06o\0 " % total:  # the way nearly everybody writes it
        _check_sum(block, sum_field, total)
    digits = size_field[:11]
    if digits.isdigit() and size_field[11] == 0 and not (b"8" in digits or b"9" in digits):
        size = int(digits, 8)
    else:
        size = parse_number(size_field, "size")
    name = name.partition(b"\0")[0]
    # Old GNU headers ("ustar  ") keep times where POSIX has the prefix.
    if prefix[0] and magic.startswith(b"ustar\0"):
        name = prefix.partition(b"\0")[0] + b"/" + name
    return str(name, "utf-8", "surrogateescape"), size, kind


def _check_sum(block: bytes, sum_field: bytes, total: int) -> None:
    try:
        stored = parse_number(sum_field, "checksum")
    except FormatError:
        raise FormatError(
            f"expected a tar header, its checksum field reads {sum_field!r}{describe_bytes(block)}"
        ) from None
    if stored == total:
        return
    # Some historic tars summed signed chars; both sums are accepted, as by GNU tar.
    high = sum(byte > 127 for byte in block[:148] + block[156:])
    if stored != total - 256 * high:
        raise FormatError(
            f"tar header checksum: expected {stored}, computed {total}; the shard is corrupt here"
            f"{describe_bytes(block)}"
        )


def parse_number(field: bytes, what: str) -> int:
    """A numeric header field: octal digits, or GNU's base-256 if the first bit is set.

    Raises:
        FormatError: Not octal, negative, or above 2**63-1.
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
    """A decimal number of a PAX record or a sparse map; only digits, at most 2**63-1."""
    # Not int() alone: it takes signs, underscores and blanks, and is quadratic in long input.
    if not _DECIMAL.fullmatch(field) or (value := int(field)) > _MAX_NUMBER:
        raise FormatError(f"tar {what}: expected a decimal number, found {field[:40]!r}")
    return value


def checked_name(raw: bytes) -> str:
    """A member's name from an extension header, which may be long but not endless."""
    if len(raw) > MAX_NAME_BYTES:
        raise FormatError(f"tar: a name of {len(raw)} bytes; at most {MAX_NAME_BYTES} are read")
    if b"\0" in raw or not raw:
        raise FormatError(f"tar: expected a name, found {raw[:40]!r}")
    return str(raw, "utf-8", "surrogateescape")


def parse_pax_records(body: bytes) -> list[tuple[bytes, bytes]]:
    """The records ``"%d %s=%s\\n"`` of a PAX header, in order; keys may repeat (sparse 0.0).

    Raises:
        FormatError: A record's length is no number, too short for the record itself, or past the
            end. A length of 0 or less once sent CPython's tarfile into a loop (CVE-2025-8194).
    """
    records = []
    at = 0
    while at < len(body):
        if body[at] == 0 and not body[at:].strip(b"\0"):
            break  # some writers count the padding in
        space = body.find(b" ", at, at + 20)
        if space < 0:
            raise FormatError(f"tar PAX record: expected a length, found {body[at : at + 40]!r}")
        end = at + parse_decimal(body[at:space], "PAX record length")
        # Strictly behind the blank, so that every turn goes forward.
        if not space < end - 1 < len(body) or body[end - 1] != 0x0A:
            raise FormatError(f"tar PAX record: wrong length in {body[at : at + 40]!r}")
        key, equals, value = body[space + 1 : end - 1].partition(b"=")
        if not equals or not key:
            raise FormatError(f"tar PAX record: expected key=value, found {body[at:end][:40]!r}")
        records.append((key, value))
        at = end
    return records
