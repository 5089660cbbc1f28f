"""Estimate the speed of a pass: what the plan deals to each lane, and how long its slowest stage takes.

Pure: no I/O, no clock, no task. Lanes are dealt by ``plan``, as in a pass, and counted exactly. Times are a
closed form: ranks and workers are rows of arrays rather than objects, so that a large fleet takes seconds.
The rules for how much is requested ahead are those of ``stores`` and of the byte budget.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..flow.budget import FIRST_RATE_BYTES_S, MOST_GROWTH, ROUND_S, read_ahead_of
from ..plan.lanes import Deal, check_ranks, choose_lanes
from ..plan.pieces import Dealing
from ..plan.topology import BATCHES_AHEAD, DEFAULT_LIMIT_BYTES, World, share_memory, share_with_operators
from ..quantity import as_count, as_counts
from ..stores.lookahead import MOST_SHARDS_AHEAD, asks_early, part_sizes
from ..stores.pacing import Pace

_Ints: TypeAlias = npt.NDArray[np.int64]
_Floats: TypeAlias = npt.NDArray[np.float64]

# A pass is cut into so many stretches of equal steps. Within one, the rates of ranks count as constant.
_STRETCHES = 64

# Halvings of an interval of batches: enough for a lane of a hundred million batches.
_HALVINGS = 48

# If the remaining pass takes less than this part of the whole, all batches arrived at once and have no rate.
_ALL_AT_ONCE = 0.01

# As in ``loader.report()``: below this share of waiting the training loop is the bottleneck.
_WAITS_SHARE = 0.1


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """A pass to simulate. Times are in seconds, sizes in bytes; the defaults are those of a loader.

    A time of 0 and an infinite rate count as unknown: the stage is left out.

    Attributes:
        shard_bytes: Size of each shard as stored, ``(shards,) int64``, in the order given.
        shard_samples: Samples of each, ``(shards,) int64``; all samples of a run count as equally large.
        first_byte_s: Time from a request to the first byte of its answer.
        connection_bytes_s: The highest rate of one answer.
        link_bytes_s: The highest rate of all answers to a rank: a machine's link, divided by its ranks.
        decode_s: Time to decode a sample, on one processor.
        map_s: Time of a function that is called with each sample.
        concurrency: How many calls of it run at a time, on threads.
        collate_s: Time to make a batch of its samples.
        step_s: Time of the training loop for a batch.
        ranks: How many train together, in step.
        num_workers: Processes of each rank that make batches; 0 for a thread.
        lanes: Number of lanes; None for one for each worker of each rank.
        is_indexed: Whether lanes are cut to the sample, by an index.
        shuffle: Window of a shuffle, in samples; 0 for none.
        batch_size: Samples of a batch.
        memory_limit: Bytes that a rank may hold in flight and ahead.

    Raises:
        ValueError: A number is out of range, the lanes do not fit the ranks, or ranks would get nothing.
    """

    shard_bytes: npt.ArrayLike
    shard_samples: npt.ArrayLike
    first_byte_s: float = 0.0
    connection_bytes_s: float = math.inf
    link_bytes_s: float = math.inf
    decode_s: float = 0.0
    map_s: float = 0.0
    concurrency: int = 1
    collate_s: float = 0.0
    step_s: float = 0.0
    ranks: int = 1
    num_workers: int = 0
    lanes: int | None = None
    is_indexed: bool = False
    shuffle: int = 0
    batch_size: int = 1
    memory_limit: int = DEFAULT_LIMIT_BYTES

    def __post_init__(self) -> None:
        as_counts(self, "ranks", "batch_size", "memory_limit", "concurrency")
        for name in ("num_workers", "shuffle"):
            as_count(name, getattr(self, name), least=0)
        for name in ("first_byte_s", "decode_s", "map_s", "collate_s", "step_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} should be 0 or more seconds, but got {name}={getattr(self, name)}")
        for name in ("connection_bytes_s", "link_bytes_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} should be more than 0 bytes/s, but got {getattr(self, name)}")
        for name in ("shard_bytes", "shard_samples"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), np.int64))
        sizes, samples = self.shards
        if sizes.shape != samples.shape or not sizes.size or min(sizes.min(), samples.min()) < 0:
            raise ValueError(
                "shard_bytes and shard_samples should be as many numbers of 0 or more, at least one of each, "
                f"but got {sizes[:3]} and {samples[:3]}"
            )
        if self.concurrency > 1 and not self.map_s:
            raise ValueError(f"concurrency={self.concurrency} needs map_s, the time of one call, but it is 0")
        choose_lanes(self.lanes, World(0, self.ranks), self.num_workers)
        check_ranks(
            self.samples if self.is_indexed else len(sizes),
            World(0, self.ranks),
            "samples" if self.is_indexed else "shards",
        )

    @property
    def shards(self) -> tuple[_Ints, _Ints]:
        """Sizes and samples, as arrays."""
        return np.asarray(self.shard_bytes), np.asarray(self.shard_samples)

    @cached_property
    def lane_count(self) -> int:
        """Number of lanes."""
        return choose_lanes(self.lanes, World(0, self.ranks), self.num_workers)

    @cached_property
    def samples(self) -> int:
        """Samples of all shards."""
        return int(self.shards[1].sum())

    @cached_property
    def size_bytes(self) -> int:
        """Bytes of all shards, as stored."""
        return int(self.shards[0].sum())

    @property
    def has_times(self) -> bool:
        """Whether any stage takes time."""
        times = self.first_byte_s, self.decode_s, self.map_s, self.collate_s, self.step_s
        return any(times) or math.isfinite(min(self.connection_bytes_s, self.link_bytes_s))

    @property
    def sample_bytes(self) -> float:
        """Bytes of a sample, as stored."""
        return self.size_bytes / max(self.samples, 1)

    def lane_samples(self, *, is_indexed: bool) -> _Ints:
        """Samples of each lane, with an index or without one: ``(lanes,) int64``."""
        sizes, samples = self.shards
        dealing = Dealing(len(samples), samples if is_indexed else None, sizes)
        order_seed = 0 if self.shuffle else None
        lanes = self.lane_count
        deal = Deal(tuple(range(lanes)), lanes, epoch=0, order_seed=order_seed)
        return np.array(dealing.count_lanes(deal, samples), np.int64)


@dataclass(frozen=True)
class Balance:
    """How evenly something is dealt.

    Attributes:
        least: The smallest share.
        most: The largest share.
    """

    least: int
    most: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A simulated pass. ``as_dict()`` is plain JSON.

    Times and rates are None if the run has no times, since it has no bottleneck.

    Attributes:
        samples: Samples delivered, over all ranks.
        batches: Batches delivered, over all ranks.
        undelivered_samples: Samples left when the first rank was finished.
        elapsed_s: From the first request to the end of the last step.
        first_batch_s: Until all ranks have their first batches.
        samples_per_s: Over all ranks, after the first batches.
        wait_share: The part of the time, from 0 to 1, that ranks wait after the first batches.
        limit: The bottleneck, as in ``loader.report().limit``: ``"consumer"``, ``"store"``,
            ``"memory_limit"``, ``"decode"``, ``"map"`` or ``"collate"``.
        stages_s: Time of each stage for a batch of a rank, all its workers together, by stage.
        lane_samples: Samples of the lanes.
        lane_samples_whole: Samples of the lanes if each shard went to one of them as a whole.
        lane_samples_indexed: Samples of the lanes if they were cut by an index.
    """

    samples: int
    batches: int
    undelivered_samples: int
    elapsed_s: float | None = None
    first_batch_s: float | None = None
    samples_per_s: float | None = None
    wait_share: float | None = None
    limit: str | None = None
    stages_s: Mapping[str, float] = field(default_factory=dict)
    lane_samples: Balance
    lane_samples_whole: Balance
    lane_samples_indexed: Balance

    def as_dict(self) -> dict[str, Any]:
        """All of it as a new dict of numbers, strings, None and dicts."""
        return asdict(self)


