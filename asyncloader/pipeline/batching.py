"""Batching: the last operator of a recipe, which makes blocks into batches.

Two laws hold for every batching. Batches of one stream are the same however the stream was cut into blocks.
And a batching opened at the position of a batch goes on with the same batches that came after it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from ..blocks import Block, Gather, Referred, Trail, runs_on
from ..plan.lanes import batch_count
from ..types import Position
from .lane import Lane, Opener


class Batch(NamedTuple):
    """What is collated at once.

    Attributes:
        block: Of its rows; a row is a sample, unless its batching says otherwise.
        position: At which the lane goes on after it.
        samples: How many samples end in it, counted once each over all batches.
        tokens: How many tokens it has, without padding; 0 where nobody counts them.
        ended: The samples that end in it, each by its trail and its index there; None if they are the rows.
    """

    block: Block
    position: Position
    samples: int
    tokens: int = 0
    ended: Sequence[tuple[Trail, int]] | None = None

    def count_components(self, count: int) -> list[int]:
        """How many of its samples came from each of the ``count`` components of a mixture."""
        if self.ended is None:
            found = [self.block.trail.components(np.arange(len(self.block)))]
        else:
            found = [trail.components(np.array(indices)) for trail, indices in self._by_trail()]
            if not found:  # a packed batch may be the middle of a single document
                return [0] * count
        counts: list[int] = np.bincount(np.concatenate(found), minlength=count).tolist()
        return counts

    def bases(self) -> list[Referred]:
        """Where its samples came from, in whatever order; see ``Trail.bases``."""
        if self.ended is None:
            return self.block.trail.bases(0, len(self.block))
        return [base for trail, indices in self._by_trail() for base in runs_on(trail, indices)]

    def _by_trail(self) -> Iterator[tuple[Trail, list[int]]]:
        """The samples that end in it, those of a trail together."""
        trails: dict[int, tuple[Trail, list[int]]] = {}
        for trail, index in self.ended or ():
            trails.setdefault(id(trail), (trail, []))[1].append(index)
        return iter(trails.values())


Batches: TypeAlias = Generator[Batch, None, None]


class Batching(Protocol):
    """Makes batches of one lane's stream."""

    @property
    def collate_fn(self) -> Callable[[Any], Any] | None:
        """What collates its batches where the user names nothing; None for the default."""
        ...

    @property
    def samples_per_batch(self) -> int | None:
        """How many samples each batch has but the last; None if that differs."""
        ...

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Batches:
        """The batches from ``start`` on; closing the generator closes the upstream."""
        ...

    def count_batches(self, count_samples: Callable[[], Iterable[float]]) -> int:
        """How many batches the lanes make, given how many samples each has; see ``Op.count_samples``.

        Raises:
            UnknownCount: That is not known beforehand, or depends on what the samples are.
        """
        ...

    def describe(self) -> Mapping[str, Any]:
        """What makes two batchings the same to a saved state, as JSON values."""
        ...


@dataclass(frozen=True)
class FixedSize:
    """Batches of ``batch_size`` samples, in the order in which they come.

    Its positions are those of its samples: it has nothing to remember between two batches.

    Args:
        batch_size: Samples per batch.
        drop_last: Leave out the last batch of a lane if it is short. False as in torch: nobody loses
            samples without having asked for it.
    """

    batch_size: int
    drop_last: bool = False

    collate_fn = None

    @property
    def samples_per_batch(self) -> int:
        return self.batch_size

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Batches:
        gather = Gather(self.batch_size)
        with closing(upstream(start, lane)) as blocks:
            for block in blocks:
                yield from map(_batch, gather.feed(block))
                del block
            rest = gather.finish()
            if rest is not None and not self.drop_last:
                yield _batch(rest)
            elif rest is not None and lane.leaves_out is not None:
                lane.leave_out("drop_last", rest, range(len(rest)))

    def count_batches(self, count_samples: Callable[[], Iterable[float]]) -> int:
        return batch_count(count_samples(), self.batch_size, self.drop_last)

    def describe(self) -> Mapping[str, Any]:
        return {"batch_size": self.batch_size, "drop_last": self.drop_last}


@dataclass(frozen=True)
class Single:
    """No batching: each sample alone, which is handed on as it is."""

    collate_fn = None
    samples_per_batch = 1

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Batches:
        with closing(upstream(start, lane.for_columns(False))) as blocks:
            for block in blocks:
                yield from map(_batch, _alone(block))

    def count_batches(self, count_samples: Callable[[], Iterable[float]]) -> int:
        return batch_count(count_samples(), 1, False)

    def describe(self) -> Mapping[str, Any]:
        return {"batch_size": None, "drop_last": False}


def _alone(block: Block) -> Iterator[Block]:
    return (block.part(index, index + 1) for index in range(len(block)))


def _batch(block: Block) -> Batch:
    return Batch(block, block.trail.after(len(block) - 1), len(block))
