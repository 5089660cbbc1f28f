"""A shard's bytes on disk, complete or growing, as its readers in this process see them and wait for them."""

from __future__ import annotations

import asyncio
import copy as copying

from ...errors import StoreError
from ...types import Buffer
from ..folder.checksums import Stretches
from ..folder.header import STRETCH_BYTES, Header, State
from .descriptor import Descriptor

__all__ = ["Arrival", "Copy"]


class Copy:
    """The local copy of one version of a shard.

    Laws: bytes are to be had by whole stretches only, so that each can be held against its checksum; and the
    last not before the copy is complete, so that nobody can take for whole what may yet turn out to be wrong.

    Args:
        file: Where it is; the copy is one of its holders.
        header: What it holds; as found when it was opened.
    """

    def __init__(self, file: Descriptor, header: Header) -> None:
        self.file = file
        self.etag = header.etag
        self.size = header.size
        self._stretches = Stretches(header)
        self.filled = header.size if header.state is State.COMPLETE else 0
        self.error: StoreError | None = None
        self._growing = header.state is State.FILLING
        self._changed = asyncio.Event()
        self._readers = 1

    @property
    def growing(self) -> bool:
        """Whether more bytes may come."""
        return self._growing

    def share(self) -> Copy:
        """The same, for one more reader."""
        self._readers += 1
        return self

    def close(self) -> None:
        """Let go of it; once for each reader."""
        self._readers -= 1
        if not self._readers:
            self.file.close()

    async def read(self, start: int, stop: int) -> list[Buffer]:
        """Bytes of the shard, of those that are filled.

        Raises:
            DamagedError: The file does not hold what was put into it.
            OSError: The disk cannot read it.
        """
        return await self.file.run(self._stretches.read, self.file.number, start, stop)

    async def wait_change(self) -> None:
        """Wait until there are more bytes, or it has ended."""
        await self._changed.wait()

    def grow(self, filled: int) -> None:
        """So many bytes are there now."""
        readable = min(filled, self.size - 1)
        self.filled = max(self.filled, readable - readable % STRETCH_BYTES)
        self._wake()

    def end(self, *, whole: bool = False, error: StoreError | None = None) -> None:
        """It is whole, or no more bytes will come; then ``error`` says that they cannot be had at all."""
        if self._growing:
            self._growing = False
            self.filled = self.size if whole else self.filled
            self.error = error
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Arrival:
    """One shard on its way into the cache: gives each reader a share of the copy as soon as there is one.

    Law: a copy is let go by whoever was given it, also if cancelled in that very moment.
    """

    def __init__(self) -> None:
        self._copy: Copy | None = None
        self._settled = False
        self._waiting: list[asyncio.Future[Copy | None]] = []

    @property
    def is_wanted(self) -> bool:
        """Whether a reader waits for it."""
        return any(not waiter.done() for waiter in self._waiting)

    async def join(self) -> Copy | None:
        """The copy, to be closed by the caller; None if there will be none.

        Raises:
            StoreError: The shard cannot be had at all.
        """
        if self._settled:
            return self._copy and self._copy.share()
        waiter: asyncio.Future[Copy | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                given = waiter.result()
                if given is not None:
                    given.close()
            raise

    def opened(self, copy: Copy) -> None:
        """There is a copy, complete or growing; it stays open until ``close``."""
        if not self._settled:
            self._copy = copy.share()
            self._settle(None)

    def close(self, error: Exception | None = None) -> None:
        """Nothing more comes of it; those who still wait get ``error``, or no copy."""
        self._settle(error)
        if self._copy is not None:
            self._copy.close()
            self._copy = None

    def _settle(self, error: Exception | None) -> None:
        self._settled = True
        for waiter in self._waiting:
            if waiter.done():
                continue
            if error is not None:
                # Each its own: a traceback grows with each place that one error is raised in.
                waiter.set_exception(copying.copy(error) if isinstance(error, StoreError) else error)
            else:
                waiter.set_result(self._copy and self._copy.share())
        self._waiting.clear()
