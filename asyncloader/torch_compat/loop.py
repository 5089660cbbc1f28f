"""torch's loop over adapted datasets, and its door for ``async for``."""

from __future__ import annotations

import asyncio
import copy
import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch.utils.data import DataLoader, IterDataPipe, MapDataPipe
from torch.utils.data import get_worker_info as torch_worker_info

from ..flow.channel import Channel, EndOfChannel
from ..flow.process import occupy_standard_descriptors
from ..pipeline.calls import as_error
from ..plan.topology import World
from ..torch_private import HereIterator, WorkersIterator
from .adapt import Adapter, AsyncFetched, AsyncIterated, for_loop
from .indices import Indices
from .passes import TorchPass
from .reading import DatasetReader, TagPosition, Whereabouts, enter_map_style
from .roads import LinkContext
from .saved import SavedPart
from .stateful import is_stateful, tell_owner
from .timing import Collating
from .travel import ByValue, travels_by_pickle
from .worker_info import enter_worker, read_for


def open_torch_iterator(
    loader: DataLoader[Any],
    dataset: Any,
    world: World,
    told: TorchPass,
    indices: Indices,
    reading: Callable[[Sequence[SavedPart], Any], DatasetReader] | None,
    parts: Sequence[SavedPart],
) -> HereIterator | WorkersIterator:
    """torch's iterator over ``loader``.

    Args:
        loader: Its attributes say how; they stay as they are.
        dataset: The loader's dataset as torch's constructor saw it (``adapt.for_torch``).
        world: What the workers, or the dataset in this process, are told of their rank.
        told: Of the pass, and by which it is told where to begin.
        indices: What stands for the loader's sampler.
        reading: Makes of an iterable dataset what stands for it.
        parts: Where the dataset goes on, in each worker, or here.
    """
    seen, tally = for_loop(dataset, loader.num_workers), told.tally
    pipe = isinstance(seen, IterDataPipe | MapDataPipe)
    view = copy.copy(loader)
    _set(view, "sampler" if loader.batch_sampler is None else "batch_sampler", indices)
    _set(view, "dataset", seen)
    workers, carries = loader.num_workers, reading is not None
    here: Whereabouts | None = None
    if reading is not None:
        read = reading(parts, seen)
        _set(view, "dataset", read)
        here = None if workers else read.whereabouts
    elif is_stateful(loader.dataset) and not isinstance(seen, IterDataPipe):
        carries = True
        here = None if workers else Whereabouts(None, 1, in_worker=False)
    if carries:
        several = reading is not None and workers > 1
        _set(view, "collate_fn", TagPosition(loader.collate_fn, here, several))
    _set(view, "collate_fn", Collating(view.collate_fn, tally.laps, loader.batch_sampler is not None))
    if workers == 0:
        asynchronous = isinstance(seen, AsyncFetched | AsyncIterated)
        interrupt = seen.engine.stop if asynchronous else _nothing
        iterator = HereIterator(view, told, interrupt, partial(read_for, world))
        if asynchronous:
            weakref.finalize(iterator, seen.engine.stop)
        if here is not None:
            if reading is None:
                if parts and parts[0].state is not None:
                    tell_owner(loader.dataset, parts[0].state)
                here.begin(loader.dataset, None, 0)
            told.read_here(here)
        return iterator
    map_parts = None if reading is not None or not carries else tuple(parts)
    _set(view, "worker_init_fn", _Enter(loader.worker_init_fn, world, map_parts))
    if travels_by_pickle(loader.multiprocessing_context):
        for name in ("dataset", "collate_fn", "worker_init_fn"):
            if name != "dataset" or not pipe:  # torch must see that it is one; the transport wraps it
                _set(view, name, ByValue(getattr(view, name), name, getattr(loader, name)))
    roads = LinkContext(loader.multiprocessing_context, loader.prefetch_factor or 0, tally)
    _set(view, "multiprocessing_context", roads)
    loader.check_worker_number_rationality()
    occupy_standard_descriptors()  # also for the workers, which inherit them
    return WorkersIterator(view, told, roads)


def close_torch_iterator(iterator: HereIterator | WorkersIterator) -> None:
    """End the workers of ``iterator``, if it has any, also where a thread waits for them. Idempotent."""
    iterator.leave()
    iterator.end()


