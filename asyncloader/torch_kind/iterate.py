"""torch's loop over adapted datasets, and its door for ``async for``."""

from __future__ import annotations

import asyncio
import copy
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from traceback import clear_frames
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, IterDataPipe, MapDataPipe
from torch.utils.data import get_worker_info as torch_worker_info
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from ..descriptors import occupy_standard_descriptors
from ..plan.topology import World
from .adapt import AsyncFetched, AsyncIterated, ByValue, for_loop
from .unsplit import Unsplit, UnsplitNotice, WatchedCollate
from .worker_info import enter_worker

__all__ = ["AsyncDoor", "Delivered", "close_torch_iterator", "open_torch_iterator"]


@dataclass(slots=True)
class Delivered:
    """How many batches a pass has handed out: 0 before its first one, and once it has ended."""

    batches: int = 0


def open_torch_iterator(
    loader: DataLoader[Any], dataset: Any, world: World, notice: UnsplitNotice, delivered: Delivered
) -> _BaseDataLoaderIter:
    """torch's iterator over ``loader``.

    Args:
        loader: Its attributes say how; they stay as they are.
        dataset: The loader's dataset as torch's constructor saw it (``adapt.for_torch``).
        world: What the workers are told of their rank.
        notice: Told of a dataset that several workers read and none has split.
        delivered: Counts the batches handed out.
    """
    seen = for_loop(dataset, loader.num_workers)
    view = copy.copy(loader)
    _set(view, "dataset", seen)
    if loader.num_workers == 0:
        iterator: _BaseDataLoaderIter = _HereIterator(view, delivered)
        _stop_engine_with(iterator, seen)
        return iterator
    _set(view, "worker_init_fn", _Enter(loader.worker_init_fn, world))
    pipe = isinstance(seen, IterDataPipe | MapDataPipe)
    if loader.num_workers > 1 and isinstance(seen, IterableDataset) and not pipe:
        _set(view, "collate_fn", WatchedCollate(loader.collate_fn))
    if _pickles(loader.multiprocessing_context):
        for name in ("dataset", "collate_fn", "worker_init_fn"):
            if name != "dataset" or not pipe:  # torch must see that it is one, and pickles it itself
                _set(view, name, ByValue(getattr(view, name), name, getattr(loader, name)))
    loader.check_worker_number_rationality()
    occupy_standard_descriptors()  # also for the workers, which inherit them
    return _WorkersIterator(view, partial(notice.tell, loader.dataset), delivered)


def close_torch_iterator(iterator: _BaseDataLoaderIter) -> None:
    """End the workers of ``iterator``, if it has any. Idempotent."""
    if isinstance(iterator, _WorkersIterator):
        iterator._shutdown_workers()


class _HereIterator(_SingleProcessDataLoaderIter):
    """torch's iterator without workers, whose batches are counted."""

    def __init__(self, view: DataLoader[Any], delivered: Delivered) -> None:
        self._delivered = delivered
        super().__init__(view)

    def _next_data(self) -> Any:
        try:
            batch = super()._next_data()  # type: ignore[no-untyped-call]
        except StopIteration:
            self._delivered.batches = 0
            raise
        self._delivered.batches += 1
        return batch


class _WorkersIterator(_MultiProcessingDataLoaderIter):
    """torch's multi-process iterator, whose time-outs say which worker was at which batch.

    Args:
        view: torch's loop over this loader.
        tell_unsplit: Called with a stack level when the dataset turns out not to be split.
        delivered: Counts the batches handed out.
    """

    # Until torch has something to shut down; else its __del__ fails on an iterator that it refused to make.
    _shutdown = True

    def __init__(
        self, view: DataLoader[Any], tell_unsplit: Callable[[int], None], delivered: Delivered
    ) -> None:
        self._tell_unsplit = tell_unsplit
        self._delivered = delivered
        super().__init__(view)

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        self._delivered.batches = 0
        super()._reset(loader, first_iter)

    def _next_data(self) -> Any:
        try:
            batch = super()._next_data()  # type: ignore[no-untyped-call]
        except Exception as error:
            # One of torch's frames holds the error that it raises, and through it this iterator: in that
            # cycle its workers would live until a garbage collection, which then waits 5 s for each.
            clear_frames(error.__traceback__)
            if isinstance(error, StopIteration):
                self._delivered.batches = 0
            raise
        self._delivered.batches += 1
        if isinstance(batch, Unsplit):
            self._tell_unsplit(3)  # past torch's __next__, to the loop
            return batch.batch
        return batch

    def _get_data(self) -> Any:
        try:
            return super()._get_data()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            if "timed out" in str(error):
                worker = self._task_info.get(self._rcvd_idx, (None,))[0]
                process = self._workers[worker] if worker is not None else None
                error.add_note(
                    f"batch {self._rcvd_idx} was being made by worker {worker} "
                    f"(pid {process.pid if process is not None else '?'}, "
                    f"{'alive' if process is not None and process.is_alive() else 'dead'})"
                )
            raise


@dataclass(frozen=True)
class _Enter:
    """The ``worker_init_fn`` that torch is given: completes the worker's info, then calls the user's."""

    user_fn: Callable[[int], object] | None
    world: World

    def __call__(self, worker: int) -> None:
        info = torch_worker_info()
        assert info is not None, "called outside a worker"
        dataset = info.dataset
        while hasattr(dataset, "dataset") and type(dataset).__module__ == _ADAPTERS:
            dataset = dataset.dataset
        enter_worker(worker, info.num_workers, info.seed, dataset, self.world.rank, self.world.size)
        if self.user_fn is not None:
            self.user_fn(worker)


_ADAPTERS = AsyncFetched.__module__


class AsyncDoor:
    """``async for`` over a plain iterator: its ``next`` runs on a thread of its own.

    The batches are those of ``for``, in the same order. If cancelled while waiting, the batch that was
    being made is handed on by the next ``__anext__``.
    """

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator
        # One thread, so that calls never overlap; named as what it stands for.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="asyncloader-next")
        self._waiting: Any = None
        self._ended = False
        self._closer = weakref.finalize(self, self._thread.shutdown, wait=False, cancel_futures=True)

    def __aiter__(self) -> AsyncDoor:
        return self

    async def __anext__(self) -> Any:
        if self._ended:
            raise StopAsyncIteration
        if self._waiting is None:
            self._waiting = self._thread.submit(next, self._iterator, _END)
        waiting = self._waiting
        try:
            batch = await asyncio.shield(asyncio.wrap_future(waiting))
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._waiting = None  # as in torch, the batches after a failed one can still be had
            raise
        self._waiting = None
        if batch is _END:
            await self.aclose()
            raise StopAsyncIteration
        return batch

    async def aclose(self) -> None:
        """Let go of the iterator and end the thread."""
        self._ended = True
        self._iterator = self._waiting = None
        self._closer()


_END = object()


def _set(view: DataLoader[Any], name: str, value: Any) -> None:
    """Set an attribute of our private copy past torch's guard against changing loaders in use."""
    object.__setattr__(view, name, value)


def _pickles(context: Any) -> bool:
    """Whether workers of this start method get what they need by pickle."""
    import multiprocessing

    method = context.get_start_method() if context is not None else multiprocessing.get_start_method()
    return bool(method != "fork")


def _stop_engine_with(iterator: _BaseDataLoaderIter, dataset: Any) -> None:
    if isinstance(dataset, AsyncFetched | AsyncIterated):
        weakref.finalize(iterator, dataset.engine.stop)
