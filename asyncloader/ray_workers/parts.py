"""What travels through Ray's object store: a pickle stream, and beside it large memory, which is not copied.

Ray hands out what lies in its store as read-only, since any process that has the reference may map it. Of a
batch nobody has it but the process that asked for it, and that asks once: writing to it is like writing to a
batch of a local worker, which lies in shared memory too; and torch knows no read-only tensors. So tensors and
arrays are made over the store's own pages, writable, where the system lets this process write there; else
they are copied.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from ..workers.packing import Bytes, take_apart

__all__ = ["Pages", "Parts", "split"]

Parts: TypeAlias = tuple[Any, Sequence[Any]]
"""The pickle stream, and the buffers that are not in it: ``PickleBuffer`` on the way out, Ray's own then."""

# Results up to 100 KB come by message into Ray's heap, not through the store (max_direct_call_object_size).
# To copy as much takes some microseconds, less than to find out where it lies.
_LEAST_SHARED_BYTES = 128 << 10


def split(batch: object) -> tuple[Parts, int]:
    """Take ``batch`` apart to be returned by an actor; also how many bytes it has.

    Raises:
        Exception: What pickle raises for something that cannot be sent.
    """
    pieces, buffers = take_apart(batch)
    stream = b"".join(pieces)
    # As a buffer the stream is copied once, into the store; as bytes it would be part of Ray's own pickle.
    parts = pickle.PickleBuffer(stream), [pickle.PickleBuffer(buffer) for buffer in buffers]
    return parts, len(stream) + sum(map(len, buffers))


class Pages:
    """Rebuilds batches over the pages that Ray has mapped; of one process."""

    def __init__(self) -> None:
        #: Mappings that may be written to: the store's own is one, of gigabytes.
        self._writable: list[range] = []

    def join(self, parts: Parts) -> Any:
        """The batch, with writable tensors and arrays; its memory stays in the store as long as they live."""
        stream, buffers = parts
        views = [np.frombuffer(buffer, np.uint8) for buffer in buffers]
        if sum(map(len, views)) < _LEAST_SHARED_BYTES:
            return pickle.loads(stream, buffers=[view.copy() for view in views])
        return pickle.loads(stream, buffers=[self._writable_over(view) for view in views])

    def _writable_over(self, view: Bytes) -> Bytes:
        if view.flags.writeable:
            return view
        address = view.ctypes.data
        if not any(address in mapping for mapping in self._writable):
            mapping = _mapping_of(address)
            if mapping is None:
                return view.copy()
            self._writable.append(mapping)
        return np.asarray(_Over(view))


class _Over:
    """The same memory as that of an array, which it keeps, and writable; what NumPy asks for it by."""

    def __init__(self, view: Bytes) -> None:
        self._view = view
        self.__array_interface__ = {**view.__array_interface__, "data": (view.ctypes.data, False)}


def _mapping_of(address: int) -> range | None:
    """The mapping of this process in which an address lies, if it may be written to."""
    with open("/proc/self/maps") as lines:
        for line in lines:
            span, rights = line.split(maxsplit=2)[:2]
            first, stop = (int(bound, 16) for bound in span.split("-"))
            if first <= address < stop:
                return range(first, stop) if rights.startswith("rw") else None
    return None