@dataclass(frozen=True)
class _Enter:
    """The ``worker_init_fn`` that torch is given: completes the worker's info, then calls the user's.

    Attributes:
        user_fn: The user's.
        world: Which rank the workers are of.
        parts: Of a map-style dataset that can say where it is: where each worker's goes on, or none; None of
            others.
    """

    user_fn: Callable[[int], object] | None
    world: World
    parts: tuple[SavedPart, ...] | None

    def __call__(self, worker: int) -> None:
        # A collection would write to each object that was there before the fork, and so copy their pages.
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

    The batches are those of ``for``, in the same order; tasks that ask at once get one each, in turn. If
    cancelled while waiting, the batch that was being made is handed on by the next ``__anext__``. Let go of,
    or closed, it stops the ``next`` that is under way and ends the worker processes, in its thread: no event
    loop waits for that.
    """

    def __init__(self, iterator: Any) -> None:
        getattr(iterator, "defer", bool)()
        self._calls = _Calls(iterator)
        self._closer = weakref.finalize(self, self._calls.leave)
        # At the interpreter's end no thread can be started, and multiprocessing ends its processes itself.
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
    """The thread of a door, and the ``next`` that is under way in it."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator
        # One: a call is asked for when the one before has been answered.
        self._asked = Channel[Future[Any]](1)
        self._waiting: Future[Any] | None = None
        self._ended = Future[None]()
        self._thread: threading.Thread | None = None
        self._left = False
        # Held from the asking to the handing over.
        self._turn = asyncio.Lock()

    async def take(self) -> Any:
        """The next batch, which is the caller's then, or ``_END``."""
        async with self._turn:
            batch = await self._receive()
            # Only now does it count as delivered.
            getattr(self._iterator, "hand_over", bool)()
            return batch

    async def _receive(self) -> Any:
        if self._left:
            return _END
        if self._waiting is None:
            self._ask()
        assert self._waiting is not None
        waiting = self._waiting
        try:
            # Cancelling what waits here leaves the call alone, since that is running.
            batch = await asyncio.wrap_future(waiting)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException:
            self._waiting = None  # as in torch, the batches after a failed one can still be had
            raise
        self._waiting = None
        return batch

    def _ask(self) -> None:
        if self._thread is None:
            # A daemon: the interpreter's end must not wait for a user's function.
            self._thread = threading.Thread(
                target=_serve,
                args=(self._asked, [self._iterator], self._ended),
                name="asyncloader-next",
                daemon=True,
            )
            self._thread.start()
        self._waiting = Future()
        self._waiting.set_running_or_notify_cancel()
        self._asked.send(self._waiting)

    def leave(self) -> None:
        """Stop the call under way and have the thread end; from any thread, without waiting for it."""
        self._left = True
        self._asked.finish()
        waiting, iterator = self._waiting, self._iterator
        self._waiting = self._iterator = None
        if waiting is not None and not waiting.done():
            getattr(iterator, "leave", bool)()
        if self._thread is None:
            self._ended.set_result(None)

    async def wait_ended(self) -> None:
        """Wait for the thread's end; no longer than workers may take, if a user's function holds it up."""
        await asyncio.wait([asyncio.wrap_future(self._ended)], timeout=_END_PATIENCE_S)


def _serve(asked: Channel[Future[Any]], held: list[Any], ended: Future[None]) -> None:
    iterator = held.pop()  # a thread lets go of its arguments only after all that is told here
    try:
        while True:
            _answer(asked.receive(), iterator)
    except EndOfChannel:
        getattr(iterator, "end", bool)()
    finally:
        del iterator
        ended.set_result(None)


def _answer(call: Future[Any], iterator: Any) -> None:
    try:
        try:
            batch = next(iterator)
        except StopIteration as error:
            if getattr(iterator, "is_cut", False):
                raise as_error(error) from error
            batch = _END
        except (StopAsyncIteration, asyncio.CancelledError, GeneratorExit) as error:
            # The dataset's: in a coroutine they would end the loop, or the task, without a word.
            raise as_error(error) from error
    except BaseException as error:
        call.set_exception(error)
        del call, iterator  # the error's traceback holds this frame
    else:
        call.set_result(batch)


_END = object()

# Workers have one second to end by themselves, and are killed then.
_END_PATIENCE_S = 3.0


def _set(view: DataLoader[Any], name: str, value: Any) -> None:
    """Set an attribute of our private copy past torch's guard against changing loaders in use."""
    object.__setattr__(view, name, value)


def _nothing() -> None:
    pass
