"""Lanes: the streams an epoch is dealt into, and who computes which.

An epoch is one global sequence of batches. Its samples are dealt to ``L`` lanes (``pieces``); batch ``j``
comes from lane ``j mod L``, and at step ``k`` rank ``r`` of ``R`` delivers batch ``k * R + r``. Hence rank
``r`` owns the lanes ``l`` with ``l mod R == r``, takes a batch from each in turn, and the sequence is the
same for every number of workers and every world size that divides ``L``.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from ..quantity import as_count
from .topology import World

__all__ = [
    "Rotation",
    "check_ranks",
    "choose_lanes",
    "name_world_sizes",
    "rank_lanes",
    "worker_lanes",
]

T = TypeVar("T")


def choose_lanes(lanes: int | None, world: World, num_workers: int) -> int:
    """The number of lanes: as given, or one for each worker of each rank.

    Raises:
        ValueError: The world size does not divide ``lanes``; the message lists the sizes that do.
    """
    if lanes is None:
        return world.size * max(num_workers, 1)
    lanes = as_count("lanes", lanes)
    if lanes % world.size:
        raise ValueError(
            f"{lanes} lanes cannot be split evenly over {world.size} ranks; they fit a world size of "
            f"{name_world_sizes(lanes)}. Change the world size, or start anew with another lanes="
        )
    return lanes


def name_world_sizes(lanes: int) -> str:
    """The world sizes over which lanes can be split, for messages."""
    return ", ".join(str(size) for size in range(1, lanes + 1) if lanes % size == 0)


def rank_lanes(lanes: int, world: World) -> list[int]:
    """The lanes of this rank, in the order in which it takes batches from them."""
    return list(range(world.rank, lanes, world.size))


def worker_lanes(lanes: Sequence[int], num_workers: int) -> list[list[int]]:
    """A rank's lanes dealt to its workers; workers that would get none are left out."""
    count = min(max(num_workers, 1), len(lanes))
    return [list(lanes[worker::count]) for worker in range(count)]


def check_ranks(count: int, world: World, of: str = "shards") -> None:
    """Refuse what would leave a rank without anything.

    Args:
        count: How many lanes can have something; of a single rank any number will do.
        world: The ranks.
        of: Of what each of these lanes then has one.

    Raises:
        ValueError: Fewer than there are ranks.
    """
    if count >= world.size or world.size == 1:
        return
    few = of.removesuffix("s") if count == 1 else of
    by_index = ", or have ranks share shards by an index: asyncloader index makes it"
    raise ValueError(
        f"{count} {few} cannot be split over {world.size} ranks: {world.size - count} of them would get "
        f"nothing and wait for ever in the first collective call. Write at least {world.size} {of}, use at "
        f"most {max(count, 1)} rank{'s' * (count > 1)}{by_index if of == 'shards' else ''}"
    )


class Rotation:
    """Whose turn it is: of the lanes that have not run dry, the one that has delivered the fewest batches.

    Among equals the first. Of lanes that began together each so delivers one in turn; and the turn is known
    from what each has delivered, whoever had the lanes until now.

    Args:
        delivered: How many batches each lane has delivered so far.
    """

    def __init__(self, delivered: Mapping[int, int]) -> None:
        self._waiting = [(batches, lane) for lane, batches in delivered.items()]
        heapq.heapify(self._waiting)

    def __iter__(self) -> Iterator[int]:
        """The lane whose turn it is, for ever, until all are dry; ``advance`` and ``mark_dry`` move on."""
        while self._waiting:
            yield self._waiting[0][1]

    def advance(self) -> None:
        """The lane whose turn it is has delivered a batch."""
        batches, lane = self._waiting[0]
        heapq.heapreplace(self._waiting, (batches + 1, lane))

    def mark_dry(self) -> None:
        """The lane whose turn it is has ended; the turn is passed on without a batch."""
        heapq.heappop(self._waiting)
