"""Object stores (``s3://``, ``gs://``, ``az://``), through obstore.

Laws:

* A client is made at the first read, in the process that reads, and never crosses a fork.
* obstore's own retries are off: retrying is a wrapper's job, written once for all stores.
* Each answer is held against what was asked; obstore tells no checksums, so a body has no digests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import obstore

from ..._flow.clock import pause
from ...errors import StoreError
from ...types import Buffer
from ..failures import TransientError, changed
from ..policy import NetworkPolicy
from ..store import Body, no_chunks
from ..urls import redact, split_key
from .client import Client, make_client, refuse_after_fork
from .errors import CLIENT_ERRORS, is_of_provider, store_error
from .options import check_options, plain_options
from .provider import UserProvider

if TYPE_CHECKING:
    from obstore import BytesStream, GetOptions, GetResult

__all__ = ["ObjectStore"]

# Each piece costs a hop from obstore's threads to the loop, some 0.1 ms; a larger one would hold back the
# first samples until it is full. At 40 MB/s a connection this one fills in 6 ms.
_PIECE_BYTES = 256 << 10

# What S3, Google and Azure give in one answer, or a fifth of it.
_PAGE_KEYS = 1000


# A thread of obstore's that has seen that its future is not cancelled hands over the outcome at once, but
# may have to wait for the interpreter in between: some of the 5 ms for which each thread has it.
_HANDED_OVER_S = 0.02

T = TypeVar("T")


class ObjectStore:
    """The objects of one bucket or container.

    Credentials come from the options, from the usual environment variables (``AWS_*``, ``GOOGLE_*``,
    ``AZURE_*``), for S3 from ``~/.aws`` (see ``profiles``), or from container and instance roles.

    Args:
        scheme: ``s3``, ``gs`` or ``az``.
        bucket: Its name.
        options: ``endpoint``, ``region``, ``access_key_id``, ``secret_access_key``, ``anonymous`` and
            others by obstore's names; see ``options``.

    Raises:
        ValueError: An unknown option, or a bucket that cannot be one.
        TypeError: An option of a wrong type.
    """

    def __init__(self, scheme: str, bucket: str, options: Mapping[str, Any]) -> None:
        if not bucket or "@" in bucket:
            raise ValueError(
                f"a shard in an object store should be named {scheme}://bucket/key; credentials are options"
            )
        check_options(scheme, options)
        self._scheme = scheme
        self._bucket = bucket
        self._options = dict(options)
        self._provider: UserProvider | None = None
        provide = plain_options(scheme, options).get("credential_provider")
        if provide is not None:
            self._provider = UserProvider(scheme, provide)
        self._client: Client | None = None
        self._answered = False

    @asynccontextmanager
    async def read(self, url: str, start: int, stop: int, *, etag: str | None = None) -> AsyncIterator[Body]:
        key = _key_of(url)
        client = self._open_client()
        asked: GetOptions = {"range": (start, stop)}
        # A weak ETag never satisfies If-Match (RFC 9110, 13.1.1); for it the answer's own is compared.
        if etag is not None and not etag.startswith("W/"):
            asked["if_match"] = etag
        failure: Exception | None = None
        try:
            result = await _answer(obstore.get_async(client, key, options=asked))
        except CLIENT_ERRORS as error:
            failure = self._failure(error, url, start, etag)
        if failure is not None:
            # Only an empty object has no byte 0, but a refusal may have another reason, and lose the shard.
            was_refused = isinstance(failure, StoreError) and failure.status == 416
            if was_refused and start == 0 and await self._size(client, key, url) == 0:
                yield Body(0, 0, 0, None, no_chunks())
                return
            raise failure
        self._answered = True
        body = _body(result, url, start, stop, etag)
        async with aclosing(body.chunks):
            yield body

    async def pages(
        self, folder: str, network: NetworkPolicy, after: str | None = None
    ) -> AsyncGenerator[list[tuple[str, int]], None]:
        """Some thousand at a time; see ``backends.Lister``."""
        place = f"{self._scheme}://{self._bucket}/{folder}"
        stream = obstore.list(self._open_client(), folder or None, offset=after, chunk_size=_PAGE_KEYS)
        failure: Exception | None = None
        while failure is None:
            try:
                async with asyncio.timeout(network.answer_s):
                    page = await anext(stream)
            except StopAsyncIteration:
                return
            except CLIENT_ERRORS as error:
                failure = self._failure(error, place, None)
            else:
                yield [(found["path"], found["size"]) for found in page]
        raise failure

    async def _size(self, client: Client, key: str, url: str) -> int:
        try:
            return (await _answer(obstore.head_async(client, key)))["size"]
        except CLIENT_ERRORS as error:
            failure = self._failure(error, url, 0)
        raise failure

    def _failure(self, error: Exception, url: str, offset: int | None, etag: str | None = None) -> Exception:
        """What to raise for the client's error, outside its ``except``; the user's own keeps its type."""
        if self._provider is not None and self._provider.failure is not None and is_of_provider(error):
            return self._provider.failure
        options = plain_options(self._scheme, self._options)
        return store_error(
            error,
            url,
            offset,
            etag,
            was_answered=self._answered,
            endpoint=options.get("endpoint", ""),
            proxy=options.get("proxy_url", ""),
        )

    def _open_client(self) -> Client:
        refuse_after_fork()
        if self._client is None:
            self._client = make_client(self._scheme, self._bucket, self._options, self._provider)
        return self._client


async def _answer(future: Awaitable[T]) -> T:
    """What obstore answers. If cancelled, it leaves when obstore's thread no longer needs the loop.

    Else that thread might find the loop closed, and print so to standard error.
    """
    try:
        return await future
    except asyncio.CancelledError:
        await pause(_HANDED_OVER_S)  # there is nothing to wait for: obstore does not tell
        raise


def _body(result: GetResult, url: str, start: int, stop: int, etag: str | None) -> Body:
    """What the answer promises, held against what was asked.

    The bytes are those that are stored, also where the store says that they are packed
    (``Content-Encoding``): their range and length are the object's own.
    """
    version, size = result.meta["e_tag"], result.meta["size"]
    first, last = result.range
    if first != start or last != min(stop, size):
        raise TransientError(
            f"asked for bytes {start}-{stop - 1}, but the server sent {first}-{last - 1} of {size}",
            shard=redact(url),
            offset=start,
        )
    if etag is not None and version != etag:
        # The condition was not kept to: another node or a proxy may have answered.
        raise changed(url, start, etag, version, kind=TransientError)
    return Body(first, last, size, version, _chunks(result.stream(_PIECE_BYTES), url, first))


async def _chunks(stream: BytesStream, url: str, offset: int) -> AsyncGenerator[Buffer, None]:
    failure: StoreError | None = None
    try:
        while failure is None:
            try:
                chunk = await _answer(anext(stream))
            except StopAsyncIteration:
                return
            except CLIENT_ERRORS as error:
                failure = store_error(error, url, offset)
            else:
                yield chunk
                offset += len(chunk)
    finally:
        # The connection lives as long as the stream, and a traceback may keep this frame for long.
        del stream
    raise failure


def _key_of(url: str) -> str:
    """Everything behind the bucket, as written: keys know no escapes, and may hold ``?`` and ``#``."""
    _, key = split_key(url)
    if any(segment in ("", ".", "..") for segment in key.split("/")):
        # obstore refuses some of these and quietly reads another key for the rest.
        raise ValueError(f"a key should have no empty, '.' or '..' segment, but got {redact(url)!r}")
    return key
