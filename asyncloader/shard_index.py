"""Folders of shards with the ``index.json`` of another library: fetched, and the names in it made URLs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from .errors import FormatError, StoreError
from .stores.expanding import expand_home
from .stores.listing.asking import look
from .stores.names import ShardNames
from .stores.options import check_storage_options
from .stores.policy import NetworkPolicy
from .stores.urls import check_web_url, local_path, redact, scheme_of

__all__ = ["fetch_index", "folder_of", "names_below"]

INDEX_NAME = "index.json"

# As of what is fetched from servers: some hundred bytes a shard, of a million of them.
_MOST_BYTES = 256 << 20


def fetch_index(root: str, options: Mapping[str, Any], network: NetworkPolicy | None) -> bytes:
    """The index of a folder. Blocks; of a server it is asked for in a process of its own.

    Args:
        root: URL or path of the folder, without ``~``.
        options: Storage options.
        network: Time-outs and attempts.

    Raises:
        ValueError: A URL that no store knows, or options that do not fit.
        StoreError: It is not there, or cannot be had.
        FormatError: It is too long.
    """
    scheme = scheme_of(root)
    check_storage_options({scheme}, options)
    if scheme.is_web:
        check_web_url(root)
    (url,) = names_below(root, [INDEX_NAME])
    if not scheme.is_local:
        return look((), options, _no_shard, network=network, fetch=[url]).fetched[0]
    try:
        with open(local_path(url), "rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise StoreError(
            f"the folder has no {INDEX_NAME} that can be read: {error.strerror}", shard=url
        ) from error
    if len(content) > _MOST_BYTES:
        raise FormatError(f"{INDEX_NAME}: longer than {_MOST_BYTES} bytes", shard=redact(url))
    return content


def _no_shard(url: str) -> bool:
    return False


def names_below(root: str, names: Iterable[str]) -> ShardNames:
    """The URLs or paths of files below a folder.

    Args:
        root: URL or path of the folder; a query of a web server's, such as a signature of all that is below,
            goes
            with each of them.
        names: Relative to it, one at least, with ``/`` between folders.
    """
    scheme = scheme_of(root)
    before, mark, query = root.partition("?") if scheme.is_web else (root, "", "")
    before = before if before.endswith("/") else f"{before}/"
    # Where paths know escapes, what is in a name is no escape.
    is_escaped = scheme.is_web or (scheme.is_local and "://" in root)
    paths = (quote(name, safe="/:=+,@!$&'()*;~") for name in names) if is_escaped else names
    return ShardNames([tuple(f"{before}{path}{mark}{query}" for path in paths)])


def folder_of(root: str | os.PathLike[str]) -> str:
    """The folder that the user names, ``~`` expanded.

    Raises:
        TypeError: It is no string and no path.
        ValueError: It is empty.
    """
    if not isinstance(root, str | os.PathLike) or not isinstance(os.fspath(root), str):
        raise TypeError(f"root should be the URL or path of a folder, but got {type(root).__name__}")
    if not (name := os.fspath(root)):
        raise ValueError("root should be the URL or path of a folder, but got an empty one")
    return expand_home(name)
