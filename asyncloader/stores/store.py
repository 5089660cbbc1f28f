"""What a store is: one small class that opens a byte range, and translates its client's errors.

To add a store, write one file with one class that keeps this protocol, and add its schemes to
``router.py``. Read-ahead, length checks and budgets are written once, above.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from ..types import Buffer

__all__ = ["Body", "Store"]


@dataclass(slots=True)
class Body:
    """An open byte range.

    Attributes:
        start: Offset of its first byte, which is 0 if the server ignored the range.
        stop: Offset after its last byte, as the server promised it; None if it promised nothing.
        total: Length of the whole object, None if unknown.
        etag: Names this version of the object; None if the store has no such name.
        chunks: The bytes, in order, in pieces of the client's choosing.
    """

    start: int
    stop: int | None
    total: int | None
    etag: str | None
    chunks: AsyncIterator[Buffer]


class Store(Protocol):
    """Opens byte ranges of the objects of one scheme and origin."""

    def read(
        self, url: str, start: int, stop: int, *, etag: str | None = None
    ) -> AbstractAsyncContextManager[Body]:
        """Open bytes ``start`` up to ``stop`` (exclusive) of ``url``; an object may end earlier.

        An empty object opens as an empty body. If ``etag`` is given, only that version will do.

        Raises:
            StoreError: On entering or while reading, with the place; never a client's own exception.
        """
        ...
