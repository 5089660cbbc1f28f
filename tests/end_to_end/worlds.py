"""What tests of other world sizes run loaders through: the ranks of a world in step, cut after every step."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

from corpus import fingerprint

import asyncloader as al

from .harness import drained

__all__ = [
    "Make",
    "Step",
    "assert_every_world_goes_on",
    "assert_goes_on",
    "counted",
    "epoch_of",
    "rest_of",
    "steps_of",
]

Make: TypeAlias = Callable[..., al.DataLoader[Any]]
"""Makes a loader of always the same lanes, given ``rank=``, ``world_size=`` and ``num_workers=``."""


@dataclass(frozen=True)
class Step:
    """All ranks of a world after a step.

    Attributes:
        seen: What each rank has delivered.
        states: What each rank saves, as text.
        ended: Which ranks have come to the epoch's end.
    """

    seen: list[list[Any]]
    states: list[str]
    ended: list[bool]

    @property
    def merged(self) -> Any:
        """The merged state, as it comes back from a file."""
        return json.loads(json.dumps(al.merge_states(map(json.loads, self.states))))


def steps_of(make: Make, size: int, workers: int = 0, state: Any = None, epoch: int = 0) -> Iterator[Step]:
    """The ranks of a world, one step after another until all have ended; first before their first batch."""
    loaders = [make(rank=rank, world_size=size, num_workers=workers) for rank in range(size)]
    seen: list[list[Any]] = [[] for _ in loaders]
    ended = [False] * size
    with ExitStack() as stack:
        for loader in loaders:
            stack.enter_context(loader)
            if state is not None:
                loader.load_state_dict(state)
            loader.set_epoch(epoch)
        passes = [iter(loader) for loader in loaders]
        while True:
            states = [json.dumps(loader.state_dict()) for loader in loaders]
            yield Step([list(each) for each in seen], states, list(ended))
            if all(ended):
                return
            for rank, batches in enumerate(passes):
                if not ended[rank]:
                    batch = list(_next(batches))
                    seen[rank] += batch
                    ended[rank] = not batch


def _next(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        yield fingerprint(batch)
        return


def rest_of(make: Make, rank: int, size: int, state: Any, workers: int = 0) -> list[Any]:
    """What one rank still delivers of the epoch, from a state on."""
    loader = make(rank=rank, world_size=size, num_workers=workers)
    loader.load_state_dict(state)
    return drained(loader)


def epoch_of(make: Make, epoch: int = 0) -> list[Any]:
    """What a rank that is alone delivers in an epoch."""
    loader = make(rank=0, world_size=1)
    loader.set_epoch(epoch)
    return drained(loader)


def _flat(ranks: Iterable[Iterable[Any]]) -> list[Any]:
    return list(chain.from_iterable(ranks))


def counted(batches: Iterable[Any]) -> Counter[str]:
    """How often each batch came, by its fingerprint."""
    return Counter(map(repr, batches))


def assert_every_world_goes_on(
    make: Make, sizes: Sequence[int] = (1, 2, 4), workers: Sequence[int] = (0,), epoch: int = 0
) -> None:
    """Save after every step of every world, and go on from each in every world.

    The same world goes on with the same batches, each rank from its own state and from the merged one. In
    another world, all ranks together give what is left, and each batch of it once; the only rank, in the
    very order of an epoch that it reads alone, if no lane had run dry at the cut.

    The states are the same texts for any number of workers. So it is enough to resume with another number
    of them from one step to the next, which tries every pairing of worlds with every number.
    """
    whole = epoch_of(make, epoch)
    for size in sizes:
        steps = list(steps_of(make, size, workers[0], epoch=epoch))
        for count in workers[1:]:
            assert list(steps_of(make, size, count, epoch=epoch)) == steps, f"{count} workers differ"
        delivered = steps[-1].seen
        assert counted(_flat(delivered)) == counted(whole)
        for number, step in enumerate(steps):
            assert_goes_on(make, step, delivered, whole, sizes, workers[number % len(workers)])


def assert_goes_on(
    make: Make,
    step: Step,
    delivered: list[list[Any]],
    whole: list[Any],
    sizes: Sequence[int],
    workers: int = 0,
) -> None:
    """Go on from one step in worlds of ``sizes``; see ``assert_every_world_goes_on``.

    Args:
        make: As there.
        step: Where the ranks were cut.
        delivered: What each of them delivered in the whole epoch.
        whole: What the only rank of a world of one delivers in it.
        sizes: Of the worlds that go on.
        workers: Of each rank of theirs.
    """
    size = len(step.seen)
    tails = [whole_of[len(seen) :] for whole_of, seen in zip(delivered, step.seen, strict=True)]
    seen = _flat(step.seen)
    for rank, text in enumerate(step.states):
        if not step.ended[rank]:  # else its state is the beginning of the next epoch
            assert rest_of(make, rank, size, json.loads(text), workers) == tails[rank]
    if all(step.ended):
        return
    for after in sizes:
        rests = [rest_of(make, rank, after, step.merged, workers) for rank in range(after)]
        where = f"from {size} ranks after {len(step.seen[0])} steps to {after} with {workers} workers"
        assert counted(seen) + counted(_flat(rests)) == counted(whole), where
        if after == size:
            assert rests == tails, where
        if after == 1 and counted(seen) == counted(whole[: len(seen)]):
            assert rests[0] == whole[len(seen) :], where
