"""What goes to a worker by pickle, and what comes back, on one and the same road.

Laws:

* To a forked worker goes nothing but indices: it has inherited the rest. To others, whatever pickle finds by
  name goes by name, also what the main module defines, since such a worker has run that; what has no name
  there (lambdas, local classes, all of a notebook) goes by value, by cloudpickle.
* A class that went by value comes back as the very class that it was (``by_value``).
* Nothing gets lost: what does not pickle raises where the consumer sees it. torch's queue would drop it in a
  thread of the worker's, and the consumer wait for ever.
* Tensors and arrays go by the transport (``workers.packing``), but for those that torch shares between
  processes, such as a user's in shared memory or on a GPU: these stay shared.
"""

from __future__ import annotations

import ast
import copyreg
import functools
import io
import os
import pickle
import sys
import types
from collections import ChainMap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.context import BaseContext
from multiprocessing.reduction import ForkingPickler
from multiprocessing.resource_sharer import DupFd
from operator import attrgetter
from typing import Any

import cloudpickle
import torch.multiprocessing
from torch.utils.data import get_worker_info as torch_worker_info

from ..by_value import Homeward, Outward, any_class_came
from ..torch_private import ExceptionWrapper
from ..workers.packing import Keep, Made, Packed, pack_by
from ..workers.reducing import Reducers, array_reducers, reduce_tensor

__all__ = ["ByValue", "actual_context", "pack_result", "pack_task", "travels_by_pickle"]


def travels_by_pickle(context: BaseContext | None) -> bool:
    """Whether workers of this start method get what they need by pickle."""
    return actual_context(context).get_start_method() != "fork"


def actual_context(context: BaseContext | None) -> BaseContext:
    """The loader's, or the platform's."""
    # torch.multiprocessing has taught multiprocessing's pickler what tensors are, by being imported.
    return context if context is not None else torch.multiprocessing.get_context()


class ByValue:
    """Travels to a spawned worker by cloudpickle, and arrives as what it holds.

    Args:
        held: What the worker gets.
        name: The loader's parameter that it comes from.
        given: The value of that parameter, for messages.
    """

    def __init__(self, held: Any, name: str, given: Any) -> None:
        self._held = held
        self._name = name
        self._given = given

    def __repr__(self) -> str:
        return repr(self._given)

    def __str__(self) -> str:
        return str(self._given)

    def __reduce__(self) -> Any:
        try:
            return pickle.loads, (_dump(self._held),)
        except Exception as error:
            error.add_note(f"while pickling {_culprit(self._given, self._name)} for a worker")
            raise


def pack_task(task: Any, by_value: bool) -> Packed:
    """A task, for a worker.

    Args:
        task: As torch's loop makes it.
        by_value: Whether the worker was not forked, and so has not what it cannot find by name.
    """
    return _pack(_Outward if by_value else _plain, task)


def pack_result(result: tuple[Any, Any], made_in: Made | None) -> Packed:
    """The result of a task, for the consumer; or else the error that it could not travel.

    Args:
        result: The task's number, and the batch or an error.
        made_in: The slot that the batch may lie in.
    """
    try:
        # Only where a class came by value does the slower pickler pay.
        return _pack(_Homeward if any_class_came() else _plain, result, made_in)
    except Exception as error:
        number, batch = result
        return _pack(_plain, (number, _untold(batch, error)))


def _untold(result: Any, error: Exception) -> Any:
    """What the consumer is told instead of a result that does not pickle."""
    if isinstance(result, ExceptionWrapper):
        # Only its type has no way home: the text names it, and has its traceback.
        result.exc_type = RuntimeError
        return result
    info = torch_worker_info()
    assert info is not None, "called outside a worker"
    kind = type(result)
    error.add_note(
        f"while pickling a batch of type {kind.__module__}.{kind.__qualname__} to send it to the loop. "
        "Classes and functions in it must be found at the top level of a module"
    )
    where = f"in DataLoader worker process {object.__getattribute__(info, 'id')}"
    told = ExceptionWrapper((type(error), error, error.__traceback__), where)  # type: ignore[no-untyped-call]
    told.exc_type = pickle.PicklingError
    return told


def _dump(held: Any) -> bytes:
    """``held`` for a worker that is being started."""
    out = io.BytesIO()
    with _closing() as waiting:
        _Outward(out, None, waiting).dump(held)
    return out.getvalue()


