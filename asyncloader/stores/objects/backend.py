"""Object stores as ``backends`` has them; the client is imported where a store is opened."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from ..policy import NetworkPolicy
from ..store import Store
from ..urls import scheme_of
from .clouds import CLOUDS
from .options import check_options, plain_options

__all__ = ["ONE_CLIENT", "OPTIONS_APART", "check_options", "locate", "open_store"]

OPTIONS_APART: frozenset[str] = frozenset()
ONE_CLIENT = False


def locate(url: str, options: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[str, str]:
    """The endpoint with what else says which server it is, and the bucket with the key."""
    scheme = scheme_of(url).name
    cloud, plain = CLOUDS[scheme], plain_options(scheme, options)
    settings = [_setting(plain, environ, *places).rstrip("/") for places in cloud.servers]
    if cloud.endpoint_is_all and settings[0]:
        settings = settings[:1]
    return "\n".join([scheme, *settings]), url.partition("://")[2]


def open_store(
    scheme: str, place: str, options: Mapping[str, Any], network: NetworkPolicy
) -> AbstractAsyncContextManager[Store]:
    """A store of one bucket."""
    from .store import ObjectStore

    return nullcontext(ObjectStore(scheme, place, options))


def _setting(
    options: Mapping[str, Any], environ: Mapping[str, str], names: tuple[str, ...], variables: tuple[str, ...]
) -> str:
    given = next((str(options[name]) for name in names if options.get(name)), "")
    return given or next((environ[variable] for variable in variables if environ.get(variable)), "")
