"""Which redirects are followed: pure rules, and the name resolution that keeps to them.

Laws:

* A public host cannot redirect to an address that only this machine or its network can reach: otherwise
  a server on the internet would choose what is read behind the firewall.
* The rule is applied to the addresses that are connected to. Resolving a name first and connecting
  later would let its owner answer differently the second time.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from typing import TypeAlias
from urllib.parse import urljoin
from urllib.request import getproxies_environment, proxy_bypass

from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from .backend import ENVIRONMENT

# All unicast addresses that the IPv6 internet has (RFC 4291, 2.4), and the form in which networks
# without IPv4 see it (RFC 6052).
_UNICAST = ipaddress.IPv6Network("2000::/3")
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")


def origin_of(url: URL) -> tuple[str, str, int | None]:
    """What two URLs have in common if both may get the same credentials."""
    return url.scheme.lower(), (url.raw_host or "").lower().rstrip("."), url.port


def next_url(here: str, location: str) -> str:
    """Where a ``Location`` leads, with its escapes as they were written."""
    return urljoin(here, location.strip()).partition("#")[0]


def is_address(host: str) -> bool:
    """Whether a client connects to ``host`` without resolving it."""
    return ":" in host or host.replace(".", "").isdigit()


def is_public(address: str) -> bool:
    """Whether this IP address, or the one of IPv4 in it, is the same host everywhere on the internet."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:  # such as 127.1, which is none but works like one
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if ip in _TRANSLATED:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is None:
            return ip in _UNICAST and ip.is_global
        ip = inner
    return ip.is_global and not ip.is_multicast


def fault_of(here: URL, there: URL | None, from_public: bool) -> str | None:
    """What is wrong with where a server redirects to; None if nothing is.

    Args:
        here: The URL that was requested.
        there: Where its server redirects to; None if that is no URL.
        from_public: Whether a server on the way was public. ``PublicResolver`` checks the names that it
            redirects to.
    """
    if there is None or there.scheme.lower() not in ("http", "https") or not there.raw_host:
        return "to something that is no http(s) URL"
    if here.scheme.lower() == "https" and there.scheme.lower() != "https":
        return "from https to http, where anybody on the way could read and change the bytes"
    if from_public and is_address(there.raw_host) and not is_public(there.raw_host):
        return NotPublicError.what
    return None


class NotPublicError(OSError):
    """A public host has redirected to a name whose address is not public."""

    what = "from a public host to a private, loopback or link-local address"


class WatchingResolver(AbstractResolver):
    """Remembers which hosts had a public address when they were connected to.

    For good: a name does not become trusted by having another address next time.
    """

    def __init__(self, inner: AbstractResolver) -> None:
        self._inner = inner
        self._public: set[str] = set()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        if any(is_public(result["host"]) for result in found):
            self._public.add(_plain(host))
        return found

    def is_public(self, host: str) -> bool:
        """Whether a host that was connected to is public."""
        return is_public(host) if is_address(host) else _plain(host) in self._public

    async def close(self) -> None:
        await self._inner.close()


class PublicResolver(WatchingResolver):
    """Resolves names of public hosts only."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await super().resolve(host, port, family)
        if not all(is_public(result["host"]) for result in found):
            raise NotPublicError(NotPublicError.what)
        return found


def _plain(host: str) -> str:
    return host.lower().rstrip(".")


# Which proxy a request goes through: the one that was given, or, if asked for, those of the environment.

Proxies: TypeAlias = Callable[[URL], URL | None]
"""Gives the proxy for a URL; None for none."""


def proxies_of(asked: str | None) -> Proxies:
    """What an option means: a proxy's URL, ``ENVIRONMENT``, or None for no proxy."""
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


#: No server is reached through a proxy.
NO_PROXY = proxies_of(None)
