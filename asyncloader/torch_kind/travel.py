"""What goes to a worker by pickle, and what comes back, on one and the same road.

Laws:

* To a forked worker goes nothing but indices: it has inherited the rest. To others, whatever pickle finds by
  name goes by name, also what the main module defines, since such a worker has run that; what has no name
  there (lambdas, local classes, all of a notebook) goes by value, by cloudpickle.
* A class that went by value comes back as the very class that it was (``by_value``).
* Nothing gets lost: what does not pickle raises where the consumer sees it. torch's queue would drop it in a
  thread of the worker's, and the consumer wait for ever.
"""

from __future__ import annotations

import ast
import functools
import io
import os
import pickle
import sys
import types
from collections import ChainMap
from multiprocessing.context import BaseContext
from multiprocessing.queues import Queue
from multiprocessing.reduction import ForkingPickler
from multiprocessing.resource_sharer import DupFd
from operator import attrgetter
from typing import Any

import cloudpickle
import torch.multiprocessing
from torch.utils.data import get_worker_info as torch_worker_info

from ..by_value import Homeward, Outward, any_class_came
from ..torch_private import ExceptionWrapper

__all__ = ["ByValue", "Roads", "travels_by_pickle"]


def travels_by_pickle(context: BaseContext | None) -> bool:
    """Whether workers of this start method get what they need by pickle."""
    return _actual(context).get_start_method() != "fork"


def _actual(context: BaseContext | None) -> BaseContext:
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
            return pickle.loads, (_dump(_Outward, self._held),)
        except Exception as error:
            error.add_note(f"while pickling {_culprit(self._given, self._name)} for a worker")
            raise


class Roads(BaseContext):
    """A multiprocessing context whose queues keep the laws above; all else is the context that it is made of.

    Args:
        context: The loader's ``multiprocessing_context``.
    """

    def __init__(self, context: BaseContext | None) -> None:
        self._context = _actual(context)
        self._pickler = _Outward if travels_by_pickle(context) else _Plain
        self.Process: Any = self._context.Process  # type: ignore[attr-defined]  # each context has its own

    def get_context(self, method: str | None = None) -> Any:
        return self._context

    def get_start_method(self, allow_none: bool = False) -> str:
        return self._context.get_start_method()

    def Queue(self, maxsize: int = 0) -> Any:
        return _Road(self._pickler, maxsize, ctx=self._context)


class _Road(Queue):  # type: ignore[type-arg]  # generic for type checkers only
    """Towards workers it pickles at once, so that ``put`` raises; back, while the next batch is made."""

    # What a spawned worker has of it: there it is nobody's own.
    _maker = 0

    def __init__(self, pickler: Any, maxsize: int, *, ctx: BaseContext) -> None:
        super().__init__(maxsize, ctx=ctx)
        self._maker = os.getpid()
        self._pickler = pickler

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        if self._maker != os.getpid():
            number, result = obj
            return super().put((number, _Result(result)), block, timeout)
        try:
            pickled = _Pickled(_dump(self._pickler, obj))
        except Exception as error:
            error.add_note("while pickling what the sampler gave, to send it to a worker")
            raise
        super().put(pickled, block, timeout)


class _Pickled:
    """Arrives as what was pickled."""

    def __init__(self, pickled: bytes) -> None:
        self._pickled = pickled

    def __reduce__(self) -> Any:
        return pickle.loads, (self._pickled,)


class _Result:
    """Arrives as the batch or the error, or else as the error that it could not travel."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def __reduce__(self) -> Any:
        # In the thread that writes to the pipe. Only where a class came by value does the slower pickler pay.
        pickler = _Homeward if any_class_came() else _Plain
        try:
            return pickle.loads, (_dump(pickler, self._result),)
        except Exception as error:
            return pickle.loads, (_dump(_Plain, _untold(self._result, error)),)


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


def _dump(pickler: Any, held: Any) -> bytes:
    """``held`` as ``pickler`` sends it; a part that does not pickle leaves nothing open for the others.

    What has become of a tensor is a descriptor in this process, which waits for whoever unpickles the rest.
    """
    out = io.BytesIO()
    waiting: list[DupFd] = []
    try:
        pickler(out, waiting).dump(held)
    except BaseException:
        for descriptor in waiting:
            os.close(descriptor.detach())
        raise
    return out.getvalue()


def _culprit(given: Any, name: str) -> str:
    """Which part of ``given`` does not pickle: one of its attributes, or it as a whole."""
    for attribute, value in getattr(given, "__dict__", {}).items():
        try:
            _dump(_Outward, value)
        except Exception:
            return f"{name}.{attribute}, of type {type(value).__name__},"
    return f"{name}, of type {type(given).__name__},"


# Live views of cloudpickle's table and of what multiprocessing and torch know of queues, locks and shared
# tensors; multiprocessing has no public name for its own.
_REDUCERS: ChainMap[Any, Any] = ChainMap(
    ForkingPickler._extra_reducers,  # type: ignore[attr-defined]  # not in typeshed
    cloudpickle.Pickler.dispatch_table,
)


def _noting(waiting: list[DupFd]) -> dict[Any, Any]:
    """The reducer of descriptors, which also adds each to ``waiting``."""

    def reduce(descriptor: DupFd) -> Any:
        waiting.append(descriptor)
        return descriptor.__reduce_ex__(5)

    return {DupFd: reduce}


class _Plain(ForkingPickler):
    """The fast one: all by name."""

    def __init__(self, file: io.BytesIO, waiting: list[DupFd]) -> None:
        super().__init__(file, 5)
        self.dispatch_table = ChainMap(_noting(waiting), self.dispatch_table)  # type: ignore[assignment]  # any mapping will do


class _Noting(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
    def __init__(self, file: io.BytesIO, waiting: list[DupFd]) -> None:
        # Before the pickler is made, which looks it up once.
        self.dispatch_table = ChainMap(_noting(waiting), _REDUCERS)
        super().__init__(file, 5)


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
