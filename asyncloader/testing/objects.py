"""The objects of a server: a mapping or a directory, read at each request; and its log."""

from __future__ import annotations

import hashlib
import mmap
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from .messages import Object, Request

Content: TypeAlias = bytes | bytearray | memoryview | Callable[[], bytes | bytearray | memoryview]


class ServedObjects:
    """Finds objects by key.

    Args:
        source: Keys to contents, or to callables that return the content at each request; or a directory,
            whose files are served as they are at each request.
    """

    def __init__(self, source: Mapping[str, Content] | Path) -> None:
        self._source = source
        self._changed: dict[str, Object] = {}
        self._etags: dict[str, tuple[bytes, str]] = {}
        self._opened_s = time.time()
        if isinstance(source, dict):  # so that no request waits for a hash
            for key, content in source.items():
                if isinstance(content, bytes):
                    self._etag(key, content)

    def find(self, key: str) -> Object | None:
        """The current object of ``key``."""
        if key in self._changed:
            return self._changed[key]
        if isinstance(self._source, Path):
            return _file(self._source, key)
        if key in self._source:
            content = self._source[key]
            value = content() if callable(content) else content
            return Object(_bytes_view(value), self._etag(key, value), self._opened_s)
        return None

    def change(self, key: str, content: bytes) -> None:
        """Replace the content of ``key``; the same content again is no change."""
        if key in self._changed and self._changed[key].content.obj is content:
            return
        self._changed[key] = Object(_bytes_view(content), _content_etag(content), time.time())

    def _etag(self, key: str, content: bytes | bytearray | memoryview) -> str:
        known, etag = self._etags.get(key, (None, ""))
        # By identity, and for bytes only: contents that can change in place are hashed each time.
        if known is not content:
            etag = _content_etag(content)
            if isinstance(content, bytes):
                self._etags[key] = content, etag
        return etag


def _bytes_view(content: bytes | bytearray | memoryview) -> memoryview:
    return memoryview(content).cast("B")


def _content_etag(content: bytes | bytearray | memoryview) -> str:
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def _file(root: Path, key: str) -> Object | None:
    parts = key.split("/")
    if ".." in parts or "\0" in key:
        return None
    try:
        with open(root.joinpath(*parts), "rb") as file:
            stat = os.fstat(file.fileno())
            # Mapped, not read or sent by sendfile: a plan can slice, flip and cut a file of any size like
            # bytes in memory.
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if stat.st_size else b""
    except OSError:
        # Missing or unreadable is the same to a client.
        return None
    # Not of the content: hashing a large shard would delay all other requests.
    return Object(memoryview(content), f'"{stat.st_mtime_ns:x}-{stat.st_size:x}"', stat.st_mtime)


@dataclass(slots=True)
class LoggedRequest:
    """One request in the log.

    Attributes:
        method: The HTTP method, such as ``GET``.
        path: The path, percent-decoded, with its leading slash and without the query.
        range: The ``Range`` header as sent; None without one.
        status: Status of the response; 0 if none was begun.
        bytes_sent: Bytes of the body passed to the kernel so far.
        time_s: When it arrived, in seconds since the server opened.
        connection: Number of its connection, from 0 in order of arrival.
        faults: Names of the faults that hit it.
        client_left: Whether the client left before the whole response was sent.
        query: The query as sent, without its question mark. ``repr`` leaves it out, since it may contain
            signatures.
        headers: The headers as sent, with names in lower case. ``repr`` leaves them out too.
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
    """Counts since the server opened, and the current numbers.

    Attributes:
        requests: Requests that arrived.
        bytes_sent: Bytes of bodies passed to the kernel.
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
    """One entry per request, and counters; kept until the server is collected, and not bounded.

    Only the server's thread writes. Readers take no lock: bytes are counted before they are passed to the
    kernel and corrected after, so a client that has received a byte finds it counted, and a reader on an
    event loop never waits for the server.

    Attributes:
        entries: In order of arrival.
        idle: Notified when a request was answered.
        concurrent: See ``Counters``, as for the others.
    """

    def __init__(self) -> None:
        self._opened_s = time.monotonic()
        self.entries: list[LoggedRequest] = []
        self.idle = threading.Condition()
        self.concurrent = self.max_concurrent = 0
        self.connections = self.open_connections = 0

    def open_connection(self) -> int:
        """Count a connection; its number."""
        self.connections += 1
        self.open_connections += 1
        return self.connections - 1

    def begin(self, request: Request, connection: int) -> LoggedRequest:
        """A request arrived."""
        entry = LoggedRequest(
            request.method,
            "/" + request.key,
            request.range,
            time.monotonic() - self._opened_s,
            connection,
            query=request.query,
            headers=request.headers,
        )
        self.entries.append(entry)
        self.concurrent += 1
        self.max_concurrent = max(self.max_concurrent, self.concurrent)
        return entry

    def end(self) -> None:
        """A request was answered, or its client left."""
        with self.idle:
            self.concurrent -= 1
            self.idle.notify_all()
