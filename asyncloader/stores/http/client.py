"""HTTP and HTTPS servers, through aiohttp.

Laws:

* A URL goes out as it was written, and redirects are followed here, under the rules of ``redirects``.
* Credentials go to the shard's own origin only, and not any more once a redirect has left it.
* Only connecting has a time-out here. How long a body may take is decided by a wrapper.
"""

from __future__ import annotations

import base64
import errno
import os
import re
import socket
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from ...errors import StoreError
from ...types import Buffer
from ..failures import TransientError
from ..store import Body, NetworkPolicy
from ..urls import redact
from . import redirects
from .aiohttp_private import HEAD_BYTES, BodyReceiver, HttpProcessingError, has_length
from .answers import Asked, body_of, refusal_of, request_headers

_MOST_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})

# The characters of a request line. A URL of these is sent as written: a signature may cover its exact
# escapes, and yarl would rewrite them (%2C becomes a comma).
_SENDABLE = re.compile(r"[!-~]*")

# For bytes that are not HTTP the client's parser raises its own error, which is no ClientError in a body.
_CLIENT_ERRORS = (aiohttp.ClientError, HttpProcessingError, OSError, ValueError)

# How much aiohttp reads at a time where it receives all of a body.
_BODY_BYTES = 1 << 18

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(eq=False, repr=False)
class HttpStore:
    """Objects behind ``http://`` and ``https://`` URLs; see ``open``.

    Where a server gives no ETag, ``Body.etag`` is ``last-modified:`` and the time at which the object was
    last modified, if that is known to be before the answer's own second.
    """

    _anywhere: aiohttp.ClientSession
    _public_only: aiohttp.ClientSession
    _watching: redirects.WatchingResolver
    _headers: Mapping[str, str]
    _proxies: redirects.Proxies
    _target_of: Callable[[str], str]

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        *,
        connect_s: float = NetworkPolicy().connect_s,
        headers: Mapping[str, str] = _NO_HEADERS,
        proxies: redirects.Proxies = redirects.NO_PROXY,
        root_pem: str | None = None,
        target_of: Callable[[str], str] = str,
    ) -> AsyncIterator[HttpStore]:
        """A store with clients of its own, for this process and loop only.

        Args:
            connect_s: Seconds to connect: to resolve the name, and for the handshakes.
            headers: Sent with each request to a shard's own origin; checked by ``check_options``.
            proxies: Which proxy a request goes through.
            root_pem: Certificates that are trusted in addition to those of the system.
            target_of: Returns the URL to request for that of a shard; errors name the shard's.
        """
        async with AsyncExitStack() as stack:
            watching = redirects.WatchingResolver(aiohttp.DefaultResolver())
            stack.push_async_callback(watching.close)
            # Two pools, so that a connection made without the rule of redirects is never used under it.
            tls: ssl.SSLContext | bool = True
            if root_pem is not None:
                tls = ssl.create_default_context()
                tls.load_verify_locations(cadata=root_pem)
            anywhere = await stack.enter_async_context(_session(watching, connect_s, tls))
            public_only = await stack.enter_async_context(
                _session(redirects.PublicResolver(watching), connect_s, tls)
            )
            yield cls(anywhere, public_only, watching, dict(headers), proxies, target_of)

    @asynccontextmanager
    async def read(self, url: str, start: int, stop: int, *, etag: str | None = None) -> AsyncIterator[Body]:
        asked = Asked(url, start, stop, etag)
        headers = request_headers(asked)
        response = await self._request(url, start, headers)
        if _hides_length(response, start):
            # Without a range the answer has it.
            response.release()
            del headers["Range"]
            response = await self._request(url, start, headers)
        async with response:
            body = body_of(asked, response.status, response.headers, time.time())
            if body.stop and has_length(response):
                body.chunks = BodyReceiver(response, redact(url), body.start, body.stop)
            if body.stop == 0 or has_length(response):
                yield body
                return
            async with aclosing(_chunks(response, url, body.start, body.stop)) as body.chunks:
                yield body

    async def fetch(self, url: str, limit_bytes: int) -> tuple[Mapping[str, str], bytes]:
        """The headers and all of a small document, such as a listing.

        Raises:
            StoreError: As for shards, or it is longer than ``limit_bytes``.
        """
        response = await self._request(url, 0, {})
        async with response:
            if response.status != 200:
                raise refusal_of(url, 0, response.status, response.headers, time.time())
            content = bytearray()
            async with aclosing(_chunks(response, url, 0, None)) as chunks:
                async for chunk in chunks:
                    content += chunk
                    if len(content) > limit_bytes:
                        raise StoreError(f"the answer is longer than {limit_bytes} bytes", shard=redact(url))
            return response.headers, bytes(content)

    async def _request(self, url: str, offset: int, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        """The answer of ``url`` or of where it redirects to; the caller closes it."""
        here = _parsed(self._target_of(url))
        if here is None:
            raise StoreError("this is not a valid URL", shard=redact(url), offset=offset)
        credentials = self._credentials(here)
        from_public = False
        for _ in range(_MOST_REDIRECTS + 1):
            proxy = self._proxies(here)
            # A proxy resolves names itself: which of them are private to it is unknown here.
            session = self._public_only if from_public and proxy is None else self._anywhere
            response = await _get(session, here, {**headers, **credentials}, url, offset, proxy)
            if response.status not in _REDIRECTS:
                return response
            location = response.headers.get("Location", "")
            response.release()
            from_public = from_public or self._is_public(here.raw_host or "", proxy)
            there = _joined(here, location)
            fault = redirects.fault_of(here, there, from_public)
            if there is None or fault is not None:
                raise StoreError(f"the server redirects {fault}", shard=redact(url), offset=offset)
            if redirects.origin_of(there) != redirects.origin_of(here):
                credentials = {}
            here = there
        what = f"the server redirects more than {_MOST_REDIRECTS} times"
        raise StoreError(what, shard=redact(url), offset=offset)

    def _is_public(self, host: str, proxy: URL | None) -> bool:
        """Whether a host that has answered is public; a name behind a proxy is taken to be."""
        if proxy is not None and not redirects.is_address(host):
            return True
        return self._watching.is_public(host)

    def _credentials(self, target: URL) -> Mapping[str, str]:
        """The headers for the shard's own origin. User info in its URL wins over headers for all shards."""
        if target.raw_user is None and target.raw_password is None:
            return self._headers
        pair = f"{target.user or ''}:{target.password or ''}".encode()
        others = {name: value for name, value in self._headers.items() if name.lower() != "authorization"}
        return {**others, "Authorization": f"Basic {base64.b64encode(pair).decode()}"}


def _hides_length(response: aiohttp.ClientResponse, start: int) -> bool:
    """Whether an answer does not say where the object ends, so that samples might be lost."""
    content_range = response.headers.get("Content-Range")
    if response.status == 416:
        # Only an empty object has no byte 0, but a refusal without a length may have another reason.
        return start == 0 and content_range is None
    # A server may send less than requested, and does not say here whether that was all (RFC 9110, 14.4).
    return response.status == 206 and content_range is not None and content_range.endswith("/*")


def _session(
    resolver: AbstractResolver, connect_s: float, tls: ssl.SSLContext | bool
) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        # The byte budget of the readers bounds the requests, so connections have no limit here.
        connector=aiohttp.TCPConnector(limit=0, resolver=resolver, ssl=tls),
        timeout=aiohttp.ClientTimeout(total=None, connect=connect_s),
        read_bufsize=HEAD_BYTES,
        auto_decompress=False,
        # Offsets count the object's own bytes; a transfer encoding on top would shift them.
        headers={"Accept-Encoding": "identity"},
        # No answer may depend on those before it.
        cookie_jar=aiohttp.DummyCookieJar(),
    )


