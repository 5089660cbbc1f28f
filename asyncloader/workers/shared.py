"""What all workers of a pool are given alike: stored once, and mapped by each of them.

Large buffers of it, such as the columns of an index, are pages that the workers share for as long as none of
them writes there; whoever does has its own copy of that page.
"""

from __future__ import annotations

import mmap
import os
import pickle
import threading
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from .._flow.channel import ChannelClosed
from ..tensors import align

__all__ = ["SharedStore", "load_shared"]


class SharedStore:
    """A memfd with something pickled, and its buffers behind it, until it is closed.

    Args:
        pickled: By protocol 5.
        buffers: Those that are not in ``pickled``.
    """

    def __init__(self, pickled: bytes, buffers: Sequence[pickle.PickleBuffer]) -> None:
        self._lock = threading.Lock()
        self._descriptor: int | None = os.memfd_create("asyncloader-shared", os.MFD_CLOEXEC)
        try:
            with open(self._descriptor, "wb", closefd=False) as file:
                raw = [buffer.raw() for buffer in buffers]
                pickle.dump((pickled, [len(each) for each in raw]), file, protocol=5)
                for each in raw:
                    file.seek(align(file.tell()))
                    file.write(each)
                file.truncate(align(file.tell()))
        except BaseException:
            self.close()
            raise

    def duplicate(self) -> int:
        """Another descriptor of it, which the caller closes.

        Raises:
            ChannelClosed: It was closed.
        """
        with self._lock:
            if self._descriptor is None:
                raise ChannelClosed
            return os.dup(self._descriptor)

    def close(self) -> None:
        """Let go of it; whoever has a duplicate keeps that. Idempotent, from any thread."""
        with self._lock:
            descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def load_shared(descriptor: int) -> Any:
    """What was stored, over the pages of the memfd; closes the descriptor."""
    try:
        # Private: a user's function may write to an array that it refers to. And nothing is read by the
        # descriptor: its duplicates have one place in the file, which other workers would move.
        mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
    finally:
        os.close(descriptor)
    pickled, sizes = pickle.load(mapped)
    first, pages = align(mapped.tell()), memoryview(mapped)
    begins = accumulate(sizes, lambda begin, size: align(begin + size), initial=first)
    views = [pages[begin : begin + size] for begin, size in zip(begins, sizes, strict=False)]
    return pickle.loads(pickled, buffers=views)
