"""A dataset as torch's loop reads it, with its position after each batch.

The state of a dataset in a worker is sent with the batch after which it was taken, so that what the worker
has made ahead does not count. A dataset in this process is asked for its state when the loader is, and before
the next batch is made. An iterable one without a state is read again from its beginning, up to where it was.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from torch.utils.data import IterableDataset

from ..pipeline.sources import iterate_async
from ..torch_private import pin_memory
from .adapt import Adapter, AsyncIterated
from .saved import SavedPart
from .stateful import Said, default_kept, is_stateful, pass_over, reopen, run_out, tell_part, where
from .worker_info import was_asked, worker_number

# Of the dataset in this process, if that is a worker: one process is one worker, for life. torch passes
# dataset and collate_fn separately, so they share this module global.
_of_worker: Whereabouts | None = None


class Whereabouts:
    """The state of a dataset, and how many batches were drawn since that was taken.

    Args:
        batch_size: How many items the loop draws for a batch of an iterable dataset; None for a map-style
            one, and for one item, which is no batch.
        every: After how many batches the state is taken again.
        in_worker: Whether it is read in a worker, where the state is taken as soon as a batch is made.
        several: Whether there are several workers, so that the dataset should ask for its part.
    """

    def __init__(self, batch_size: int | None, every: int, in_worker: bool, several: bool = False) -> None:
        self.batch_size = batch_size
        self.every = every
        self.in_worker = in_worker
        self._looks = several
        self.since = 0
        self._ended = False
        #: Whether the next batch is the first: a state after that replaces the one of the previous pass.
        self._is_first = True
        self._owner: Any = None
        self._iterator: Any = None
        #: Whether the state can be taken here before the first batch, and between any two.
        self.can_begin = self.can_say = False

    def begin(self, owner: Any, iterator: Any, since: int) -> None:
        """A pass begins.

        Args:
            owner: The user's dataset.
            iterator: Its iterator; None if it is map style.
            since: How many batches were skipped after its saved state.
        """
        self._owner, self._iterator = owner, iterator
        self.since, self._is_first = since, True
        self.can_begin = not self.in_worker and (is_stateful(owner) or is_stateful(iterator))
        self.can_say = self.can_begin and not isinstance(iterator, _Unnoted)

    @property
    def has_end(self) -> bool:
        """Whether the dataset itself decides when it ends, and may change at its end."""
        return self._iterator is not None

    def begin_batch(self, samples: Any) -> None:
        """Count a batch that was drawn, even if collating it fails."""
        self.since += 1
        self._ended = self.batch_size is not None and len(samples) < self.batch_size

    def tag(self, batch: Any) -> TaggedBatch:
        """The batch with the dataset's state, if that was taken."""
        # Before its state_dict() is called, which may ask too.
        unsplit, self._looks = self._looks and worker_number() == 0 and not was_asked(), False
        said: Said | None = None
        if isinstance(self._iterator, _Unnoted):
            said = self._iterator.latest
            if said is not None:
                self.since = 0
        elif self.in_worker and (self.since >= self.every or self._is_first):
            said = self.ask()
        self._is_first = False
        worker = worker_number() if self.in_worker else 0
        return TaggedBatch(batch, worker, said, self.since, self._ended, unsplit)

    def ask(self) -> Said | None:
        """The dataset's present state; None if it has none."""
        said = where(self._owner, self._iterator)
        if said is not None:
            self.since = 0
        return said


def whereabouts_in_worker() -> Whereabouts | None:
    """Those of the dataset in this process, a worker, if its state is sent with its batches."""
    return _of_worker


def enter_map_style(dataset: Any, part: SavedPart) -> None:
    """In a worker, before it reads a stateful map-style dataset: restore it, and track its state."""
    global _of_worker
    if part.state is not None:
        tell_part("owner", dataset, part.state)
    _of_worker = Whereabouts(None, 1, in_worker=True)
    _of_worker.begin(dataset, None, 0)


