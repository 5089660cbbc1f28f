"""How arrays and tensors are pickled to be read in place: as a buffer, and what is over it."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..tensors import StandIn, as_bytes, dense, over

if TYPE_CHECKING:
    import torch

__all__ = ["Reducers", "array_reducers", "reduce_tensor"]

Reducers: TypeAlias = dict[type, Callable[[Any], Any]]
"""How objects of some types are pickled: a pickler's ``dispatch_table``."""


def array_reducers() -> Reducers:
    """What has large arrays and tensors stay out of the stream; those of torch only where it is imported."""
    torch = sys.modules.get("torch")
    return _REDUCERS if torch is None else {torch.Tensor: reduce_tensor, **_REDUCERS}


def reduce_tensor(tensor: torch.Tensor, otherwise: Callable[[torch.Tensor], Any] | None = None) -> Any:
    """What a pickler sends of a tensor on the CPU.

    Args:
        tensor: Anything of that class.
        otherwise: What is asked for those that have more to them than elements; pickle's own way by default.
    """
    otherwise = otherwise or _reduce_by_pickle
    if tensor.__dict__ or any(getattr(tensor, "names", ())):  # newer torch has no named tensors
        return otherwise(tensor)
    try:
        # Refuses all but strided elements on the CPU, of a dtype that numpy knows and without a graph. In
        # torch's own terms the same takes ten times as long, most of what sending a small batch would cost.
        array = tensor.numpy()
    except (RuntimeError, TypeError):
        return _reduce_other(tensor, otherwise)
    if not array.flags.c_contiguous:
        return _reduce_other(tensor, otherwise)
    return _tensor_over, (pickle.PickleBuffer(array.data), array.dtype.char, array.shape)


def _reduce_array(array: NDArray[Any]) -> Any:
    dtype, flags = array.dtype, array.flags
    if dtype.kind not in "biufc" or not dtype.isnative or not (flags.c_contiguous and flags.writeable):
        return array.__reduce_ex__(5)
    return _array_over, (pickle.PickleBuffer(array.data), dtype.char, array.shape)


def _reduce_stand_in(stand_in: StandIn) -> Any:
    array = stand_in.array
    return _tensor_over, (pickle.PickleBuffer(array.data), array.dtype.char, array.shape)


_REDUCERS: Reducers = {np.ndarray: _reduce_array, StandIn: _reduce_stand_in}


def _array_over(buffer: Any, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    return np.ndarray(shape, dtype, buffer)


def _tensor_over(buffer: Any, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    import torch

    return torch.from_numpy(np.ndarray(shape, dtype, buffer))


def _reduce_by_pickle(tensor: torch.Tensor) -> Any:
    return tensor.__reduce_ex__(5)  # type: ignore[no-untyped-call]


def _reduce_other(tensor: torch.Tensor, otherwise: Callable[[torch.Tensor], Any]) -> Any:
    """Of a tensor that is no array, or none in the order of its memory."""
    import torch

    # Nested tensors may call themselves strided.
    is_dense = tensor.layout == torch.strided and not tensor.is_nested
    if tensor.device.type != "cpu" or not is_dense or tensor.is_quantized:
        return otherwise(tensor)
    plain = dense(tensor.detach())
    layout = (tensor.dtype, tuple(tensor.shape), plain.stride(), tensor.requires_grad)
    return _rebuild_other, (pickle.PickleBuffer(as_bytes(plain).numpy().data), *layout)


def _rebuild_other(
    buffer: Any, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...], requires_grad: bool
) -> torch.Tensor:
    import torch

    if len(buffer):
        tensor = over(torch.frombuffer(buffer, dtype=torch.uint8), dtype, 0, shape, stride)
    else:
        tensor = torch.empty(shape, dtype=dtype)
    return tensor.requires_grad_() if requires_grad else tensor
