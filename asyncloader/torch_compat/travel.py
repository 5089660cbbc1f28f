"""What is sent to a worker by pickle, and what is sent back, by name or by value.

Laws:

* A forked worker is sent only indices: it has inherited everything else. Other workers are sent by name what
  pickle finds by name, also what the main module defines, since such a worker has run that; what has no name
  there (lambdas, local classes, all of a notebook) is sent by value, by cloudpickle.
* A class that was sent by value comes back as the same class (``by_value``).
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
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from multiprocessing.reduction import ForkingPickler
from multiprocessing.resource_sharer import DupFd
from operator import attrgetter
from typing import Any

import cloudpickle
import torch

from ..workers.by_value import Homeward, Outward
from ..workers.packing import Keep, Reducers, array_reducers, reduce_tensor

# What multiprocessing and torch share between processes stays shared; other tensors are sent in our slots.
#
# torch moves every tensor that it sends into shared memory, with a descriptor for each. It still sends those
# that must stay as they are: a user's tensors in shared memory or on a GPU, sparse ones, parameters.


# Descriptors of shared tensors that are being pickled: they stay open here until the receiver takes them.
_pickled: ContextVar[list[DupFd]] = ContextVar("asyncloader_pickled_descriptors")


@contextmanager
def closing_descriptors() -> Iterator[None]:
    """Close the descriptors that are pickled within, if pickling fails: then they are not received."""
    descriptors: list[DupFd] = []
    token = _pickled.set(descriptors)
    try:
        yield
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor.detach())
        raise
    finally:
        _pickled.reset(token)


def _reduce_descriptor(descriptor: DupFd) -> Any:
    _pickled.get().append(descriptor)
    return descriptor.__reduce_ex__(5)


SHARING: Reducers = ForkingPickler._extra_reducers  # type: ignore[attr-defined]  # not in typeshed, nor public
"""How multiprocessing and torch pickle queues, locks and shared tensors."""

DESCRIPTORS: Reducers = {DupFd: _reduce_descriptor}
"""Records descriptors for ``closing_descriptors``."""


def by_transport() -> Reducers:
    """Reducers that send tensors and arrays in slots."""
    return {**array_reducers(), torch.Tensor: _reduce_tensor}


def _reduce_tensor(tensor: torch.Tensor) -> Any:
    shared = SHARING[torch.Tensor]
    if tensor.requires_grad or tensor.device.type != "cpu" or tensor.layout != torch.strided:
        return shared(tensor)  # which refuses what has a graph
    # Of the storage: asking the tensor takes ten times as long.
    if tensor.untyped_storage().is_shared():
        return shared(tensor)
    return reduce_tensor(tensor, otherwise=shared)


_table: tuple[tuple[int, int], Reducers] = (0, 0), {}


def plain_pickler(file: Any, keep: Keep) -> pickle.Pickler:
    """The fast one, which sends everything by name."""
    global _table
    # Making the table takes as long as pickling a small batch.
    registered = len(copyreg.dispatch_table), len(SHARING)
    if registered != _table[0]:
        _table = registered, {**copyreg.dispatch_table, **SHARING, **by_transport(), **DESCRIPTORS}
    pickler = pickle.Pickler(file, protocol=5, buffer_callback=keep)
    pickler.dispatch_table = _table[1]
    return pickler


class ByValue:
    """Is sent to a spawned worker by cloudpickle, and arrives as what it holds.

    Args:
        held: What the worker gets.
        name: The loader's parameter that it comes from.
        given: The value of that parameter, for messages.
    """

    def __init__(self, held: Any, name: str, given: Any) -> None:
        self._held = held
        self._name = name
        self._given = given

    def __reduce__(self) -> Any:
        try:
            return pickle.loads, (_dump(self._held),)
        except Exception as error:
            error.add_note(f"while pickling {_culprit(self._given, self._name)} for a worker")
            raise


def _dump(held: Any) -> bytes:
    """``held`` for a worker that is being started."""
    out = io.BytesIO()
    with closing_descriptors():
        OutwardPickler(out).dump(held)
    return out.getvalue()


def _culprit(given: Any, name: str) -> str:
    """Which part of ``given`` does not pickle: one of its attributes, or it as a whole."""
    for attribute, value in getattr(given, "__dict__", {}).items():
        try:
            _dump(value)
        except Exception:
            return f"{name}.{attribute}, of type {type(value).__name__},"
    return f"{name}, of type {type(given).__name__},"


class _Sharing(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
    """Uses the reducers of what is shared.

    Args:
        file: The pickle is written to it.
        keep: Whether a buffer stays in the pickle. Without it, tensors are sent as torch shares them.
    """

    def __init__(self, file: Any, keep: Keep | None = None) -> None:
        own = [DESCRIPTORS] if keep is None else [DESCRIPTORS, by_transport()]
        # Set before the pickler is made, which looks it up once. A live view of what is registered.
        self.dispatch_table = ChainMap(*own, SHARING, cloudpickle.Pickler.dispatch_table)
        super().__init__(file, 5, keep)


class OutwardPickler(Outward, _Sharing):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type | types.FunctionType) and _worker_finds(obj):
            return NotImplemented  # by name, as plain pickle does it
        return super().reducer_override(obj)


class HomewardPickler(Homeward, _Sharing):
    """Sends classes that came by value by their number."""


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
