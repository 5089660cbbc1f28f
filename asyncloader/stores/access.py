"""How a recipe's shards are reached: everything that is given beside their URLs; frozen and picklable."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .policy import NetworkPolicy

__all__ = ["Access", "CacheSetting", "Renew", "pem_of"]

Renew: TypeAlias = Callable[[str], str | Awaitable[str]]
"""Gives a URL that is signed anew for one that the server has refused."""


@dataclass(frozen=True)
class CacheSetting:
    """Where shards are kept, and how much of them.

    Attributes:
        folder: Absolute path; the cache makes a private folder of its own in it.
        limit_bytes: Most bytes of shards kept.
        run: Names the run that made the recipe. What another run has left is verified before its first use.
    """

    folder: str
    limit_bytes: int
    run: str


@dataclass(frozen=True)
class Access:
    """What the stores are told.

    Attributes:
        options: Storage options; may hold secrets, hence not shown.
        network: Time-outs and retries.
        renew: For presigned URLs.
        cache: None keeps nothing on disk.
    """

    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    network: NetworkPolicy = field(default_factory=NetworkPolicy)
    renew: Renew | None = field(default=None, repr=False)
    cache: CacheSetting | None = None


def pem_of(certificate: str) -> str:
    """The certificates of an option that is a path or the PEM itself.

    Raises:
        ValueError: Neither. It is not shown: it may be anything.
    """
    import ssl  # late: most recipes need none

    pem: str | None = certificate
    if "-----BEGIN" not in certificate:
        # Raised below, outside of the ``except``: its error has the option in it.
        pem = None
        with suppress(OSError, ValueError), open(certificate, encoding="ascii") as file:
            pem = file.read()
    if pem is None:
        raise ValueError("root_certificate should be the path of a PEM file, or its text, and is neither")
    is_sound = False
    with suppress(ssl.SSLError, ValueError):
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem)
        is_sound = True
    if not is_sound:
        raise ValueError("root_certificate should hold a certificate in PEM, and holds none")
    return pem