async def _get(
    session: aiohttp.ClientSession,
    target: URL,
    headers: dict[str, str],
    url: str,
    offset: int,
    proxy: URL | None,
) -> aiohttp.ClientResponse:
    # S3 states its checksums on request. A signature, in the query or among the headers, may not allow
    # another header.
    if not target.raw_query_string and "authorization" not in map(str.lower, headers):
        headers["x-amz-checksum-mode"] = "ENABLED"
    try:
        # Without user info: aiohttp would make a header of it.
        if target.raw_user is not None or target.raw_password is not None:
            target = target.with_user(None)
        return await session.get(target, headers=headers, allow_redirects=False, proxy=proxy)
    except _CLIENT_ERRORS as error:
        failure = _store_error(error, url, offset, proxy)
    raise failure


async def _chunks(
    response: aiohttp.ClientResponse, url: str, offset: int, stop: int | None
) -> AsyncGenerator[Buffer, None]:
    """A body without a Content-Length, or one that is small."""
    failure: StoreError | None = None
    try:
        async for chunk in response.content.iter_chunked(_BODY_BYTES):
            offset += len(chunk)
            yield chunk
            del chunk  # so that its memory is free when the decoder is done with it
    except _CLIENT_ERRORS as error:
        failure = _store_error(error, url, offset)
    if failure is not None:
        raise failure
    if stop is not None and offset != stop:  # a chunked body may end in order and too early
        what = f"the body ended at byte {offset}, not at byte {stop} that the server promised"
        raise TransientError(what, shard=redact(url), offset=min(offset, stop))


