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
from contextlib import suppress

import aiohttp
import numpy as np
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError as HttpProcessingError

from ...types import Buffer
from ..failures import TransientError
from ..store import BUFFER_BYTES

#: How much of a body aiohttp reads with the head before it stops; it may be twice as much.
HEAD_BYTES = 1 << 10

_NOTHING = memoryview(b"")


def has_length(response: aiohttp.ClientResponse) -> bool:
    """Whether its body can be received here."""
    return response.content_length is not None and "Transfer-Encoding" not in response.headers


class BodyReceiver(asyncio.BufferedProtocol):
    """Receives a body in place of aiohttp's own protocol, up to its last byte.

    Args:
        response: Nothing of it was read yet. The caller closes it.
        shard: What is read, redacted.
        start: Offset of the first byte of the body.
        stop: Behind its last one.

    Raises:
        TransientError: The connection has ended before the body.
    """

    def __init__(self, response: aiohttp.ClientResponse, shard: str, start: int, stop: int) -> None:
        self._content = response.content
        self._shard, self._stop = shard, stop
        self._left = stop - start
        self._is_lost = False
        self._is_paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._filling = _NOTHING
        # The bytes from begin to end were received and not taken. Some have come with the head.
        self._begin = self._end = 0
        with suppress(aiohttp.ClientError):  # its connection has ended
            head = self._content.read_nowait()
            self.get_buffer(-1)[: len(head)] = head
            self._end = len(head)
            self._left -= len(head)
        if self._left:
            connection = response.connection
            if connection is None or connection.transport is None or connection.protocol is None:
                raise self._cut()
            self._handler: ResponseHandler = connection.protocol
            self._transport: asyncio.Transport = connection.transport
            self._transport.set_protocol(self)

    def __aiter__(self) -> BodyReceiver:
        return self

    async def __anext__(self) -> Buffer:
        """What has arrived meanwhile, in one piece."""
        while self._begin == self._end:
            if not self._left:
                raise StopAsyncIteration
            if self._is_lost:
                raise self._cut()
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
            self._filling = np.empty(min(self._left, BUFFER_BYTES), np.uint8).data
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

    def _cut(self) -> TransientError:
        what = "the connection was cut before the promised length"
        return TransientError(what, shard=self._shard, offset=self._stop - self._left)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
