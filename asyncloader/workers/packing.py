"""Batches to bytes and back: what is small in a message, what is large in shared memory and read in place.

Laws:

* Pickle's protocol 5 does the walking. What is not a plain CPU tensor or an array goes the way pickle
  sends it; a type that plain pickle does not know (a class or a lambda of ``__main__``) is sent by value,
  by cloudpickle.
* A tensor or an array of ``LEAST_BYTES`` or more is laid out on its own, aligned, and read back without a
  copy; where the batch was made in its slot, it stays where it is. Smaller ones are copied on the way out:
  keeping a batch's labels must not keep the pages of its images.
* The rest is one pickle stream. Up to a limit it goes with the message itself, so that a small batch needs no
  shared memory at all.
* Values are kept; sharing is kept where the same object occurs twice, but two views of one storage come
  back as two tensors.
* Loading trusts the sender: it is a process that this library started.
"""

from __future__ import annotations

import copyreg
import pickle
import struct
from collections import ChainMap, deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from ..by_value import Homeward
from ..tensors import LEAST_BYTES, align
from .reducing import array_reducers

__all__ = ["Bytes", "Keep", "Made", "Packed", "pack", "pack_by", "take_apart", "unpack"]

Bytes: TypeAlias = NDArray[np.uint8]

Keep: TypeAlias = Callable[[pickle.PickleBuffer], bool]
"""Says of a buffer whether it stays in the pickle stream: a pickler's ``buffer_callback``."""

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
        most_inline_bytes: How long a message may be that goes without shared memory.

    Attributes:
        message: What goes with the message; empty if that is not enough to be worth it, or too much.
        at: Where in shared memory that lies which would be the message.
        slot_bytes: What has to lie in shared memory; 0 if nothing has to.
        size_bytes: Message and shared memory together.
        stays: Whether some of it lies in ``made``, and there is room for all.
    """

    def __init__(
        self,
        stream: Sequence[Any],
        buffers: Sequence[memoryview],
        made: Made | None,
        most_inline_bytes: int = _MOST_INLINE_BYTES,
    ) -> None:
        self._most_inline_bytes = most_inline_bytes
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
        if len(head) + length <= self._most_inline_bytes:
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
    return Packed(*take_apart(batch), made)


def take_apart(batch: object) -> tuple[list[Any], list[memoryview]]:
    """The pickle stream of ``batch``, in pieces, and the large memory that is not in it.

    Raises:
        Exception: What pickle raises for something that cannot be sent.
    """
    try:
        return _take_apart_by(_plain, batch)
    except Exception:
        # The slower pickler also knows what lives in __main__, and names what it cannot send.
        return _take_apart_by(_homeward, batch)


def pack_by(
    make_pickler: Callable[[Any, Keep], pickle.Pickler],
    batch: object,
    made: Made | None,
    most_inline_bytes: int = _MOST_INLINE_BYTES,
) -> Packed:
    """Take ``batch`` apart by a pickler of the caller's.

    Args:
        make_pickler: Called with a file and a ``buffer_callback``, both of which the pickler has to use. What
            has to go by ``array_reducers``, it must know of.
        batch: Anything.
        made: The slot that some of its memory may lie in.
        most_inline_bytes: See ``Packed``.
    """
    return Packed(*_take_apart_by(make_pickler, batch), made, most_inline_bytes)


def _take_apart_by(
    make_pickler: Callable[[Any, Keep], pickle.Pickler], batch: object
) -> tuple[list[Any], list[memoryview]]:
    sink = _Sink()
    buffers: list[memoryview] = []

    def stays_in_stream(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if len(raw) < LEAST_BYTES:
            return True
        buffers.append(raw)
        return False

    make_pickler(sink, stays_in_stream).dump(batch)
    return sink.pieces, buffers


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


def _plain(file: Any, keep: Keep) -> pickle.Pickler:
    pickler = pickle.Pickler(file, protocol=5, buffer_callback=keep)
    # Looked up by C code, once for each object that is not of a built-in type: a dict, where it can be.
    pickler.dispatch_table = {**copyreg.dispatch_table, **array_reducers()}
    return pickler


def _homeward(file: Any, keep: Keep) -> pickle.Pickler:
    pickler: Any = Homeward(file, protocol=5, buffer_callback=keep)
    pickler.dispatch_table = ChainMap(array_reducers(), pickler.dispatch_table)
    return cast("pickle.Pickler", pickler)


class _Sink:
    """A file that keeps what is written: pickle hands over large ``bytes`` themselves, uncopied."""

    def __init__(self) -> None:
        self.pieces: list[Any] = []
        self.write = self.pieces.append
