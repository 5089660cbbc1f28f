"""All that the library takes from torch beyond what torch documents: each name, and what for.

Every other file uses public names (tests/test_torch_private.py), so that a release of torch that moves one
changes only this file:

===================================================  ============================================
name                                                 what for
===================================================  ============================================
``utils.data._utils.collate.collate``                collation by rules of our own for tensors
``utils.data._utils.collate.default_collate_fn_map`` torch's rules, with what users registered
``utils.data._utils.collate.collate_tensor_fn``      torch's rule for tensors that ours does not stack
``utils.data._utils.pin_memory.pin_memory``          pinning a batch inside a wrapper of ours
``utils.data._utils.worker._worker_info``            what ``get_worker_info()`` gives, with ranks
``utils.data._utils.worker.WorkerInfo``              its class; a frozen dataclass in newer ones
``utils.data._utils.python_exit_status``             whether the interpreter is ending
``utils.data._utils.signal_handling``                a worker that we kill is no accident
``utils.data.dataloader._*DataLoaderIter``           torch's own loops, and their attributes below
``utils.data.DataLoader._get_iterator``              the hook that makes them, for ``loader``
``utils.data.DataLoader._iterator``                  the one that persistent workers belong to
``utils.data.dataloader._DatasetKind``               whose StopIteration ends a loop without workers
``_utils.ExceptionWrapper``                          a worker's error on its way to the consumer
``distributed.distributed_c10d._get_default_store``  how ranks in step exchange messages
``distributed.DeviceMesh._get_root_mesh``            the mesh that a part was cut out of
``distributed.device_mesh._mesh_resources``          the same in older torch
===================================================  =====================================
All but the last are in torch 2.13.0, with which the tests run.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from time import monotonic
from traceback import clear_frames
from typing import Any

from torch._utils import ExceptionWrapper as ExceptionWrapper
from torch.utils.data import DataLoader, _utils
from torch.utils.data._utils.collate import collate as collate
from torch.utils.data._utils.collate import collate_tensor_fn as collate_tensor_fn
from torch.utils.data._utils.collate import default_collate_fn_map as default_collate_fn_map
from torch.utils.data.dataloader import (
    _DatasetKind,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from .errors import describe_exit, end_daemon_at_exit


class LoopHooks:
    """What both of torch's iterators have in common: the pass that they report to, and its seed."""

    #: A ``torch_compat.passes.TorchPass``, which stands above this module: it gets what happens in a pass,
    #: and says where that begins.
    _told: Any
    _seed = 0
    #: Whether the latest ``StopIteration`` is the dataset's own, and not the end of the indices.
    is_cut = False
    _has_index = False
    #: What torch has made and the consumer does not have yet, as after an exception of a signal's handler.
    _made: tuple[Any] | None = None
    #: The name of the error that ended a fetch in which torch may have lost a batch.
    _broken_by: str | None = None

    @property
    def _base_seed(self) -> int:
        return self._seed

    @_base_seed.setter
    def _base_seed(self, drawn: int) -> None:
        self._seed = self._told.seed(drawn)  # torch draws it and seeds its workers with it in one step

    def defer(self, holds: Callable[[], bool] | None = None) -> None:
        """Count a batch as delivered later, for a loop that may not use it at once; see ``TorchPass``."""
        self._told.defer(holds)

    def hand_over(self) -> None:
        """The consumer has what ``next`` returned."""
        self._told.hand_over()

    def __next__(self) -> Any:
        if self._broken_by is not None:
            raise RuntimeError(
                f"this iterator was closed before the end of its epoch, by {self._broken_by} while it "
                "fetched a batch; iterate the loader again, from its state_dict() if no batch may be missed"
            )
        self._told.wait()
        self.is_cut = self._has_index = False
        try:
            batch = super().__next__()  # type: ignore[misc]  # of torch's classes, which stand behind this
        except Exception:
            end_daemon_at_exit()
            raise
        finally:
            self._told.tally.waited()
        # Last, and with no call after it: a signal's handler runs at calls only, and an error that it raises
        # before leaves the batch undelivered.
        self._made, self._told.is_given = None, True
        return batch

    def _next_index(self) -> Any:
        self._told.tally.draw()
        try:
            index = super()._next_index()  # type: ignore[misc]  # likewise
            self._has_index = True
            return index
        finally:
            self._told.tally.drew()

    def _stop(self, is_cut: bool) -> None:
        self.is_cut = is_cut
        (self._told.cut if is_cut else self._told.end)()


def wait_ended(processes: Iterable[BaseProcess], deadline: float) -> None:
    """Wait until all have ended; not beyond the deadline."""
    while alive := [process.sentinel for process in processes if process.is_alive()]:
        if not wait(alive, max(0.0, deadline - monotonic())):
            return


