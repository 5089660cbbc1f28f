"""The beginning of a shard with a table: how many samples it has, and where each of them lies.

Nothing is believed: a count is held against where the first sample begins before anything of that size is
waited for, and no offset is used that does not rise, or leaves the shard.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import FormatError
from .._push import describe_bytes

__all__ = ["LEAST_BYTES", "Table", "TableHead", "check_end", "parse_table", "samples_begin"]

#: What is needed to know where the table ends: the count, and the first offset.
LEAST_BYTES = 8

_NUMBER_BYTES = 4

# Offsets of 32 bits reach 4 GiB, which are as many samples of 64 bytes; and their table takes 256 MiB.
_MOST_SAMPLES = 1 << 26

# What may be between table and samples: MDS has some hundred bytes of JSON there.
_MOST_HEADER_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Table:
    """The beginning of a shard.

    Attributes:
        bounds: Where each sample begins, and where the last one ends: ``(samples + 1,)``.
        header: What is between the table and the first sample; its format knows what.
    """

    bounds: NDArray[np.integer[Any]]
    header: bytes

    @property
    def samples(self) -> int:
        """How many the shard has."""
        return len(self.bounds) - 1


def samples_begin(name: str, start: bytes) -> int:
    """Where the table and what is behind it end, and the first sample begins.

    Args:
        name: Of the format, for messages.
        start: The first ``LEAST_BYTES`` of the shard.

    Raises:
        FormatError: Fewer bytes, or a count that does not fit to where the first sample begins.
    """
    if len(start) < LEAST_BYTES:
        what = "the shard is empty" if not start else "the shard ends within its table"
        raise FormatError(f"{name}: truncated: {what}", offset=len(start))
    count, begin = struct.unpack_from("<II", start)
    table_stop = _NUMBER_BYTES * (count + 2)
    if count > _MOST_SAMPLES or not table_stop <= begin <= table_stop + _MOST_HEADER_BYTES:
        raise FormatError(
            f"{name}: damaged, or no {name}: a table of {count} samples ends at byte {table_stop}, but the "
            f"first sample is said to begin at byte {begin}{describe_bytes(start)}",
            offset=0,
        )
    return int(begin)


def parse_table(name: str, head: bytes) -> Table:
    """The table of a shard, and what is behind it.

    Args:
        name: Of the format, for messages.
        head: The shard up to where ``samples_begin``.

    Raises:
        FormatError: Offsets that do not rise.
    """
    count = int.from_bytes(head[:_NUMBER_BYTES], "little")
    bounds = np.frombuffer(head, "<u4", count + 1, _NUMBER_BYTES)
    falls = np.flatnonzero(bounds[1:] < bounds[:-1])
    if len(falls):
        sample = int(falls[0])
        raise FormatError(
            f"{name}: damaged: the sample is said to end at byte {bounds[sample + 1]}, before it begins, at "
            f"byte {bounds[sample]}",
            offset=_NUMBER_BYTES * (sample + 2),
            sample=sample,
        )
    return Table(bounds, head[_NUMBER_BYTES * (count + 2) :])


class TableHead:
    """The table of a shard that is read from front to back, gathered as its bytes come.

    Args:
        name: Of the format, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._content = bytearray()
        self._size_bytes = LEAST_BYTES  # how long it has to be

    @property
    def held_bytes(self) -> int:
        """How much of it has come."""
        return len(self._content)

    def take(self, chunk: bytes | memoryview) -> tuple[Table | None, bytes | memoryview]:
        """Take what belongs to the table and the header.

        Returns:
            The table, None until all of it has come, and the rest of the chunk.

        Raises:
            FormatError: As of ``samples_begin`` and ``parse_table``.
        """
        at = 0
        while len(self._content) < self._size_bytes:
            step = chunk[at : at + self._size_bytes - len(self._content)]
            self._content += step
            at += len(step)
            if len(self._content) < self._size_bytes:
                return None, b""
            self._size_bytes = samples_begin(self._name, bytes(self._content[:LEAST_BYTES]))
        head = bytes(self._content)
        self._content.clear()
        return parse_table(self._name, head), chunk[at:]

    def truncated(self) -> FormatError:
        """What to raise at the end of a shard before that of its table."""
        begin = samples_begin(self._name, bytes(self._content))
        return FormatError(
            f"{self._name}: truncated within its table, behind which the first sample should begin at byte "
            f"{begin}",
            offset=len(self._content),
        )


def check_end(name: str, table: Table, length: int) -> None:
    """Hold where the last sample ends against the end of the shard.

    Raises:
        FormatError: They differ.
    """
    end = int(table.bounds[-1])
    if end != length:
        what = "truncated" if length < end else "damaged: there are bytes behind the last sample"
        raise FormatError(
            f"{name}: {what}: the table ends the last sample at byte {end}, the shard has {length}",
            offset=min(end, length),
        )
