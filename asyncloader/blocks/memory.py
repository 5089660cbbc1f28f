"""Tensors over arrays: the memory that batches are made in, and stand-ins for tensors without torch.

Importing torch takes longer than everything else before a worker's first batch (two seconds of a processor
against half a second, measured here). A worker that runs only this library's code does not need torch: its
batches hold stand-ins, and the transport replaces them with tensors.
"""

from __future__ import annotations

import importlib.util
import math
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

if TYPE_CHECKING:
    from torch import Tensor

# Neither long doubles, nor the second of C's integers of a size, which torch refuses (ulonglong).
_WITH_TENSORS = frozenset(
    np.dtype(name).char
    for name in ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]
)


@dataclass(frozen=True, slots=True)
class StandIn:
    """Becomes a tensor over ``array`` in a process with torch."""

    array: NDArray[Any]

    @property
    def nbytes(self) -> int:
        """See a tensor's ``nbytes``."""
        return int(self.array.nbytes)


class _OfThread(threading.local):
    #: Whether stand-ins are allowed.
    stands_in = False
    #: What has lent memory for the next batch, and whether that is being made.
    lender: Lender | None = None
    is_borrowing = False


_here = _OfThread()


@contextmanager
def standing_in() -> Iterator[None]:
    """Allow stand-ins on this thread: only the transport will see them."""
    _here.stands_in = True
    try:
        yield
    finally:
        _here.stands_in = False


def may_stand_in() -> bool:
    """Whether to avoid torch: stand-ins are allowed, and torch is not imported yet."""
    return _here.stands_in and "torch" not in sys.modules


def has_tensors(dtype: np.dtype[Any]) -> bool:
    """Whether there are tensors over arrays of numbers like these."""
    return dtype.char in _WITH_TENSORS and dtype.isnative


def tensor_of(array: NDArray[Any]) -> Any:
    """A tensor over ``array``, or its stand-in; nothing else may write to the array."""
    if may_stand_in() and has_tensors(array.dtype):
        return StandIn(array)
    import torch

    return torch.from_numpy(array)


def when_torch_is_here(then: Callable[[], object]) -> None:
    """Call ``then`` at once if torch is imported, otherwise right after its import."""
    if "torch" in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, _AfterTorch(then))


class _AfterTorch:
    """Finds torch as usual, and calls a function after it was imported."""

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


# The memory of tensors: made dense, as bytes, side by side, and as tensors over it again.

# A cache line, the widest vector load, and the alignment of torch's own host allocations; a multiple of the
# size of every dtype.
_ALIGNMENT = 64


def align(offset: int) -> int:
    """The next place at or after ``offset`` where a tensor may start."""
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def dense(tensor: Tensor) -> Tensor:
    """The tensor, or a copy, with its elements side by side in memory in some order of its dimensions.

    Channels-last images and transposed matrices are dense in another order, which is kept.
    """
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.is_contiguous():
        return tensor
    return tensor if _in_order(tensor).is_contiguous() else tensor.contiguous()


def as_bytes(tensor: Tensor) -> Tensor:
    """The memory of a dense tensor, as ``(size_bytes,)`` uint8."""
    import torch

    return (tensor if tensor.is_contiguous() else _in_order(tensor)).reshape(-1).view(torch.uint8)


def _in_order(tensor: Tensor) -> Tensor:
    """The tensor with its dimensions in the order of memory, the slowest first."""
    return tensor.permute(sorted(range(tensor.ndim), key=tensor.stride, reverse=True))


# The memory that batches are made in: ordinary, or lent by a transport, which then does not have to copy
# them.

# Copying 16 KiB takes about a microsecond, as long as making a view. Labels, lengths and ids of a batch are
# smaller, and the large parts of a batch are larger.
LEAST_BYTES = 16 << 10


class Lender(Protocol):
    """An owner of memory for one batch."""

    def take(self, size_bytes: int) -> NDArray[np.uint8] | None:
        """So many bytes, aligned for every dtype, uninitialized; None if fewer are left."""
        ...


def lend(lender: Lender | None) -> None:
    """Make the next batch of this thread in the memory of ``lender``, which manages the arrays over it."""
    _here.lender = lender


@contextmanager
def borrowing() -> Iterator[None]:
    """Make large arrays in the memory that this thread was lent, while a batch is collated."""
    _here.is_borrowing = True
    try:
        yield
    finally:
        _here.is_borrowing = False


def empty(shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
    """An array for a batch, uninitialized."""
    dtype = np.dtype(dtype)
    size_bytes = math.prod(shape) * dtype.itemsize
    if _here.is_borrowing and size_bytes >= LEAST_BYTES and (lender := _here.lender) is not None:
        memory = lender.take(size_bytes)
        if memory is not None:
            return np.ndarray(shape, dtype, memory)
    return np.empty(shape, dtype)


def filled(shape: Sequence[int], fill: Any, dtype: DTypeLike) -> NDArray[Any]:
    """An array for a batch, filled with ``fill``."""
    if not fill and not _here.is_borrowing:
        # The system gives zeros() pages that are zero already, which fill() would write once more.
        return np.zeros(shape, dtype)
    array = empty(shape, dtype)
    if fill:
        array.fill(fill)
    else:
        array.reshape(-1).view(np.uint8).fill(0)  # in half the time
    return array


def stacked(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """``np.stack`` of arrays of one shape and dtype."""
    first = arrays[0]
    return np.stack(arrays, out=empty((len(arrays), *first.shape), first.dtype))


def copied(array: NDArray[Any]) -> NDArray[Any]:
    """The same values in memory of the batch's own, in C order."""
    copy = empty(array.shape, array.dtype)
    copy[...] = array
    return copy