# A loop is left within a second. An idle worker ends in milliseconds; one that does not is inside the user's
# code, where torch waits for 5 s, for one worker after the other.
_GRACE_S = 1.0


def pin_memory(batch: Any) -> Any:
    """``batch`` with its tensors in page-locked memory, by torch's rules."""
    return _utils.pin_memory.pin_memory(batch)  # type: ignore[no-untyped-call]


def set_worker_info(info: Any) -> None:
    """Make ``torch.utils.data.get_worker_info()`` return ``info`` in this process."""
    _utils.worker._worker_info = info


def default_store() -> Any:
    """The key-value store of the initialised process group."""
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()


def uncut_mesh(mesh: Any) -> Any:
    """The ``DeviceMesh`` that ``mesh`` is a part of, by name or flattened; itself if it is no part."""
    if hasattr(mesh, "_get_root_mesh"):
        return mesh._get_root_mesh()
    from torch.distributed import device_mesh  # in torch 2.6

    return device_mesh._mesh_resources.get_root_mesh(mesh)


def frozen_worker_info(torchs: Any) -> Any:
    """torch's ``WorkerInfo`` as a frozen dataclass, which newer torch has made it itself.

    Older torch has a class that takes any keyword and refuses assignment by a rule of its own; what is
    made from it here is still an instance of it.
    """
    if dataclasses.is_dataclass(torchs):
        return torchs
    fields = [("id", int), ("num_workers", int), ("seed", int), ("dataset", Any)]
    return dataclasses.make_dataclass("WorkerInfo", fields, bases=(torchs,), frozen=True)


TorchWorkerInfo: Any = frozen_worker_info(_utils.worker.WorkerInfo)


def forget_iterator(loader: Any) -> None:
    """Drop the iterator that the persistent workers of ``loader`` belong to: the next one is new."""
    if loader._iterator is not None:  # Lightning records what is set, and sets it on the loaders it makes
        loader._iterator = None


def attributes_at_rest(loader: Any) -> dict[str, Any]:
    """The attributes of ``loader`` without the iterator that its persistent workers belong to."""
    attributes = dict(vars(loader))
    if "_iterator" in attributes:
        attributes["_iterator"] = None
    return attributes


