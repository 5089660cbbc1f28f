"""An iterable dataset as torch's loop reads it, with word of where each batch ends.

What a stateful dataset says of itself travels with the batch after which it said it, so that what a worker
has made ahead does not count. One that says nothing is read again from its beginning, up to where it was.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from torch.utils.data import IterableDataset

from ..sources.iterables import iterate_async
from ..torch_private import pin_memory
from .adapt import Adapter, AsyncIterated
from .saved import Part
from .stateful import is_stateful, pass_over, reopen, run_out, tell_iterator, tell_owner, where
from .worker_info import is_first_worker, was_asked, worker_number

__all__ = ["Carried", "Carrying", "Reading"]

# The reading of this process, if it is a worker: one process is one worker, for life. Dataset and collate_fn
# reach it on separate roads and meet here.
_of_worker: Reading | None = None


class Reading(Adapter, IterableDataset[Any]):
    """Iterates a dataset from where each worker is to begin, and knows where it is after each batch.

    Args:
        dataset: An iterable dataset, or an adapter that makes it one.
        batch_size: How many items the loop draws for a batch; None for one, which is no batch.
        every: After how many batches the dataset is asked again where it is.
        in_worker: Whether it is iterated in a worker.
    """

    def __init__(self, dataset: Any, batch_size: int | None, every: int, in_worker: bool) -> None:
        super().__init__(dataset)
        self._batched = batch_size is not None
        self._batch_size = batch_size or 1
        self._every = every
        self._in_worker = in_worker
        self._parts: Sequence[Part] = ()
        self._since = 0
        self._ended = False
        #: Whether the next batch is the first: asked after that, no pass goes by what the one before said.
        self._is_first = True
        self._owner: Any = None
        self._iterator: Any = None
        #: Called before the dataset is iterated.
        self.opening: Callable[[], None] = _nothing

    def begin_at(self, parts: Sequence[Part]) -> None:
        """Have the next iteration go on there, in each worker."""
        self._parts = parts

    def __iter__(self) -> Iterator[Any]:
        global _of_worker
        if self._in_worker:
            _of_worker = self
        self.opening()
        worker = worker_number() if self._in_worker else 0
        part = self._parts[worker] if worker < len(self._parts) else Part()
        self._parts = ()
        dataset = self.dataset
        self._owner = dataset.dataset if isinstance(dataset, Adapter) else dataset
        items: Any
        if part.ended and part.state is not None and not part.batches:
            tell_owner(self._owner, part.state)
            items = iter(())
        elif isinstance(dataset, AsyncIterated):
            # Told on its own loop, where it is iterated.
            items = _Unnoted(dataset, part.state, self._batch_size, self._every)
        else:
            items = reopen(self._owner, part.state, partial(iter, dataset), ended=False)
        self._iterator = items
        pass_over(items, part.batches * self._batch_size)
        self._since, self._is_first = part.batches, True
        if part.finished:
            run_out(items)
            return self.__iter__()
        return cast("Iterator[Any]", items)

    def begin_batch(self, samples: Any) -> None:
        """Count a batch that was drawn, whatever becomes of it."""
        self._since += 1
        self._ended = self._batched and len(samples) < self._batch_size

    def end_batch(self) -> tuple[bytes | None, int, bool]:
        """What the dataset says of where it is, if it was asked, how long ago it did, and if that is all."""
        said = None
        if isinstance(self._iterator, _Unnoted):
            said = self._iterator.said_last()
        elif self._since >= self._every or self._is_first:
            said = where(self._owner, self._iterator)
        self._is_first = False
        if said is not None:
            self._since = 0
        return said, self._since, self._ended


@dataclass(frozen=True)
class _Noted:
    """An item, and what was said after it."""

    item: Any
    said: bytes


class _Noting:
    """An asynchronous iterable that is asked, on its own loop, where it is: after the first batch, and often.

    It runs ahead of the consumer, who could not ask it in time.
    """

    def __init__(self, dataset: Any, start: bytes | None, first: int, every: int) -> None:
        self._dataset = dataset
        self._first = first
        self._every = every
        self._start = start

    def __aiter__(self) -> AsyncIterator[Any]:
        if self._start is not None:
            tell_owner(self._dataset, self._start)
        items: AsyncIterator[Any] = aiter(self._dataset)
        if self._start is not None:
            tell_iterator(items, self._start)
        if is_stateful(self._dataset) or is_stateful(items):
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

    def __init__(self, dataset: AsyncIterated, start: bytes | None, batch_size: int, every: int) -> None:
        noting = _Noting(dataset.dataset, start, batch_size, every)
        self._items = iterate_async(noting, dataset.engine())
        self._latest: bytes | None = None

    def __iter__(self) -> _Unnoted:
        return self

    def __next__(self) -> Any:
        item = next(self._items)
        if type(item) is _Noted:
            self._latest = item.said
            return item.item
        self._latest = None
        return item

    def said_last(self) -> bytes | None:
        """What was said after the latest item, if anything."""
        return self._latest


@dataclass(frozen=True)
class Carried:
    """A batch, and what the loop is told beside it.

    Attributes:
        batch: As the user's function made it.
        worker: Which worker it is of.
        said: What the dataset said of where it is after this batch; None if it was not asked, or cannot say.
        since: How many batches of this worker came after the last one after which it said so.
        ended: Whether there are no more of this worker.
        unsplit: Whether several workers read the dataset and it did not ask which of them it is in.
    """

    batch: Any
    worker: int
    said: bytes | None
    since: int
    ended: bool
    unsplit: bool

    def pin_memory(self) -> Carried:
        """As torch asks of types that it does not know."""
        return replace(self, batch=pin_memory(self.batch))


class Carrying:
    """The ``collate_fn`` of an iterable dataset.

    Args:
        collate_fn: The user's.
        reading: What the samples come from; None for that of the worker it is called in.
        several: Whether there are several workers, so that the dataset should ask for its part.
    """

    def __init__(self, collate_fn: Callable[[Any], Any], reading: Reading | None, several: bool) -> None:
        self._collate_fn = collate_fn
        self._reading = reading
        self._looks = several

    def __call__(self, samples: Any) -> Carried:
        reading = self._reading or _of_worker
        assert reading is not None, "samples come from a reading"
        reading.begin_batch(samples)
        batch = self._collate_fn(samples)
        unsplit = False
        if self._looks:
            self._looks = False
            unsplit = is_first_worker() and not was_asked()
        worker = worker_number() if self._reading is None else 0
        return Carried(batch, worker, *reading.end_batch(), unsplit)


def _nothing() -> None:
    pass
