"""Tensors over arrays, in a worker that has no torch yet what stands for them.

Importing torch takes longer than all else that happens before a worker's first batch (two seconds of a
processor, measured here, against half a one). A worker that runs no code but this library's has no use for
it: its batches hold what stands for tensors, and come out of the transport with tensors in their place.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["StandIn", "has_tensors", "may_stand_in", "standing_in", "tensor_of", "when_torch_is_here"]

# Neither long doubles, nor the second of C's integers of a size, which torch refuses (ulonglong).
_WITH_TENSORS = frozenset(
    np.dtype(name).char
    for name in ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]
)


@dataclass(frozen=True, slots=True)
class StandIn:
    """What becomes a tensor over ``array`` where there is torch."""

    array: NDArray[Any]

    @property
    def nbytes(self) -> int:
        """As a tensor has it."""
        return int(self.array.nbytes)


class _Allowed(threading.local):
    now = False


_allowed = _Allowed()


@contextmanager
def standing_in() -> Iterator[None]:
    """Allow stand-ins on this thread meanwhile: nobody but the transport sees what is made."""
    _allowed.now = True
    try:
        yield
    finally:
        _allowed.now = False


def may_stand_in() -> bool:
    """Whether to do without torch: stand-ins are allowed, and nobody has imported it anyway."""
    return _allowed.now and "torch" not in sys.modules


def has_tensors(dtype: np.dtype[Any]) -> bool:
    """Whether there are tensors over arrays of numbers like these."""
    return dtype.char in _WITH_TENSORS and dtype.isnative


def tensor_of(array: NDArray[Any]) -> Any:
    """A tensor over ``array``, which nobody else will write to, or what stands for it."""
    if may_stand_in() and has_tensors(array.dtype):
        return StandIn(array)
    import torch

    return torch.from_numpy(array)


def when_torch_is_here(then: Callable[[], object]) -> None:
    """Call ``then`` at once if torch is imported, otherwise right after it will have been."""
    if "torch" in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, _AfterTorch(then))


class _AfterTorch:
    """Finds torch as all others do, and has something done after it was imported."""

    def __init__(self, then: Callable[[], object]) -> None:
        self._then = then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """See ``importlib.abc.MetaPathFinder``."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        loader: Any = spec and spec.loader
        if loader is not None:
            execute = loader.exec_module

            def execute_then(module: ModuleType) -> None:
                execute(module)
                self._then()

            loader.exec_module = execute_then
        return spec
