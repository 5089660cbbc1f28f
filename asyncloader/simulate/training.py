"""Who takes batches: ranks, each of its makers in turn, all of them in step."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

from ..plan.lanes import Rotation, rank_lanes, worker_lanes
from ..plan.topology import World
from .held import Holding
from .link import Wire
from .making import Made, Maker
from .setting import Setting
from .shares import LaneStart, Share
from .timeline import Process, Signal, Timeline

__all__ = ["Rank", "Training"]


class Training:
    """All ranks: a step begins when each of them has its batch, and the pass ends when one has no more.

    Args:
        timeline: Of the simulation.
        setting: What is simulated.
        shares: Of each lane.
        starts: Where lanes begin.
        most_samples: Ends the pass after the step that delivers so many, over all ranks; None for its end.
    """

    def __init__(
        self,
        timeline: Timeline,
        setting: Setting,
        shares: Mapping[int, Sequence[Share]],
        starts: Mapping[int, LaneStart],
        most_samples: int | None,
    ) -> None:
        self._timeline = timeline
        self._most_samples = most_samples
        wires = [Wire(timeline, setting.link) for _ in range(-(-setting.ranks // setting.ranks_per_machine))]
        self.ranks = [
            Rank(timeline, setting, shares, starts, wires[rank // setting.ranks_per_machine], rank)
            for rank in range(setting.ranks)
        ]
        self._arrived = 0
        self._steps = 0
        self._delivered = 0
        self._began = Signal(timeline)
        self._is_dry = False
        self.is_over = False
        #: When the first batches were delivered, and how many samples those had.
        self.first_batch_s: float | None = None
        self.first_samples = 0

    def begin(self) -> None:
        """Start all processes."""
        for rank in self.ranks:
            for maker in rank.makers:
                maker.begin()
            self._timeline.go_on(rank.run(self))

    def meet(self, rank: Rank, made: Made | None) -> Generator[float | Signal, None, bool]:
        """Wait until all ranks are here; whether all of them have a batch."""
        self._arrived += 1
        self._is_dry |= made is None
        if self._arrived < len(self.ranks):
            step = self._steps
            while step == self._steps:
                yield self._began
        else:
            rank.was_last += 1
            self._begin_step()
        return not self.is_over

    def _begin_step(self) -> None:
        self._arrived = 0
        self._steps += 1
        self._began.give()
        self.is_over = self._is_dry  # only now: some may not have gone on yet from the step before
        if self.is_over:
            self._timeline.stop()
        elif self.first_batch_s is None:
            self.first_batch_s = self._timeline.now_s

    def delivered(self, made: Made) -> None:
        """A rank has got its batch of the step."""
        if self._steps == 1:
            self.first_samples += made.samples
        self._delivered += 1
        if self._delivered % len(self.ranks) or self._most_samples is None:
            return
        if sum(rank.samples for rank in self.ranks) >= self._most_samples:
            self.is_over = True
            self._timeline.stop()


class Rank:
    """One rank: its makers, and what it has got of them.

    Args:
        timeline: Of the simulation.
        setting: What is simulated.
        shares: Of each lane.
        starts: Where lanes begin.
        wire: Of its machine.
        number: Of the rank.

    Attributes:
        batches: Delivered.
        samples: In those.
        wait_s: Seconds that it has waited for batches.
        was_last: How often the others have waited for it.
        lanes: What was delivered of its lanes, with what was before.
    """

    def __init__(
        self,
        timeline: Timeline,
        setting: Setting,
        shares: Mapping[int, Sequence[Share]],
        starts: Mapping[int, LaneStart],
        wire: Wire,
        number: int,
    ) -> None:
        self._timeline = timeline
        self._step_s = setting.step_s
        mine = rank_lanes(setting.lane_count, World(number, setting.ranks))
        dealt = worker_lanes(mine, setting.num_workers)
        self.holding = Holding()
        self.makers = [
            Maker(
                timeline,
                setting,
                {lane: shares[lane] for lane in own},
                starts,
                wire,
                self.holding,
                len(dealt),
            )
            for own in dealt
        ]
        self._of_lane = {lane: maker for own, maker in zip(dealt, self.makers, strict=True) for lane in own}
        self.lanes = {lane: starts.get(lane, LaneStart()) for lane in mine}
        self._rotation = Rotation({lane: start.batches for lane, start in self.lanes.items()})
        self._turns = iter(self._rotation)
        self.batches = self.samples = self.was_last = 0
        self.wait_s = 0.0

    def run(self, training: Training) -> Process:
        """Take a batch for each step, and work on it."""
        while True:
            began_s = self._timeline.now_s
            made = yield from self._take()
            goes_on = yield from training.meet(self, made)
            self.wait_s += self._timeline.now_s - began_s
            if made is None or not goes_on:
                return
            before = self.lanes[made.lane]
            self.lanes[made.lane] = LaneStart(before.batches + 1, before.samples + made.samples)
            self.batches += 1
            self.samples += made.samples
            training.delivered(made)
            if training.is_over:
                return
            if self._step_s:
                yield self._step_s

    def _take(self) -> Generator[float | Signal, None, Made | None]:
        """The batch of the lane whose turn it is; None when all have ended."""
        while (lane := next(self._turns, None)) is not None:
            maker = self._of_lane[lane]
            while not maker.made:
                yield maker.more
            made = maker.take()
            assert made.lane == lane, "makers take the same turns"
            if made.samples:
                self._rotation.advance()
                return made
            self._rotation.mark_dry()
        return None
