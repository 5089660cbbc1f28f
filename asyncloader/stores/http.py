"""HTTP and HTTPS servers, through aiohttp."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import aiohttp
from yarl import URL

from ..errors import StoreError
from ..types import Buffer
from .failures import changed, refused
from .store import Body, no_chunks
from .urls import redact

__all__ = ["HttpStore"]

# No total limit: a shard may be large and the consumer slow. Not connecting, or not a single byte for a
# minute, is a fault. (Back-pressure does not count: aiohttp stops this clock while reading is paused.)
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=30.0, sock_read=60.0)

_MOST_REDIRECTS = 5

# All that a request line may hold. Such a URL is sent as written: a signature may cover its exact escapes,
# and yarl would rewrite them (%2C becomes a comma).
_SENDABLE = re.compile(r"[!-~]*")

# The client's errors that quote no URL: see ``failures``.
_DISCREET = (aiohttp.ClientOSError, aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError)

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


class HttpStore:
    """Objects behind ``http://`` and ``https://`` URLs.

    Args:
        session: Whoever opened it closes it.
    """

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator[HttpStore]:
        """A store with a session of its own, to be used in this process and loop only."""
        # The byte budget of the readers bounds the requests, hence no limit on connections here.
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(
            connector=connector,
            timeout=_TIMEOUT,
            auto_decompress=False,
            # Offsets count the object's own bytes; a transfer encoding on top would shift them.
            headers={"Accept-Encoding": "identity"},
            requote_redirect_url=False,
        ) as session:
            yield cls(session)

    @asynccontextmanager
    async def read(self, url: str, start: int, stop: int, *, etag: str | None = None) -> AsyncIterator[Body]:
        headers = {"Range": f"bytes={start}-{stop - 1}"}
        # A weak ETag never satisfies If-Match (RFC 9110, 13.1.1); for it the response's own is compared.
        if etag is not None and not etag.startswith("W/"):
            headers["If-Match"] = etag
        try:
            target = URL(url, encoded=_SENDABLE.fullmatch(url) is not None)
            response = await self._session.get(target, headers=headers, max_redirects=_MOST_REDIRECTS)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _store_error(error, url, start) from _discreet(error)
        async with response:
            body = _body(response, url, start, stop, etag)
            async with aclosing(body.chunks):
                yield body


def _body(response: aiohttp.ClientResponse, url: str, start: int, stop: int, etag: str | None) -> Body:
    """What the response promises, held against what was asked."""
    version = response.headers.get("ETag")
    if response.status == 416 and start == 0:  # only an empty object has no byte 0
        return Body(0, 0, 0, version, no_chunks())
    if response.status not in (200, 206):
        if response.status == 412 and etag is not None:
            raise changed(url, start, etag, version, status=412)
        raise refused(url, start, response.status, response.reason or "")
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise StoreError(
            f"the server sent Content-Encoding {encoding}, though identity was asked for; "
            "byte offsets would not be the object's. Switch the encoding off for shards",
            shard=redact(url),
            offset=start,
        )
    if etag is not None and version is not None and version != etag:
        raise changed(url, start, etag, version)
    if response.status == 200:
        length = response.content_length
        if length is None and response.headers.get("Transfer-Encoding", "").lower() != "chunked":
            raise StoreError(
                "the server sent a body without a length, so that a cut could not be told from its end; "
                "serve shards with Content-Length",
                shard=redact(url),
                offset=start,
            )
        return Body(0, length, length, version, _chunks(response, url, 0))
    match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if match is None or int(match[1]) != start or int(match[2]) >= stop or match[3] == "*":
        raise StoreError(
            f"asked for bytes {start}-{stop - 1}, but the server sent Content-Range "
            f"{response.headers.get('Content-Range')!r}",
            shard=redact(url),
            offset=start,
        )
    return Body(start, int(match[2]) + 1, int(match[3]), version, _chunks(response, url, start))


async def _chunks(response: aiohttp.ClientResponse, url: str, offset: int) -> AsyncGenerator[Buffer, None]:
    try:
        async for chunk in response.content.iter_any():
            yield chunk
            offset += len(chunk)
    except (aiohttp.ClientError, OSError) as error:
        raise _store_error(error, url, offset) from _discreet(error)


def _discreet(error: Exception) -> Exception | None:
    """``error`` if its text may be shown as a cause."""
    return error if isinstance(error, _DISCREET) else None


def _store_error(error: Exception, url: str, offset: int) -> StoreError:
    if isinstance(error, TimeoutError):
        what = "no byte came in time"
    elif isinstance(error, aiohttp.ClientPayloadError):
        what = "the connection was cut before the promised length"
    elif isinstance(error, aiohttp.TooManyRedirects):
        what = f"the server redirects more than {_MOST_REDIRECTS} times"
    elif isinstance(error, aiohttp.ClientConnectorCertificateError):
        what = f"the server's certificate cannot be trusted: {error.certificate_error}"
    elif isinstance(error, ValueError):  # aiohttp.InvalidURL is one
        what = "this is not a valid URL"
    else:
        # aiohttp's text may quote the URL with its query; the class and errno say as much.
        reason = getattr(error, "strerror", None) or type(error).__name__
        what = f"the connection failed: {reason}"
    return StoreError(what, shard=redact(url), offset=offset)
