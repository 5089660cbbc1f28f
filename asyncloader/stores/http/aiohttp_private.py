"""What the library uses of aiohttp beyond what aiohttp documents: each name, and what for.

==================================================  =========================================================
name, in ``aiohttp``                                what for
==================================================  =========================================================
``ClientResponse.connection``, ``.transport`` and   the socket of a body, which is received here
``.protocol`` of it
``client_proto.ResponseHandler``                    aiohttp's own protocol on that socket
``ResponseHandler.set_response_params``             makes it ready for the next response
``StreamReader.feed_eof``                           the body has ended: its connection may be used again
``http_exceptions.HttpProcessingError``             what its parser raises for bytes that are not HTTP
==================================================  =========================================================
They are the same in aiohttp 3.11 to 3.14; the tests run with 3.14.5. Other releases are not installed.

aiohttp connects, uses proxies, sends the request and parses the head. It would copy the body three times:
what the loop has received, what its parser takes for the body, and what came in more than one read. A body
of known length needs no parser: it is the next so many bytes, which are received where the decoder reads
them. A byte then takes half of the processor's time (``tests/benchmarks/receiving.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError as HttpProcessingError

from ...types import Buffer
from ..store import new_buffer

#: How much of a body aiohttp reads with the head before it stops; it may be twice as much.
HEAD_BYTES = 1 << 10

# How much it reads at a time where it receives all of a body.
_BODY_BYTES = 1 << 18

_NOTHING = memoryview(b"")


def received(response: aiohttp.ClientResponse) -> AsyncIterator[Buffer]:
    """The bytes of a body, as they come.

    Args:
        response: Nothing of it was read yet. The caller closes it.

    Raises:
        aiohttp.ClientError, OSError, ValueError: As reading from aiohttp does, while iterating.
    """
    length = response.content_length
    if length is None or "Transfer-Encoding" in response.headers:
        return response.content.iter_chunked(_BODY_BYTES)
    return _Receiver(response, length)


class _Receiver(asyncio.BufferedProtocol):
    """Receives a body in place of aiohttp's own protocol, up to its last byte.

    Args:
        response: Nothing of it was read yet.
        left: How many bytes are still to come.
    """

    def __init__(self, response: aiohttp.ClientResponse, left: int) -> None:
        self._content = response.content
        self._is_lost = False
        self._is_paused = False
        self._waiter: asyncio.Future[None] | None = None
        # The bytes from begin to end were received and not taken. Some have come with the head.
        head = self._content.read_nowait()
        self._filling = new_buffer(left)
        self._filling[: len(head)] = head
        self._begin, self._end = 0, len(head)
        self._left = 0 if self._content.is_eof() else left - len(head)
        if self._left:
            connection = response.connection
            if connection is None or connection.transport is None or connection.protocol is None:
                raise aiohttp.ClientPayloadError
            self._handler: ResponseHandler = connection.protocol
            self._transport: asyncio.Transport = connection.transport
            self._transport.set_protocol(self)

    def __aiter__(self) -> _Receiver:
        return self

    async def __anext__(self) -> Buffer:
        """What has arrived meanwhile, in one piece.

        Raises:
            aiohttp.ClientPayloadError: The connection ended before the body.
        """
        while self._begin == self._end:
            if not self._left:
                raise StopAsyncIteration
            if self._is_lost:
                raise aiohttp.ClientPayloadError
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        chunk = self._filling[self._begin : self._end]
        self._begin = self._end
        if self._end == len(self._filling) or not self._left:
            self._filling, self._begin, self._end = _NOTHING, 0, 0
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        return chunk

    # --- what the transport calls ---

    def get_buffer(self, sizehint: int) -> memoryview:
        if not self._filling:
            self._filling = new_buffer(self._left)
        return self._filling[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        self._left -= nbytes
        if not self._left:
            self._finish()
        elif self._end == len(self._filling):  # until it is taken
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
        """Return the connection for the next request."""
        # With a new parser: the one before would take what follows for more of this body.
        self._handler.set_response_params()
        self._transport.set_protocol(self._handler)
        self._content.feed_eof()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
