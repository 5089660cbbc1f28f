"""An HTTP/1.1 object server on 127.0.0.1 with chosen faults.

It shares nothing with the library's engine: a tool that checks must not depend on what it checks.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NoReturn, TypeAlias
from urllib.parse import quote

from . import messages
from .faults import ChangeObject, Fault
from .objects import Content, Counters, Log, LoggedRequest, ServedObjects

LatencyLike: TypeAlias = float | Callable[[random.Random], float]


@dataclass(eq=False, repr=False)
class Scenario:
    """Decides which faults hit a request, and so the plan of its response; called in order of arrival.

    Args:
        objects: The served objects.
        faults: Applied in this order, each to the response of the one before.
        latency_s: Seconds before the first byte, or a function that draws them.
        seed: Of all draws. A draw depends only on the seed, the request and its attempt number, not on other
            requests: concurrent clients see the same faults in every run.
    """

    objects: ServedObjects
    faults: Sequence[Fault]
    latency_s: LatencyLike
    seed: int

    def __post_init__(self) -> None:
        self._matched: Counter[int] = Counter()
        self._hits: Counter[int] = Counter()
        self._attempts: Counter[tuple[str, str, str | None]] = Counter()

    def decide(self, request: messages.Request) -> tuple[messages.Response, tuple[str, ...]]:
        """The plan for this request, and the names of the faults that hit it."""
        asked = (request.method, request.key, request.range)
        request = replace(request, attempt=self._attempts[asked])
        self._attempts[asked] += 1
        matching = [(index, fault) for index, fault in enumerate(self.faults) if fault.matches(request)]
        hits = set[int]()
        for index, fault in matching:  # before the object is looked up for the response
            if isinstance(fault, ChangeObject) and self._hit(index, request):
                self.objects.change(request.key, fault.new_bytes)
                hits.add(index)
        obj = self.objects.find(request.key)
        response = replace(messages.answer(request, obj), delay_s=self._delay_s(request))
        for index, fault in matching:
            if isinstance(fault, ChangeObject) or not fault.fits(request, response):
                continue
            if self._hit(index, request):
                response = fault.apply(request, obj, response)
                hits.add(index)
        return response, tuple(type(fault).__name__ for index, fault in matching if index in hits)

    def _hit(self, index: int, request: messages.Request) -> bool:
        """Count a matching request, and return whether the fault hits it."""
        fault = self.faults[index]
        self._matched[index] += 1
        if self._matched[index] <= fault.after:
            return False
        if fault.times is not None and self._hits[index] >= fault.times:
            return False
        if fault.probability < 1 and self._rng(f"fault {index}", request).random() >= fault.probability:
            return False
        self._hits[index] += 1
        return True

    def _delay_s(self, request: messages.Request) -> float:
        if callable(self.latency_s):
            return self.latency_s(self._rng("latency", request))
        return self.latency_s

    def _rng(self, purpose: str, request: messages.Request) -> random.Random:
        # Seeded by text: Random hashes that with SHA-512, the same in every process.
        asked = f"{request.method} {request.key} {request.range} {request.attempt}"
        return random.Random(f"{self.seed} {purpose} {asked}")


# On bare sockets rather than on a web framework or asyncio's streams: faults are missing bytes, wrong lengths
# and resets at exact places, which frameworks prevent.

# More than nginx accepts by default for all headers (4 x 8 KiB).
_HEAD_LIMIT_BYTES = 64 * 1024
# The bytes of one send: large enough to be cheap, small enough that the log, which counts a send before it is
# made, is never far ahead.
_SEND_BYTES = 1024 * 1024
# The length of the slices of a paced send: epoll counts milliseconds, so much shorter slices would only be
# late, and longer ones would be bursts.
_SLICE_S = 0.01


class _EndError(Exception):
    """The plan ends the connection here."""


@dataclass(eq=False, repr=False)
class Connection:
    """One accepted connection: reads requests and carries out their plans; owns its socket.

    Args:
        sock: Non-blocking.
        scenario: Decides what is sent.
        log: Records what was sent.
        rate_bytes_s: The most bytes per second on this connection, over all its responses.
    """

    sock: socket.socket
    scenario: Scenario
    log: Log
    rate_bytes_s: float | None

    def __post_init__(self) -> None:
        self._received = bytearray()
        self._due_s = 0.0

    async def run(self) -> None:
        """Answer requests until either side ends the connection; the socket is closed then."""
        number = self.log.open_connection()
        try:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while (head := await self._read_head()) is not None:
                await self._serve(head, number)
        except (_EndError, OSError):
            # The end was planned, or the client left; both are in the log.
            pass
        finally:
            self.sock.close()
            self.log.open_connections -= 1

    async def _read_head(self) -> bytes | None:
        """The next request head; None if the client has left."""
        while (end := self._received.find(b"\r\n\r\n")) < 0:
            if len(self._received) > _HEAD_LIMIT_BYTES:
                self.sock.send(messages.render_head(messages.plain(431)))
                return None
            await self._ready("reader")
            if not self._receive():
                return None
        head = bytes(self._received[:end])
        del self._received[: end + 4]
        return head

    async def _serve(self, head: bytes, number: int) -> None:
        refusal = None
        try:
            request = replace(messages.parse_request(head), concurrent=self.log.concurrent + 1)
        except messages.BadRequestError as error:
            refusal = messages.plain(400, text=str(error))
            request = messages.Request("?", "", {}, keep_alive=False)
        entry = self.log.begin(request, number)
        try:
            response, entry.faults = (refusal, ()) if refusal else self.scenario.decide(request)
            await self._send_response(request, response, entry)
        except OSError:
            entry.client_left = True
            raise
        finally:
            self.log.end()

    async def _send_response(
        self, request: messages.Request, response: messages.Response, entry: LoggedRequest
    ) -> None:
        await self._pause(response.delay_s)
        if response.has_head:
            if not request.keep_alive:
                response = replace(response, headers={**response.headers, "Connection": "close"})
            entry.status = response.status
            await self._send(memoryview(messages.render_head(response)))
        for action in response.body:
            match action:
                case messages.Send(view):
                    await self._send_paced(view, response.rate_bytes_s, entry)
                case messages.Sleep(seconds):
                    await self._pause(seconds)
                case messages.Close():
                    self._close()
                case messages.ResetAction():
                    await self._reset()
        if not request.keep_alive:
            self._close()

    async def _send_paced(self, view: memoryview, rate_bytes_s: float | None, entry: LoggedRequest) -> None:
        rates = [rate for rate in (rate_bytes_s, self.rate_bytes_s) if rate is not None]
        if not rates:
            await self._send(view, entry)
            return
        rate = min(rates)
        slice_bytes = max(1, int(rate * _SLICE_S))
        clock = asyncio.get_running_loop().time
        self._due_s = max(self._due_s, clock())
        for start in range(0, len(view), slice_bytes):
            # A small delay is caught up, since the rate would otherwise stay too low. A large one is not,
            # since a client that pauses would get a burst.
            self._due_s = max(self._due_s, clock() - 10 * _SLICE_S)
            await self._pause(self._due_s - clock())
            piece = view[start : start + slice_bytes]
            await self._send(piece, entry)
            self._due_s += len(piece) / rate

    async def _send(self, view: memoryview, entry: LoggedRequest | None = None) -> None:
        """Send all of it, and count it in the entry, if there is one."""
        while view:
            piece = view[:_SEND_BYTES]
            if entry is not None:
                entry.bytes_sent += len(piece)
            sent = 0
            try:
                sent = self.sock.send(piece)
            except BlockingIOError:
                pass
            finally:
                if entry is not None:
                    entry.bytes_sent -= len(piece) - sent
            view = view[sent:]
            if sent < len(piece):
                await self._ready("writer")

    async def _pause(self, seconds: float) -> None:
        """Wait, but no longer than the client stays.

        A client that cancels a stalled request closes its socket. The request must end here too, since it
        would otherwise count as concurrent while the stall lasts. A client that half-closes counts as having
        left.
        """
        if seconds <= 0:
            return
        try:
            async with asyncio.timeout(seconds):
                while len(self._received) <= _HEAD_LIMIT_BYTES:
                    await self._ready("reader")
                    if not self._receive():
                        raise ConnectionResetError("the client left")
                await asyncio.sleep(seconds)
        except TimeoutError:
            pass

    def _receive(self) -> bool:
        """Read what has arrived, without waiting; False at the end of the stream."""
        try:
            chunk = self.sock.recv(_HEAD_LIMIT_BYTES)
        except BlockingIOError:
            return True
        self._received += chunk
        return bool(chunk)

    async def _ready(self, way: Literal["reader", "writer"]) -> None:
        """Wait until the socket can be read, or be written to."""
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        getattr(loop, f"add_{way}")(self.sock, _wake, ready)
        try:
            await ready
        finally:
            getattr(loop, f"remove_{way}")(self.sock)

    def _close(self) -> NoReturn:
        # close() alone would send a reset, and lose the end of the body, if a pipelined request is unread.
        self.sock.shutdown(socket.SHUT_WR)
        raise _EndError

    async def _reset(self) -> NoReturn:
        # A reset discards what the kernel has not sent yet. With this option a socket is writable only when
        # everything was sent, so the client gets every byte before the reset. (Linux and macOS.)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 1)
            await self._ready("writer")
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise _EndError


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


_BACKLOG = 1024


class Server:
    """A running server, made by ``serve``. It may be used from any thread.

    Attributes:
        url: ``http://127.0.0.1:PORT``, without a slash at the end.
    """

    def __init__(self, scenario: Scenario, rate_bytes_s: float | None, opens_after_s: float) -> None:
        self._scenario, self._rate_bytes_s, self._opens_after_s = scenario, rate_bytes_s, opens_after_s
        self._log = Log()
        self._failure: BaseException | None = None
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.setblocking(False)
        if not opens_after_s:
            # Before the thread runs: clients queue in the kernel, so the caller does not have to wait.
            self._listener.listen(_BACKLOG)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._loop = asyncio.SelectorEventLoop()
        self._accepting = self._loop.create_task(self._accept_all())
        # A daemon, so that a block that is never left does not prevent the interpreter from ending.
        self._thread = threading.Thread(target=self._run, name="asyncloader-test-server", daemon=True)
        self._thread.start()

    def url_of(self, key: str) -> str:
        """Return the URL of an object, percent-encoded.

        Args:
            key: The object's key, without a leading slash.
        """
        return f"{self.url}/{quote(key)}"

    @property
    def requests(self) -> list[LoggedRequest]:
        """A copy of the log so far, in order of arrival; available after the server has closed, too."""
        return [replace(entry) for entry in list(self._log.entries)]

    @property
    def counters(self) -> Counters:
        """The counts so far."""
        log, entries = self._log, list(self._log.entries)
        return Counters(
            requests=len(entries),
            bytes_sent=sum(entry.bytes_sent for entry in entries),
            connections=log.connections,
            max_concurrent=log.max_concurrent,
            concurrent=log.concurrent,
            open_connections=log.open_connections,
        )

    def wait_idle(self, within_s: float = 1.0) -> bool:
        """Block until no request is being answered, for example after clients have cancelled theirs.

        Args:
            within_s: The most seconds to wait.

        Returns:
            True once the server is idle; False if a request was still being answered after ``within_s``.
        """
        with self._log.idle:
            return self._log.idle.wait_for(lambda: self._log.concurrent == 0, within_s)

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._accepting.cancel)
        self._thread.join()
        self._loop.close()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            with suppress(asyncio.CancelledError):  # the block of ``serve`` has ended
                self._loop.run_until_complete(self._accepting)
        except BaseException as error:  # raised in _stop(), to the owner of the block
            while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
                error = error.exceptions[0]
            self._failure = error
        finally:
            self._listener.close()

    async def _accept_all(self) -> None:
        async with asyncio.TaskGroup() as group:
            if self._opens_after_s:
                await asyncio.sleep(self._opens_after_s)
                self._listener.listen(_BACKLOG)
            self._loop.add_reader(self._listener, self._accept, group)
            try:
                await self._loop.create_future()  # until it is cancelled
            finally:
                # Before the group is left, which would refuse the task of a late connection.
                self._loop.remove_reader(self._listener)

    def _accept(self, group: asyncio.TaskGroup) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            # The client left while it was queued.
            return
        sock.setblocking(False)
        connection = Connection(sock, self._scenario, self._log, self._rate_bytes_s)
        task = group.create_task(connection.run())
        # A task that is cancelled before its first step does not reach its own clean-up.
        task.add_done_callback(lambda _: sock.close())


@contextmanager
def serve(
    objects: Mapping[str, Content] | str | os.PathLike[str],
    faults: Sequence[Fault] = (),
    *,
    latency_s: LatencyLike = 0.0,
    rate_bytes_s: float | None = None,
    opens_after_s: float = 0.0,
    seed: int = 0,
) -> Iterator[Server]:
    """Serve objects over HTTP on 127.0.0.1, with faults, until the ``with`` block ends.

    The server has its own thread and event loop. The end of the block closes all connections, also stalled
    ones, and ends the thread.

    Args:
        objects: The objects by key, which is a URL path without the leading slash: bytes, or a function that
            returns them for each request. Or the path of a directory.
        faults: Faults, applied in this order; each gets the response that the one before has made.
        latency_s: Seconds before the first byte of each response, or a function that draws them from
            a ``random.Random``, such as ``Latency``.
        rate_bytes_s: The most bytes per second of each connection; None for no limit.
        opens_after_s: Seconds in which connections are refused, as by a server that is just starting.
        seed: Seed of all draws. What happens to a request depends on the seed, the request and its attempt
            number; only ``after``, ``times`` and ``Capacity`` depend on the order of arrival.

    Yields:
        The ``Server``. It accepts connections at once, or after ``opens_after_s``.

    Raises:
        ValueError: ``rate_bytes_s`` is not positive, ``latency_s`` or ``opens_after_s`` is negative, or
            ``objects`` is a path that is not a directory.
        Exception: When the block ends: what a function of yours (content, latency) raised while the server
            ran. The server closed all connections at that moment.
    """
    if rate_bytes_s is not None and rate_bytes_s <= 0:
        raise ValueError(f"rate_bytes_s must be more than 0, not {rate_bytes_s}")
    if not callable(latency_s) and latency_s < 0:
        raise ValueError(f"latency_s must be at least 0, not {latency_s}")
    if opens_after_s < 0:
        raise ValueError(f"opens_after_s must be at least 0, not {opens_after_s}")
    if isinstance(objects, str | os.PathLike):
        objects = Path(objects)
        if not objects.is_dir():
            raise ValueError(f"objects must be a mapping or a directory, not the path {objects}")
    server = Server(
        Scenario(ServedObjects(objects), tuple(faults), latency_s, seed), rate_bytes_s, opens_after_s
    )
    try:
        yield server
    finally:
        server._stop()