class DatasetReader(Adapter, IterableDataset[Any]):
    """Iterates a dataset from where each worker has to begin, and knows its state after each batch.

    Args:
        dataset: An iterable dataset, or an adapter that makes it one.
        whereabouts: Of the dataset.
        parts: Where the next iteration continues, in each worker.
        opening: Called before the dataset is iterated.
        keeps_default: Whether the dataset's ``load_state_dict`` must not change torch's default generator.
    """

    def __init__(
        self,
        dataset: Any,
        whereabouts: Whereabouts,
        parts: Sequence[SavedPart],
        opening: Callable[[], None],
        keeps_default: bool,
    ) -> None:
        super().__init__(dataset)
        self._whereabouts = whereabouts
        self._parts = parts
        self._opening = opening
        self._keeps_default = keeps_default

    def __iter__(self) -> Iterator[Any]:
        global _of_worker
        in_worker = self._whereabouts.in_worker
        if in_worker:
            _of_worker = self._whereabouts
        self._opening()
        worker = worker_number() if in_worker else 0
        part = self._parts[worker] if worker < len(self._parts) else SavedPart()
        self._parts = ()
        if part.finished:
            with default_kept(self._keeps_default):
                run_out(self._open(part))
            part = SavedPart()
        return self._open(part)

    def _open(self, part: SavedPart) -> Iterator[Any]:
        dataset, keeps, whereabouts = self.dataset, self._keeps_default, self._whereabouts
        owner = dataset.dataset if isinstance(dataset, Adapter) else dataset
        items_each = whereabouts.batch_size or 1
        ended = part.ended and not part.batches
        items: Any
        if isinstance(dataset, AsyncIterated) and not ended:
            # Restored on its own loop, where it is iterated.
            items = _Unnoted(dataset, part.state, items_each, whereabouts.every, keeps)
        else:
            items = reopen(owner, part.state, partial(iter, dataset), ended=ended, keeps_default=keeps)
        pass_over(items, part.batches * items_each)
        whereabouts.begin(owner, items, part.batches)
        return cast("Iterator[Any]", items)


@dataclass(frozen=True)
class _Noted:
    """An item, and the dataset's state after it."""

    item: Any
    said: Said


class _NotingIterator:
    """An asynchronous iterable whose state is taken on its own loop: after the first batch, and regularly.

    It runs ahead of the consumer, which could not take the state in time.
    """

    def __init__(self, dataset: Any, start: Said | None, first: int, every: int, keeps_default: bool) -> None:
        self._dataset = dataset
        self._first = first
        self._every = every
        self._start = start
        self._keeps_default = keeps_default

    def __aiter__(self) -> AsyncIterator[Any]:
        dataset, keeps = self._dataset, self._keeps_default
        opening = partial(aiter, dataset)
        items: AsyncIterator[Any] = reopen(dataset, self._start, opening, ended=False, keeps_default=keeps)
        if is_stateful(dataset) or is_stateful(items):
            return self._note(items)
        return items

    async def _note(self, items: Any) -> AsyncIterator[Any]:
        count = 0
        try:
            async for item in items:
                count += 1
                if count != self._first and count % (self._first * self._every):
                    yield item
                    continue
                said = where(self._dataset, items)
                yield item if said is None else _Noted(item, said)
        finally:
            if hasattr(items, "aclose"):
                await items.aclose()


class _Unnoted:
    """The items of an asynchronous iterable, without the notes; keeps the latest."""

    def __init__(
        self, dataset: AsyncIterated, start: Said | None, batch_size: int, every: int, keeps_default: bool
    ) -> None:
        noting = _NotingIterator(dataset.dataset, start, batch_size, every, keeps_default)
        self._items = iterate_async(noting, dataset.engine())
        #: The state after the latest item, if it was taken.
        self.latest: Said | None = None

    def __iter__(self) -> _Unnoted:
        return self

    def __next__(self) -> Any:
        item = next(self._items)
        if type(item) is _Noted:
            self.latest = item.said
            return item.item
        self.latest = None
        return item


@dataclass(frozen=True)
class TaggedBatch:
    """A batch, and what is sent to the loop with it.

    Attributes:
        batch: As the user's function made it.
        worker: The worker that made it.
        said: The dataset's state after this batch; None if it was not taken, or there is none.
        since: How many batches of this worker came since the state was last taken.
        ended: Whether this is the worker's last batch.
        unsplit: Whether several workers read the dataset and it did not ask which of them it is in.
    """

    batch: Any
    worker: int
    said: Said | None
    since: int
    ended: bool
    unsplit: bool

    def pin_memory(self) -> TaggedBatch:
        """torch's hook for types that it does not know."""
        return replace(self, batch=pin_memory(self.batch))
