"""Which tensors of a batch travel together in one buffer, and where they lie in it.

Laws:

* Small tensors share one buffer: an allocation and a copy of its own for each costs more than their
  bytes. A large tensor has its own: else a user who keeps a batch's labels would keep its images.
* A tensor keeps its dtype, shape and, where it is dense in whatever order of its dimensions
  (channels last), its strides; others become contiguous.
* The tensors made over a buffer are no views of one another to autograd: they share memory, but writing
  to one in place does not count as having changed the others.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..tensors import align, dense, over

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LARGE_BYTES", "Parcel", "make_parcels"]

# At the 25 GB/s of a PCIe 4 x16 link this takes 10 us, more than what it costs to queue a copy of it.
LARGE_BYTES = 256 << 10

# ctypes' own memmove lets go of the interpreter lock, and may wait a switch interval (5 ms) to have it
# back. Copying less than this takes a few microseconds, so it is copied with the lock held.
_UNLOCK_BYTES = 32 << 10
_memmove_locked = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
    ctypes.cast(ctypes.memmove, ctypes.c_void_p).value or 0
)


@dataclass(frozen=True, slots=True)
class _Piece:
    """One tensor of a parcel: its index among the batch's leaves, and where it lies."""

    index: int
    tensor: Tensor
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Parcel:
    """Tensors that travel in one buffer.

    Attributes:
        pieces: The tensors, with their place among the batch's leaves and in the buffer.
        size_bytes: The size of the buffer.
        pinned: Its one tensor lies in pinned memory already.
    """

    pieces: list[_Piece]
    size_bytes: int
    pinned: bool

    def write(self, target: Tensor) -> None:
        """Copy the tensors' memory to ``target``, ``(size_bytes,)`` uint8 in host memory."""
        start = target.data_ptr()
        for piece in self.pieces:
            # Not Tensor.copy_: it would start a pool of threads for large ones, for this thread alone,
            # and torch.set_num_threads is inherited by every thread that first uses torch after it.
            move = _memmove_locked if piece.size_bytes < _UNLOCK_BYTES else ctypes.memmove
            move(start + piece.offset, piece.tensor.data_ptr(), piece.size_bytes)

    def lay_over(self, buffer: Tensor, leaves: list[Any]) -> None:
        """Replace this parcel's tensors among ``leaves`` by their likes over ``buffer``."""
        for piece in self.pieces:
            old = piece.tensor
            place = piece.offset // old.element_size()
            leaves[piece.index] = over(buffer, old.dtype, place, tuple(old.shape), old.stride())


def make_parcels(
    leaves: Sequence[Any], is_pinned: Callable[[Tensor], bool]
) -> tuple[list[Parcel], list[int]]:
    """Sort out what can be packed.

    Args:
        leaves: Of a batch, in any order.
        is_pinned: Asked for large tensors only: for small ones the answer costs as much as the copy.

    Returns:
        The parcels, and the indices of the leaves that are in none: what is no plain dense tensor in
        host memory (other types, sparse, nested, quantized, with a gradient), or is empty.
    """
    parcels: list[Parcel] = []
    small: list[_Piece] = []
    others: list[int] = []
    end = 0
    for index, leaf in enumerate(leaves):
        if not _is_plain(leaf):
            others.append(index)
            continue
        tensor = dense(leaf)
        size_bytes = tensor.numel() * tensor.element_size()
        if size_bytes >= LARGE_BYTES:
            parcels.append(Parcel([_Piece(index, tensor, 0, size_bytes)], size_bytes, is_pinned(tensor)))
        else:
            start = align(end)
            small.append(_Piece(index, tensor, start, size_bytes))
            end = start + size_bytes
    if small:
        parcels.append(Parcel(small, end, False))
    return parcels, others


def _is_plain(leaf: Any) -> bool:
    import torch

    return (
        type(leaf) is torch.Tensor
        and leaf.device.type == "cpu"
        and leaf.layout is torch.strided
        and not leaf.is_nested
        and not leaf.requires_grad
        and not leaf.is_quantized
        and leaf.numel() > 0
    )
