"""Object stores (``s3://``, ``gs://``, ``az://``), through obstore.

Laws:

* A client is made at the first read, in the process that reads, and never crosses a fork.
* obstore's own retries are off: a wrapper retries, once for all stores.
* Each answer is checked against the request. obstore reports no checksums, so a body has no digests.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import IO, TYPE_CHECKING, Any, TypeAlias, TypeVar

import obstore
import obstore.store
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from ...errors import StoreError
from ...flow.engine import pause
from ...types import Buffer
from ..failures import TransientError, changed
from ..store import Body, NetworkPolicy, no_chunks
from ..urls import redact, split_key
from .backend import check_options, client_arguments, plain_options
from .clouds import CLOUDS, UserProvider, choose
from .errors import CLIENT_ERRORS, is_of_provider, store_error

if TYPE_CHECKING:
    from obstore import BytesStream, GetOptions, GetResult

# obstore's clients: made in the process that uses them, never across a fork.

Client: TypeAlias = S3Store | GCSStore | AzureStore

# The process that uses obstore's runtime. It has to be a global: so is the runtime, which the first request
# makes and a fork loses. The child would wait for its threads forever.
_first_used_in: int | None = None


def refuse_after_fork() -> None:
    """Note that this process uses obstore.

    Raises:
        RuntimeError: The process it was forked from did.
    """
    global _first_used_in
    pid = os.getpid()
    if _first_used_in is None:
        _first_used_in = pid
    elif _first_used_in != pid:
        raise RuntimeError(
            f"object stores were used in process {_first_used_in} before it was forked into this one, "
            f"{pid}, where they would hang; start workers with 'forkserver' or 'spawn', or fork earlier"
        )


def make_client(scheme: str, bucket: str, options: Mapping[str, Any], *, retries: int = 0) -> Client:
    """A client of one bucket.

    Args:
        scheme: ``s3``, ``gs`` or ``az``.
        bucket: Its name.
        options: Checked ones, by their plain names.
        retries: How often obstore itself retries; 0 where a wrapper does.

    Raises:
        ValueError: obstore takes no such values, or there is no such profile.
    """
    cloud = CLOUDS[scheme]
    used = {**options, **(choose(options, os.environ) if cloud.has_profiles else {})}
    config, client_options = client_arguments(scheme, used, os.environ)
    make: Any = getattr(obstore.store, cloud.client)
    try:
        client: Client = make(
            bucket,
            config=config,
            client_options=client_options,
            retry_config={"max_retries": retries},
            credential_provider=used.get("credential_provider"),
        )
    except (BaseError, OSError, TypeError, ValueError) as error:
        reason = _without(str(error).partition("\n")[0], [*options.values(), *config.values()])
    else:
        return client
    given = ", ".join(sorted(options)) or "none"
    raise ValueError(f"no client for {scheme}://{bucket} with the options given ({given}): {reason}")


def _without(text: str, secrets: Iterable[object]) -> str:
    for secret in secrets:
        if isinstance(secret, str) and secret:
            text = text.replace(secret, "***")
    return text


# Each piece costs a hop from obstore's threads to the loop, some 0.1 ms; a larger one would delay the first
# samples until it is full. At 40 MB/s a connection this one fills in 6 ms.
_PIECE_BYTES = 256 << 10

# What S3, Google and Azure return in one answer, or a fifth of it.
_PAGE_KEYS = 1000


# A thread of obstore that finds its future not cancelled passes the result at once, but may have to wait for
# the interpreter's lock in between: some of the 5 ms for which each thread holds it.
_HANDED_OVER_S = 0.02

T = TypeVar("T")


class ObjectStore:
    """The objects of one bucket or container.

    Credentials come from the options, from the usual environment variables (``AWS_*``, ``GOOGLE_*``,
    ``AZURE_*``), for S3 from ``~/.aws`` (see ``clouds``), or from container and instance roles.

    Args:
        scheme: ``s3``, ``gs`` or ``az``.
        bucket: Its name.
        options: ``endpoint``, ``region``, ``access_key_id``, ``secret_access_key``, ``anonymous`` and
            others by obstore's names; see ``backend``.

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
        self._options = plain_options(scheme, options)
        self._provider: UserProvider | None = None
        if "credential_provider" in self._options:
            self._provider = UserProvider(self._options["credential_provider"])
            self._options["credential_provider"] = self._provider
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
            # Only an empty object has no byte 0, but a refusal may have another reason.
            was_refused = isinstance(failure, StoreError) and failure.status == 416
            if was_refused and start == 0 and await self._size(client, key, url) == 0:
                yield Body(0, 0, 0, None, no_chunks())
                return
            raise failure
        self._answered = True
        body = _body(result, url, start, stop, etag)
        async with aclosing(_chunks(result.stream(_PIECE_BYTES), url, start)) as body.chunks:
            yield body

    async def pages(
        self, folder: str, network: NetworkPolicy, after: str | None = None
    ) -> AsyncGenerator[list[tuple[str, int]], None]:
        """Some thousand keys at a time; see ``router.ListedBackend``."""
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
        return store_error(
            error,
            url,
            offset,
            etag,
            was_answered=self._answered,
            endpoint=self._options.get("endpoint", ""),
            proxy=self._options.get("proxy_url", ""),
        )

    def _open_client(self) -> Client:
        refuse_after_fork()
        if self._client is None:
            self._client = make_client(self._scheme, self._bucket, self._options)
        return self._client


