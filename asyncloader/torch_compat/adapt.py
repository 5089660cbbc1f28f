"""Adapters: what torch's loop is given instead of a dataset that it cannot read.

Each holds the user's dataset as ``dataset`` and has its repr, for messages. The loader's ``dataset``
attribute stays the user's own.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Sequence
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from operator import getitem
from typing import Any

from torch.utils.data import ConcatDataset, Dataset, IterableDataset, IterDataPipe, MapDataPipe, Subset

from ..errors import add_note
from ..flow.channel import Channel
from ..flow.engine import Engine, Scope
from ..pipeline.calls import call_user_code
from ..pipeline.sources import iterate_async

# Requests of one batch under way at a time. With more, servers answer with 429 rather than sooner; and it
# fits twice into the default limit of aiohttp's connector (100), for a second loader.
_MOST_FETCHES = 48


def for_torch(dataset: Any) -> Any:
    """The dataset as torch's constructor must see it to distinguish map style from iterable style."""
    if isinstance(dataset, IterableDataset) and hasattr(type(dataset), "__iter__"):
        return dataset  # the loader registers the sources of streams as of this class; some are async only
    getitem = getattr(type(dataset), "__getitem__", None)
    # torch's base class has one that only raises, whatever the kind.
    if getitem is not None and not (getitem is Dataset.__getitem__ and isinstance(dataset, AsyncIterable)):
        return dataset
    if isinstance(dataset, AsyncIterable):
        return AsyncIterated(dataset)
    if isinstance(dataset, Iterable):
        return PlainIterated(dataset)
    return dataset


def for_loop(dataset: Any, num_workers: int) -> Any:
    """The dataset as torch's loop must see it; ``dataset`` has gone through ``for_torch``."""
    if isinstance(dataset, IterDataPipe | MapDataPipe):
        return dataset  # torch shards these itself
    if isinstance(dataset, AsyncIterated):
        return AsyncIterated(dataset.dataset)  # each iterator stops its own engine
    if isinstance(dataset, IterableDataset):
        return dataset
    if is_async(dataset):
        return AsyncFetched(dataset)
    if num_workers and hasattr(type(dataset), "__getitem__"):
        return Fetched(dataset)
    return dataset


def is_iterable(dataset: Any) -> bool:
    """Whether ``dataset`` is iterable style, in torch's eyes or in ours."""
    return isinstance(for_torch(dataset), IterableDataset)


def is_async(dataset: Any) -> bool:
    """Whether ``dataset[index]`` or its ``__getitems__`` returns something to be awaited."""
    if isinstance(dataset, Subset):
        return is_async(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        return any(map(is_async, dataset.datasets))
    kind = type(dataset)
    methods = (getattr(kind, "__getitems__", None), getattr(kind, "__getitem__", None))
    return any(map(iscoroutinefunction, methods))


def torch_reads(dataset: Any) -> bool:
    """Whether torch's own loop, without ours, can read ``dataset``."""
    return for_torch(dataset) is dataset and not is_async(dataset)


def _fetches_together(dataset: Any) -> bool:
    if isinstance(dataset, Subset):
        return _fetches_together(dataset.dataset)
    return bool(getattr(dataset, "__getitems__", None))


class Adapter:
    """Holds a dataset."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __repr__(self) -> str:
        return repr(self.dataset)

    def __str__(self) -> str:
        return str(self.dataset)


class _EngineHere:
    """An engine started when first needed, in the process that needs it; pickles as none."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._pid = 0

    def __call__(self) -> Engine:
        if self._engine is None or self._pid != os.getpid():
            self._engine, self._pid = Engine(), os.getpid()
            self._engine.start()
        return self._engine

    def stop(self) -> None:
        """Stop the engine of this process, if there is one."""
        engine, self._engine = self._engine, None
        if engine is not None and self._pid == os.getpid():
            engine.stop()

    def __reduce__(self) -> Any:
        return _EngineHere, ()


class AsyncFetched(Adapter):
    """A map-style dataset whose ``__getitem__`` or ``__getitems__`` is a coroutine function.

    The items of a batch are fetched concurrently, and come in the sampler's order.
    """

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset)
        self.engine = _EngineHere()

    def __getitem__(self, index: Any) -> Any:
        return self._fetch([index], whole=False)[0]

    def __getitems__(self, indices: Iterable[Any]) -> list[Any]:
        return self._fetch([*indices], whole=_fetches_together(self.dataset))

    def _fetch(self, indices: Sequence[Any], whole: bool) -> list[Any]:
        fetched = Channel[list[Any]](1)
        work = self._fetch_whole if whole else self._fetch_each
        self.engine().submit(partial(work, indices, fetched), fetched)
        try:
            return fetched.receive()
        finally:
            fetched.close()

    async def _fetch_whole(self, indices: Sequence[Any], fetched: Channel[list[Any]]) -> None:
        try:
            items = [*await call_user_code(_awaited, self.dataset.__getitems__, indices)]
        except Exception as error:
            add_note(error, f"while fetching indices {_shown(indices)}")
            raise
        fetched.send(items)

    async def _fetch_each(self, indices: Sequence[Any], fetched: Channel[list[Any]]) -> None:
        items: list[Any] = [None] * len(indices)
        waiting = iter(enumerate(indices))
        async with Scope() as scope:
            for _ in range(min(_MOST_FETCHES, len(indices))):
                scope.start(partial(self._fetch_next, waiting, items))
        fetched.send(items)

    async def _fetch_next(self, waiting: Iterator[tuple[int, Any]], items: list[Any]) -> None:
        get = partial(getitem, self.dataset)
        for place, index in waiting:
            try:
                items[place] = await call_user_code(_awaited, get, index)
            except Exception as error:
                add_note(error, f"while fetching index {index!r}")
                raise


class Fetched(Adapter):
    """A map-style dataset in a worker, whose errors name the index."""

    def __getitem__(self, index: Any) -> Any:
        try:
            return self.dataset[index]
        except Exception as error:
            add_note(error, f"while fetching index {index!r}")
            raise

    def __getitems__(self, indices: Any) -> Any:
        dataset = self.dataset
        together = getattr(dataset, "__getitems__", None)
        fetching, index = "indices", indices  # known when it fails
        try:
            if together:
                return together(indices)
            items: list[Any] = []
            fetching = "index"
            for index in indices:
                items.append(dataset[index])
            return items
        except Exception as error:
            add_note(error, f"while fetching {fetching} {_shown(index)}")
            raise


class AsyncIterated(Adapter, IterableDataset[Any]):
    """An object with ``__aiter__`` as an iterable dataset; it is iterated on an engine's loop."""

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset)
        self.engine = _EngineHere()

    def __iter__(self) -> Iterator[Any]:
        return iterate_async(self.dataset, self.engine())


class PlainIterated(Adapter, IterableDataset[Any]):
    """An iterable that is no ``IterableDataset`` and has no ``__getitem__``."""

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset)
        self._begun = False

    def __iter__(self) -> Iterator[Any]:
        if self._begun and hasattr(self.dataset, "__next__"):
            raise RuntimeError(
                f"{type(self.dataset).__name__} can be iterated only once, and has already been: a second "
                "epoch would be empty. Pass something that can be iterated again, such as a list or an "
                "IterableDataset"
            )
        self._begun = True
        return iter(self.dataset)


async def _awaited(get: Callable[[Any], Any], wanted: Any) -> Any:
    found = get(wanted)
    # A dataset may be made of parts of which only some are asynchronous.
    return await found if isawaitable(found) else found


def _shown(indices: Any) -> str:
    text = repr(indices)
    return text if len(text) <= 200 else f"{text[:200]}..."
