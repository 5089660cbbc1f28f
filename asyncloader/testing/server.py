"""An HTTP/1.1 object server on 127.0.0.1 that misbehaves as told: its life; see ``connection`` for the wire.

It shares nothing with the library's engine, not even the place where tasks are born: a tool that checks
must not rest on what it checks.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from .connection import Connection
from .faults import Fault
from .log import Counters, Log, LoggedRequest
from .objects import Content, Objects
from .scenario import LatencyLike, Scenario

__all__ = ["Server", "serve"]

_BACKLOG = 1024


class Server:
    """A running server, as :func:`serve` gives it. All of it may be used from any thread.

    Attributes:
        url: ``http://127.0.0.1:PORT``, without a slash at the end.
    """

    def __init__(self, url: str, log: Log) -> None:
        self.url = url
        self._log = log

    def url_of(self, key: str) -> str:
        """The URL of an object, percent-encoded."""
        return f"{self.url}/{quote(key)}"

    @property
    def requests(self) -> list[LoggedRequest]:
        """A copy of the log so far, in order of arrival; it stays readable after the server closed."""
        return self._log.requests()

    @property
    def counters(self) -> Counters:
        """Totals so far."""
        return self._log.counters()

    def wait_idle(self, within_s: float = 1.0) -> bool:
        """Block until no request is being answered, such as after clients cancelled theirs.

        Returns:
            False if one still was after ``within_s`` seconds.
        """
        return self._log.wait_idle(within_s)


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
    """Serve objects over HTTP, with faults, until the block ends.

    The server has its own thread and event loop. When the block ends, every connection is closed,
    stalled ones too, and the thread has ended.

    Args:
        objects: Keys to contents, or to callables that give the content at each request; or a
            directory. Keys are URL paths without the leading slash.
        faults: Applied in order, each to the response that the one before made.
        latency_s: Seconds before the first byte of each response, or a function that draws them from
            a ``random.Random``, such as :class:`Latency`.
        rate_bytes_s: The most bytes per second of each connection; None for as fast as it goes.
        opens_after_s: Seconds in which connections are refused, as by a server that is just starting.
        seed: Of every draw. What happens to a request depends on the seed, the request and its
            attempt number; only ``after``, ``times`` and ``Capacity`` go by order of arrival.

    Yields:
        The server; it accepts connections at once, if it is not told to wait.

    Raises:
        ValueError: ``rate_bytes_s`` is not positive, ``latency_s`` or ``opens_after_s`` is negative, or the
            path given is not a directory.
        Exception: When the block ends, what a callable of yours (content, latency) raised while the
            server ran; every connection was closed at that moment.
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
    shelf = Objects(objects)
    shelf.warm()
    log = Log()
    life = _Life(Scenario(shelf, faults, latency_s, seed), log, rate_bytes_s, opens_after_s)
    life.start()
    try:
        yield Server(life.url, log)
    finally:
        life.stop()


class _Stopped(Exception):
    """The block of ``serve`` has ended; raised to end the task group."""


class _Life:
    """The listening socket, the thread and its loop: all open at ``start``, all gone after ``stop``."""

    def __init__(
        self, scenario: Scenario, log: Log, rate_bytes_s: float | None, opens_after_s: float
    ) -> None:
        self._scenario = scenario
        self._log = log
        self._rate_bytes_s = rate_bytes_s
        self._opens_after_s = opens_after_s
        self._failure: BaseException | None = None
        self._stop = asyncio.Event()
        self.url = ""

    def start(self) -> None:
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.setblocking(False)
        if not self._opens_after_s:
            # Before the thread runs: clients queue in the kernel, and nobody waits for readiness.
            self._listener.listen(_BACKLOG)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._opened_s = time.monotonic()
        self._loop = asyncio.SelectorEventLoop()
        # A daemon, so that a block that is never left cannot keep the interpreter from ending.
        self._thread = threading.Thread(target=self._run, name="asyncloader-test-server", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:  # raised in stop(), to the owner of the block
            while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
                error = error.exceptions[0]
            self._failure = error
        finally:
            self._listener.close()

    async def _serve(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                self._loop.call_later(self._opens_after_s, self._open, group)
                try:
                    await self._stop.wait()
                finally:
                    # Before the group is left: it would refuse the task of a connection that comes late.
                    self._loop.remove_reader(self._listener)
                raise _Stopped
        except* _Stopped:
            pass

    def _open(self, group: asyncio.TaskGroup) -> None:
        if self._opens_after_s:
            self._listener.listen(_BACKLOG)
        self._loop.add_reader(self._listener, self._accept, group)

    def _accept(self, group: asyncio.TaskGroup) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            # The client left while it was queued.
            return
        sock.setblocking(False)
        connection = Connection(sock, self._scenario, self._log, self._rate_bytes_s, self._now_s)
        task = group.create_task(connection.run())
        # A task that is cancelled before its first step never comes to its own clean-up.
        task.add_done_callback(lambda _: sock.close())

    def _now_s(self) -> float:
        return time.monotonic() - self._opened_s