async def _answer(future: Awaitable[T]) -> T:
    """The result of obstore. If cancelled, it returns when obstore's thread no longer needs the loop.

    Otherwise that thread might find the loop closed, and print an error.
    """
    try:
        return await future
    except asyncio.CancelledError:
        await pause(_HANDED_OVER_S)  # a pause, since obstore has no event to wait for
        raise


def _body(result: GetResult, url: str, start: int, stop: int, etag: str | None) -> Body:
    """What the answer promises, checked against the request, still without its chunks.

    The bytes are those that are stored, also where the store states that they are compressed
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
        # The condition was ignored: another node or a proxy may have answered.
        raise changed(url, start, etag, version, kind=TransientError)
    return Body(first, last, size, version, no_chunks())


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
        # obstore refuses some of these, and silently reads another key for others.
        raise ValueError(f"a key should have no empty, '.' or '..' segment, but got {redact(url)!r}")
    return key


# A prefix of an object store to write to: an object exists once all of it is written, and never in part.
#
# Blocking. obstore itself retries: unlike a read, a put cannot be resumed in its middle.

# A part of an upload in parts: S3 takes ten thousand of them, 160 GB at this size.
_PART_BYTES = 16 << 20
_MOST_RETRIES = 8
# How many parts may wait in memory to be sent.
_PARTS_AT_A_TIME = 4


class ObjectFolder:
    """The objects below a prefix.

    Args:
        url: ``s3://bucket/prefix/``, or of another object store; ends with ``/``.
        options: As of ``ObjectStore``.

    Raises:
        ValueError, TypeError: Options that do not fit.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._url = url
        root, self._prefix = split_key(url)
        self._scheme, _, bucket = root.rstrip("/").partition("://")
        self._bucket = bucket
        check_options(self._scheme, options)
        self._options = plain_options(self._scheme, options)
        self._client: Client | None = None

    def sizes(self) -> dict[str, int]:
        """The existing objects, by name below the prefix, with their lengths in bytes."""
        pages = self._ask("", lambda client: [*obstore.list(client, self._prefix or None)])
        cut = len(self._prefix)
        return {found["path"][cut:]: found["size"] for page in pages for found in page}

    def read(self, name: str) -> bytes | None:
        """A small object; None if there is none."""
        return self._find(name, lambda client: bytes(obstore.get(client, self._prefix + name).bytes()))

    def exists(self, name: str) -> bool:
        """Whether there is an object of this name."""
        return self._find(name, lambda client: obstore.head(client, self._prefix + name)) is not None

    def write(self, name: str, content: bytes | IO[bytes]) -> None:
        """Put an object; it replaces one of the same name."""

        def put(client: Client) -> object:
            return obstore.put(
                client,
                self._prefix + name,
                content,
                chunk_size=_PART_BYTES,
                max_concurrency=_PARTS_AT_A_TIME,
            )

        self._ask(name, put)

    def remove(self, names: list[str]) -> None:
        """Delete objects."""
        if names:
            self._ask(
                names[0], lambda client: obstore.delete(client, [self._prefix + name for name in names])
            )

    def _find(self, name: str, find: Callable[[Client], T]) -> T | None:
        try:
            return self._ask(name, find)
        except StoreError as error:
            if error.status == 404:
                return None
            raise

    def _ask(self, name: str, ask: Callable[[Client], T]) -> T:
        if self._client is None:
            refuse_after_fork()
            self._client = make_client(self._scheme, self._bucket, self._options, retries=_MOST_RETRIES)
        try:
            return ask(self._client)
        except CLIENT_ERRORS as error:
            endpoint = self._options.get("endpoint", "")
            failure = store_error(error, redact(self._url) + name, None, endpoint=endpoint)
        raise failure
