"""Which proxy a request goes through: the one that was given, or, if asked for, those of the environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias
from urllib.request import getproxies_environment, proxy_bypass

from yarl import URL

from .backend import ENVIRONMENT

__all__ = ["NO_PROXY", "Proxies", "proxies_of"]

Proxies: TypeAlias = Callable[[URL], URL | None]
"""Gives the proxy for a URL; None for none."""


def proxies_of(asked: str | None) -> Proxies:
    """What an option means: a proxy's URL, ``ENVIRONMENT``, or None for no proxy at all."""
    if asked == ENVIRONMENT:
        known = getproxies_environment()

        def of_environment(target: URL) -> URL | None:
            found = known.get(target.scheme) or known.get("all")
            if not found or proxy_bypass(f"{target.raw_host}:{target.port}"):
                return None
            return URL(found if "://" in found else f"http://{found}")

        return of_environment
    proxy = None if asked is None else URL(asked)
    return lambda target: proxy


#: Every server is reached by itself.
NO_PROXY = proxies_of(None)
