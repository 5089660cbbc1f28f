"""What a shard is called on disk; pure.

Laws:

* Two URLs that may mean different objects never share a name: not the base name counts, but endpoint, bucket,
  whole key and what of the query selects the object.
* A URL that was signed anew keeps its name, or each renewal would be another shard. Only what is known to be
  a signature is left out; a signature of a kind not known costs a download, never a wrong byte.
* Names are digests: no URL is in any file name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ..stores.urls import scheme_of

__all__ = ["Identity", "identity_of"]

_DEFAULT_PORTS = {"http": 80, "https": 443}

# Query parameters that sign a URL, by kind: the parameters that give the kind away, and all that go with it
# (a trailing * stands for any ending).
_SIGNATURES: tuple[tuple[frozenset[str], frozenset[str]], ...] = (
    (frozenset({"x-amz-signature"}), frozenset({"x-amz-*"})),
    (frozenset({"x-goog-signature"}), frozenset({"x-goog-*"})),
    (
        frozenset({"awsaccesskeyid", "signature"}),
        frozenset({"awsaccesskeyid", "signature", "expires", "x-amz-security-token"}),
    ),
    (frozenset({"googleaccessid", "signature"}), frozenset({"googleaccessid", "signature", "expires"})),
    (
        frozenset({"key-pair-id", "signature"}),
        frozenset({"key-pair-id", "signature", "expires", "policy"}),
    ),
    # Azure's shared access signatures: https://learn.microsoft.com/rest/api/storageservices/
    (
        frozenset({"sig", "sv"}),
        frozenset({"sig", "sv", "se", "st", "sp", "sr", "sip", "spr", "si", "ss", "srt", "ses", "sdd"})
        | {"skoid", "sktid", "skt", "ske", "sks", "skv", "saoid", "suoid", "scid"},
    ),
)

# Where an object store finds its endpoint, and Azure its account, when no option names it.
_ENDPOINTS = {
    "s3": (
        ("endpoint", "endpoint_url", "endpoint_url_s3"),
        ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    ),
    "gs": (("endpoint", "base_url"), ("GOOGLE_BASE_URL",)),
    "az": (("endpoint",), ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")),
}
_ACCOUNTS = (("account_name",), ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"))
_PREFIXES = {"s3": ("aws_",), "gs": ("google_",), "az": ("azure_storage_", "azure_")}


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
        environ: Where an object store looks when the options name no endpoint.
    """
    scheme = scheme_of(url)
    if scheme in _DEFAULT_PORTS:
        return _identity_on_web(url)
    bucket_and_key = url.partition("://")[2]
    if scheme not in _ENDPOINTS:
        return Identity(scheme, bucket_and_key)
    endpoint = _setting(scheme, *_ENDPOINTS[scheme], options, environ).rstrip("/")
    if scheme == "az":  # containers belong to an account
        endpoint += "#" + _setting(scheme, *_ACCOUNTS, options, environ)
    return Identity(f"{scheme}+{endpoint}", bucket_and_key)


def _identity_on_web(url: str) -> Identity:
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    port = parts.port or _DEFAULT_PORTS[scheme]
    # Servers may show each user other objects; the password is not who they are.
    user = parts.netloc.rpartition("@")[0].partition(":")[0]
    query = _without_signature(parts.query)
    return Identity(f"{scheme}://{user}@{parts.hostname}:{port}", f"{parts.path or '/'}?{query}")


def _without_signature(query: str) -> str:
    """``query`` in its order, but for the parameters of a signature."""
    parameters = [parameter for parameter in query.split("&") if parameter]
    names = {_name(parameter) for parameter in parameters}
    signing = frozenset[str]().union(*(all_of for signs, all_of in _SIGNATURES if signs <= names))
    return "&".join(parameter for parameter in parameters if not _is_in(_name(parameter), signing))


def _name(parameter: str) -> str:
    return parameter.partition("=")[0].lower()


def _is_in(name: str, patterns: frozenset[str]) -> bool:
    return name in patterns or any(p.endswith("*") and name.startswith(p[:-1]) for p in patterns)


def _setting(
    scheme: str,
    names: tuple[str, ...],
    variables: tuple[str, ...],
    options: Mapping[str, Any],
    environ: Mapping[str, str],
) -> str:
    for name, value in options.items():
        plain = name.lower()
        for prefix in _PREFIXES[scheme]:
            plain = plain.removeprefix(prefix)
        if plain in names:
            return str(value)
    return next((environ[variable] for variable in variables if environ.get(variable)), "")


def _digest(*parts: str) -> str:
    # Each with its length: joined by any mark alone, ("a", "b/c") could be ("a/b", "c").
    joined = b"".join(b"%d:" % len(part) + part for part in (part.encode() for part in parts))
    return hashlib.sha256(joined).hexdigest()
