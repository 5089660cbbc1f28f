"""torch's loop over adapted datasets, and its door for ``async for``."""

from __future__ import annotations

import asyncio
import copy
import gc
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch.utils.data import DataLoader, IterDataPipe
from torch.utils.data import get_worker_info as torch_worker_info

from ..flow.process import occupy_standard_descriptors
from ..flow.threads import DaemonThreads
from ..pipeline.calls import as_error
from ..plan.topology import World
from ..torch_private import HereIterator, WorkersIterator
from .adapt import Adapter, AsyncFetched, AsyncIterated, for_loop, is_iterable
from .passes import TorchPass
from .reading import DatasetReader, Whereabouts, enter_map_style
from .saved import SavedPart
from .stateful import is_stateful, tell_part
from .timing import Collating
from .transport import LinkContext
from .travel import ByValue
from .worker_info import enter_worker, read_for


def open_torch_iterator(
    loader: Any,
    dataset: Any,
    world: World,
    told: TorchPass,
    parts: Sequence[SavedPart],
    keeps_default: bool,
) -> HereIterator | WorkersIterator:
    """torch's iterator over ``loader``.

    Args:
        loader: Says how to iterate; it is not changed.
        dataset: The loader's dataset as torch's constructor saw it (``adapt.for_torch``).
        world: The rank, for the workers, or for the dataset in this process.
        told: The pass; it knows where to begin.
        parts: Where the dataset continues, in each worker, or here.
        keeps_default: Whether a ``load_state_dict`` called here must not change torch's default generator.
    """
    workers, tally = loader.num_workers, told.tally
    seen = for_loop(dataset, workers)
    # What torch is shown in the place of the loader's attributes.
    shown: dict[str, Any] = {"dataset": seen}
    shown["sampler" if loader.batch_sampler is None else "batch_sampler"] = told.indices
    is_pipe = isinstance(seen, IterDataPipe)  # torch must see what it is
    is_read = is_iterable(loader.dataset) and not is_pipe
    says_where = not is_read and is_stateful(loader.dataset) and not is_pipe
    here: Whereabouts | None = None
    if is_read:
        every = loader.snapshot_every_n_steps or sys.maxsize
        opening = _nothing if workers else told.indices.begin
        whereabouts = Whereabouts(loader.batch_size, every, in_worker=workers > 0, several=workers > 1)
        shown["dataset"] = DatasetReader(seen, whereabouts, parts, opening, keeps_default and not workers)
        here = None if workers else whereabouts
    elif says_where and not workers:
        here = Whereabouts(None, 1, in_worker=False)
    shown["collate_fn"] = Collating(loader.collate_fn, tally.laps, loader.batch_sampler is not None, here)
    if workers == 0:
        asynchronous = isinstance(seen, AsyncFetched | AsyncIterated)
        interrupt = seen.engine.stop if asynchronous else _nothing
        iterator = HereIterator(_view(loader, shown), told, interrupt, partial(read_for, world))
        if asynchronous:
            weakref.finalize(iterator, seen.engine.stop)
        if here is not None:
            if not is_read:
                if parts and parts[0].state is not None:
                    tell_part("owner", loader.dataset, parts[0].state)
                here.begin(loader.dataset, None, 0)
            told.read_here(here)
        return iterator
    shown["worker_init_fn"] = _Enter(loader.worker_init_fn, world, tuple(parts) if says_where else None)
    context, prefetch_factor = loader.multiprocessing_context, loader.prefetch_factor or 0
    link = LinkContext(context, prefetch_factor, tally, shown["dataset"], loader.dataset)
    shown["multiprocessing_context"] = link
    if link.sends_by_value:
        for name in ("collate_fn", "worker_init_fn"):
            shown[name] = ByValue(shown[name], name, getattr(loader, name))
    loader.check_worker_number_rationality()
    occupy_standard_descriptors()  # also for the workers, which inherit them
    return WorkersIterator(_view(loader, shown), told, link)


def _view(loader: DataLoader[Any], shown: Mapping[str, Any]) -> DataLoader[Any]:
    """A private copy of the loader, with these attributes set past torch's guard for loaders in use."""
    view = copy.copy(loader)
    for name, value in shown.items():
        object.__setattr__(view, name, value)
    return view


def close_torch_iterator(iterator: HereIterator | WorkersIterator) -> None:
    """End the workers of ``iterator``, if it has any, also where a thread waits for them. Idempotent."""
    iterator.leave()
    iterator.end()


