"""A prefix of an object store to write to: an object is there when all of it is, and never in part.

Blocking. obstore repeats what may be repeated: unlike a read, a put has no middle to go on from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import IO, Any, TypeVar

import obstore

from ..urls import redact, split_key
from .client import Client, make_client, refuse_after_fork
from .errors import CLIENT_ERRORS, store_error
from .options import check_options, plain_options

__all__ = ["ObjectFolder"]

# A part of an upload in parts: S3 takes ten thousand of them, 160 GB at this size.
_PART_BYTES = 16 << 20
_MOST_RETRIES = 8
# What may wait in memory for its turn to be sent: four parts.
_PARTS_AT_A_TIME = 4

T = TypeVar("T")


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
        self._options = dict(options)
        self._client: Client | None = None

    def sizes(self) -> dict[str, int]:
        """The objects that are there, by name below the prefix, with their lengths in bytes."""
        pages = self._ask("", lambda client: [*obstore.list(client, self._prefix or None)])
        cut = len(self._prefix)
        return {found["path"][cut:]: found["size"] for page in pages for found in page}

    def read(self, name: str) -> bytes | None:
        """A small object; None if there is none."""
        try:
            return self._ask(name, lambda client: bytes(obstore.get(client, self._prefix + name).bytes()))
        except OSError as error:
            if getattr(error, "status", None) == 404:
                return None
            raise

    def exists(self, name: str) -> bool:
        """Whether there is an object of this name."""
        try:
            self._ask(name, lambda client: obstore.head(client, self._prefix + name))
        except OSError as error:
            if getattr(error, "status", None) == 404:
                return False
            raise
        return True

    def write(self, name: str, content: bytes | IO[bytes]) -> None:
        """Put an object, in place of what there was of its name."""

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

    def _ask(self, name: str, ask: Callable[[Client], T]) -> T:
        if self._client is None:
            refuse_after_fork()
            self._client = make_client(self._scheme, self._bucket, self._options, retries=_MOST_RETRIES)
        try:
            return ask(self._client)
        except CLIENT_ERRORS as error:
            endpoint = plain_options(self._scheme, self._options).get("endpoint", "")
            failure = store_error(error, redact(self._url) + name, None, endpoint=endpoint)
        raise failure
