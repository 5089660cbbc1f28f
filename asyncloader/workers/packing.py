"""Batches to bytes and back: what is small in a message, what is large in shared memory and read in place.

Laws:

* Pickle's protocol 5 walks the object. What is not a plain CPU tensor or an array is sent as pickle sends it;
  a type that plain pickle does not know (a class or a lambda of ``__main__``) is sent by value, by
  cloudpickle.
* A tensor or an array of ``LEAST_BYTES`` or more is laid out on its own, aligned, and read back without a
  copy; where the batch was made in its slot, it stays where it is. Smaller ones are copied on the way out:
  keeping a batch's labels must not keep the pages of its images.
* All else is one pickle stream. Up to a limit it is sent with the message itself, so that a small batch needs
  no shared memory at all.
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
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from ..blocks.memory import LEAST_BYTES, StandIn, align, as_bytes, dense
from .by_value import Homeward

if TYPE_CHECKING:
    import torch

    from .slots import OpenSlot

# How arrays and tensors are pickled to be read in place: as a buffer, and what is over it.

Reducers: TypeAlias = dict[type, Callable[[Any], Any]]
"""How objects of some types are pickled: a pickler's ``dispatch_table``."""


def array_reducers() -> Reducers:
    """Reducers that keep large arrays and tensors out of the stream; torch's only where it is imported."""
    torch = sys.modules.get("torch")
    return _REDUCERS if torch is None else {torch.Tensor: reduce_tensor, **_REDUCERS}


def reduce_tensor(tensor: torch.Tensor, otherwise: Callable[[torch.Tensor], Any] | None = None) -> Any:
    """What a pickler sends of a tensor on the CPU.

    Args:
        tensor: Anything of that class.
        otherwise: Called for those that have more to them than elements; pickle's own way by default.
    """
    otherwise = otherwise or _reduce_by_pickle
    if tensor.__dict__ or any(getattr(tensor, "names", ())):  # newer torch has no named tensors
        return otherwise(tensor)
    try:
        # Refuses all but strided elements on the CPU, of a dtype that numpy knows and without a graph. The
        # same checks by torch take ten times as long, most of what sending a small batch would cost.
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
        # ``data`` is no view to autograd.
        tensor = torch.frombuffer(buffer, dtype=dtype).as_strided(shape, stride).data
    else:
        tensor = torch.empty(shape, dtype=dtype)
    return tensor.requires_grad_() if requires_grad else tensor


Bytes: TypeAlias = NDArray[np.uint8]

Keep: TypeAlias = Callable[[pickle.PickleBuffer], bool]
"""Says of a buffer whether it stays in the pickle stream: a pickler's ``buffer_callback``."""

# A slot costs a lease and its return, some ten microseconds, more than copying this much twice. Sending does
# not wait for room in the socket, which holds some dozen of such messages.
MOST_INLINE_BYTES = 12 << 10

# How many buffers are laid out on their own, and the length of the pickle stream. Start and length of each
# buffer follow.
_HEAD = struct.Struct("<QQ")


class Packed:
    """An object taken apart, ready to be sent. It refers to the object's memory.

    Written once: each part is released as soon as it is copied. So a large batch without other references
    never exists twice.

    Args:
        stream: The pickle stream, in pieces; large ``bytes`` are pieces of their own, not yet copied.
        buffers: The memory of the tensors and arrays that stay out of the stream.
        made_in: The slot in which some of them may lie.

    Attributes:
        made_in: Likewise.
        message: What is sent with the message; empty if it is too long for that.
        at: Where in shared memory the message lies if it is too long.
        slot_bytes: What has to lie in shared memory; 0 if nothing has to.
        size_bytes: Message and shared memory together.
        stays: Whether some of it lies in ``made_in``, and there is room for all.
    """

    def __init__(
        self, stream: Sequence[Any], buffers: Sequence[memoryview], made_in: OpenSlot | None
    ) -> None:
        self.made_in = made_in
        places = [None if made_in is None else made_in.place_of(buffer) for buffer in buffers]
        self.stays = made_in is not None and any(place is not None for place in places)
        if made_in is not None and self.stays:
            self._lay_out(stream, buffers, places, made_in.used_bytes)
            self.stays = self.slot_bytes <= made_in.size_bytes
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
        if len(head) + length <= MOST_INLINE_BYTES:
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
        """Copy to ``target``, of at least ``slot_bytes``, what has to lie there, and release it."""
        while self._to_copy:
            start, piece = self._to_copy.popleft()
            _copy(target[start : start + len(piece)], piece)


def pack(batch: object, made_in: OpenSlot | None = None) -> Packed:
    """Take ``batch`` apart.

    Args:
        batch: Anything.
        made_in: The slot that some of its memory may lie in.

    Raises:
        Exception: What pickle raises for something that cannot be sent.
    """
    return Packed(*take_apart(batch), made_in)


def take_apart(
    batch: object, make_pickler: Callable[[Any, Keep], pickle.Pickler] | None = None
) -> tuple[list[Any], list[memoryview]]:
    """The pickle stream of ``batch``, in pieces, and the large memory that is not in it.

    Args:
        batch: Anything.
        make_pickler: Called with a file and a ``buffer_callback``, both of which the pickler has to use; it
            needs ``array_reducers``. By default plain pickle, and cloudpickle where that fails.

    Raises:
        Exception: What pickle raises for something that cannot be sent.
    """
    if make_pickler is None:
        try:
            return take_apart(batch, _plain)
        except Exception:
            # The slower pickler also knows what lives in __main__, and names what it cannot send.
            return take_apart(batch, _homeward)
    pieces: list[Any] = []
    buffers: list[memoryview] = []

    def stays_in_stream(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if len(raw) < LEAST_BYTES:
            return True
        buffers.append(raw)
        return False

    # Not a file that joins what is written: pickle passes large ``bytes`` themselves, uncopied.
    make_pickler(SimpleNamespace(write=pieces.append), stays_in_stream).dump(batch)
    return pieces, buffers


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
    # numpy releases the interpreter lock while it copies; a memoryview would block a job's event loop.
    target[:] = np.frombuffer(source, np.uint8)


def _plain(file: Any, keep: Keep) -> pickle.Pickler:
    pickler = pickle.Pickler(file, protocol=5, buffer_callback=keep)
    # Looked up by C code, once for each object that is not of a built-in type: a dict, where it can be.
    pickler.dispatch_table = {**copyreg.dispatch_table, **array_reducers()}
    return pickler


def _homeward(file: Any, keep: Keep) -> pickle.Pickler:
    pickler: Any = Homeward(file, protocol=5, buffer_callback=keep)
    pickler.dispatch_table = ChainMap(array_reducers(), pickler.dispatch_table)
    return cast("pickle.Pickler", pickler)
