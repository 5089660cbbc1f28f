"""Object stores (``s3://``, ``gs://``, ``az://``), through obstore.

Laws:

* A client is made at the first read, in the process that reads, and never crosses a fork.
* obstore's own retries are off: retrying is a wrapper's job, written once for all stores.
* obstore's messages quote URLs, headers and bodies; of them only statuses and error codes get out.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import (
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, GCSStore, S3Store

from ..errors import StoreError
from ..types import Buffer
from .failures import changed, refused
from .object_options import check_options, client_arguments
from .store import Body, no_chunks
from .urls import redact

if TYPE_CHECKING:
    from obstore import BytesStream, GetOptions

__all__ = ["ObjectStore"]

# Each piece costs a hop from obstore's threads to the loop, some 0.1 ms; a larger one would hold back the
# first samples until it is full. At 40 MB/s a connection this one fills in 6 ms.
_PIECE_BYTES = 256 << 10

_CLIENTS = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}

_CLIENT_ERRORS = (BaseError, OSError, ValueError)

# The process whose obstore runtime this is: the one global of the library. The runtime is itself a global
# of the process, made by the first request and lost in a fork, whose child would wait for its threads for
# ever; who used it first cannot be known from any object of ours.
_first_used_in: int | None = None


class ObjectStore:
    """The objects of one bucket or container.

    Credentials come from the options, or from where obstore finds them: the usual environment variables
    (``AWS_*``, ``GOOGLE_*``, ``AZURE_*``), container and instance roles; not from ``~/.aws``.

    Args:
        scheme: ``s3``, ``gs`` or ``az``.
        bucket: Its name.
        options: ``endpoint``, ``region``, ``access_key_id``, ``secret_access_key``, ``anonymous`` and
            others by obstore's names; see ``object_options``.

    Raises:
        ValueError: An unknown option, or a bucket that cannot be one.
        TypeError: An option that is no string, number or bool.
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
        self._client: S3Store | GCSStore | AzureStore | None = None

    @asynccontextmanager
    async def read(self, url: str, start: int, stop: int, *, etag: str | None = None) -> AsyncIterator[Body]:
        key = _key_of(url)
        _refuse_after_fork()
        client = self._client = self._client or self._make_client()
        asked: GetOptions = {"range": (start, stop)}
        if etag is not None:
            asked["if_match"] = etag
        failure: StoreError | None = None
        try:
            result = await obstore.get_async(client, key, options=asked)
        except _CLIENT_ERRORS as error:
            failure = _store_error(error, url, start, etag)
        if failure is not None:
            if failure.status == 416 and start == 0:  # only an empty object has no byte 0
                yield Body(0, 0, 0, None, no_chunks())
                return
            raise failure
        version = result.meta["e_tag"]
        if etag is not None and version is not None and version != etag:
            raise changed(url, start, etag, version)
        first, last = result.range
        async with aclosing(_chunks(result.stream(_PIECE_BYTES), url, first)) as chunks:
            yield Body(first, last, result.meta["size"], version, chunks)

    def _make_client(self) -> S3Store | GCSStore | AzureStore:
        config, client_options = client_arguments(self._scheme, self._options, os.environ)
        make: Any = _CLIENTS[self._scheme]
        try:
            client: S3Store | GCSStore | AzureStore = make(
                self._bucket, config=config, client_options=client_options, retry_config={"max_retries": 0}
            )
        except (BaseError, OSError, TypeError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            for value in self._options.values():
                reason = reason.replace(str(value), "***")
        else:
            return client
        given = ", ".join(sorted(self._options)) or "none"
        raise ValueError(
            f"no client for {self._scheme}://{self._bucket} with the options given ({given}): {reason}"
        )


async def _chunks(stream: BytesStream, url: str, offset: int) -> AsyncGenerator[Buffer, None]:
    failure: StoreError | None = None
    try:
        while failure is None:
            try:
                chunk = await anext(stream)
            except StopAsyncIteration:
                return
            except _CLIENT_ERRORS as error:
                failure = _store_error(error, url, offset)
            else:
                yield chunk
                offset += len(chunk)
    finally:
        # The connection lives as long as the stream, and a traceback may keep this frame for long.
        del stream
    raise failure


def _key_of(url: str) -> str:
    """Everything behind the bucket, as written: keys know no escapes, and may hold ``?`` and ``#``."""
    key = url.partition("://")[2].partition("/")[2]
    if any(segment in ("", ".", "..") for segment in key.split("/")):
        # obstore refuses some of these and quietly reads another key for the rest.
        raise ValueError(f"a key should have no empty, '.' or '..' segment, but got {redact(url)!r}")
    return key


def _refuse_after_fork() -> None:
    global _first_used_in
    pid = os.getpid()
    if _first_used_in is None:
        _first_used_in = pid
    elif _first_used_in != pid:
        raise RuntimeError(
            f"object stores were used in process {_first_used_in} before it was forked into this one, "
            f"{pid}, where they would hang; start workers with 'forkserver' or 'spawn', or fork earlier"
        )


_STATUS = re.compile(r"Server returned non-2xx status code: (\d{3})")
# Where a machine in the cloud would be told its role: asked when no other credentials were found.
_LAST_RESORT = re.compile(
    r"Error performing \w+ http://\S+/(latest/api/token|latest/meta-data|metadata/identity|computeMetadata)"
)
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")

# What obstore's text holds, and what to say then; the first that is found counts.
_MEANINGS = (
    ("redirect without LOCATION", "the bucket is in another region; pass the option region"),
    ("Received non-partial response", "the server ignored the range asked for, and sent the whole object"),
    ("Content-Length Header missing", "the server sent a body without a length; a cut would not be seen"),
    ("UnexpectedRange", "the server sent another range than the one asked for"),
    ("kind: Timeout", "no byte came in time"),
    ("kind: Connect,", "the connection failed: no server could be reached"),
    ("kind: Interrupted", "the connection was cut before the promised length"),
    ("kind: Request", "the connection was closed without an answer"),
)


def _store_error(error: Exception, url: str, offset: int, etag: str | None = None) -> StoreError:
    text = str(error)
    if _LAST_RESORT.search(text):
        what = "no credentials were found; pass them as options or in the environment, or anonymous=True"
        return StoreError(what, shard=redact(url), offset=offset)
    found = _STATUS.search(text)
    status = int(found[1]) if found else _status_of(error)
    if status == 412:
        return changed(url, offset, etag, None, status=412)
    if status is not None:
        code = _CODE.search(text)
        reason = code[1] if code else _phrase(status)
        return refused(url, offset, status, reason)
    meaning = next((say for sign, say in _MEANINGS if sign in text), None)
    what = meaning or f"the object store's client failed: {type(error).__name__}"
    return StoreError(what, shard=redact(url), offset=offset)


def _status_of(error: Exception) -> int | None:
    """The status that the exception's type stands for, where its text names none."""
    for kind, status in (
        (FileNotFoundError, 404),
        (PermissionDeniedError, 403),
        (UnauthenticatedError, 401),
        (PreconditionError, 412),
    ):
        if isinstance(error, kind):
            return status
    return None


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
