"""Reading one URL under the name of another: errors name what the user listed, not what it led to."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace

from ..errors import StoreError
from ..types import Buffer
from .store import Body, Store
from .urls import redact

__all__ = ["read_as"]


@asynccontextmanager
async def read_as(
    store: Store, target: str, shard: str, start: int, stop: int, *, etag: str | None
) -> AsyncIterator[Body]:
    """``store.read`` of ``target``, whose errors name ``shard``."""
    async with AsyncExitStack() as stack:
        try:
            body = await stack.enter_async_context(store.read(target, start, stop, etag=etag))
        except StoreError as error:
            error.shard = redact(shard)
            raise
        if target != shard:
            chunks = await stack.enter_async_context(aclosing(_named(body.chunks, shard)))
            body = replace(body, chunks=chunks)
        yield body


async def _named(chunks: AsyncGenerator[Buffer, None], shard: str) -> AsyncGenerator[Buffer, None]:
    try:
        async for chunk in chunks:
            yield chunk
    except StoreError as error:
        error.shard = redact(shard)
        raise