def _parsed(target: str) -> URL | None:
    """``target`` as it is sent; None if it cannot be."""
    try:
        parsed = URL(target, encoded=_SENDABLE.fullmatch(target) is not None)
        return parsed if parsed.raw_host and parsed.port is not None else None
    except ValueError:
        return None


def _joined(here: URL, location: str) -> URL | None:
    try:
        return _parsed(redirects.next_url(str(here), location)) if location else None
    except ValueError:
        return None


def _is_no_tls(error: OSError) -> bool:
    """Whether the server does not use TLS, such as a web server that takes the handshake for a request."""
    return isinstance(error, ssl.SSLError) and error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST")


def _store_error(error: Exception, url: str, offset: int, proxy: URL | None = None) -> StoreError:
    """The error to raise for the client's; it quotes nothing of its text."""
    kind: type[StoreError] = TransientError
    shown_proxy = redact(str(proxy))
    if isinstance(error, TimeoutError):
        through = "" if proxy is None else f" through the proxy {shown_proxy}"
        what = f"the connection{through} failed: no answer to it in time"
    elif isinstance(error, aiohttp.ClientProxyConnectionError):
        reason = error.os_error.strerror or type(error.os_error).__name__
        what = f"the proxy {shown_proxy} cannot be reached: {reason}; check the option proxy"
    elif isinstance(error, aiohttp.ClientHttpProxyError):
        kind = TransientError if error.status >= 500 else StoreError
        what = f"the proxy {shown_proxy} answered {error.status}, and leads to no server"
    elif isinstance(error, aiohttp.ClientPayloadError):
        what = "the connection was cut before the promised length"
    elif isinstance(error, aiohttp.ClientConnectorCertificateError):
        kind = StoreError
        what = (
            f"the server's certificate cannot be trusted: {error.certificate_error}; an authority of your "
            "own is the option root_certificate"
        )
    elif isinstance(error, aiohttp.ClientConnectorSSLError) and _is_no_tls(error.os_error):
        kind, what = StoreError, "the server speaks no TLS at this port; check the URL: is it http://?"
    elif isinstance(error, aiohttp.ClientConnectorError) and isinstance(
        error.os_error, redirects.NotPublicError
    ):
        kind, what = StoreError, f"the server redirects {redirects.NotPublicError.what}"
    elif isinstance(error, aiohttp.ClientConnectorDNSError) and error.os_error.errno == socket.EAI_NONAME:
        kind, what = StoreError, "unknown host; check the URL"
    elif isinstance(error, aiohttp.ClientResponseError | HttpProcessingError):
        what = "the server's answer is not HTTP"
    elif isinstance(error, ValueError):  # aiohttp.InvalidURL is one
        kind, what = StoreError, "this is not a valid URL"
    else:
        # aiohttp's text may quote the URL with its query; the class and errno say enough.
        number, cause = getattr(error, "errno", None), getattr(error, "os_error", error)
        # TLS and name lookups have numbers and texts of their own. In others' strerror asyncio puts its own
        # words, with the address as a tuple.
        if isinstance(cause, ssl.SSLError | socket.gaierror):
            text: str | None = cause.strerror
            number = None
        else:
            text = os.strerror(number) if number else None
        what = f"the connection failed: {text or type(error).__name__}"
        if number == errno.ECONNREFUSED:
            what += "; check the host and the port"
    return kind(what, shard=redact(url), offset=offset)
