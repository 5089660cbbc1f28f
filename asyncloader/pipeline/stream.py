"""One run of a dataset: its lanes, in turn, as collated batches with notes.

This runs in a worker process, or on a thread of the main process without workers: plain generators from chunk
to batch, which block only while they wait for bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from ..blocks import Block, Origins, bytes_of
from ..blocks.memory import borrowing
from ..collate.default import collate_block, takes_columns
from ..errors import add_note
from ..flow.budget import Budget, read_ahead_of
from ..flow.engine import Engine
from ..observe.audit import LeavesOut, LeftSamples
from ..observe.statistics import NetworkCounts
from ..observe.stopwatch import BATCHING, COLLATE, Spent, Stopwatch
from ..observe.tracing import Recorder
from ..plan.lanes import Cursor, Rotation, Row
from ..plan.topology import Topology, World, share_with_operators
from ..types import Position
from .batching import Batches, Batching, Single
from .calls import UserCodeErrors
from .components import Stages, counted_names
from .lane import Lane, Services, Shortfall
from .map import Map, MapBatches
from .op import note_batch
from .skips import SkipErrors, Skips


class Note(NamedTuple):
    """What accompanies a batch from the lane to the consumer.

    Attributes:
        lane: The batch's lane.
        position: Of the lane after the batch; None, without a batch, if the lane has ended.
        samples: How many samples the batch has.
        size_bytes: How many bytes of data it holds.
        tokens: How many tokens it has, if its batching counts them.
        components: How many of its samples came from each component, if it is of a mixture.
        origins: Where its samples came from, in a pass with an audit.
        network: The requests of the process since its last note; None for none.
        shortfalls: Every ``take`` that fell short since then.
        empty_shards: Every shard of no bytes since then.
        skipped: How many samples and shards of the epoch the lane has skipped, and the last error.
        left_out: What operators have left out since the lane's last note, in a pass with an audit.
        spent: How the process's time was spent since the last note that had it; in some notes only.
    """

    lane: int
    position: Position | None
    samples: int = 0
    size_bytes: int = 0
    tokens: int = 0
    components: Sequence[int] = ()
    origins: Origins | None = None
    network: NetworkCounts | None = None
    shortfalls: tuple[Shortfall, ...] = ()
    empty_shards: tuple[str, ...] = ()
    skipped: tuple[int, str] | None = None
    left_out: tuple[LeftSamples, ...] = ()
    spent: Spent | None = None


Collated: TypeAlias = Generator[tuple[Any, Note], None, None]

Turns: TypeAlias = tuple[tuple[int, Row], ...]
"""Lanes in the order of their turns, each with the row it is opened at."""


@dataclass(frozen=True)
class LanesJob:
    """Some lanes of one pass, and how their samples become batches; pickles if the dataset does.

    Attributes:
        stages: What to stream.
        turns: The lanes, and where they begin.
        lane_count: Lanes of all ranks together.
        world: The rank they belong to.
        epoch: Number of the pass.
        batching: Decides which of their samples make a batch.
        collate_fn: Makes of them what the consumer gets.
        read_bytes: Bound on what all of them together have requested and not yet decoded, and what their
            operators have made and not yet passed on.
        is_audited: Whether each note says where the samples came from.
        budget: How much may be skipped; None to raise every error.
        skipped_before: How much was skipped before, as in a saved state: pairs of a lane of the rank and a
            number.
        is_traced: Whether to record the times of events.
    """

    stages: Stages
    turns: Turns
    lane_count: int
    world: World
    epoch: int
    batching: Batching
    collate_fn: Callable[[Any], Any]
    read_bytes: int
    is_audited: bool = False
    budget: SkipErrors | None = None
    skipped_before: tuple[tuple[int, int], ...] = ()
    is_traced: bool = False

    def open_stopwatch(self, since_s: float | None = None) -> Stopwatch:
        """Of a thread that reads some of these lanes; see ``Stopwatch``."""
        return Stopwatch(since_s, Recorder() if self.is_traced else None)

    def cursor(self) -> Cursor:
        """How far these lanes have come where they are opened."""
        return Cursor(self.epoch, [lane for lane, _ in self.turns], dict(self.turns))


def read_lanes(job: LanesJob, engine: Engine, stopwatch: Stopwatch) -> Collated:
    """The batches of the lanes, one of each in turn, and a note without a batch when a lane ends.

    Args:
        job: What to read.
        engine: Where I/O and the user's coroutines run.
        stopwatch: Of the thread that this runs on.
    """
    if not job.turns:  # all lanes had ended when the state was saved
        return
    stopwatch.fetcher = engine.native_id
    budget, lanes = _lanes_of(job, engine, stopwatch)
    services = lanes[0].services  # they share them
    network, shortfalls, empty_shards = services.network, services.shortfalls, services.empty_shards
    reported = NetworkCounts()
    rotation = Rotation(job.cursor())
    with ExitStack() as stack:
        streams = {
            number: (lane, job.batching.open(job.stages.open, row.position, lane))
            for lane, (number, row) in zip(lanes, job.turns, strict=True)
        }
        for _, batches in streams.values():
            stack.enter_context(closing(batches))
        for number in rotation:
            lane, batches = streams[number]
            stopwatch.enter(BATCHING)
            budget.pass_turn(number)
            made = [_next_batch(job, lane, batches)]
            note = made[0][1]
            if network != reported:
                news = network.since(reported)
                reported.add(news)  # not ``network``, which the loop's thread has changed by now
                note = note._replace(network=news)
            if empty_shards:
                note = note._replace(empty_shards=tuple(empty_shards))
                empty_shards.clear()
            if lane.skips is not None and lane.skips.count:
                note = note._replace(skipped=(lane.skips.count, lane.skips.last))
            if lane.leaves_out is not None and lane.leaves_out:
                note = note._replace(left_out=lane.leaves_out.take())
            if note.position is None:
                note = note._replace(shortfalls=tuple(shortfalls))
                shortfalls.clear()
            rotation.move(note.position)
            if (spent := stopwatch.news(at_once=note.position is None)) is not None:
                note = note._replace(spent=spent._replace(wants_memory=budget.is_exhausted))
            yield made.pop()[0], note  # the batch is not held here meanwhile


def _lanes_of(job: LanesJob, engine: Engine, stopwatch: Stopwatch) -> tuple[Budget, list[Lane]]:
    """The lanes of a job, in its order, and the budget that they share."""
    order = [lane for lane, _ in job.turns]
    makers = sum(isinstance(op, Map | MapBatches) for op in job.stages.all_ops)
    read_bytes, made_bytes = share_with_operators(job.read_bytes, makers)
    budget = Budget(read_bytes, order, read_ahead_of(len(order), read_bytes))
    recorder = stopwatch.recorder
    services = Services(engine, made_bytes // (len(order) * max(makers, 1)), recorder=recorder)
    rank, size = job.world.rank, job.world.size
    lanes = []
    for number, row in job.turns:
        where = {"epoch": job.epoch, "rank": rank, "lane": number}
        lane = Lane(
            Topology(number, job.lane_count, rank, size, job.epoch),
            services,
            budget.of(number),
            job.stages.order_seed,
            columns=takes_columns(job.collate_fn),
            skips=None if job.budget is None else Skips(job.budget, where, row.position),
            stopwatch=stopwatch,
            leaves_out=LeavesOut() if job.is_audited else None,
            stage=len(job.stages.ops) + 1,
        )
        lanes.append(lane)
    return budget, lanes


def _next_batch(job: LanesJob, lane: Lane, batches: Batches) -> tuple[Any, Note]:
    """The lane's next batch, collated; without a position, and no batch, if the lane has ended."""
    number = lane.topology.lane
    try:
        batch = next(batches, None)
        if batch is None:
            return None, Note(number, None)
        collated = _collate(job, lane, batch.block)
        if lane.stopwatch.recorder is not None:
            lane.stopwatch.recorder.batch(collated)
        components = len(counted_names(job.stages.source))
        origins = batch.origins() if components or job.is_audited else None
        counts = () if origins is None or not components else origins.count_components(components)
        size = batch.samples, bytes_of(collated), batch.tokens
        kept = origins if job.is_audited else None
        return collated, Note(number, batch.position, *size, counts, kept)
    except Exception as error:
        add_note(error, f"in lane {number} of {job.lane_count}, rank {job.world.rank}, epoch {job.epoch}")
        raise


def _collate(job: LanesJob, lane: Lane, block: Block) -> Any:
    """What the loader's function makes of the samples of a batch."""
    lane.stopwatch.enter(COLLATE)
    try:
        with UserCodeErrors():
            if isinstance(job.batching, Single):
                return job.collate_fn(block.rows()[0])
            with borrowing():
                return collate_block(
                    job.collate_fn, block, lambda index: str(block.trail.place(index)), lane.stopwatch.enter
                )
    except Exception as error:
        note_batch(error, "collate_fn", block.trail, len(block))
        raise
