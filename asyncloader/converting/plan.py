"""Which samples go to which shard, and what a process makes in one go; pure.

All samples of all sources, one source after another, are cut into shards. What goes where is a function of
the sources and the options alone: neither how many processes there are nor how far an earlier run came is in
it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

__all__ = ["Shard", "cut_by_sizes", "cut_evenly", "runs_of", "shards_of"]

# A run begins where at most this part of its first shard's samples has to be read in vain. Where it takes
# more, as inside of what is compressed, the shard is made behind the one before it, by who makes that one.
_MOST_IN_VAIN = 0.5


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard to be made.

    Attributes:
        name: Of its file.
        first: Number of its first sample, counted over all sources.
        stop: Number behind its last one.
    """

    name: str
    first: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.first


def cut_evenly(samples: int, most_samples: int) -> list[int]:
    """Where shards stop that have ``most_samples`` at most, and are equal but for one sample."""
    count = -(-samples // most_samples)
    share, longer = divmod(samples, count) if count else (0, 0)
    return [*accumulate(share + (number < longer) for number in range(count))]


def cut_by_sizes(sizes: Iterable[int], most_bytes: int, most_samples: int | None) -> list[int]:
    """Where shards stop that have as many samples as fit; one that is larger has a shard of its own.

    Args:
        sizes: Of each sample, in bytes.
        most_bytes: Of a shard.
        most_samples: Of a shard; None for any number.
    """
    stops, number, held_bytes, first = [], -1, 0, 0
    for number, size in enumerate(sizes):
        if number > first and (held_bytes + size > most_bytes or number - first == most_samples):
            stops.append(number)
            first, held_bytes = number, 0
        held_bytes += size
    return [*stops, number + 1] if number >= 0 else []


def shards_of(stops: Sequence[int], suffix: str) -> list[Shard]:
    """The shards, by number: ``shard-00000.tar`` and so on."""
    width = max(5, len(str(len(stops) - 1)))
    bounds = pairwise([0, *stops])
    return [
        Shard(f"shard-{number:0{width}d}{suffix}", first, stop) for number, (first, stop) in enumerate(bounds)
    ]


def runs_of(
    shards: Sequence[Shard], done: Collection[str], in_vain: Callable[[int], int]
) -> Iterator[list[Shard]]:
    """The shards that are still to be made, in runs for one process each.

    Args:
        shards: All of them.
        done: Names of those that are made.
        in_vain: How many samples have to be read before one, by its number, if reading begins there.
    """
    run: list[Shard] = []
    for shard in shards:
        if shard.name in done:
            if run:
                yield run
            run = []
            continue
        if run and in_vain(shard.first) <= _MOST_IN_VAIN * len(shard):
            yield run
            run = []
        run.append(shard)
    if run:
        yield run