@dataclass(frozen=True)
class _Enter:
    """The ``worker_init_fn`` that torch gets: completes the worker's info, then calls the user's.

    Attributes:
        user_fn: The user's.
        world: Which rank the workers are of.
        parts: Of a stateful map-style dataset: where each worker's copy continues, or none; None for others.
    """

    user_fn: Callable[[int], object] | None
    world: World
    parts: tuple[SavedPart, ...] | None

    def __call__(self, worker: int) -> None:
        # A garbage collection would write to each object from before the fork, and so copy their pages.
        gc.freeze()
        info = torch_worker_info()
        assert info is not None, "called outside a worker"
        dataset = info.dataset
        while isinstance(dataset, Adapter):
            dataset = dataset.dataset
        enter_worker(worker, info.num_workers, info.seed, dataset, self.world.rank, self.world.size)
        if self.user_fn is not None:
            self.user_fn(worker)
        if self.parts is not None:
            enter_map_style(dataset, self.parts[worker] if self.parts else SavedPart())


class AsyncDoor:
    """``async for`` over a plain iterator: its ``next`` runs on a thread of its own.

    The batches are those of ``for``, in the same order; concurrent tasks get one each, in turn. If a task is
    cancelled while waiting, the next ``__anext__`` returns the batch that was being made. When the door is
    dropped, or closed, it stops the ``next`` that is under way and ends the worker processes, in its thread:
    no event loop waits for that.
    """

    def __init__(self, iterator: Any) -> None:
        getattr(iterator, "defer", bool)()
        self._calls = _Calls(iterator)
        self._closer = weakref.finalize(self, self._calls.leave)
        # At the interpreter's exit no thread can be started, and multiprocessing ends its processes itself.
        self._closer.atexit = False

    def __aiter__(self) -> AsyncDoor:
        return self

    async def __anext__(self) -> Any:
        try:
            batch = await self._calls.take()
        except BaseException:
            del self  # the error's traceback holds this frame: not also the door, and so the workers
            raise
        if batch is _END:
            await self.aclose()
            raise StopAsyncIteration
        return batch

    async def aclose(self) -> None:
        """Let go of the iterator, and return once its thread and its workers have ended."""
        self._closer()
        await self._calls.wait_ended()


class _Calls:
    """The calls of ``next`` for a door, one at a time, on a thread."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator
        self._threads: DaemonThreads | None = None
        self._waiting: Future[Any] | None = None
        self._ended: Future[object] | None = None
        # Held from the call of ``next`` until its batch is delivered.
        self._turn = asyncio.Lock()

    async def take(self) -> Any:
        """The next batch, which is the caller's then, or ``_END``."""
        async with self._turn:
            if self._iterator is None:
                return _END
            if self._waiting is None:
                self._threads = self._threads or DaemonThreads(1, "asyncloader-next", "of next()")
                self._waiting = self._threads.submit(partial(_next, self._iterator))
            called = asyncio.wrap_future(self._waiting)
            # Counts as retrieved, also where this one is cancelled while it waits.
            called.add_done_callback(lambda call: call.cancelled() or call.exception())
            try:
                # Cancelling what waits here leaves the call alone.
                batch = await asyncio.shield(called)
            except (asyncio.CancelledError, GeneratorExit):
                raise
            except BaseException:
                self._waiting = None  # as in torch, the batches after a failed one still come
                raise
            self._waiting = None
            # Only now does it count as delivered.
            getattr(self._iterator, "hand_over", bool)()
            return batch

    def leave(self) -> None:
        """Stop the call under way and have the thread end; from any thread, without waiting for it."""
        waiting, iterator = self._waiting, self._iterator
        self._waiting = self._iterator = None
        if self._threads is not None:  # which has its one thread
            self._ended = self._threads.submit(partial(_end, [iterator]))
            self._threads.end()
        if waiting is not None and not waiting.done():
            getattr(iterator, "leave", bool)()

    async def wait_ended(self) -> None:
        """Wait for the thread's end, but no longer than workers may take: a user's function may block it."""
        if self._ended is not None:
            await asyncio.wait([asyncio.wrap_future(self._ended)], timeout=_END_PATIENCE_S)


def _end(held: list[Any]) -> None:
    """End an iterator. A thread keeps its call a moment longer, and must not keep the iterator with it."""
    iterator = held.pop()
    getattr(iterator, "end", bool)()


def _next(iterator: Any) -> Any:
    """Its next batch, or ``_END``."""
    try:
        return next(iterator)
    except StopIteration as error:
        if getattr(iterator, "is_cut", False):
            raise as_error(error) from error
        return _END
    except (StopAsyncIteration, asyncio.CancelledError, GeneratorExit) as error:
        # The dataset's: in a coroutine they would end the loop, or the task, silently.
        raise as_error(error) from error
    finally:
        del iterator  # an error's traceback holds this frame


_END = object()

# Workers have one second to end, and are killed then.
_END_PATIENCE_S = 3.0


def _nothing() -> None:
    pass
