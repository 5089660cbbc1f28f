"""The hub as ``backends`` has it; the client is imported where a store is opened."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from ..policy import NetworkPolicy
from ..store import Store
from .urls import check_hub_options, hub_of

__all__ = ["ONE_CLIENT", "OPTIONS_APART", "check_options", "locate", "open_store"]

OPTIONS_APART: frozenset[str] = frozenset()
ONE_CLIENT = True


def check_options(scheme: str, options: Mapping[str, Any]) -> None:
    """As ``check_hub_options``."""
    check_hub_options(options)


def locate(url: str, options: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[str, str]:
    """Which hub, and the URL without its scheme."""
    scheme, _, key = url.partition("://")
    endpoint = str(options.get("endpoint") or environ.get("HF_ENDPOINT") or "")
    return f"{scheme.lower()}\n{endpoint.rstrip('/')}", key


def open_store(
    scheme: str, place: str, options: Mapping[str, Any], network: NetworkPolicy
) -> AbstractAsyncContextManager[Store]:
    """A store of the whole hub."""
    from .client import HubStore

    return HubStore.open(hub_of(options, os.environ), connect_s=network.connect_s)
