"""Lanes: the streams an epoch is dealt into, and who computes which.

An epoch is one global sequence of batches. Its samples are dealt to ``L`` lanes (``pieces``); batch ``j``
comes from lane ``j mod L``, and at step ``k`` rank ``r`` of ``R`` delivers batch ``k * R + r``. So rank
``r`` owns the lanes ``l`` with ``l mod R == r``, takes a batch from each in turn, and the sequence is the
same for every number of workers and every world size that divides ``L``.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt

from ..quantity import as_count
from ..types import Position
from .topology import World

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
            f"{name_world_sizes(lanes)}. Change the world size, or start again with another lanes="
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
    """Refuse a dataset that would leave a rank without anything.

    Args:
        count: How many lanes can have something; for a single rank any number will do.
        world: The ranks.
        of: What the lanes are dealt, for the message: ``"shards"`` or ``"samples"``.

    Raises:
        ValueError: Fewer than there are ranks.
    """
    if count >= world.size or world.size == 1:
        return
    few = of.removesuffix("s") if count == 1 else of
    by_index = ", or have ranks share shards by an index: asyncloader index makes it"
    raise ValueError(
        f"{count} {few} cannot be split over {world.size} ranks: {world.size - count} of them would get "
        f"nothing and wait forever in the first collective call. Write at least {world.size} {of}, use at "
        f"most {max(count, 1)} rank{'s' * (count > 1)}{by_index if of == 'shards' else ''}"
    )


# Permutations that are the same on every machine and with every version of every library.

# SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
# NumPy's and Python's own shuffles may give another order in the next release, and a saved position must mean
# the same samples for as long as the file exists.
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def permutation(n: int, *key: int) -> list[int]:
    """A permutation of ``range(n)`` drawn by ``key``.

    Each index gets a 64-bit SplitMix64 word of the stream that ``key`` seeds; sorting the words
    (stably, so that even a collision has one order) gives the permutation.

    Args:
        n: How many indices.
        key: Integers that name the draw, such as ``(seed, epoch)``; negative ones are fine.
    """
    return cast("list[int]", draw_order(n, *key).tolist())


def draw_order(n: int, *key: int) -> npt.NDArray[np.int64]:
    """``permutation`` as an array: ``(n,) int64``."""
    return np.argsort(draw_words(n, *key), kind="stable")


def draw_words(n: int, *key: int) -> npt.NDArray[np.uint64]:
    """The first words of the stream that ``key`` seeds, uniformly distributed: ``(n,) uint64``."""
    state = np.zeros(1, np.uint64)
    for part in (*key, len(key)):
        word = np.array([part & 0xFFFF_FFFF_FFFF_FFFF], np.uint64)
        state = _mix(state ^ _mix(word + _GAMMA))
    return _mix(state + _GAMMA * np.arange(1, n + 1, dtype=np.uint64))


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


# Which epoch a loop may set after it has loaded a position in another.


def check_epoch(asked: int, epoch: int, batches: int, length: int | None) -> None:
    """Refuse an epoch that would silently drop a loaded position, as in a loop that restarts its count.

    Args:
        asked: The argument of ``set_epoch``; another one than ``epoch``.
        epoch: That of the loaded position.
        batches: How many of it were delivered; at least one.
        length: How many it has; None where that is not known, and the next epoch may be right.

    Raises:
        ValueError: The epoch is not over, or ``asked`` is not the next one.
    """
    if asked == epoch + 1 and (length is None or batches >= length):
        return
    of = "" if length is None else f" of {length}"
    raise ValueError(
        f"the loaded state is in epoch {epoch} after {batches}{of} batches, but set_epoch({asked}) would "
        f"begin epoch {asked}: samples would be repeated or lost. Continue with set_epoch({epoch}), or "
        "without it; to start again, load nothing. A trainer without len(loader), as transformers' with "
        "max_steps, counts from 0 again: give the dataset a length, or end it with .repeat()"
    )


# How many samples lanes hold and how many batches those make, computed before anything is read.


class UnknownCount(TypeError):
    """The number of samples cannot be known beforehand; the message says why."""


@dataclass(frozen=True, slots=True)
class Deal:
    """Lanes of one pass, and all that decides which samples they are dealt.

    Attributes:
        lanes: The lanes in question.
        lane_count: How many there are.
        epoch: Number of the pass.
        order_seed: Draws the order of shards; None for the order given.
        repetition: Which repetition of the data within the epoch this is.
        component: Which component of a mixture they are lanes of, after those of the mixtures around it.
        varies: Whether they differ from repetition to repetition also where shards keep their order.
    """

    lanes: tuple[int, ...]
    lane_count: int
    epoch: int
    order_seed: int | None
    repetition: int = 0
    component: tuple[int, ...] = ()
    varies: bool = False

    def draw_key(self, seed: int) -> tuple[int, ...]:
        """The key of a draw that is the same for all lanes."""
        return seed, self.epoch, self.repetition, *self.component

    def repeated(self, repetition: int) -> Deal:
        """The same lanes in another repetition, for which shards are dealt anew."""
        return replace(self, repetition=repetition)

    @property
    def order_key(self) -> tuple[int, ...] | None:
        """What draws the order of shards; None for the order given."""
        return None if self.order_seed is None else self.draw_key(self.order_seed)


Counter: TypeAlias = Callable[[Deal], list[float]]
"""Gives the number of samples of each lane, infinite if it never ends; may raise ``UnknownCount``."""


def take_share(count: int, lane: int, lanes: int) -> int:
    """How many of ``count`` samples a lane takes: as many as every other, or one more."""
    return count // lanes + (lane < count % lanes)


def batch_count(samples: Iterable[float], batch_size: int | None, drop_last: bool) -> int:
    """How many batches lanes with so many samples make, each cutting its own.

    Raises:
        UnknownCount: A lane never ends.
    """
    batches = 0
    for count in samples:
        if math.isinf(count):
            raise UnknownCount("repeat() never ends")
        whole, rest = divmod(int(count), batch_size or 1)
        batches += whole + (rest > 0 and not drop_last)
    return batches


# The cursor of an epoch: a row for each lane. Whose turn it is follows from the rows alone.
#
# So the rows of all ranks, put together, are the cursor of the whole epoch, and any part of them that one
# rank owns is a cursor again, however many ranks there are.


@dataclass(frozen=True, slots=True)
class Row:
    """How far a lane has come in an epoch.

    Attributes:
        position: Where it goes on; empty at its beginning.
        batches: How many it has delivered.
        done: Whether it is known to have ended. A lane at its end may have a row that does not say so: opened
            there it is found dry, and is skipped.
    """

    position: Position = field(default_factory=list)
    batches: int = 0
    done: bool = False


@dataclass(slots=True)
class Cursor:
    """Where a rank stands in an epoch: what was delivered, whatever was prefetched.

    Attributes:
        epoch: Number of the pass.
        lanes: The rank's lanes.
        rows: Of each lane that is not at its beginning.
        is_stopped: Whether all ranks were stopped here since some had no batch left. Then the next pass is
            that of the next epoch, or of what was left of this one.
    """

    epoch: int
    lanes: Sequence[int]
    rows: dict[int, Row] = field(default_factory=dict)
    is_stopped: bool = False

    @property
    def batches(self) -> int:
        """How many were delivered."""
        return sum(row.batches for row in self.rows.values())

    def move(self, lane: int, position: Position | None) -> None:
        """Note that ``lane`` has delivered a batch up to ``position``, or has ended if that is None."""
        row = self.rows.get(lane, Row())
        self.rows[lane] = replace(row, done=True) if position is None else Row(position, row.batches + 1)

    def turns(self) -> list[tuple[int, Row]]:
        """The lanes that are not done, in the order of their next turns; see ``Rotation``."""
        rows = [(lane, self.rows.get(lane, Row())) for lane in self.lanes]
        return sorted(
            ((lane, row) for lane, row in rows if not row.done), key=lambda turn: (turn[1].batches, turn[0])
        )

    def copy(self) -> Cursor:
        """A copy that stays where this one is now."""
        return Cursor(self.epoch, self.lanes, dict(self.rows), self.is_stopped)


class Rotation:
    """Whose turn it is: of the lanes that have not ended, the one that has delivered the fewest batches.

    Among equals the first. So lanes that began together deliver one each in turn, and the turn follows from
    what each has delivered, in whatever worker or rank.

    Args:
        cursor: How far each lane has come; it is moved with the turn.
    """

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self._waiting = [(row.batches, lane) for lane, row in cursor.turns()]  # sorted, as a heap may be

    def __iter__(self) -> Iterator[int]:
        """The lane whose turn it is, until all have ended; ``move`` passes the turn on."""
        while self._waiting:
            yield self._waiting[0][1]

    def move(self, position: Position | None) -> None:
        """The lane whose turn it is has delivered a batch that ends at ``position``, or has ended if None."""
        batches, lane = self._waiting[0]
        self.cursor.move(lane, position)
        if position is None:
            heapq.heappop(self._waiting)
        else:
            heapq.heapreplace(self._waiting, (batches + 1, lane))
