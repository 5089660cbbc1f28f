"""What a store is: one small class that opens a byte range, and translates its client's errors.

To add a store, write its file, with one class that keeps this protocol, and add it to ``backends``.
Retries, hedging, rate control, the cache, read-ahead and budgets are written once, above: some of them as
stores that wrap another.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from ..types import Buffer
from .file_span import FileSpan

__all__ = ["NO_END", "Body", "Store", "clip", "no_chunks"]

# As the stop of a read: all that there is. Servers count in signed integers of 64 bits.
NO_END = 1 << 62


@dataclass(slots=True)
class Body:
    """An open byte range.

    Attributes:
        start: Offset of its first byte, which is 0 if the server ignored the range.
        stop: Offset after its last byte, as the server promised it; None if it promised nothing.
        total: Length of the whole object, None if unknown.
        etag: Names this version of the object; None if the store has no such name.
        chunks: The bytes, in order, in pieces of the client's choosing. A generator, so that the store
            that made it can close it: one left to the garbage collector is closed by a task without owner.
        digests: Of the whole object, as the store promises them, by algorithm as hashlib spells it, or
            ``crc32`` and ``crc32c`` (big-endian).
        span_of: Gives bytes from one offset up to another in place of ``chunks``, for whoever decodes them to
            read; None where they would have to be waited for.
        give_way: Call it before reading at another pace than the bytes come: the body then no longer counts
            among the requests that its server is given at a time.
    """

    start: int
    stop: int | None
    total: int | None
    etag: str | None
    chunks: AsyncGenerator[Buffer, None]
    digests: Mapping[str, bytes] = field(default_factory=dict)
    span_of: Callable[[int, int], FileSpan | None] = field(default=lambda start, stop: None, repr=False)
    give_way: Callable[[], None] = field(default=lambda: None, repr=False)


class Store(Protocol):
    """Opens byte ranges of the objects of one scheme and origin."""

    def read(
        self, url: str, start: int, stop: int, *, etag: str | None = None
    ) -> AbstractAsyncContextManager[Body]:
        """Open bytes ``start`` up to ``stop`` (exclusive) of ``url``; an object may end earlier.

        An empty object opens as an empty body. If ``etag`` is given, only that version will do. An
        exception of the caller's passes through as it is.

        Raises:
            TransientError: On entering or while reading; asking again may help.
            StoreError: Likewise, when it would not. Always with the place, never a client's own exception.
        """
        ...


async def no_chunks() -> AsyncGenerator[Buffer, None]:
    """The chunks of an empty body."""
    return
    yield b""


def clip(chunk: Buffer, start: int, stop: int) -> Buffer:
    """The bytes of ``chunk`` from ``start`` to ``stop``, both counted from its first and maybe outside."""
    if start <= 0 and stop >= len(chunk):
        return chunk
    return memoryview(chunk)[max(start, 0) : max(stop, 0)]
