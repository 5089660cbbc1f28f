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

from ...stores.objects.options import ENDPOINT_VARIABLES, plain_options
from ...stores.urls import scheme_of

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

# What says on which server a bucket is: options by their plain names, and the variables that count where no
# option is given.
_SERVERS: Mapping[str, tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]] = {
    # A profile may have an endpoint of its own.
    "s3": ((("endpoint",), ENDPOINT_VARIABLES["s3"]), (("profile",), ("AWS_PROFILE",))),
    "gs": ((("endpoint", "base_url"), ENDPOINT_VARIABLES["gs"]),),
    "az": (
        (("endpoint",), ENDPOINT_VARIABLES["az"]),
        (("account_name",), ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")),
        (("use_emulator",), ("AZURE_STORAGE_USE_EMULATOR",)),
    ),
    "hf": ((("endpoint",), ("HF_ENDPOINT",)),),
}


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
    scheme = scheme_of(url)
    if scheme in _DEFAULT_PORTS:
        return _identity_on_web(url)
    plain = options if scheme == "hf" else plain_options(scheme, options)
    settings = [_setting(plain, environ, *places).rstrip("/") for places in _SERVERS[scheme]]
    if scheme == "s3" and settings[0]:
        settings = settings[:1]  # the profile's own does not count then
    return Identity("\n".join([scheme, *settings]), url.partition("://")[2])


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
    options: Mapping[str, Any], environ: Mapping[str, str], names: tuple[str, ...], variables: tuple[str, ...]
) -> str:
    given = next((str(options[name]) for name in names if options.get(name)), "")
    return given or next((environ[variable] for variable in variables if environ.get(variable)), "")


def _digest(*parts: str) -> str:
    # Each with its length: joined by any mark alone, ("a", "b/c") could be ("a/b", "c").
    joined = b"".join(b"%d:" % len(part) + part for part in (part.encode() for part in parts))
    return hashlib.sha256(joined).hexdigest()
