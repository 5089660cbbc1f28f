"""The wire: one connection that reads requests and carries out the plans made for them.

On bare sockets rather than on a web framework or asyncio's streams: a fault is a byte that is missing,
a length that lies, a reset at an exact place, and frameworks exist to make those impossible.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

from .log import Log, LoggedRequest
from .messages import (
    BadRequestError,
    Close,
    Request,
    Reset,
    Response,
    Send,
    Sleep,
    parse_request,
    plain,
    render_head,
)
from .scenario import Scenario

__all__ = ["Connection"]

# As large as nginx takes by default for all headers (4 x 8 KiB), and then some.
_HEAD_LIMIT_BYTES = 64 * 1024
# One send to the kernel: large enough to cost nothing, small enough that the log, which counts a send
# before it is made, is never far ahead.
_SEND_BYTES = 1024 * 1024
# A paced send is cut into slices of this length: epoll's clock ticks in milliseconds, so slices much
# shorter than that would only be late, and longer ones would be seen as bursts.
_SLICE_S = 0.01


class _EndError(Exception):
    """The plan says that the connection ends here."""


class Connection:
    """One accepted connection; owns its socket.

    Args:
        sock: Non-blocking.
        scenario: Decides what is sent.
        log: Is told what was sent.
        rate_bytes_s: The most bytes per second on this connection, over all its responses.
        now_s: Seconds since the server opened.
    """

    def __init__(
        self,
        sock: socket.socket,
        scenario: Scenario,
        log: Log,
        rate_bytes_s: float | None,
        now_s: Callable[[], float],
    ) -> None:
        self._sock = sock
        self._scenario = scenario
        self._log = log
        self._rate_bytes_s = rate_bytes_s
        self._now_s = now_s
        self._received = bytearray()
        self._due_s = 0.0

    async def run(self) -> None:
        """Answer requests until either side ends the connection; the socket is closed then."""
        number = self._log.open_connection()
        try:
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while (head := await self._read_head()) is not None:
                await self._serve(head, number)
        except (_EndError, OSError):
            # The end was planned, or the client left; either way it is in the log.
            pass
        finally:
            self._sock.close()
            self._log.close_connection()

    async def _read_head(self) -> bytes | None:
        """The next request head, or None where the client has no more."""
        while (end := self._received.find(b"\r\n\r\n")) < 0:
            if len(self._received) > _HEAD_LIMIT_BYTES:
                self._sock.send(render_head(plain(431)))
                return None
            await self._readable()
            if not self._receive():
                return None
        head = bytes(self._received[:end])
        del self._received[: end + 4]
        return head

    async def _serve(self, head: bytes, number: int) -> None:
        refusal = None
        try:
            request = replace(parse_request(head), concurrent=self._log.concurrent + 1)
        except BadRequestError as error:
            text = f"{error}\n".encode()
            refusal = replace(plain(400, {"Content-Length": str(len(text))}), body=(Send(memoryview(text)),))
            request = Request("?", "", {}, keep_alive=False)
        entry = self._log.begin(request, number, self._now_s())
        try:
            response, entry.faults = (refusal, ()) if refusal else self._scenario.decide(request)
            await self._send_response(request, response, entry)
        except OSError:
            entry.client_left = True
            raise
        finally:
            self._log.end()

    async def _send_response(self, request: Request, response: Response, entry: LoggedRequest) -> None:
        await self._pause(response.delay_s)
        if response.has_head:
            if not request.keep_alive:
                response = replace(response, headers={**response.headers, "Connection": "close"})
            entry.status = response.status
            await self._send(memoryview(render_head(response)))
        for action in response.body:
            match action:
                case Send(view):
                    await self._send_paced(view, response.rate_bytes_s, entry)
                case Sleep(seconds):
                    await self._pause(seconds)
                case Close():
                    self._close()
                case Reset():
                    await self._reset()
        if not request.keep_alive:
            self._close()

    async def _send_paced(self, view: memoryview, rate_bytes_s: float | None, entry: LoggedRequest) -> None:
        rates = [rate for rate in (rate_bytes_s, self._rate_bytes_s) if rate is not None]
        if not rates:
            await self._send(view, entry)
            return
        rate = min(rates)
        slice_bytes = max(1, int(rate * _SLICE_S))
        clock = asyncio.get_running_loop().time
        self._due_s = max(self._due_s, clock())
        for start in range(0, len(view), slice_bytes):
            # A little lateness is made up for, or the rate would stay below the one asked for; much
            # is not, or a client that pauses would get a burst.
            self._due_s = max(self._due_s, clock() - 10 * _SLICE_S)
            await self._pause(self._due_s - clock())
            piece = view[start : start + slice_bytes]
            await self._send(piece, entry)
            self._due_s += len(piece) / rate

    async def _send(self, view: memoryview, entry: LoggedRequest | None = None) -> None:
        """Send all of it; counted if there is an entry to count it in."""
        while view:
            piece = view[:_SEND_BYTES]
            if entry is not None:
                entry.bytes_sent += len(piece)
            sent = 0
            try:
                sent = self._sock.send(piece)
            except BlockingIOError:
                pass
            finally:
                if entry is not None:
                    entry.bytes_sent -= len(piece) - sent
            view = view[sent:]
            if sent < len(piece):
                await self._writable()

    async def _pause(self, seconds: float) -> None:
        """Wait, but no longer than the client stays.

        A client that cancels a stalled request closes its socket; that request must end here too, or
        it would count as concurrent for as long as the stall lasts. Half-closing clients are taken to
        have left.
        """
        if seconds <= 0:
            return
        try:
            async with asyncio.timeout(seconds):
                while len(self._received) <= _HEAD_LIMIT_BYTES:
                    await self._readable()
                    if not self._receive():
                        raise ConnectionResetError("the client left")
                await asyncio.sleep(seconds)
        except TimeoutError:
            pass

    def _receive(self) -> bool:
        """Take what has arrived, without waiting; False at the end of the stream."""
        try:
            chunk = self._sock.recv(_HEAD_LIMIT_BYTES)
        except BlockingIOError:
            return True
        self._received += chunk
        return bool(chunk)

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        loop.add_reader(self._sock, _wake, ready)
        try:
            await ready
        finally:
            loop.remove_reader(self._sock)

    async def _writable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        loop.add_writer(self._sock, _wake, ready)
        try:
            await ready
        finally:
            loop.remove_writer(self._sock)

    def _close(self) -> NoReturn:
        # close() alone would send a reset, and lose the body's end, if a pipelined request lies unread.
        self._sock.shutdown(socket.SHUT_WR)
        raise _EndError

    async def _reset(self) -> NoReturn:
        # A reset throws away what the kernel has not sent yet. With this option a socket is writable
        # only when all of it was, so the client gets every byte before the reset. (Linux and macOS.)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 1)
            await self._writable()
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise _EndError


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
