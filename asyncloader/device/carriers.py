"""What the stage does with one batch: put it into pinned memory, or onto the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ..tensors import align, as_bytes
from .backend import Backend
from .parcels import Parcel, make_parcels
from .slabs import SlabRing
from .walk import Build, take_apart

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Carrier", "Pinner", "Prepared", "Uploader"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A batch that is ready for the consumer.

    Attributes:
        hand_over: Called by the consumer, on its thread and once: the batch.
        size_bytes: What the batch holds in pinned or device memory.
    """

    hand_over: Callable[[], Any]
    size_bytes: int


class Carrier(Protocol):
    """Prepares batches in the stage's thread."""

    def prepare(self, batch: Any) -> Prepared: ...

    def drain(self) -> None:
        """Wait until the device has read everything, and free what is held. Idempotent."""
        ...


class Pinner:
    """Copies batches into pinned memory, which is the user's from then on.

    A large tensor that is pinned already is passed on, as torch does. That is safe for memory of torch's
    allocator, which sees the copies that a user queues from it. Memory that others registered as
    page-locked, and mean to write again, must not come this way: nobody would see those copies.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def prepare(self, batch: Any) -> Prepared:
        leaves, build = take_apart(batch)
        parcels, others = make_parcels(leaves, self._backend.is_pinned)
        size_bytes = 0
        for parcel in parcels:
            if parcel.pinned:
                continue
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
        pass


class Uploader:
    """Copies batches to the device on its side stream, through a ring of pinned slabs.

    Args:
        backend: The device.
        count: The most batches whose copies are pending, and the most slabs.
        budget_bytes: The most bytes in slabs; None for no such bound.
    """

    def __init__(self, backend: Backend, *, count: int, budget_bytes: int | None) -> None:
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
        return self._prepared(build, leaves, late, buffers, slab, parcels)

    def drain(self) -> None:
        self._ring.drain()

    def _pin_others(self, leaves: list[Any], others: list[int]) -> list[int]:
        """Pin what has its own way of doing it; returns which leaves the consumer has to move.

        They cannot be moved here: device memory belongs to the stream it was allocated on, and only for
        memory that we can name could the consumer's stream be told to the allocator.
        """
        import torch

        late = []
        for index in others:
            leaf = leaves[index]
            if _is_on_device(leaf):
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

    def _prepared(
        self,
        build: Build,
        leaves: list[Any],
        late: list[int],
        buffers: list[Tensor],
        slab: Tensor | None,
        parcels: list[Parcel],
    ) -> Prepared:
        event = None
        if buffers:
            event = self._backend.record()
            self._ring.lend(slab, event, [parcel for parcel in parcels if parcel.pinned])
        # What builds a batch refers to the old one, so it is used here unless something is to be moved:
        # a batch that lies ready must not keep the shared memory that it came in.
        give = partial(self._move, build, leaves, late) if late else partial(_itself, build(leaves))

        def hand_over() -> Any:
            if event is not None:
                self._backend.hand_over(event, buffers)
            return give()

        return Prepared(hand_over, sum(parcel.size_bytes for parcel in parcels))

    def _move(self, build: Build, leaves: list[Any], late: list[int]) -> Any:
        things = [leaves[index] for index in late]
        moved, event = self._backend.move(things)
        self._ring.keep(event, things)
        for index, thing in zip(late, moved, strict=True):
            leaves[index] = thing
        return build(leaves)


def _itself(batch: Any) -> Any:
    return batch


def _is_on_device(leaf: Any) -> bool:
    import torch

    return isinstance(leaf, torch.Tensor) and leaf.device.type != "cpu"
