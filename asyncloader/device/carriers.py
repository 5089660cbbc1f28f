"""What the stage does with one batch: put it into pinned memory, or onto the device."""

from __future__ import annotations

import copy
import ctypes
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..blocks.memory import align, as_bytes, dense
from .slabs import Accelerator, SlabRing

# Takes a batch apart into the leaves that can be pinned, and builds one like it from others.
#
# Laws:
#
# * The rules are those of torch's own pin-memory thread, in its order (torch 2.13,
#   ``torch/utils/data/_utils/pin_memory.py``): whatever has a ``pin_memory`` method, tensors first of all,
#   is a leaf; text stays; mappings, tuples and other sequences are copied with their type kept; all else
#   is passed on as it is. Added to them: dataclass instances are copied with their type kept.
# * The batch is read once and never changed: a dataset may still own what it is made of.

#: Makes a batch of the old one's structure out of new leaves, given in the order of the old ones.
Build: TypeAlias = Callable[[Sequence[Any]], Any]

# What needs no look at its abstract base classes: those cost a microsecond each, and a batch may hold
# lists of thousands of keys. bytearray is a mutable sequence, which torch would copy byte by byte.
_PLAIN = frozenset({str, bytes, bytearray, int, float, bool, complex, type(None)})


def take_apart(batch: Any) -> tuple[list[Any], Build]:
    """Find the leaves of ``batch``.

    Returns:
        The leaves, tensors and other objects with a ``pin_memory`` method, and what builds a batch of
        the same structure from as many new ones.
    """
    leaves: list[Any] = []
    build = _part(batch, leaves)
    return leaves, build if build is not None else lambda _: batch


def _part(value: Any, leaves: list[Any]) -> Build | None:
    """What builds the new ``value``; None if that is the old one."""
    if type(value) in _PLAIN:
        return None
    if hasattr(value, "pin_memory"):
        leaves.append(value)
        return itemgetter(len(leaves) - 1)
    if isinstance(value, (str, bytes, bytearray)):
        return None
    if isinstance(value, Mapping):
        return _mapping(value, leaves)
    if isinstance(value, Sequence):
        return _sequence(value, leaves)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _dataclass(value, leaves)
    return None


def _mapping(old: Mapping[Any, Any], leaves: list[Any]) -> Build:
    parts = [(key, item, _part(item, leaves)) for key, item in old.items()]

    def build(new: Sequence[Any]) -> Any:
        items = {key: item if part is None else part(new) for key, item, part in parts}
        try:
            if not isinstance(old, MutableMapping):
                return type(old)(items)  # type: ignore[call-arg]  # as torch does; the TypeError is caught
            # A copy, not a new one: the type may have more to it than its items.
            clone = copy.copy(old)
            clone.update(items)
        except TypeError:
            return items
        return clone

    return build


def _sequence(old: Sequence[Any], leaves: list[Any]) -> Build:
    parts = [(item, _part(item, leaves)) for item in old]

    def build(new: Sequence[Any]) -> Any:
        items = [item if part is None else part(new) for item, part in parts]
        if isinstance(old, tuple):
            return type(old)(*items) if hasattr(old, "_fields") else type(old)(items)
        try:
            if not isinstance(old, MutableSequence):
                return type(old)(items)  # type: ignore[call-arg]  # as torch does; the TypeError is caught
            clone = copy.copy(old)
            for index, item in enumerate(items):
                clone[index] = item
        except TypeError:  # A range cannot be built from its items.
            return items
        return clone

    return build


def _dataclass(old: Any, leaves: list[Any]) -> Build:
    # A field that was never set, or was deleted, has nothing to walk.
    names = [field.name for field in dataclasses.fields(old) if hasattr(old, field.name)]
    parts = [(name, _part(getattr(old, name), leaves)) for name in names]

    def build(new: Sequence[Any]) -> Any:
        # Not dataclasses.replace: it would run __post_init__ again, refuses fields with init=False and
        # asks for every InitVar. object's own __setattr__ is how a frozen dataclass sets its fields.
        clone = copy.copy(old)
        for name, part in parts:
            if part is not None:
                object.__setattr__(clone, name, part(new))
        return clone

    return build


