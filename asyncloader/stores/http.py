"""HTTP and HTTPS servers, through aiohttp."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from ..errors import StoreError
from ..types import Buffer
from .store import Body
from .urls import redact

__all__ = ["HttpStore"]

# No total limit: a shard may be large and the consumer slow. Not connecting, or not a single byte for a
# minute, is a fault. (Back-pressure does not count: aiohttp stops this clock while reading is paused.)
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=30.0, sock_read=60.0)

_MOST_REDIRECTS = 5
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
        ) as session:
            yield cls(session)

    @asynccontextmanager
    async def read(self, url: str, start: int, stop: int, *, etag: str | None = None) -> AsyncIterator[Body]:
        headers = {"Range": f"bytes={start}-{stop - 1}"}
        if etag is not None:
            headers["If-Match"] = etag
        try:
            async with self._session.get(url, headers=headers, max_redirects=_MOST_REDIRECTS) as response:
                yield _body(response, url, start, stop, etag)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if isinstance(error, StoreError):
                raise
            raise _store_error(error, url, start) from error


def _body(response: aiohttp.ClientResponse, url: str, start: int, stop: int, etag: str | None) -> Body:
    """What the response promises, held against what was asked."""
    version = response.headers.get("ETag")
    if response.status == 416 and start == 0:  # only an empty object has no byte 0
        return Body(0, 0, 0, version, _nothing())
    if response.status not in (200, 206):
        raise _status_error(response, url, start)
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise StoreError(
            f"the server sent Content-Encoding {encoding}, though identity was asked for; "
            "byte offsets would not be the object's. Switch the encoding off for shards",
            shard=redact(url),
            offset=start,
        )
    if etag is not None and version is not None and version != etag:
        raise _changed(url, start, etag, version)
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


async def _chunks(response: aiohttp.ClientResponse, url: str, offset: int) -> AsyncIterator[Buffer]:
    try:
        async for chunk in response.content.iter_any():
            yield chunk
            offset += len(chunk)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise _store_error(error, url, offset) from error


async def _nothing() -> AsyncIterator[Buffer]:
    return
    yield b""


def _status_error(response: aiohttp.ClientResponse, url: str, offset: int) -> StoreError:
    advice = {
        401: "; pass credentials",
        403: "; check credentials, and that the object exists (stores hide that from strangers)",
        404: "; check the URL and the range in its braces",
        412: ": the object was changed while it was being read",
    }.get(response.status, "")
    return StoreError(
        f"the server answered {response.status} {response.reason}{advice}",
        shard=redact(url),
        status=response.status,
        offset=offset,
    )


def _changed(url: str, offset: int, old: str, new: str) -> StoreError:
    return StoreError(
        f"the object was changed while it was being read: its ETag was {old}, now {new}",
        shard=redact(url),
        offset=offset,
    )


def _store_error(error: BaseException, url: str, offset: int) -> StoreError:
    if isinstance(error, TimeoutError):
        what = "no byte came in time"
    elif isinstance(error, aiohttp.ClientPayloadError):
        what = "the connection was cut before the promised length"
    elif isinstance(error, aiohttp.InvalidURL):
        what = "this is not a valid URL"
    else:
        # aiohttp's text may quote the URL with its query; the class and errno say as much.
        reason = getattr(error, "strerror", None) or type(error).__name__
        what = f"the connection failed: {reason}"
    return StoreError(what, shard=redact(url), offset=offset)
