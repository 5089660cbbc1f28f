"""The source of mixtures: in each lane, samples of several components by the schedule of ``plan.mixing``.

Blocks are pulled from components and passed on, not samples. The schedule says how many samples of each
component come before the first one that is not here yet. These are passed on as one block; only then does the
mixture wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..blocks import Block, join
from ..plan.lanes import Deal
from ..plan.mixing import Draws, EpochWeights, Stop, goes_on_without, leg_of, mixed_count
from ..types import Position
from .components import Composed, Feed, repeated
from .lane import START, Blocks, Lane

# As for ``.repeat``: shards are dealt again, so more may follow one without a sample.
_MOST_EMPTY = 100


@dataclass(frozen=True, repr=False)
class Mixture(Composed):
    """Samples of several components, mixed.

    Args:
        weights: How often each is drawn.
        seed: Draws the schedule.
        stop: When a lane ends.
    """

    weights: EpochWeights
    seed: int
    stop: Stop

    kind = "mix"

    def open(self, start: Position, lane: Lane) -> Blocks:
        """The mixed samples.

        A position counts the draws of its leg, and has a position of each component that was drawn from.
        """
        return _Mixing(self, start, lane).blocks()

    @property
    def is_endless(self) -> bool:
        return all(self.endless()) if self.stop == "first" else any(self.endless())

    def count_samples(self, deal: Deal) -> list[float]:
        key = deal.draw_key(self.seed)  # of the mixture's own repetition, not of its components'
        if self.stop == "repeat":  # the length is that of the first repetitions
            deal = deal.repeated(repeated(deal.repetition, 0))
        counts = self.counts_of(deal)
        weights = self.weights.of(deal.epoch)
        return [
            mixed_count(
                weights, (*key, lane), [of_lanes[nth] for of_lanes in counts], self.endless(), self.stop
            )
            for nth, lane in enumerate(deal.lanes)
        ]

    def describe(self) -> Mapping[str, Any]:
        return {
            **super().describe(),
            "weights": self.weights.describe(),
            "seed": self.seed,
            "stop": self.stop,
        }


class _Mixing:
    """A mixture in one lane.

    Args:
        mixture: What is mixed.
        start: Where to begin.
        lane: Of the mixture.
    """

    def __init__(self, mixture: Mixture, start: Position, lane: Lane) -> None:
        self._stop = mixture.stop
        self._endless = mixture.endless()
        self._weights = mixture.weights.of(lane.topology.epoch)
        self._key = *lane.deal.draw_key(mixture.seed), lane.topology.lane
        entry = lane.saved(start)
        self._gone: list[int] = list(entry.get("gone", ()))
        saved = entry.get("of", [START] * len(self._weights))
        total, count = sum(self._weights), len(self._weights)
        self._feeds = [
            Feed(
                mixture,
                number,
                lane,
                # Half of the budget in equal parts, since the sizes of samples are not known.
                (weight / total + 1 / count) / 2,
                saved[number],
                begins_anew=mixture.stop == "repeat",
            )
            for number, weight in enumerate(self._weights)
        ]
        self._draws = self._open_leg(entry.get("drawn", 0))

    def blocks(self) -> Blocks:
        with ExitStack() as stack:
            for feed in self._feeds:
                stack.callback(feed.close)
            while True:
                block = self._next_block()
                if block is not None:
                    yield block
                    del block
                due = self._draws.due
                if not self._feeds[due].held and not self._feeds[due].pull() and not self._goes_on_after(due):
                    return

    def _next_block(self) -> Block | None:
        """The samples up to the first one that has to be waited for."""
        feeds, drawn = self._feeds, self._draws.drawn
        made, counts = self._draws.take([feed.held for feed in feeds])
        if not len(made):
            return None
        before, gone = [feed.mark for feed in feeds], self._gone
        parts = {number: feeds[number].take(count) for number, count in enumerate(counts) if count}
        trails = {number: part.trail for number, part in parts.items()}

        def after(index: int) -> Position:
            had = np.bincount(made[: index + 1], minlength=len(before)).tolist()
            of = [
                trails[number].after(count - 1) if count else START if mark is None else mark()
                for number, (count, mark) in enumerate(zip(had, before, strict=True))
            ]
            return [{"drawn": drawn + index + 1, **({"gone": list(gone)} if gone else {}), "of": of}]

        mixed = _in_turn(parts, made)
        return mixed.follow(mixed.trail.follow(after))

    def _goes_on_after(self, number: int) -> bool:
        """Whether the mixture continues after a component that is due has ended."""
        feed = self._feeds[number]
        # A component without any sample in the lane does not count.
        if feed.mark is not None:
            if self._stop == "first":
                return False
            if self._stop == "repeat":
                if all(self._feeds[other].repetition or other == number for other in self._live()):
                    return False
                for _ in range(_MOST_EMPTY):
                    feed.begin_anew()
                    if feed.pull():
                        return True
        feed.close()
        self._gone = [*self._gone, number]  # a new list: trails have the old one
        if not goes_on_without(number, self._live(), self._endless, self._stop):
            return False
        self._draws = self._open_leg(0)
        return True

    def _live(self) -> list[int]:
        return [number for number, weight in enumerate(self._weights) if weight and number not in self._gone]

    def _open_leg(self, drawn: int) -> Draws:
        return Draws(*leg_of(self._weights, self._key, self._gone), drawn)


def _in_turn(parts: Mapping[int, Block], made: NDArray[np.int64]) -> Block:
    """The samples of each component, in the order in which the components were drawn."""
    if len(parts) == 1:
        return next(iter(parts.values()))
    # Where each sample is when they are joined component by component.
    places = np.empty(len(made), np.int64)
    places[np.argsort(made, kind="stable")] = np.arange(len(made))
    return join([parts[number] for number in sorted(parts)]).take(places)
