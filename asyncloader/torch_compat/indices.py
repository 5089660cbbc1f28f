"""The index sampler as torch's loop iterates it: one that knows its position, and can begin at one.

It draws when torch's sampler would, and from the same generator: ``iter()`` is called when torch calls it,
and the sampler of a ``BatchSampler`` is opened with the first batch. To begin in the middle it restores the
states of the generators that the pass began with, and skips indices without fetching.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch.utils.data import BatchSampler

from .saved import Saved
from .stateful import Said, States, is_stateful, pass_over, read_states, reopen, set_states, where


class Indices:
    """Stands for a loader's ``batch_sampler``, or ``sampler``.

    Args:
        sampler: The loader's.
        generators: Those that the loader draws from.
        resumed: Where the first pass begins; None for its beginning.
    """

    def __init__(
        self, sampler: Any, generators: Mapping[str, torch.Generator], resumed: Saved | None
    ) -> None:
        self.sampler = sampler
        self.generators = generators
        self.resumed = resumed
        #: The latest pass, which torch reads: with workers it opens an unused one before.
        self.order = IndexOrder(self, open_now=False)

    def begin(self) -> None:
        """Draw the latest pass's order now, rather than with its first batch."""
        self.order.begin()

    def __iter__(self) -> IndexOrder:
        self.order = IndexOrder(self)
        return self.order

    def __len__(self) -> int:
        return len(self.sampler)


class IndexOrder:
    """The indices of one pass.

    Attributes:
        start: The states of the generators that it was drawn from; empty before that.
        drawn: How many batches of the pass are drawn, including those that were skipped.
    """

    def __init__(self, indices: Indices, open_now: bool = True) -> None:
        self._indices = indices
        self._resumed = indices.resumed or Saved()
        self._early = sorted(self._resumed.early)
        self._batches: Iterator[Any] | None = None
        self._parts: tuple[Any, Any] | None = None
        self._begun = False
        #: What stateful parts returned after each batch that may be the last delivered one.
        self._said: deque[tuple[int, Said, bool]] = deque()
        #: How many indices a whole batch has, where that is known.
        self._size = 0
        self.start: States = {}
        self.drawn = 0
        if open_now and type(indices.sampler) is not BatchSampler:
            self._open_as_torch()

    def _open_as_torch(self) -> None:
        """Call ``iter()`` here, where torch does, and see whether that draws."""
        generators = self._indices.generators
        # Again with the first batch, if that draws.
        set_states(generators, self._resumed.start)
        before = read_states(generators)
        self._batches = self._reopen(self._indices.sampler)
        after = read_states(generators)
        if any(not torch.equal(before[name], after[name]) for name in before):
            self.start = before

    def _reopen(self, sampler: Any) -> Iterator[Any]:
        saved = self._resumed
        iterator: Iterator[Any] = reopen(
            sampler,
            saved.sampler,
            lambda: iter(sampler),
            ended=saved.sampler_ended,
            finished=saved.finished,
        )
        if is_stateful(sampler) or is_stateful(iterator):
            self._parts = sampler, iterator
        return iterator

    def begin(self) -> None:
        """Draw the order, unless that was done, and skip what was delivered before."""
        if self._begun:
            return
        self._begun = True
        self._indices.resumed = None  # torch has chosen this pass; the next one is whole
        saved, sampler = self._resumed, self._indices.sampler
        if not self.start:
            set_states(self._indices.generators, saved.start)
            self.start = read_states(self._indices.generators)
        passed = 0 if saved.sampler is not None else saved.batches
        if self._batches is None:
            self._batches = iter(())  # a sampler that cannot be opened is at its end after its error
            self._size = sampler.batch_size
            indices = self._reopen(sampler.sampler)
            pass_over(indices, passed * self._size)
            self._batches = _in_batches(indices, self._size, sampler.drop_last)
        else:
            pass_over(self._batches, passed)
        self.drawn = saved.batches
        self._note(ended=saved.sampler_ended and not saved.finished)

    def __iter__(self) -> IndexOrder:
        return self

    def __next__(self) -> Any:
        self.begin()
        assert self._batches is not None
        while self.drawn in self._early:
            next(self._batches)
            self.drawn += 1
        batch = next(self._batches)
        self.drawn += 1
        if self._parts is not None:
            self._note(ended=self._size > 0 and len(batch) < self._size)
        return batch

    def _note(self, ended: bool) -> None:
        said = None if self._parts is None else where(*self._parts)
        if said is not None:
            self._said.append((self.drawn, said, ended))

    # --- where the consumer is ---

    def number_of(self, task: int) -> int:
        """Which batch of the pass is torch's task of this number; torch counts what it sends, from 0."""
        number = self._resumed.batches + task
        for early in self._early:
            if early <= number:
                number += 1
        return number

    def early_after(self, batches: int) -> tuple[int, ...]:
        """The batches delivered early before the pass was resumed, after the first ``batches``."""
        return tuple(number for number in self._early if number >= batches) if self._early else ()

    def said_at(self, batches: int) -> tuple[Said | None, bool]:
        """What stateful parts returned after so many batches, and whether they were at their end.

        What they returned before is dropped.
        """
        while len(self._said) > 1 and self._said[1][0] <= batches:
            self._said.popleft()
        return self._said[0][1:] if self._said else (None, False)


def _in_batches(indices: Iterator[Any], size: int, drop_last: bool) -> Iterator[list[Any]]:
    """As a ``BatchSampler`` makes them."""
    while batch := [*islice(indices, size)]:
        if len(batch) < size and drop_last:
            return
        yield batch
