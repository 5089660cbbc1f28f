"""Web servers as a backend; the client is imported where a store is opened."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any
from urllib.parse import urlsplit

from ..store import NetworkPolicy, Store, pem_of
from ..urls import SCHEMES, is_server_url

_PROXY = ("proxy", "proxy_url")
#: The value that selects the proxies of the environment. They are not used by default: a job that inherits a
#: proxy by chance would move all its bytes through it.
ENVIRONMENT = "environment"
_TEXTS = frozenset({*_PROXY, "root_certificate"})
_OPTIONS = SCHEMES["http"].own_options | _TEXTS

_DEFAULT_PORTS = {"http": 80, "https": 443}

# Query parameters that sign a URL, by kind: those that identify the kind, and the others that belong to it (a
# trailing * stands for any ending).
_SIGNATURES: tuple[tuple[frozenset[str], frozenset[str]], ...] = (
    (frozenset({"x-amz-signature"}), frozenset({"x-amz-*"})),
    (frozenset({"x-goog-signature"}), frozenset({"x-goog-*"})),
    (frozenset({"awsaccesskeyid", "signature"}), frozenset({"expires", "x-amz-security-token"})),
    (frozenset({"googleaccessid", "signature"}), frozenset({"expires"})),
    (frozenset({"key-pair-id", "signature"}), frozenset({"expires", "policy"})),
    # Azure's shared access signatures: https://learn.microsoft.com/rest/api/storageservices/
    (
        frozenset({"sig", "sv"}),
        frozenset({"se", "st", "sp", "sr", "sip", "spr", "si", "ss", "srt", "ses", "sdd"})
        | {"skoid", "sktid", "skt", "ske", "sks", "skv", "saoid", "suoid", "scid"},
    ),
)

_FIELD_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

# Set by this library, or by the client for each request.
_CONDITIONS = frozenset({"if-match", "if-modified-since", "if-none-match", "if-range", "if-unmodified-since"})
_FRAMING = frozenset({"accept-encoding", "content-length", "range", "te", "transfer-encoding"})
_OWN_FIELDS = _CONDITIONS | _FRAMING | {"connection", "expect", "host", "upgrade"}


def check_options(scheme: str, options: Mapping[str, Any]) -> None:
    """Refuse options that these stores do not have; no message shows a value.

    Raises:
        ValueError: An unknown name, a header that cannot be sent or is the library's own, a proxy that is no
            URL of a server, or no certificate.
        TypeError: Headers that are no mapping of strings to strings, or another value of a wrong type.
    """
    for name in options:
        if name not in _OPTIONS:
            raise ValueError(
                f"unknown option {name!r} for http(s)://; known are {', '.join(sorted(_OPTIONS))}"
            )
    for name in _TEXTS & options.keys():
        if not isinstance(options[name], str):
            raise TypeError(f"option {name!r} should be a string, not {type(options[name]).__name__}")
    proxies = [options[name] for name in _PROXY if name in options]
    if len(proxies) > 1:
        raise ValueError("proxy and proxy_url are one option, but both were given")
    if proxies and proxies[0] != ENVIRONMENT and not is_server_url(proxies[0]):
        raise ValueError("proxy should be http(s)://host[:port] or 'environment', and is neither")
    if "root_certificate" in options:
        pem_of(options["root_certificate"])
    headers = options.get("headers", {})
    if not isinstance(headers, Mapping):
        raise TypeError(f"option 'headers' should be a mapping, not {type(headers).__name__}")
    seen: set[str] = set()
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            kinds = f"{type(name).__name__} to {type(value).__name__}"
            raise TypeError(f"option 'headers' should map strings to strings, not {kinds}")
        if not _FIELD_NAME.fullmatch(name):  # not shown: it may be a secret
            raise ValueError("option 'headers' has a name that is not one of an HTTP header")
        if _CONTROL.search(value):
            raise ValueError(f"the value of header {name!r} should have no control characters")
        if name.lower() in _OWN_FIELDS:
            raise ValueError(f"header {name!r} is set by the library")
        if name.lower() in seen:
            raise ValueError(f"header {name!r} is given twice")
        seen.add(name.lower())


def locate(url: str, options: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[str, str]:
    """The origin, and path and query.

    A URL that was signed again means the same object; otherwise each renewal would be another shard. Only
    known signatures are left out: an unknown one costs a download, but never gives a wrong byte.
    """
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    port = parts.port or _DEFAULT_PORTS[scheme]
    # Servers may have other objects for each user. The password does not identify the user.
    user = parts.netloc.rpartition("@")[0].partition(":")[0]
    query = _without_signature(parts.query)
    return f"{scheme}://{user}@{parts.hostname}:{port}", f"{parts.path or '/'}?{query}"


def open_store(
    scheme: str, place: str, options: Mapping[str, Any], network: NetworkPolicy
) -> AbstractAsyncContextManager[Store]:
    """A store of all web servers."""
    from .client import HttpStore
    from .redirects import proxies_of

    proxy, certificate = options.get("proxy", options.get("proxy_url")), options.get("root_certificate")
    return HttpStore.open(
        connect_s=network.connect_s,
        headers=options.get("headers", {}),
        proxies=proxies_of(proxy),
        root_pem=None if certificate is None else pem_of(certificate),
    )


def _without_signature(query: str) -> str:
    """``query`` in its order, without the parameters of a signature."""
    parameters = [parameter for parameter in query.split("&") if parameter]
    names = {_name(parameter) for parameter in parameters}
    signing = frozenset[str]().union(*(signs | others for signs, others in _SIGNATURES if signs <= names))
    return "&".join(parameter for parameter in parameters if not _is_in(_name(parameter), signing))


def _name(parameter: str) -> str:
    return parameter.partition("=")[0].lower()


def _is_in(name: str, patterns: frozenset[str]) -> bool:
    return name in patterns or any(p.endswith("*") and name.startswith(p[:-1]) for p in patterns)
