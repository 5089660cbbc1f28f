"""Object stores as a backend; the client is imported where a store is opened."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from difflib import get_close_matches
from typing import Any

from ..store import NetworkPolicy, Store, pem_of
from ..urls import is_server_url, scheme_of
from .clouds import CLOUDS, setting_of

# The options of object stores, checked and turned into what obstore takes; pure.
#
# obstore refuses unknown names only when the client is made, in a worker and late. Here the names are a
# table, so that a mistake is found where the options are given.

_COMMON = frozenset({"credential_provider", "endpoint"})
_COMMON_FLAGS = frozenset({"anonymous", "skip_signature"})

# Of obstore's ClientConfig. Not among them: switching certificate checks off. A private authority goes
# into ``root_certificate``; a plain http:// endpoint needs no option. Nor its time-outs: they are set once,
# by the NetworkPolicy.
_CLIENT_NAMES = frozenset({"proxy_ca_certificate", "proxy_excludes", "proxy_url", "root_certificate"})

# Superseded where a provider signs.
_KEYS = ("access_key_id", "secret_access_key", "session_token")

# Of AWS's, and of the options of web servers.
_OTHER_NAMES = {"endpoint_url": "endpoint", "endpoint_url_s3": "endpoint", "proxy": "proxy_url"}

# obstore has no word for never.
_CLIENT_DEFAULTS = {name: "365 days" for name in ("connect_timeout", "read_timeout", "timeout")}


def known_options(scheme: str) -> frozenset[str]:
    """The names of all options, without prefixes."""
    cloud = CLOUDS[scheme]
    return _COMMON | _COMMON_FLAGS | cloud.options | cloud.flags | cloud.identities | _CLIENT_NAMES


def check_options(scheme: str, options: Mapping[str, Any]) -> None:
    """Refuse options that the stores of ``scheme`` do not have.

    Raises:
        ValueError: An unknown name, credentials of two kinds or half of one, or an endpoint that is no URL
            of a server. No message shows a value.
        TypeError: A value of a wrong type.
    """
    known = known_options(scheme)
    for name, value in options.items():
        if not isinstance(name, str):
            raise TypeError(f"names of options should be strings, not {type(name).__name__}")
        plain_name = _plain_name(scheme, name)
        if plain_name not in known:
            close = get_close_matches(plain_name, sorted(known), 1)
            meant = f", did you mean {close[0]!r}?" if close else ";"
            raise ValueError(
                f"unknown option {name!r} for {scheme}://{meant} known are {', '.join(sorted(known))}"
            )
        _check_type(scheme, name, plain_name, value)
    plain = plain_options(scheme, options)
    identities = CLOUDS[scheme].identities | _COMMON_FLAGS | {"credential_provider"}
    given = sorted(name for name in identities if plain.get(name, False) is not False)
    if len(given) > 1:
        raise ValueError(f"options should name one kind of credentials, but got {' and '.join(given)}")
    halves = [name for name in ("access_key_id", "secret_access_key") if name in plain]
    if len(halves) == 1:
        raise ValueError(f"access_key_id and secret_access_key go together, but only {halves[0]} was given")
    for name in ("endpoint", "base_url"):
        if name in plain:
            _check_endpoint(plain[name])


def _check_type(scheme: str, name: str, plain_name: str, value: object) -> None:
    kind = type(value).__name__
    if plain_name == "credential_provider":
        if not callable(value):
            raise TypeError(f"credential_provider should be callable, not {kind}")
    elif plain_name in CLOUDS[scheme].flags | _COMMON_FLAGS:
        # No text: obstore takes "yes" for true, and fails at other words when it reads.
        if not isinstance(value, bool):
            raise TypeError(f"option {name!r} should be True or False, not {kind}")
    elif not isinstance(value, str):
        raise TypeError(f"option {name!r} should be a string, not {kind}")


def plain_options(scheme: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without the prefixes that obstore and the environment know them by."""
    return {_plain_name(scheme, name): value for name, value in options.items()}


def client_arguments(
    scheme: str, options: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The ``config`` and ``client_options`` of an obstore client; a credential provider is passed separately.

    Args:
        scheme: ``s3``, ``gs`` or ``az``.
        options: Checked ones; obstore takes the others from the environment.
        environ: Only read to find an ``http://`` endpoint.

    Raises:
        ValueError: An endpoint that is no URL of a server.
    """
    cloud = CLOUDS[scheme]
    config: dict[str, Any] = {}
    client: dict[str, Any] = dict(_CLIENT_DEFAULTS)
    superseded = _KEYS if "credential_provider" in options else ()
    for name, value in plain_options(scheme, options).items():
        if name in ("credential_provider", "profile", *superseded):
            continue
        if name == "root_certificate":
            client[name] = pem_of(value)
        elif name in _CLIENT_NAMES:
            # Without a proxy it uses those of the environment.
            if (name, value) != ("proxy_url", "environment"):
                client[name] = value
        elif name == "anonymous":
            config["skip_signature"] = value
        elif name in ("endpoint", "base_url"):
            config[cloud.endpoint_option] = value
        else:
            config[name] = value
    given = config.get(cloud.endpoint_option)
    endpoints = [given] if given else [environ.get(name, "") for name in cloud.endpoint_variables]
    for endpoint in filter(None, endpoints):
        _check_endpoint(endpoint)
    client["allow_http"] = any(endpoint.lower().startswith("http://") for endpoint in endpoints)
    return config, client


def _check_endpoint(endpoint: str) -> None:
    """Refuse what would make obstore's client panic, in another thread and with a stack trace."""
    if not is_server_url(endpoint):  # it is not shown, as it may hold anything
        raise ValueError("endpoint should be http://host[:port] or https://host[:port], and is neither")


def _plain_name(scheme: str, name: str) -> str:
    """``name`` without the prefix that obstore and the environment know it by."""
    plain = name.lower()
    for prefix in CLOUDS[scheme].prefixes:
        plain = plain.removeprefix(prefix)
    return _OTHER_NAMES.get(plain, plain)


def locate(url: str, options: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[str, str]:
    """The endpoint with the other settings that identify the server, and the bucket with the key."""
    scheme = scheme_of(url).name
    cloud, plain = CLOUDS[scheme], plain_options(scheme, options)
    settings = [setting_of(plain, environ, *places).rstrip("/") for places in cloud.servers]
    if cloud.has_profiles and settings[0]:
        settings = settings[:1]
    return "\n".join([scheme, *settings]), url.partition("://")[2]


def open_store(
    scheme: str, place: str, options: Mapping[str, Any], network: NetworkPolicy
) -> AbstractAsyncContextManager[Store]:
    """A store of one bucket."""
    from .store import ObjectStore

    return nullcontext(ObjectStore(scheme, place, options))


def list_pages(
    root: str, folder: str, options: Mapping[str, Any], network: NetworkPolicy, after: str | None = None
) -> AsyncGenerator[list[tuple[str, int]], None]:
    """Some thousand keys at a time; see ``router.ListedBackend``."""
    from .store import ObjectStore

    scheme, _, bucket = root.rstrip("/").partition("://")
    return ObjectStore(scheme.lower(), bucket, options).pages(folder, network, after)
