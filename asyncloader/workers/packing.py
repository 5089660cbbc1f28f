"""Batches to bytes and back: what is small in a message, what is large in shared memory and read in place.

Laws:

* Pickle's protocol 5 does the walking. What is not a plain CPU tensor or an array goes the way pickle
  sends it; a type that plain pickle does not know (a class or a lambda of ``__main__``) is sent by value,
  by cloudpickle.
* A tensor or an array of ``LEAST_BYTES`` or more is laid out on its own, aligned, and read back without a
  copy; where the batch was made in its slot, it stays where it is. Smaller ones are copied on the way out:
  keeping a batch's labels must not keep the pages of its images.
* The rest is one pickle stream. Up to ``_MOST_INLINE_BYTES`` of it go with the message itself, so that a
  small batch needs no shared memory at all.
* Values are kept; sharing is kept where the same object occurs twice, but two views of one storage come
  back as two tensors.
* Loading trusts the sender: it is a process that this library started.
"""

from __future__ import annotations

import copyreg
import pickle
import struct
import sys
from collections import ChainMap, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..by_value import Homeward
from ..dense import align, as_bytes, dense, over
from ..lent_memory import LEAST_BYTES
from ..tensors import StandIn

if TYPE_CHECKING:
    import torch

__all__ = ["Bytes", "Made", "Packed", "pack", "unpack"]

Bytes: TypeAlias = NDArray[np.uint8]

# A slot costs a lease and its return, some ten microseconds. Messages up to this take a page each of what
# the kernel lets a socket hold, so that some fifty fit; what is longer takes four.
_MOST_INLINE_BYTES = 3 << 10

# How many buffers are laid out on their own, and the length of the pickle stream. Start and length of each
# buffer follow.
_HEAD = struct.Struct("<QQ")


class Made(Protocol):
    """The slot that a batch was made in.

    Attributes:
        size_bytes: How large it is.
        used_bytes: How much of it was taken, from its beginning.
    """

    size_bytes: int
    used_bytes: int

    def place_of(self, buffer: memoryview) -> int | None:
        """Where in it a buffer lies; None if it does not."""
        ...


class Packed:
    """An object taken apart, ready to be sent. It refers to the object's memory.

    Written once: each part is let go of as soon as it is copied, so that of a large batch which nobody else
    holds there never are two.

    Args:
        stream: The pickle stream, in pieces; large ``bytes`` are pieces of their own, not yet copied.
        buffers: The memory of the tensors and arrays that stay out of the stream.
        made: The slot in which some of them may lie.

    Attributes:
        message: What goes with the message; empty if that is not enough to be worth it, or too much.
        at: Where in shared memory that lies which would be the message.
        slot_bytes: What has to lie in shared memory; 0 if nothing has to.
        size_bytes: Message and shared memory together.
        stays: Whether some of it lies in ``made``, and there is room for all.
    """

    def __init__(self, stream: Sequence[Any], buffers: Sequence[memoryview], made: Made | None) -> None:
        places = [None if made is None else made.place_of(buffer) for buffer in buffers]
        self.stays = made is not None and any(place is not None for place in places)
        if made is not None and self.stays:
            self._lay_out(stream, buffers, places, made.used_bytes)
            self.stays = self.slot_bytes <= made.size_bytes
        if not self.stays:
            self._lay_out(stream, buffers, [None] * len(buffers), 0)

    def _lay_out(
        self, stream: Sequence[Any], buffers: Sequence[memoryview], places: Sequence[int | None], used: int
    ) -> None:
        """Find a place for all that has none, behind the ``used`` bytes."""
        #: Pieces to be copied, each with where it goes.
        self._to_copy = deque[tuple[int, Any]]()
        spans = []
        for place, buffer in zip(places, buffers, strict=True):
            start = align(used) if place is None else place
            spans += [start, len(buffer)]
            if place is None:
                self._to_copy.append((start, buffer))
                used = start + len(buffer)
        length = sum(map(len, stream))
        head = struct.pack(f"<{2 + len(spans)}Q", len(buffers), length, *spans)
        self.message, self.at = b"", used
        if len(head) + length <= _MOST_INLINE_BYTES:
            self.message = b"".join((head, *stream))
        else:
            for piece in (head, *stream):
                self._to_copy.append((used, piece))
                used += len(piece)
        self.slot_bytes = used
        self.size_bytes = len(self.message) + used

    @property
    def is_written(self) -> bool:
        """Whether nothing is left to be copied."""
        return not self._to_copy

    def write(self, target: Bytes) -> None:
        """Copy to ``target``, of at least ``slot_bytes``, what has to lie there, and let go of it."""
        while self._to_copy:
            start, piece = self._to_copy.popleft()
            _copy(target[start : start + len(piece)], piece)