# Which tensors of a batch travel together in one buffer, and where they lie in it.
#
# Laws:
#
# * Small tensors share one buffer: an allocation and a copy of its own for each costs more than their
#   bytes. A large tensor has its own: else a user who keeps a batch's labels would keep its images.
# * A tensor keeps its dtype, shape and, where it is dense in whatever order of its dimensions
#   (channels last), its strides; others become contiguous.
# * The tensors made over a buffer are no views of one another to autograd: they share memory, but writing
#   to one in place does not count as having changed the others.

# At the 25 GB/s of a PCIe 4 x16 link this takes 10 us, more than what it costs to queue a copy of it.
LARGE_BYTES = 256 << 10

# ctypes' own memmove lets go of the interpreter lock, and may wait a switch interval (5 ms) to have it
# back. Copying less than this takes a few microseconds, so it is copied with the lock held.
_UNLOCK_BYTES = 32 << 10

# From here on torch copies, with as many threads as torch.set_num_threads gives its operations: one thread
# copies some 7 GB/s, and a PCIe 5 link takes 55 (tests/benchmarks/on_device.py). For less, waking the threads
# that torch starts for this one alone takes longer than they save.
_TOGETHER_BYTES = 1 << 20
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
        if self.size_bytes >= _TOGETHER_BYTES and len(self.pieces) == 1:
            target.copy_(as_bytes(self.pieces[0].tensor))
            return
        start = target.data_ptr()
        for piece in self.pieces:
            move = _memmove_locked if piece.size_bytes < _UNLOCK_BYTES else ctypes.memmove
            move(start + piece.offset, piece.tensor.data_ptr(), piece.size_bytes)

    def lay_over(self, buffer: Tensor, leaves: list[Any]) -> None:
        """Replace this parcel's tensors among ``leaves`` by their likes over ``buffer``."""
        typed = {dtype: buffer.view(dtype) for dtype in {piece.tensor.dtype for piece in self.pieces}}
        for piece in self.pieces:
            old = piece.tensor
            new = typed[old.dtype].as_strided(old.shape, old.stride(), piece.offset // old.itemsize)
            leaves[piece.index] = new.data  # which is no view to autograd


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
        is_plain = (
            type(leaf) is torch.Tensor
            and leaf.is_cpu
            and leaf.layout is torch.strided
            and not leaf.is_nested
            and not leaf.requires_grad
            and not leaf.is_quantized
            and leaf.numel() > 0
        )
        if not is_plain:
            others.append(index)
            continue
        tensor = dense(leaf)
        size_bytes = tensor.nbytes
        if size_bytes >= LARGE_BYTES:
            parcels.append(Parcel([_Piece(index, tensor, 0, size_bytes)], size_bytes, is_pinned(tensor)))
        else:
            small.append(_Piece(index, tensor, end, size_bytes))
            end = align(end + size_bytes)
    if small:
        parcels.append(Parcel(small, end, False))
    return parcels, others


@dataclass(frozen=True, slots=True)
class Prepared:
    """A batch that is ready for the consumer.

    Attributes:
        hand_over: Called by the consumer, on its thread and once: the batch.
        size_bytes: What the batch holds in pinned or device memory.
    """

    hand_over: Callable[[], Any]
    size_bytes: int


class Pinner:
    """Copies batches into pinned memory, which is the user's from then on.

    A large tensor that is pinned already is passed on, as torch does. That is safe for memory of torch's
    allocator, which sees the copies that a user queues from it. Memory that others registered as
    page-locked, and will write again, must not be passed here: nothing would see those copies.
    """

    def __init__(self, backend: Accelerator) -> None:
        self._backend = backend

    def prepare(self, batch: Any) -> Prepared:
        leaves, build = take_apart(batch)
        parcels, others = make_parcels(leaves, self._backend.is_pinned)
        size_bytes = 0
        for parcel in (parcel for parcel in parcels if not parcel.pinned):
            # One allocation for all the small ones: locking 114 small tensors one by one takes longer
            # than not locking them gains.
            buffer = self._backend.pinned(parcel.size_bytes)
            parcel.write(buffer)
            parcel.lay_over(buffer, leaves)
            size_bytes += parcel.size_bytes
        for index in others:
            if not _is_on_device(leaves[index]):
                leaves[index] = leaves[index].pin_memory()
        pinned = build(leaves)
        return Prepared(lambda: pinned, size_bytes)

    def drain(self) -> None:
        """Wait for nothing: only the user's own copies read this pinned memory."""


class Uploader:
    """Copies batches to the device on its side stream, through a ring of pinned slabs.

    Args:
        backend: The device.
        count: The most batches whose copies are pending, and the most slabs.
        budget_bytes: The most bytes in slabs; None for no such bound.
    """

    def __init__(self, backend: Accelerator, *, count: int, budget_bytes: int | None) -> None:
        self._backend = backend
        self._ring = SlabRing(backend.pinned, count, budget_bytes)

    def prepare(self, batch: Any) -> Prepared:
        leaves, build = take_apart(batch)
        parcels, others = make_parcels(leaves, self._backend.is_pinned)
        late = self._pin_others(leaves, others)
        slab = self._ring.take(sum(align(parcel.size_bytes) for parcel in parcels if not parcel.pinned))
        buffers: list[Tensor] = []
        start = 0
        for parcel in parcels:
            buffers.append(self._upload(parcel, slab, start, leaves))
            start += 0 if parcel.pinned else align(parcel.size_bytes)
        event = None
        if buffers:
            event = self._backend.record()
            self._ring.lend(slab, event, [parcel for parcel in parcels if parcel.pinned])
        # What builds a batch refers to the old one, so it is used here unless something is to be moved:
        # a batch that lies ready must not keep the shared memory that it came in.
        built = None if late else build(leaves)
        move = partial(self._move, build, leaves, late) if late else None

        def hand_over() -> Any:
            if event is not None:
                self._backend.hand_over(event, buffers)
            return built if move is None else move()

        return Prepared(hand_over, sum(parcel.size_bytes for parcel in parcels))

    def drain(self) -> None:
        """Wait until the device has read everything, and free what is held. Idempotent."""
        self._ring.drain()

    def _pin_others(self, leaves: list[Any], others: list[int]) -> list[int]:
        """Pin what has its own way of doing it; returns which leaves the consumer has to move.

        They cannot be moved here: device memory belongs to the stream it was allocated on, and the allocator
        can be informed of the consumer's stream only for memory that is known here.
        """
        late = []
        for index in others:
            if _is_on_device(leaf := leaves[index]):
                continue
            # torch cannot pin every plain tensor that is not packed (sparse, nested, with a gradient).
            if type(leaf) is not torch.Tensor:
                leaves[index] = leaf = leaf.pin_memory()
            if hasattr(leaf, "to"):
                late.append(index)
        return late

    def _upload(self, parcel: Parcel, slab: Tensor | None, start: int, leaves: list[Any]) -> Tensor:
        """Queue the copy of a parcel; returns its device memory."""
        if parcel.pinned:
            source = as_bytes(parcel.pieces[0].tensor)
        else:
            assert slab is not None
            source = slab[start : start + parcel.size_bytes]
            parcel.write(source)
        # While this copy runs, the next parcel is written to the slab.
        buffer = self._backend.on_device(parcel.size_bytes)
        self._backend.copy(buffer, source)
        parcel.lay_over(buffer, leaves)
        return buffer

    def _move(self, build: Build, leaves: list[Any], late: list[int]) -> Any:
        things = [leaves[index] for index in late]
        moved, event = self._backend.move(things)
        self._ring.keep(event, things)
        for index, thing in zip(late, moved, strict=True):
            leaves[index] = thing
        return build(leaves)


def _is_on_device(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.device.type != "cpu"