class HereIterator(LoopHooks, _SingleProcessDataLoaderIter):  # type: ignore[misc]  # a property of ours
    """torch's loop in this process.

    Args:
        view: The loader, as torch is to see it.
        told: Its pass.
        interrupt: Ends what a ``next`` waits for, from another thread, as far as possible.
        reading: Opens the context in which the dataset is read.
    """

    def __init__(
        self,
        view: DataLoader[Any],
        told: Any,
        interrupt: Callable[[], None],
        reading: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._told = told
        self._interrupt = interrupt
        self._reading = reading
        with reading():
            super().__init__(view)
        self._num_yielded = told.batches

    def _next_data(self) -> Any:
        if self._made is None:
            try:
                with self._reading():
                    self._made = (super()._next_data(),)  # type: ignore[no-untyped-call]
            except StopIteration:
                self._stop(self._has_index and self._dataset_kind == _DatasetKind.Map)
                raise
            except (Exception, asyncio.CancelledError, GeneratorExit):
                # From the dataset, and not from a signal's handler: as in torch, the batches after it still
                # come.
                raise
            except BaseException as error:
                if self._made is None:  # what was drawn, and maybe read, is lost
                    self._broken_by = type(error).__name__
                raise
        return self._told.deliver(self._made[0], None, None)

    def leave(self) -> None:
        """Have a ``next`` in another thread stop waiting."""
        self._interrupt()

    def end(self) -> None:
        """Nothing: it has no processes."""


class WorkersIterator(LoopHooks, _MultiProcessingDataLoaderIter):  # type: ignore[misc]  # a property of ours
    """torch's loop over worker processes, which end within about a second however it is left.

    Args:
        view: The loader, as torch is to see it.
        told: Its passes.
        transport: The ``multiprocessing_context`` of ``view``: a ``torch_compat.transport.LinkContext``.
    """

    # Until torch has something to shut down; else its __del__ fails on an iterator that it refused to make.
    _shutdown = True
    _left = False
    #: Whether the latest result is an error, which a StopIteration out of a map-style dataset is too.
    _has_failed = False
    #: Whether a worker has ended without being asked to, and torch has not found out yet which.
    _has_ended = False

    def __init__(self, view: DataLoader[Any], told: Any, transport: Any) -> None:
        self._told = told
        self._transport = transport
        self._owner = os.getpid()
        super().__init__(view)

    def leave(self) -> None:
        """Have a ``next`` in another thread stop waiting. From any thread; ``end`` comes after it."""
        self._left = True
        if not self._shutdown:
            self._transport.wake()  # with pinning, the thread in between passes it on

    def end(self) -> None:
        """End the workers, unless they persist and ``leave`` was not called."""
        if self._left or not self._persistent_workers:
            self._shutdown_workers()

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if self._left and not first_iter:
            # The thread that was left may still be inside this iterator: the loader, which resets its
            # persistent workers and returns the iterator that it then has, gets new ones.
            loader._iterator = loader._get_iterator()
            return
        self._made = None
        if first_iter:
            self._transport.began(self._workers)
        else:
            self._told.begin()
        super()._reset(loader, first_iter)
        self._told.tally.waited()
        self._num_yielded = self._told.batches

    def _next_data(self) -> Any:
        if self._made is None:
            self._fetch()
        assert self._made is not None
        pending = None if self._in_order else self._task_info.keys()
        return self._told.deliver(self._made[0], self._rcvd_idx, pending)

    def _fetch(self) -> None:
        self._has_failed = False
        try:
            self._made = (super()._next_data(),)  # type: ignore[no-untyped-call]
        except Exception as error:
            # One of torch's frames refers to the error that it raises, and through it to this iterator: in
            # that cycle its workers would live until a garbage collection.
            clear_frames(error.__traceback__)
            if isinstance(error, StopIteration):
                self._stop(self._has_failed)
            raise
        except BaseException as error:
            if not self._transport.is_waiting and self._made is None:
                # torch may have taken a result and not kept it. Persistent workers end with this iterator.
                self._broken_by, self._left = type(error).__name__, True
            raise

    def _process_data(self, data: Any, *of_worker: Any) -> Any:
        self._has_failed = isinstance(data, ExceptionWrapper)
        return super()._process_data(data, *of_worker)  # type: ignore[no-untyped-call]

    def _try_put_index(self) -> None:
        for _ in range(self._told.take_turn()):
            next(self._worker_queue_idx_cycle)
        super()._try_put_index()

    def _get_data(self) -> Any:
        try:
            got = super()._get_data()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            if "timed out" in str(error):
                error.add_note(self._who_is_late())
            raise
        if self._left:
            raise RuntimeError("this iterator was closed while it waited for a batch")
        return got

    def _try_get_data(self, *patience: float) -> tuple[bool, Any]:
        while True:
            # Results that have come are first. Then torch checks which worker has ended, as every five
            # seconds.
            is_hasty, self._has_ended = self._has_ended, False
            try:
                got: tuple[bool, Any] = super()._try_get_data(*((0,) if is_hasty else patience))  # type: ignore[no-untyped-call]
            except RuntimeError as error:
                if ended := self._who_has_ended():
                    error.args = (f"{error}: {ended}",)
                raise
            is_told = got[0] and got[1][0] is None and not self._left
            self._has_ended = is_told or (is_hasty and got[0])
            if not is_told:
                return got

    def _who_has_ended(self) -> str:
        """How each ended worker has ended; torch's own handler of SIGCHLD reports it only at times."""
        return "; ".join(
            f"worker {number} {describe_exit(process.exitcode)}"
            for number, process in enumerate(self._workers)
            if process is not None and process.exitcode is not None
        )

    def _who_is_late(self) -> str:
        worker = self._task_info.get(self._rcvd_idx, (None,))[0]
        process = self._workers[worker] if worker is not None else None
        return (
            f"batch {self._rcvd_idx} was being made by worker {worker} "
            f"(pid {process.pid if process is not None else '?'}, "
            f"{'alive' if process is not None and process.is_alive() else 'dead'})"
        )

    def _shutdown_workers(self) -> None:
        # At the interpreter's end, where modules may have become None, multiprocessing ends its children. A
        # process that was forked with this iterator in it must not touch the workers.
        is_ending = _utils is None or _utils.python_exit_status is not False
        if self._shutdown or is_ending or self._owner != os.getpid():
            return
        self._shutdown = True
        if self._worker_pids_set:
            # Else torch's handler of SIGCHLD raises the end of those killed here in the main thread.
            _utils.signal_handling._remove_worker_pids(id(self))  # type: ignore[attr-defined]  # a C function
            self._worker_pids_set = False
        deadline = monotonic() + _GRACE_S
        pinning = getattr(self, "_pin_memory_thread", None)
        if pinning is not None:
            self._pin_memory_thread_done_event.set()
            self._transport.wake()
            pinning.join(_GRACE_S)
        self._transport.let_go()
        wait_ended(self._workers, deadline)
        for worker in self._workers:
            if worker.is_alive():
                # Not SIGTERM: a fork inherits a handler that the script has installed for it, and a worker
                # must not save a checkpoint.
                worker.kill()
        wait_ended(self._workers, monotonic() + _GRACE_S)
        self._transport.close()
