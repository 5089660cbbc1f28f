"""The Hugging Face hub as a backend; its client is imported where a store is opened."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from .store import NetworkPolicy, Store
from .urls import is_server_url, redact, split_key

# What ``hf://`` URLs, the hub's options and its listings mean; no request is made here.
#
# ``hf://datasets/OWNER/NAME[@REVISION]/path`` is a file of a data set on the Hugging Face hub.

HUB_OPTIONS = frozenset({"endpoint", "token"})

_OFFICIAL = "https://huggingface.co"

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
# The hub's own refs are the only revisions with slashes that may be written as they are.
_REVISION = r"refs/convert/[^/@]+|refs/pr/[0-9]+|[^/@]+"
_URL = re.compile(rf"hf://datasets/({_NAME}/{_NAME})(?:@({_REVISION}))?(?:/(.*))?", re.IGNORECASE | re.DOTALL)

_LINK = re.compile(r'<([^>]*)>\s*;[^,<]*\brel="?next\b', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class HubPath:
    """What an ``hf://`` URL names.

    Attributes:
        dataset: ``OWNER/NAME``.
        revision: A branch, tag or commit.
        path: Of a file or folder; empty for all of the data set.
    """

    dataset: str
    revision: str
    path: str

    def file_url(self, endpoint: str) -> str:
        """Where the file's bytes are."""
        revision, path = quote(self.revision, safe=""), quote(self.path)
        return f"{endpoint}/datasets/{self.dataset}/resolve/{revision}/{path}"

    def tree_url(self, endpoint: str) -> str:
        """Where the first page of the folder's listing is."""
        revision, folder = quote(self.revision, safe=""), quote(self.path.strip("/"))
        tree = f"{endpoint}/api/datasets/{self.dataset}/tree/{revision}/{folder}"
        return f"{tree.rstrip('/')}?recursive=true"


@dataclass(frozen=True, slots=True)
class Hub:
    """A hub, and the account to read it with.

    Attributes:
        endpoint: Its URL, without a slash at the end.
        token: None to read what is public.
    """

    endpoint: str
    token: str | None = field(default=None, repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """Those for the hub's own origin."""
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}


def parse_hub_url(url: str) -> HubPath:
    """The parts of ``hf://datasets/OWNER/NAME[@REVISION]/path``.

    The path is taken as written; a revision may have its slashes escaped as ``%2F``.

    Raises:
        ValueError: Another form, such as of a model, or a path with an empty, ``.`` or ``..`` segment.
    """
    match = _URL.fullmatch(url)
    if match is None:
        raise ValueError(
            "a shard on the Hugging Face hub should be named hf://datasets/OWNER/NAME[@REVISION]/path "
            f"(only data sets are read), but got {redact(url)!r}"
        )
    dataset, revision, path = match.groups()
    path = path or ""
    if any(segment in ("", ".", "..") for segment in path.rstrip("/").split("/")) and path:
        raise ValueError(f"a path should have no empty, '.' or '..' segment, but got {redact(url)!r}")
    return HubPath(dataset, unquote(revision or "main"), path)


def check_hub_options(options: Mapping[str, Any]) -> None:
    """Refuse options that the hub does not have; no message shows a value.

    Raises:
        ValueError: An unknown name, an endpoint that is no http(s) URL, or a token that cannot be one.
        TypeError: A value that is no string.
    """
    for name, value in options.items():
        if name not in HUB_OPTIONS:
            raise ValueError(f"unknown option {name!r} for hf://; known are {', '.join(sorted(HUB_OPTIONS))}")
        if not isinstance(value, str):
            raise TypeError(f"option {name!r} should be a string, not {type(value).__name__}")
    _check_endpoint(options.get("endpoint", _OFFICIAL), "option 'endpoint'")
    _check_token(options.get("token", "-"), "option 'token'")


def hub_of(options: Mapping[str, Any], environ: Mapping[str, str]) -> Hub:
    """The hub that options and environment name, as the hub's own client finds it.

    A token is looked for in the option, ``HF_TOKEN``, the file ``HF_TOKEN_PATH``, and the file ``token``
    in ``HF_HOME`` (by default ``~/.cache/huggingface``), which this reads.

    Raises:
        ValueError: As ``check_hub_options``, also for what the environment gives.
    """
    check_hub_options(options)
    endpoint = options.get("endpoint") or environ.get("HF_ENDPOINT") or _OFFICIAL
    _check_endpoint(endpoint, "HF_ENDPOINT")
    token = options.get("token") or environ.get("HF_TOKEN", "").strip() or _token_in_file(environ)
    if token is not None:
        _check_token(token, "the Hugging Face token of the environment")
    return Hub(endpoint.rstrip("/"), token)


def _token_in_file(environ: Mapping[str, str]) -> str | None:
    home = environ.get("HF_HOME") or os.path.join(
        environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache"), "huggingface"
    )
    path = environ.get("HF_TOKEN_PATH") or os.path.join(home, "token")
    try:
        return Path(path).expanduser().read_text().strip() or None
    except (OSError, RuntimeError, UnicodeDecodeError):  # not logged in; RuntimeError: no home
        return None


def _check_endpoint(endpoint: str, name: str) -> None:
    if not is_server_url(endpoint) or {"@", "?", "#"} & {*endpoint}:
        raise ValueError(f"{name} should be an http(s) URL without user info and query, and is none")


def _check_token(token: str, name: str) -> None:
    if not re.fullmatch(r"[!-~]+", token):
        raise ValueError(f"{name} should be a token of visible ASCII characters, and is none")


def parse_tree(entries: Any) -> list[tuple[str, int]]:
    """Paths and sizes of the files in one decoded page of a listing.

    Raises:
        ValueError: It is no such page.
    """
    if not isinstance(entries, list):
        raise ValueError("expected a JSON array")
    files = []
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("type"), str):
            raise ValueError("expected objects with a type")
        if entry["type"] != "file":
            continue
        path, size = entry.get("path"), entry.get("size")
        if not isinstance(path, str) or not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise ValueError("expected files with a path and a size")
        files.append((path, size))
    return files


def next_page(link: str | None) -> str | None:
    """The target of ``rel="next"`` in a ``Link`` header (RFC 8288)."""
    match = _LINK.search(link or "")
    return match[1] if match else None


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
    from .hub_client import HubStore

    return HubStore.open(hub_of(options, os.environ), connect_s=network.connect_s)


async def list_pages(
    root: str, folder: str, options: Mapping[str, Any], network: NetworkPolicy, after: str | None = None
) -> AsyncGenerator[list[tuple[str, int]], None]:
    """All files of the folder in one page; see ``router.ListedBackend``."""
    from .hub_client import list_hub

    found = await list_hub(root + folder, options, network=network)
    if found:
        yield [(split_key(url)[1], size) for url, size in found]
