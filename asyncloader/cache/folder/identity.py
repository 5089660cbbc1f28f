"""What a shard is called on disk; pure.

Laws:

* Two URLs that may mean different objects never share a name: not the base name counts, but what their store
  tells them apart by (endpoint, bucket, whole key and what of a query selects the object).
* Names are digests: no URL is in any file name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...stores.backends import backend_of
from ...stores.urls import scheme_of

__all__ = ["Identity", "identity_of"]


@dataclass(frozen=True, slots=True)
class Identity:
    """Which object a URL means.

    Attributes:
        endpoint: The server it is on.
        key: Its name there.
    """

    endpoint: str
    key: str

    @property
    def name(self) -> str:
        """Common to all versions of the object."""
        return _digest(self.endpoint, self.key)

    def version_name(self, etag: str, size: int) -> str:
        """Of one version of the object."""
        return _digest(self.endpoint, self.key, etag, str(size))


def identity_of(url: str, options: Mapping[str, Any], environ: Mapping[str, str]) -> Identity:
    """The endpoint and the key that ``url`` means.

    Args:
        url: As the store takes it.
        options: The stores' options; an ``endpoint`` among them is another server.
        environ: Where an object store looks when the options do not say.
    """
    return Identity(*backend_of(scheme_of(url)).locate(url, options, environ))


def _digest(*parts: str) -> str:
    # Each with its length: joined by any mark alone, ("a", "b/c") could be ("a/b", "c").
    joined = b"".join(b"%d:" % len(part) + part for part in (part.encode() for part in parts))
    return hashlib.sha256(joined).hexdigest()
