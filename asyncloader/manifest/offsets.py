"""Offsets: where a decoder may begin inside of a shard; what makes a manifest an index.

An offset is a pair of the number of samples before it and the first byte behind them, as in a position. Of
all that a shard has, the first at or behind each multiple of ``OFFSET_BYTES`` is kept, but never the shard's
beginning or end. So those for a coarser rate are among those for a finer one, and whoever writes a shard
keeps the same ones as whoever reads it later.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

__all__ = ["MOST_OFFSETS", "OFFSET_BYTES", "OffsetPicker", "Offsets", "thin"]

Offsets: TypeAlias = tuple[tuple[int, int], ...]
"""Pairs of a sample and a byte, both rising."""

# Half of it is what a lane that begins inside of a shard reads in vain: a tenth of a second at 20 MB/s.
OFFSET_BYTES = 4 << 20

# All of a manifest, so that those of a million shards leave it parseable: 20 bytes each are 20 MB. Four
# thousand shards of 1 GiB keep one every 4 MiB, a million of them one a shard.
MOST_OFFSETS = 1 << 20


class OffsetPicker:
    """Picks the offsets of a shard while it is written or read.

    Args:
        rate_bytes: How far apart they are.
    """

    def __init__(self, rate_bytes: int = OFFSET_BYTES) -> None:
        self._rate_bytes = rate_bytes
        self._next_byte = rate_bytes
        self._picked: list[tuple[int, int]] = []

    def add(self, sample: int, byte: int) -> None:
        """``sample`` samples end before ``byte``, where a decoder may begin."""
        if byte >= self._next_byte:
            self._picked.append((sample, byte))
            self._next_byte = (byte // self._rate_bytes + 1) * self._rate_bytes

    def add_run(self, first: int, ends: Sequence[int]) -> None:
        """Sample ``first`` and those after it end before ``ends``."""
        at = bisect_left(ends, self._next_byte)
        while at < len(ends):
            self.add(first + at + 1, ends[at])
            at = bisect_left(ends, self._next_byte, at + 1)

    def picked(self, samples: int) -> Offsets:
        """Those of a shard of so many samples."""
        return tuple(offset for offset in self._picked if offset[0] < samples)


def thin(shards: Mapping[str, Offsets], most: int = MOST_OFFSETS) -> dict[str, Offsets]:
    """The offsets of shards, of all of them as many fewer as it takes for them to be ``most`` at most."""
    rate_bytes = OFFSET_BYTES
    kept = dict(shards)
    while sum(map(len, kept.values())) > most:
        rate_bytes *= 2
        kept = {name: _at_rate(offsets, rate_bytes) for name, offsets in kept.items()}
    return kept


def _at_rate(offsets: Iterable[tuple[int, int]], rate_bytes: int) -> Offsets:
    picker = OffsetPicker(rate_bytes)
    for sample, byte in offsets:
        picker.add(sample, byte)
    return picker.picked(1 << 63)