def pack(batch: object, made: Made | None = None) -> Packed:
    """Take ``batch`` apart.

    Args:
        batch: Anything.
        made: The slot that some of its memory may lie in.

    Raises:
        Exception: What pickle raises for something that cannot be sent.
    """
    try:
        return _pack_with(pickle.Pickler, batch, made)
    except Exception:
        # The slower pickler also knows what lives in __main__, and names what it cannot send.
        return _pack_with(Homeward, batch, made)


def unpack(message: memoryview | bytes, source: Bytes, at: int = 0) -> Any:
    """Rebuild what was packed.

    Args:
        message: What came with the message.
        source: The slot that it came with, of 0 bytes if there is none. Large tensors and arrays lie over
            it and keep it alive.
        at: Where in it the message lies, if none came.
    """
    view = memoryview(message or source.data[at:])
    count, length = _HEAD.unpack_from(view)
    start = _HEAD.size + 16 * count
    stream = view[start : start + length]
    if not count:
        return pickle.loads(stream)
    spans = struct.unpack_from(f"<{2 * count}Q", view, _HEAD.size)
    buffers = [source[at : at + size] for at, size in zip(spans[::2], spans[1::2], strict=True)]
    return pickle.loads(stream, buffers=buffers)


def _copy(target: Bytes, source: Any) -> None:
    # numpy lets go of the interpreter lock while it copies; a memoryview would stall a job's event loop.
    target[:] = np.frombuffer(source, np.uint8)


def _pack_with(pickler_type: Callable[..., Any], batch: object, made: Made | None) -> Packed:
    sink = _Sink()
    buffers: list[memoryview] = []

    def stays_in_stream(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if len(raw) < LEAST_BYTES:
            return True
        buffers.append(raw)
        return False

    pickler = pickler_type(sink, protocol=5, buffer_callback=stays_in_stream)
    reducers = _REDUCERS
    if (torch := sys.modules.get("torch")) is not None:
        reducers = {torch.Tensor: _reduce_tensor, **_REDUCERS}
    # Looked up by C code, once for each object that is not of a built-in type: a dict, where it can be.
    if pickler_type is pickle.Pickler:
        pickler.dispatch_table = {**copyreg.dispatch_table, **reducers}
    else:
        pickler.dispatch_table = ChainMap(reducers, pickler.dispatch_table)
    pickler.dump(batch)
    return Packed(sink.pieces, buffers, made)


class _Sink:
    """A file that keeps what is written: pickle hands over large ``bytes`` themselves, uncopied."""

    def __init__(self) -> None:
        self.pieces: list[Any] = []
        self.write = self.pieces.append


def _reduce_tensor(tensor: torch.Tensor) -> Any:
    if tensor.__dict__ or any(getattr(tensor, "names", ())):  # newer torch has no named tensors
        return tensor.__reduce_ex__(5)  # type: ignore[no-untyped-call]
    try:
        # Refuses all but strided elements on the CPU, of a dtype that numpy knows and without a graph. In
        # torch's own terms the same takes ten times as long, most of what sending a small batch would cost.
        array = tensor.numpy()
    except (RuntimeError, TypeError):
        return _reduce_other(tensor)
    if not array.flags.c_contiguous:
        return _reduce_other(tensor)
    return _tensor_over, (pickle.PickleBuffer(array.data), array.dtype.char, array.shape)


def _reduce_array(array: NDArray[Any]) -> Any:
    dtype, flags = array.dtype, array.flags
    if dtype.kind not in "biufc" or not dtype.isnative or not (flags.c_contiguous and flags.writeable):
        return array.__reduce_ex__(5)
    return _array_over, (pickle.PickleBuffer(array.data), dtype.char, array.shape)


def _reduce_stand_in(stand_in: StandIn) -> Any:
    array = stand_in.array
    return _tensor_over, (pickle.PickleBuffer(array.data), array.dtype.char, array.shape)


_REDUCERS: dict[type, Callable[[Any], Any]] = {np.ndarray: _reduce_array, StandIn: _reduce_stand_in}


def _array_over(buffer: Any, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    return np.ndarray(shape, dtype, buffer)


def _tensor_over(buffer: Any, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    import torch

    return torch.from_numpy(np.ndarray(shape, dtype, buffer))


def _reduce_other(tensor: torch.Tensor) -> Any:
    """Of a tensor that is no array, or none in the order of its memory."""
    import torch

    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_quantized:
        return tensor.__reduce_ex__(5)  # type: ignore[no-untyped-call]
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
