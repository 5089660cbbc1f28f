"""The schemes that URLs may have, a row each: which store serves it, and what tells it from others; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["ELSEWHERE", "SCHEMES", "Scheme"]


@dataclass(frozen=True, slots=True)
class Scheme:
    """What is to be known of a scheme.

    Attributes:
        name: What stands before ``://``.
        store: Which of ``backends`` serves it; None for files of this machine, which have neither server nor
            options.
        is_listed: Whether the store can be asked what there is; where nobody can be, shards are named one by
            one.
        is_web: Whether a URL has the parts and escapes of RFC 3986; elsewhere a key is taken as written.
        is_renewed: Whether URLs may be signed for a time, or lead to such.
        is_writable: Whether ``convert`` can put objects there.
    """

    name: str
    store: str | None
    is_listed: bool = False
    is_web: bool = False
    is_renewed: bool = False
    is_writable: bool = False

    @property
    def is_local(self) -> bool:
        """Whether it names files of this machine."""
        return self.store is None


SCHEMES: Mapping[str, Scheme] = {
    row.name: row
    for row in (
        Scheme("http", "http", is_web=True, is_renewed=True),
        Scheme("https", "http", is_web=True, is_renewed=True),
        Scheme("s3", "objects", is_listed=True, is_writable=True),
        Scheme("gs", "objects", is_listed=True, is_writable=True),
        Scheme("az", "objects", is_listed=True, is_writable=True),
        Scheme("hf", "hub", is_listed=True, is_renewed=True),
        Scheme("file", None),
    )
}

_AZURE = "az://container/key, with the account as storage_options={'account_name': ...}"

#: What to write for the schemes of other libraries and services.
ELSEWHERE: Mapping[str, str] = {
    "gcs": "gs://bucket/key",
    "s3a": "s3://bucket/key",
    "s3n": "s3://bucket/key",
    "r2": "s3://bucket/key, with storage_options={'endpoint': 'https://ACCOUNT.r2.cloudflarestorage.com'}",
    "azure": _AZURE,
    "abfs": _AZURE,
    "abfss": _AZURE,
    "wasb": _AZURE,
    "wasbs": _AZURE,
}
