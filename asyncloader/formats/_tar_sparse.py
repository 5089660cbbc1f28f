"""Sparse members: from the stored regions back to the whole file.

Four layouts, told in the GNU tar manual, "Storing Sparse Files": old GNU (typeflag ``S``, the map in
the header and in blocks after it) and PAX 0.0, 0.1 (the map in records) and 1.0 (in front of the data).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

from ..errors import FormatError
from ._tar_header import BLOCK, parse_decimal, parse_number

__all__ = ["SparsePlan", "expand_sparse", "pax_sparse_plan", "read_old_gnu_plan"]

Region = tuple[int, int]

# Held as tuples before a byte of data is seen. 65536 regions of one file system block (4 KiB) are
# 256 MiB, which is also the most that holes may add to a sample.
_MAX_REGIONS = 1 << 16


@dataclass(slots=True)
class SparsePlan:
    """How a sparse member unfolds.

    Args:
        real_size: Length of the expanded file in bytes.
        regions: ``(offset, length)`` of each stored run; None if the map opens the body (PAX 1.0).
    """

    real_size: int
    regions: list[Region] | None


def read_old_gnu_plan(block: bytes) -> Generator[int, bytes, tuple[SparsePlan, int]]:
    """The plan of a typeflag ``S`` header, and the bytes of map blocks asked for behind it."""
    regions = _old_gnu_regions(block, 386, 4)
    more = block[482]
    map_bytes = 0
    while more:
        if len(regions) > _MAX_REGIONS:
            raise FormatError(f"tar sparse map: more than {_MAX_REGIONS} regions")
        extension = yield BLOCK
        map_bytes += BLOCK
        regions += _old_gnu_regions(extension, 0, 21)
        more = extension[504]
    return SparsePlan(parse_number(block[483:495], "real size"), regions), map_bytes


def _old_gnu_regions(block: bytes, at: int, count: int) -> list[Region]:
    regions = []
    for entry in range(at, at + 24 * count, 24):
        if not block[entry + 12]:  # GNU tar: an entry without a length ends the map
            break
        offset = parse_number(block[entry : entry + 12], "sparse offset")
        regions.append((offset, parse_number(block[entry + 12 : entry + 24], "sparse length")))
    return regions


def pax_sparse_plan(
    records: Mapping[bytes, bytes], pairs: Sequence[tuple[bytes, bytes]]
) -> SparsePlan | None:
    """The plan that a PAX header tells of, or None if the member is not sparse.

    Args:
        records: The ``GNU.sparse.*`` records by key.
        pairs: The repeated offset and numbytes records of version 0.0, in order.
    """
    version = (records.get(b"GNU.sparse.major", b"0"), records.get(b"GNU.sparse.minor", b""))
    if version == (b"1", b"0"):
        size = records.get(b"GNU.sparse.realsize")
        regions = None
    elif version[0] == b"0":
        size = records.get(b"GNU.sparse.size")
        listed = records.get(b"GNU.sparse.map")
        if size is None and listed is None and not pairs:
            return None
        numbers = listed.split(b",") if listed else _alternating(pairs)
        regions = _pairs([parse_decimal(number, "sparse map") for number in numbers])
    else:
        raise FormatError(f"tar: sparse format {version} is not known")
    if size is None:
        raise FormatError("tar: a sparse member without its real size")
    return SparsePlan(parse_decimal(size, "sparse size"), regions)


def _alternating(pairs: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
    wanted = (b"GNU.sparse.offset", b"GNU.sparse.numbytes")
    if any(key != wanted[index % 2] for index, (key, _) in enumerate(pairs)):
        raise FormatError("tar sparse map: offsets and lengths do not alternate")
    return [value for _, value in pairs]


def _pairs(numbers: list[int]) -> list[Region]:
    if len(numbers) % 2 or len(numbers) > 2 * _MAX_REGIONS:
        raise FormatError(f"tar sparse map: {len(numbers)} numbers; at most {_MAX_REGIONS} pairs are read")
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def expand_sparse(plan: SparsePlan, stored: bytes) -> bytes:
    """The whole file: stored runs at their places, zeros between.

    Raises:
        FormatError: Regions overlap, are out of order, pass the end, or do not fit the stored bytes.
    """
    at = 0
    regions = plan.regions
    if regions is None:
        regions, at = _leading_map(stored)
    source = memoryview(stored)
    pieces: list[bytes | memoryview] = []
    filled = 0
    for index, (offset, length) in enumerate(regions):
        if offset < filled or offset + length > plan.real_size:
            raise FormatError(f"tar sparse map: region {index} overlaps, is unordered or past the end")
        # GNU tar pads each region to whole blocks, others do not; they agree where there is no pad.
        if length % BLOCK and any(size for _, size in regions[index + 1 :]):
            raise FormatError(f"tar sparse map: region {index} of {length} bytes is not whole blocks")
        if at + length > len(stored):
            raise FormatError("tar sparse map: more bytes in its regions than the member has")
        pieces += (bytes(offset - filled), source[at : at + length])
        at += length
        filled = offset + length
    if at != len(stored):
        raise FormatError(f"tar sparse map: {len(stored) - at} bytes of the member in no region")
    pieces.append(bytes(plan.real_size - filled))
    return b"".join(pieces)


def _leading_map(stored: bytes) -> tuple[list[Region], int]:
    """The map of PAX 1.0: lines of one number, the count of regions first, padded to a block."""
    end = stored.find(b"\n")
    count = parse_decimal(stored[: max(end, 0)], "sparse map")
    if count > _MAX_REGIONS:
        raise FormatError(f"tar sparse map: {count} regions, at most {_MAX_REGIONS} are read")
    at = end + 1
    numbers = []
    for _ in range(2 * count):
        end = stored.find(b"\n", at, at + 21)
        numbers.append(parse_decimal(stored[at : max(end, at)], "sparse map"))
        at = end + 1
    return _pairs(numbers), at + (-at % BLOCK)
