"""The bytes of a shard on their way from the loop to whoever decodes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter

from ..._flow.channel import Channel
from ...stopwatch import STORE, Stopwatch
from ...types import Buffer, Layout
from ..buffers import BUFFER_BYTES, Buffers
from ..file_span import FileSpan
from .lookahead import Shard

__all__ = ["HANDOVER_BYTES", "ShardChunks"]

#: Between loop and decoder: a buffer to decode from, and one that the loop hands over meanwhile. With room
#: for one alone the two would wake each other for each.
HANDOVER_BYTES = 2 * BUFFER_BYTES


class ShardChunks(Channel[Buffer | FileSpan]):
    """The bytes of one shard, of which the receiver reads himself what lies in a file.

    Args:
        shard: Whose they are.
        capacity: How many of them may wait here.
        buffers: Lends memory to the receiver, for all shards that he reads.
        waited: Told how long a thread had to wait for some.

    Attributes:
        stopwatch: Of the thread that receives them.
    """

    def __init__(
        self, shard: Shard, capacity: int, buffers: Buffers, waited: Callable[[float], object]
    ) -> None:
        super().__init__(capacity)
        self._shard = shard
        self._buffers = buffers
        self._span: FileSpan | None = None
        self._waited = waited
        self.stopwatch = Stopwatch()

    def receive(self, timeout_s: float | None = None) -> Buffer:
        """See ``Channel.receive``.

        Raises:
            StoreError: What lies in a file cannot be read.
        """
        while not self._span:
            received = self._receive(timeout_s)
            if not isinstance(received, FileSpan):
                return received
            self._span = received
        return self._span.read(self._buffers)  # copied out of the page cache: nothing is waited for

    def close(self) -> None:
        """See ``Channel.close``."""
        span, self._span = self._span, None
        if span is not None:
            span.close()
        super().close()

    def _receive(self, timeout_s: float | None) -> Buffer | FileSpan:
        if len(self):
            return super().receive(timeout_s)
        began_s = perf_counter()
        try:
            return super().receive(timeout_s)
        finally:
            self._waited(self.stopwatch.waited(STORE, began_s))

    @property
    def total(self) -> int | None:
        """Length of the whole shard, known by its first chunk; None if the server does not tell it."""
        return self._shard.length

    @property
    def etag(self) -> str | None:
        """What the store calls this version of the shard; likewise. None if it has no name."""
        return self._shard.etag

    @property
    def digests(self) -> Mapping[str, bytes]:
        """What the store promises of the whole shard; likewise. See ``Body``."""
        return self._shard.digests

    @property
    def layout(self) -> Layout | None:
        """Which bytes these are, as the shard's plan has decided; likewise. None if it has no plan."""
        return self._shard.layout