@dataclass(frozen=True)
class Resized:
    """A pass that was stopped and continues with another number of ranks. ``as_dict()`` is plain JSON.

    Attributes:
        ranks: Number of ranks that continue.
        samples_before: Samples delivered before it was stopped.
        read_again_bytes: Bytes received and not delivered by then, which are read a second time.
        rank_samples_left: Samples left for each of the ranks that continue.
        rest: The remaining pass.
    """

    ranks: int
    samples_before: int
    read_again_bytes: int
    rank_samples_left: Balance
    rest: Outcome

    def as_dict(self) -> dict[str, Any]:
        """All of it as a new dict of numbers, strings, None and dicts."""
        return asdict(self)


def simulate(run: PlannedRun) -> Outcome:
    """Estimate the speed, the bottleneck and the balance of a planned run."""
    return _outcome_of(run, _Lanes.of(run))


def simulate_resize(run: PlannedRun, ranks: int, fraction: float) -> Resized:
    """Stop a pass, and continue with another number of ranks from its state.

    Args:
        run: The pass that begins.
        ranks: How many ranks continue, with the same lanes.
        fraction: Which part of its steps is done by then, between 0 and 1.

    Returns:
        What is read a second time, and how the remaining pass is dealt and runs.

    Raises:
        ValueError: The fraction is not between 0 and 1, or the lanes cannot be split evenly over the ranks;
            the message lists the numbers that fit.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"the fraction of the epoch should be between 0 and 1, but got {fraction}")
    resized = replace(run, ranks=ranks, lanes=run.lane_count)
    lanes = _Lanes.of(run)
    stopped = lanes.after(int(lanes.steps * fraction))
    # For each lane: what its worker has ahead, and what was delivered of an open window.
    ahead_bytes = _Maker(run, lanes).ahead_bytes * lanes.makers / lanes.samples.shape[1]
    again_bytes = np.minimum(ahead_bytes, (stopped.samples - stopped.delivered) * run.sample_bytes)
    if run.shuffle:
        again_bytes += stopped.delivered % run.shuffle * run.sample_bytes
    rest = stopped.dealt_to(ranks, resized.num_workers)
    return Resized(
        ranks=ranks,
        samples_before=int(stopped.delivered.sum()),
        read_again_bytes=int(again_bytes.sum()),
        rank_samples_left=_balance((rest.samples - rest.delivered).sum(1)),
        rest=_outcome_of(resized, rest),
    )


def _balance(each: _Ints) -> Balance:
    return Balance(int(each.min()), int(each.max()))


# --- whose turn it is ---


@dataclass(frozen=True, eq=False)
class _Lanes:
    """The lanes of all ranks, and how far each was read.

    A rank takes a batch from the lane that has delivered the fewest, the first one among equals, as in
    ``plan.lanes.Rotation``. So its lanes are level, except those that have ended.

    Attributes:
        samples: Samples of each lane, ``(ranks, lanes of a rank) int64``.
        begun: Batches that each lane has delivered before, in the same shape.
        batch_size: Samples of a batch.
        makers: Workers of each rank that have lanes; they get the lanes in turn.
    """

    samples: _Ints
    begun: _Ints
    batch_size: int
    makers: int

    @classmethod
    def of(cls, run: PlannedRun) -> _Lanes:
        """The lanes at the beginning of a run."""
        samples = run.lane_samples(is_indexed=run.is_indexed)[:, None]
        alone = cls(samples, np.zeros_like(samples), run.batch_size, 1)
        return alone.dealt_to(run.ranks, run.num_workers)

    def dealt_to(self, ranks: int, num_workers: int) -> _Lanes:
        """The same lanes for other ranks: rank ``r`` of ``R`` has the lanes ``r``, ``r + R``, and so on."""
        samples, begun = (each.T.reshape(-1, ranks).T for each in (self.samples, self.begun))
        return _Lanes(samples, begun, self.batch_size, min(max(num_workers, 1), samples.shape[1]))

    @cached_property
    def batches(self) -> _Ints:
        """All batches of each lane."""
        return -(-self.samples // self.batch_size)

    @cached_property
    def steps(self) -> int:
        """Steps until the first rank is finished."""
        return int((self.batches - self.begun).sum(1).min())

    @cached_property
    def delivered(self) -> _Ints:
        """Samples that each lane has delivered."""
        return np.minimum(self.begun * self.batch_size, self.samples)

    def after(self, steps: int) -> _Lanes:
        """The lanes so many steps later."""
        depth = np.floor(self._depth(steps) + 1e-6)[:, None]  # bisected from below
        level = np.clip(depth, self.begun, self.batches).astype(np.int64)
        has_turn = (self.begun <= depth) & (level < self.batches)
        turns_left = steps - (level - self.begun).sum(1, keepdims=True)
        return replace(self, begun=level + (has_turn & (has_turn.cumsum(1) <= turns_left)))

    def made(self, steps: float) -> _Floats:
        """Batches and parts of batches that each maker delivers in so many steps: ``(ranks, makers)``."""
        level = np.clip(self._depth(steps)[:, None], self.begun, self.batches) - self.begun
        return np.stack([level[:, maker :: self.makers].sum(1) for maker in range(self.makers)], 1)

    def _depth(self, steps: float) -> _Floats:
        """How many batches each lane of a rank has delivered that has not ended: ``(ranks,)``."""
        below, above = np.zeros(len(self.samples)), np.full(len(self.samples), self.batches.max() + 1.0)
        wanted = self.begun.sum(1) + steps
        for _ in range(_HALVINGS):
            middle = (below + above) / 2
            is_less = np.clip(middle[:, None], self.begun, self.batches).sum(1) <= wanted
            below, above = np.where(is_less, middle, below), np.where(is_less, above, middle)
        return below


# --- how long it takes ---


def _outcome_of(run: PlannedRun, lanes: _Lanes) -> Outcome:
    """The outcome of reading the lanes to their ends."""
    left = lanes.samples - lanes.delivered
    samples = int((lanes.after(lanes.steps).delivered - lanes.delivered).sum())
    return Outcome(
        samples=samples,
        batches=lanes.steps * len(left),
        undelivered_samples=int(left.sum()) - samples,
        lane_samples=_balance(left),
        lane_samples_whole=_balance(run.lane_samples(is_indexed=False)),
        lane_samples_indexed=_balance(run.lane_samples(is_indexed=True)),
        **(_times_of(run, lanes, samples) if samples and run.has_times else {}),
    )


def _times_of(run: PlannedRun, lanes: _Lanes, samples: int) -> dict[str, Any]:
    """The times of an outcome.

    The pass is cut into stretches of equal steps. Each takes as long as its busiest maker, over all ranks
    since they are in step, or as long as the training loop.
    """
    maker, steps = _Maker(run, lanes), lanes.steps
    batch_s = max(maker.store_s, sum(maker.work_s.values()))
    # The time is counted after each maker has made its first batch.
    counts_from = min(lanes.makers, steps)
    made = lanes.made(counts_from)
    loop_s, counted_s = (steps - 1) / _STRETCHES * run.step_s, run.step_s
    for until in np.linspace(counts_from, steps, _STRETCHES + 1)[1:]:
        before, made = made, lanes.made(until)
        counted_s += max(float((made - before).max()) * batch_s, loop_s)
    elapsed_s = maker.first_batch_s + counted_s
    counted = samples - samples // steps
    if not counted or counted_s < _ALL_AT_ONCE * elapsed_s:  # only the first batches can be measured
        counted, counted_s = samples, elapsed_s
    wait_share = max(1 - steps * run.step_s / counted_s, 0.0)
    busiest = max(maker.work_s, key=maker.work_s.__getitem__)
    limit = maker.store_limit if batch_s == maker.store_s else busiest
    if wait_share < _WAITS_SHARE:
        limit = "consumer"
    of_rank_s = {"store": maker.store_s, **maker.work_s, "consumer": run.step_s * lanes.makers}
    return {
        "elapsed_s": elapsed_s,
        "first_batch_s": maker.first_batch_s,
        "samples_per_s": counted / counted_s,
        "wait_share": wait_share,
        "limit": limit,
        "stages_s": {stage: seconds / lanes.makers for stage, seconds in of_rank_s.items()},
    }


class _Maker:
    """An average worker, or the thread without workers.

    Args:
        run: The pass.
        lanes: Those whose remaining samples are read.

    Attributes:
        work_s: Time of its processor for a batch, by stage, one after another.
        store_s: Time to receive the bytes of a batch, meanwhile.
        store_limit: The bottleneck of receiving: ``"store"``, or ``"memory_limit"``.
        first_batch_s: Time until its first batch.
        ahead_bytes: Bytes that are received and not delivered, at any time.
    """

    def __init__(self, run: PlannedRun, lanes: _Lanes) -> None:
        makers, size, batch_bytes = lanes.makers, run.batch_size, run.batch_size * run.sample_bytes
        decode_s, map_s = run.decode_s * size, run.map_s * size
        if run.concurrency > 1:  # on threads, in parallel with the other stages
            map_s = max(map_s / run.concurrency - decode_s - run.collate_s, 0.0)
        self.work_s = {"decode": decode_s, "map": map_s, "collate": run.collate_s}
        worked_s = sum(self.work_s.values())
        makers_of_all = len(lanes.samples) * makers
        samples = float((lanes.samples - lanes.delivered).sum()) / makers_of_all
        # A shuffle delivers no batch before a window is full.
        window = max(-(-size // max(run.shuffle, 1)) * run.shuffle, size)
        first_batches = min(window, int(lanes.samples.max())) / size
        link_s = makers * batch_bytes / run.link_bytes_s  # all makers of a rank share it evenly
        asks = _Requests(run, lanes, samples / max(run.samples, 1))
        first_s = asks.first_s(first_batches * batch_bytes)
        self.first_batch_s = max(first_s, first_batches * max(link_s, worked_s))
        received_s = asks.elapsed_s(asks.pieces * asks.parts) - self.first_batch_s
        store_s = received_s / max(samples / size - 1, 1.0)
        self.store_s = max(store_s, link_s)
        self.store_limit = asks.limit if store_s > link_s else "store"
        # One of the batches ahead is still being made.
        self.ahead_bytes = asks.least_bytes + (BATCHES_AHEAD - 1) * batch_bytes
        if self.store_s > max(worked_s, run.step_s * makers):  # it waits for bytes
            self.ahead_bytes = asks.most * asks.part_bytes / 2


class _Requests:
    """How a maker requests the pieces of its lanes: in parts, several at a time.

    Args:
        run: The pass.
        lanes: Of all makers.
        share: The part of all samples that the maker reads.

    Attributes:
        pieces: Number of pieces.
        parts: Parts of each piece.
        part_bytes: Mean length of a part.
        part_s: Time from a request to its last byte.
        held_s: Time until a part is decoded, and the next one is requested in its place.
        start: How many requests the byte budget allows at the beginning.
        most: The most requests at a time.
        limit: What bounds them: ``"store"``, or ``"memory_limit"``.
        least_bytes: Bytes requested ahead while no stage waits for bytes.
    """

    def __init__(self, run: PlannedRun, lanes: _Lanes, share: float) -> None:
        self._run = run
        own_lanes = -(-lanes.samples.shape[1] // lanes.makers)
        memory = share_memory(run.memory_limit, pins=False)
        read_bytes, _ = share_with_operators(memory.read_bytes // lanes.makers, int(run.map_s > 0))
        share_bytes = read_bytes // own_lanes
        first_bytes, later_bytes = part_sizes(share_bytes)
        pieces = max((len(run.shards[0]) + run.lane_count * run.is_indexed) * share, 1.0)
        piece_bytes = run.size_bytes * share / pieces
        self.pieces = math.ceil(pieces)
        self.parts = 1 + max(math.ceil((piece_bytes - first_bytes) / later_bytes), 0)
        self.part_bytes = piece_bytes / self.parts
        self.part_s = run.first_byte_s + self.part_bytes / run.connection_bytes_s
        # A single part reserves the size of a first one, since the length of the shard is known only from its
        # answer. Later parts are requested after it, a second round trip if that was not early; one is
        # being decoded.
        held_bytes, self.held_s, fit = float(first_bytes), self.part_s, read_bytes / first_bytes
        if self.parts > 1:
            held_bytes, fit = self.part_bytes, read_bytes / self.part_bytes - 1
            self.held_s = self.part_s * (1 + (1 if asks_early(share_bytes) else 2) / self.parts)
        allowed = min(Pace.most, MOST_SHARDS_AHEAD * own_lanes * self.parts)
        self.least_bytes = read_ahead_of(own_lanes, read_bytes).size_bytes
        early_bytes = self.least_bytes + FIRST_RATE_BYTES_S * run.first_byte_s
        self.start = max(self.least_bytes, min(early_bytes, read_bytes / 4)) / held_bytes
        self.most: float = max(min(fit, allowed), 1.0)
        self.limit = "memory_limit" if fit < allowed else "store"

    def first_s(self, size: float) -> float:
        """Time until so many bytes are received, which are requested first."""
        if size <= self.part_bytes:
            return self._run.first_byte_s + size / self._run.connection_bytes_s
        return self.elapsed_s(math.ceil(size / self.part_bytes))

    def elapsed_s(self, parts: int) -> float:
        """Time until so many parts are received, requested in waves.

        The first waves grow: by a request for each answer, as ``Pace`` allows, and by the bytes
        that ``ReadAhead`` adds in each round.
        """
        first_byte_s, waves, left = self._run.first_byte_s, 0.0, float(parts)
        body_s = self.part_s - first_byte_s
        while left > 0:
            doublings = (waves * self.held_s + body_s) / first_byte_s if first_byte_s else math.inf
            rounds = waves + (body_s > ROUND_S)
            requests = Pace.start * 2 ** min(doublings, 8)
            sent = max(min(self.most, requests, self.start * MOST_GROWTH**rounds), 1.0)
            if sent == self.most:
                # Single parts arrive together, so the last wave counts as a whole one.
                full = left / self.most if self.parts > 1 else math.ceil(left / self.most)
                return first_byte_s + self.held_s * (waves + full)
            left -= sent
            waves += 1
        return first_byte_s + waves * self.held_s
