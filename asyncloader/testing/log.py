"""What a server has seen: one entry per request, and counters; written by the server, read by anyone."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .messages import Request

__all__ = ["Counters", "Log", "LoggedRequest"]


@dataclass(slots=True)
class LoggedRequest:
    """One request in the log.

    Attributes:
        method: Such as ``GET``.
        path: Percent-decoded, with its leading slash, without the query.
        range: The ``Range`` header as sent.
        status: Of the response; 0 if none was begun.
        bytes_sent: Body bytes handed to the kernel so far.
        time_s: When it arrived, in seconds since the server opened.
        connection: Number of its connection, from 0 in order of arrival.
        faults: Names of the faults that hit it.
        client_left: Whether the client was gone before the response was all sent.
        query: As sent, without its question mark. Not shown, for signatures are in it.
        headers: As sent, names in lower case. Not shown either.
    """

    method: str
    path: str
    range: str | None
    time_s: float
    connection: int
    status: int = 0
    bytes_sent: int = 0
    faults: tuple[str, ...] = ()
    client_left: bool = False
    query: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals since the server opened, and what is open now.

    Attributes:
        requests: Requests that arrived.
        bytes_sent: Body bytes handed to the kernel.
        connections: Connections accepted.
        max_concurrent: The most requests that were being answered at once.
        concurrent: Requests being answered now.
        open_connections: Connections open now.
    """

    requests: int
    bytes_sent: int
    connections: int
    max_concurrent: int
    concurrent: int
    open_connections: int


class Log:
    """Kept for the server's life; not bounded, for it is what tests read.

    Only the server's thread writes. Readers take no lock: bytes are counted before they are handed to
    the kernel and corrected after, so whoever has received a byte finds it counted, and a reader on an
    event loop never waits for the server.
    """

    def __init__(self) -> None:
        self._entries: list[LoggedRequest] = []
        self._idle = threading.Condition()
        self._concurrent = 0
        self._max_concurrent = 0
        self._connections = 0
        self._open_connections = 0

    def open_connection(self) -> int:
        """Count a connection; its number."""
        self._connections += 1
        self._open_connections += 1
        return self._connections - 1

    def close_connection(self) -> None:
        self._open_connections -= 1

    def begin(self, request: Request, connection: int, time_s: float) -> LoggedRequest:
        """A request arrived."""
        entry = LoggedRequest(
            request.method,
            "/" + request.key,
            request.range,
            time_s,
            connection,
            query=request.query,
            headers=request.headers,
        )
        self._entries.append(entry)
        self._concurrent += 1
        self._max_concurrent = max(self._max_concurrent, self._concurrent)
        return entry

    def end(self) -> None:
        """A request was answered, or its client left."""
        with self._idle:
            self._concurrent -= 1
            self._idle.notify_all()

    @property
    def concurrent(self) -> int:
        return self._concurrent

    def requests(self) -> list[LoggedRequest]:
        """Copies of the entries so far, in order of arrival."""
        return [replace(entry) for entry in list(self._entries)]

    def counters(self) -> Counters:
        entries = list(self._entries)
        return Counters(
            requests=len(entries),
            bytes_sent=sum(entry.bytes_sent for entry in entries),
            connections=self._connections,
            max_concurrent=self._max_concurrent,
            concurrent=self._concurrent,
            open_connections=self._open_connections,
        )

    def wait_idle(self, within_s: float) -> bool:
        """Wait until no request is being answered; False if one still is after ``within_s``."""
        with self._idle:
            return self._idle.wait_for(lambda: self._concurrent == 0, within_s)
