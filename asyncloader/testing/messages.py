"""Requests, and plans of responses: plain values and pure functions, no socket, no clock.

A :class:`Response` is a plan. Which bytes are sent, when, and how the connection ends is decided here and in
``faults``; ``server.Connection`` only carries the plan out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from http import HTTPStatus
from typing import TypeAlias
from urllib.parse import unquote


@dataclass(frozen=True, slots=True)
class Send:
    """Send these bytes."""

    view: memoryview


@dataclass(frozen=True, slots=True)
class Sleep:
    """Send nothing for a while."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Close:
    """End the connection in order: what was sent arrives, then the end of the stream."""


@dataclass(frozen=True, slots=True)
class ResetAction:
    """End the connection with a TCP reset."""


Action: TypeAlias = Send | Sleep | Close | ResetAction


@dataclass(frozen=True, slots=True)
class Object:
    """One stored object at one moment. ``etag`` comes with its quotes."""

    content: memoryview
    etag: str
    modified_s: float


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the server saw it.

    Args:
        method: As sent, such as ``GET``.
        key: The path, percent-decoded, without the leading slash and the query.
        headers: Names in lower case.
        keep_alive: Whether the client wants the connection kept.
        concurrent: Requests being answered at its arrival, this one included.
        attempt: How often the same method, key and range were requested before.
        query: As sent, without its question mark.
    """

    method: str
    key: str
    headers: Mapping[str, str]
    keep_alive: bool = True
    concurrent: int = 1
    attempt: int = 0
    query: str = ""

    @property
    def range(self) -> str | None:
        return self.headers.get("range")


@dataclass(frozen=True, slots=True)
class Response:
    """A plan of what to send.

    Args:
        status: The status code.
        headers: As they go out, in order.
        body: The actions after the head.
        span: The bytes of the object in the body, first and last plus one; None if it is something else.
        delay_s: Seconds before the first byte.
        rate_bytes_s: The most body bytes per second; None for no limit of its own.
        has_head: False to send neither status nor headers, only the body's actions.
    """

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: tuple[Action, ...] = ()
    span: tuple[int, int] | None = None
    delay_s: float = 0.0
    rate_bytes_s: float | None = None
    has_head: bool = True


class BadRequestError(Exception):
    """The bytes on the connection are not a request that this server answers."""


def parse_request(head: bytes) -> Request:
    """Parse a request head, up to its empty line.

    Raises:
        BadRequestError: It is not HTTP/1.x, or announces a body, which no client of objects sends.
    """
    lines = head.decode("latin-1").split("\r\n")
    match = re.fullmatch(r"([A-Z]+) (\S+) HTTP/1\.([01])", lines[0])
    if match is None:
        raise BadRequestError(f"expected a request line of HTTP/1.x, found {lines[0][:80]!r}")
    method, target, minor = match.groups()
    pairs = (line.partition(":") for line in lines[1:] if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise BadRequestError(f"expected no request body, found {method} with one")
    path, _, query = re.sub(r"^https?://[^/]*", "", target).partition("?")
    connection = headers.get("connection", "").lower()
    keep_alive = connection == "keep-alive" if minor == "0" else connection != "close"
    return Request(method, unquote(path).removeprefix("/"), headers, keep_alive, query=query)


def answer(request: Request, obj: Object | None) -> Response:
    """The response of a server without faults (RFC 9110), for GET and HEAD.

    Several ranges in one request, and a ``Range`` that cannot be parsed, are answered with the whole
    object, which the RFC allows.
    """
    return without_body(request, _full_answer(request, obj))


def without_body(request: Request, response: Response) -> Response:
    """The response, without its body if this request or status must not have one."""
    bare = request.method == "HEAD" or response.status in (204, 304)
    return replace(response, body=()) if bare else response


def _full_answer(request: Request, obj: Object | None) -> Response:
    if request.method not in ("GET", "HEAD"):
        return plain(405, {"Allow": "GET, HEAD"})
    if obj is None:
        return plain(404)
    if not _matches(request.headers.get("if-match", "*"), obj.etag):
        return plain(412, {"ETag": obj.etag})
    if _matches(request.headers.get("if-none-match", ""), obj.etag):
        return Response(304, {"ETag": obj.etag})
    span = _asked_span(request, len(obj.content))
    if span is None:
        return whole(obj)
    if span[0] >= span[1]:
        return plain(416, {"Content-Range": f"bytes */{len(obj.content)}"})
    # If-Range protects a resumed download: a changed object comes whole.
    if request.headers.get("if-range", obj.etag) != obj.etag:
        return whole(obj)
    return part(obj, *span)


def whole(obj: Object) -> Response:
    """200 with all of the object."""
    return Response(200, _headers(obj, len(obj.content)), _send(obj.content), (0, len(obj.content)))


def part(obj: Object, start: int, stop: int) -> Response:
    """206 with the bytes from ``start`` up to, not including, ``stop``."""
    headers = _headers(obj, stop - start)
    headers["Content-Range"] = content_range(start, stop, len(obj.content))
    return Response(206, headers, _send(obj.content[start:stop]), (start, stop))


def plain(status: int, headers: Mapping[str, str] | None = None, text: str = "") -> Response:
    """A response with a text as the body, by default its reason phrase, as errors have it."""
    content = f"{text or f'{status} {_reason(status)}'}\n".encode()
    base = {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(content))}
    return Response(status, {**base, **(headers or {})}, _send(memoryview(content)))


def content_range(start: int, stop: int, size: int) -> str:
    return f"bytes {start}-{stop - 1}/{size}"


def render_head(response: Response) -> bytes:
    """Status line and headers as they go over the wire."""
    lines = [f"HTTP/1.1 {response.status} {_reason(response.status)}"]
    lines += [f"{name}: {value}" for name, value in response.headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def body_length(body: tuple[Action, ...]) -> int:
    """How many bytes the body's actions send."""
    return sum(len(action.view) for action in body if isinstance(action, Send))


def split(body: tuple[Action, ...], at: int) -> tuple[tuple[Action, ...], tuple[Action, ...]]:
    """Cut the actions in two, so that the first part sends ``at`` bytes."""
    for index, action in enumerate(body):
        if not isinstance(action, Send):
            continue
        if at < len(action.view):
            before = (*body[:index], *_send(action.view[:at]))
            return before, (Send(action.view[at:]), *body[index + 1 :])
        at -= len(action.view)
    return body, ()


def _send(view: memoryview) -> tuple[Action, ...]:
    return (Send(view),) if len(view) else ()


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


def _headers(obj: Object, length: int) -> dict[str, str]:
    return {
        "Content-Type": "application/octet-stream",
        "Content-Length": str(length),
        "Accept-Ranges": "bytes",
        "ETag": obj.etag,
        "Last-Modified": formatdate(obj.modified_s, usegmt=True),
    }


def _matches(condition: str, etag: str) -> bool:
    return any(item.strip() in ("*", etag) for item in condition.split(","))


def _asked_span(request: Request, size: int) -> tuple[int, int] | None:
    """The span of ``Range``; empty if it cannot be satisfied; None if it is to be ignored."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", (request.range or "").replace(" ", ""))
    if match is None or request.method != "GET" or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:
        return max(0, size - int(last)), size
    if last and int(last) < int(first):
        return None
    return int(first), min(size, int(last) + 1) if last else size
