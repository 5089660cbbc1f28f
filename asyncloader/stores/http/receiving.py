"""The body of an answer, received from aiohttp's transport into memory that is lent.

aiohttp asks, connects, follows proxies, and parses the head. Of the body it would make three copies: of what
the loop has received, of what its parser takes for the body, and where more than one read has come. A body
whose length is known needs no parser: it is the next so many bytes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

import aiohttp
from aiohttp.client_proto import ResponseHandler

from ...types import Buffer
from ..buffers import Buffers

__all__ = ["HEAD_BYTES", "received"]

#: As much of a body as aiohttp takes in with the head before it stops reading, or twice that.
HEAD_BYTES = 1 << 10

# And where it receives all of a body.
_BODY_BYTES = 1 << 18

# Buffers that may wait to be taken before the socket is left alone.
_MOST_FULL = 2

_NOTHING = memoryview(b"")


async def received(response: aiohttp.ClientResponse, buffers: Buffers) -> AsyncGenerator[Buffer, None]:
    """The bytes of a body, as they come.

    Args:
        response: Nothing was read of it yet; whoever has it closes it.
        buffers: Lend the memory.

    Raises:
        aiohttp.ClientError, OSError, ValueError: As reading from aiohttp does.
    """
    content, length = response.content, response.content_length
    if length is None or "Transfer-Encoding" in response.headers:
        content.set_read_chunk_size(_BODY_BYTES)
        async for chunk, _ in content.iter_chunks():
            if chunk:
                yield chunk
        return
    while chunk := content.read_nowait():  # what came with the head
        length -= len(chunk)
        yield chunk
    if content.is_eof():
        return
    rest = _Rest(response, length, buffers)
    while view := await rest.take():
        yield view
        del view  # the loan would last until more has come


class _Rest(asyncio.BufferedProtocol):
    """What is still to come of a body, in place of aiohttp's own protocol until its last byte is there.

    Args:
        response: All that aiohttp has received of it was taken.
        left: How many bytes those are.
        buffers: Lend the memory.
    """

    def __init__(self, response: aiohttp.ClientResponse, left: int, buffers: Buffers) -> None:
        connection = response.connection
        if connection is None or connection.transport is None or connection.protocol is None:
            raise aiohttp.ClientPayloadError
        self._content = response.content
        self._handler: ResponseHandler = connection.protocol
        self._transport: asyncio.Transport = connection.transport
        self._left = left
        self._buffers = buffers
        self._is_lost = False
        self._is_paused = False
        self._waiter: asyncio.Future[None] | None = None
        # Received and not taken: whole buffers, and of the one that is being filled from begin to end.
        self._full: deque[memoryview] = deque()
        self._filling = _NOTHING
        self._begin = 0
        self._end = 0
        self._transport.set_protocol(self)

    async def take(self) -> memoryview:
        """What has come meanwhile, in one piece; of no bytes at the end.

        Raises:
            aiohttp.ClientPayloadError: The connection ended before.
        """
        while not self._full and self._begin == self._end:
            if not self._left:
                return _NOTHING
            if self._is_lost:
                raise aiohttp.ClientPayloadError
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._full:
            view = self._full.popleft()
        else:
            view = self._filling[self._begin : self._end]
            self._begin = self._end
            if self._end == len(self._filling) or not self._left:
                self._let_go()
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        return view

    # --- what the transport calls ---

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._end == len(self._filling):
            if self._begin < self._end:
                self._full.append(self._filling[self._begin :])
            self._let_go()
            self._filling = self._buffers.take(self._left)
        return self._filling[self._end : self._end + self._left]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        self._left -= nbytes
        if not self._left:
            self._finish()
        elif len(self._full) == _MOST_FULL:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def pause_writing(self) -> None:
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._handler.connection_lost(exc)
        self._wake()

    def _finish(self) -> None:
        """Give the connection back, for the next request."""
        # A parser of its own: the one before would take what follows for more of this body.
        self._handler.set_response_params()
        self._transport.set_protocol(self._handler)
        self._content.feed_eof()

    def _let_go(self) -> None:
        self._filling = _NOTHING
        self._begin = self._end = 0

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