def _pack(make_pickler: Callable[..., Any], held: Any, made_in: Made | None = None) -> Packed:
    with _closing() as waiting:
        return pack_by(partial(make_pickler, waiting=waiting), held, made_in)


@contextmanager
def _closing() -> Iterator[list[DupFd]]:
    """Lets a part that does not pickle leave nothing open for the others.

    What has become of a tensor that is shared is a descriptor in this process, which waits for whoever
    unpickles the rest.
    """
    waiting: list[DupFd] = []
    try:
        yield waiting
    except BaseException:
        for descriptor in waiting:
            os.close(descriptor.detach())
        raise


def _culprit(given: Any, name: str) -> str:
    """Which part of ``given`` does not pickle: one of its attributes, or it as a whole."""
    for attribute, value in getattr(given, "__dict__", {}).items():
        try:
            _dump(value)
        except Exception:
            return f"{name}.{attribute}, of type {type(value).__name__},"
    return f"{name}, of type {type(given).__name__},"


# Live views of what multiprocessing and torch know of queues, locks and shared tensors, and of cloudpickle's
# table; multiprocessing has no public name for its own.
_SHARING: Reducers = ForkingPickler._extra_reducers  # type: ignore[attr-defined]  # not in typeshed
_REDUCERS: ChainMap[Any, Any] = ChainMap(_SHARING, cloudpickle.Pickler.dispatch_table)


def _noting(waiting: list[DupFd]) -> Reducers:
    """The reducer of descriptors, which also adds each to ``waiting``."""

    def reduce(descriptor: DupFd) -> Any:
        waiting.append(descriptor)
        return descriptor.__reduce_ex__(5)

    return {DupFd: reduce}


def _by_transport() -> Reducers:
    return {**array_reducers(), torch.Tensor: _reduce_tensor}


def _reduce_tensor(tensor: torch.Tensor) -> Any:
    sharing = _SHARING[torch.Tensor]
    # torch keeps what is shared shared, and refuses what has a graph.
    if tensor.requires_grad or tensor.is_shared():  # type: ignore[no-untyped-call]
        return sharing(tensor)
    return reduce_tensor(tensor, otherwise=sharing)


def _plain(file: Any, keep: Keep, waiting: list[DupFd]) -> pickle.Pickler:
    """The fast one: all by name."""
    pickler = pickle.Pickler(file, protocol=5, buffer_callback=keep)
    pickler.dispatch_table = {**copyreg.dispatch_table, **_SHARING, **_by_transport(), **_noting(waiting)}
    return pickler


class _Noting(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
    def __init__(self, file: Any, keep: Keep | None, waiting: list[DupFd]) -> None:
        own = {**(_by_transport() if keep is not None else {}), **_noting(waiting)}
        # Before the pickler is made, which looks it up once.
        self.dispatch_table = ChainMap(own, _REDUCERS)
        super().__init__(file, 5, keep)


class _Outward(Outward, _Noting):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type | types.FunctionType) and _worker_finds(obj):
            return NotImplemented  # by name, as plain pickle does it
        return super().reducer_override(obj)


class _Homeward(Homeward, _Noting):
    """By value, under a number, what came so."""


def _worker_finds(obj: Any) -> bool:
    """Whether a worker that has run the main module, as ``__mp_main__``, has ``obj`` under its name too."""
    main = sys.modules["__main__"]
    if obj.__module__ != "__main__" or not _workers_run(main):
        return False
    try:
        if attrgetter(obj.__qualname__)(main) is not obj:
            return False
    except AttributeError:
        return False
    return obj.__qualname__.partition(".")[0] not in _names_of_the_script_alone(
        getattr(main, "__file__", None) or ""
    )


def _workers_run(main: types.ModuleType) -> bool:
    """multiprocessing's rule: a script and ``-m module``, but neither ``-m package`` nor what has no file."""
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name).rpartition(".")[2] != "__main__"
    return os.path.splitext(os.path.basename(getattr(main, "__file__", None) or "ipython"))[0] != "ipython"


@functools.cache
def _names_of_the_script_alone(path: str) -> frozenset[str]:
    """What the main module's file binds below ``if __name__ == "__main__":``, and so in no worker."""
    try:
        with open(path, "rb") as file:
            body = ast.parse(file.read()).body
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    guarded = [part for part in body if isinstance(part, ast.If) and "__main__" in ast.unparse(part.test)]
    bound: set[str] = set()
    for node in (node for part in guarded for statement in part.body for node in ast.walk(statement)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            bound.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
    return frozenset(bound)
