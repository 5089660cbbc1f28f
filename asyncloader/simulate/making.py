"""Who makes batches: a thread or a worker, its lanes in turn, and the batches that wait to be taken."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Generator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from .._flow.budget import Budget
from .._flow.readahead import read_ahead_of
from ..plan.lanes import Rotation
from ..plan.memory import BATCHES_AHEAD, share_memory, share_with_operators
from ..stopwatch import COLLATE, DECODE, RESTING, STORE
from .held import Held, Holding
from .link import Requests, Wire
from .reading import Chunks, Reader
from .setting import Setting
from .shares import LaneStart, Share
from .timeline import Process, Signal, Timeline

__all__ = ["Made", "Maker"]


class Made(NamedTuple):
    """A batch that was made, or a lane's end.

    Attributes:
        lane: It is of this lane.
        samples: How many; 0 where the lane has ended.
    """

    lane: int
    samples: int


class _Lane:
    """One lane at its maker: its reader, and the samples on their way into batches."""

    def __init__(self, reader: Reader, skip: int) -> None:
        self.reader = reader
        self.skip = skip  # made before, in the window that is made again
        self.chunks: Chunks | None = None
        self.share_samples = 0  # decoded of the share
        self.share_bytes = 0
        self.raw = 0  # samples whose bytes are there
        self.ready = 0  # made
        self.ended = False


class Maker:
    """One process, or thread, that makes batches of its lanes in turn.

    Args:
        timeline: Of the simulation.
        setting: What is simulated.
        shares: Of its lanes, by their numbers.
        starts: Where they begin.
        wire: Of its machine.
        holding: Of its rank.
        makers: How many the rank has.

    Attributes:
        made: What waits to be taken.
        more: Given when something was made.
        stages_s: Seconds by stage.
        wants_memory: Whether the limit on memory held up the reading, when a batch was made last.
    """

    def __init__(
        self,
        timeline: Timeline,
        setting: Setting,
        shares: Mapping[int, Sequence[Share]],
        starts: Mapping[int, LaneStart],
        wire: Wire,
        holding: Holding,
        makers: int,
    ) -> None:
        self._timeline = timeline
        self._setting = setting
        memory = share_memory(setting.memory_limit, pins=False)
        read_bytes, _ = share_with_operators(memory.read_bytes // makers, len(setting.operators))
        begins = {lane: starts.get(lane, LaneStart()) for lane in shares}
        order = sorted(shares, key=lambda lane: (begins[lane].batches, lane))
        self._rotation = Rotation({lane: begins[lane].batches for lane in order})
        self._budget = Budget(read_bytes, order, read_ahead_of(len(order), read_bytes), timeline.clock)
        self.requests = Requests(timeline, wire, setting.link.first_byte_s)
        self._lanes = {}
        for lane in order:
            claim = self._budget.claim(lane)
            reader = Reader(timeline, shares[lane], claim, self.requests, setting.link, Held(holding))
            window = setting.window or 1
            self._lanes[lane] = _Lane(reader, begins[lane].samples % window)
        self._room = _Room(setting, memory.batch_bytes // makers)
        self._held = Held(holding)
        self.made: deque[Made] = deque()
        self.more = Signal(timeline)
        self._taken = Signal(timeline)
        self.stages_s: defaultdict[str, float] = defaultdict(float)
        self.wants_memory = False

    @property
    def received_bytes(self) -> int:
        """All that has come for its lanes so far."""
        return sum(lane.reader.received_bytes for lane in self._lanes.values())

    def begin(self) -> None:
        """Start its processes."""
        for lane in self._lanes.values():
            self._timeline.go_on(lane.reader.run())
        self._timeline.go_on(self._run())

    def take(self) -> Made:
        """The consumer takes what was made first."""
        made = self.made.popleft()
        self._taken.give()
        self._tell_held()
        return made

    def _run(self) -> Process:
        for number in self._rotation:
            while not self._room.has_room(len(self.made)):
                yield from self._wait(self._taken, RESTING)
            self._budget.pass_turn(number)
            samples = yield from self._batch(self._lanes[number])
            if samples:
                yield from self._work(COLLATE, self._setting.collate_s)
                self._rotation.advance()
            else:
                self._rotation.mark_dry()
            self.wants_memory = self._budget.is_exhausted
            self.made.append(Made(number, samples))
            self.more.give()
            self._tell_held()

    def _tell_held(self) -> None:
        samples = sum(made.samples for made in self.made)
        waiting = sum(lane.ready for lane in self._lanes.values())
        self._held.now((samples + waiting) * self._setting.batch_bytes / self._setting.batch_size)

    # --- a batch ---

    def _batch(self, lane: _Lane) -> Generator[float | Signal, None, int]:
        """Make samples until there are enough for a batch; says how many it has, 0 at the lane's end."""
        size, window = self._setting.batch_size, self._setting.window
        while lane.ready < size and not lane.ended:
            # A window is handed on when it is full.
            wanted = window or size - lane.ready
            made = yield from self._make(lane, wanted)
            lane.ready += made - lane.skip
            lane.skip = 0
        samples = min(lane.ready, size)
        if samples < size and self._setting.drop_last:
            samples = lane.ready = 0
        lane.ready -= samples
        return samples

    def _make(self, lane: _Lane, wanted: int) -> Generator[float | Signal, None, int]:
        """Make so many samples, or those that are left."""
        made = 0
        while made < wanted:
            if not lane.raw:
                yield from self._receive(lane)
                if not lane.raw:
                    lane.ended = True
                    break
            taken = min(lane.raw, wanted - made)
            lane.raw -= taken
            made += taken
            for stage, sample_s in self._costs:
                yield from self._work(stage, taken * sample_s)
        return made

    @cached_property
    def _costs(self) -> list[tuple[str, float]]:
        """What a sample takes of the maker's time; of calls on threads what the rest does not cover."""
        operators = self._setting.operators
        costs = [(DECODE, self._setting.decode_s)]
        costs += [(op.name, op.sample_s) for op in operators if op.concurrency == 1]
        aside = [(op.sample_s / op.concurrency, op.name) for op in operators if op.concurrency > 1]
        if aside:
            slowest_s, name = max(aside)
            costs.append((name, max(slowest_s - sum(seconds for _, seconds in costs), 0.0)))
        return costs

    def _receive(self, lane: _Lane) -> Process:
        """Wait for bytes until there are samples in them, or no more."""
        while not lane.raw:
            if lane.chunks is None:
                while lane.reader.next is None:
                    if lane.reader.ended:
                        return
                    yield from self._wait(lane.reader.came, STORE)
                lane.chunks = lane.reader.take()
                lane.share_bytes = lane.share_samples = 0
            chunks = lane.chunks
            if not chunks.sizes and not chunks.ended:
                began_s = self._timeline.now_s
                while not chunks.sizes and not chunks.ended:
                    yield from self._wait(chunks.moved, STORE)
                self._budget.waited(self._timeline.now_s - began_s)
            if chunks.sizes:
                self._decode(lane, chunks)
            else:
                lane.chunks = None

    def _decode(self, lane: _Lane, chunks: Chunks) -> None:
        """The samples that end in the next piece."""
        share = chunks.share
        lane.share_bytes += chunks.take()
        length = share.stop_byte - share.start_byte
        samples = share.samples * lane.share_bytes // length
        lane.raw += samples - lane.share_samples
        lane.share_samples = samples

    # --- time ---

    def _work(self, stage: str, seconds: float) -> Process:
        if seconds:
            self.stages_s[stage] += seconds
            yield seconds

    def _wait(self, signal: Signal, stage: str) -> Process:
        began_s = self._timeline.now_s
        yield signal
        self.stages_s[stage] += self._timeline.now_s - began_s


class _Room:
    """How many batches may wait to be taken; the next one counts as much as a full one.

    Args:
        setting: What is simulated.
        batch_bytes: What the maker may hold of batches.
    """

    def __init__(self, setting: Setting, batch_bytes: int) -> None:
        if setting.num_workers:
            self._most = setting.prefetch_factor
            fit = batch_bytes / max(setting.batch_bytes, 1e-9) - 1
        else:
            self._most = BATCHES_AHEAD
            fit = batch_bytes / max(setting.batch_bytes, batch_bytes / BATCHES_AHEAD, 1e-9) - 1
        self._fit = fit

    def has_room(self, waiting: int) -> bool:
        """Whether another one may be made, while so many wait."""
        return not waiting or (waiting < self._most and waiting <= self._fit + 1e-9)
