"""The memory of tensors: made dense, as bytes, laid beside each other, and tensors over it again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["align", "as_bytes", "dense", "over"]

# A cache line, the widest vector load, and what torch's own host allocations keep to; a multiple of every
# dtype's size.
_ALIGNMENT = 64


def align(offset: int) -> int:
    """The next place at or after ``offset`` where a tensor may start."""
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def dense(tensor: Tensor) -> Tensor:
    """The tensor, or a copy, with its elements side by side in memory in some order of its dimensions.

    Channels-last images and transposed matrices are dense in another order, which is worth keeping.
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
    """The tensor with its dimensions as they lie in memory, the slowest first."""
    return tensor.permute(sorted(range(tensor.ndim), key=tensor.stride, reverse=True))


def over(buffer: Tensor, dtype: Any, place: int, shape: Sequence[int], stride: Sequence[int]) -> Tensor:
    """A tensor over the storage of ``buffer``, ``place`` counted in its own elements.

    Set, not sliced: slices share the version counter by which autograd sees writes in place.
    """
    import torch

    blank = torch.empty(0, dtype=dtype, device=buffer.device)
    return blank.set_(buffer.untyped_storage(), place, shape, stride)
