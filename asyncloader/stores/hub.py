"""Data sets of the Hugging Face hub as a backend: ``hf://datasets/OWNER/NAME[@REVISION]/path`` over HTTPS.

The hub redirects to a content network with a URL signed for a while; each read begins at the hub again,
so that none expires. The token goes to the hub's own origin, never to where it redirects. The client is
imported where a store is opened.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, unquote, urlsplit

import msgspec

from ..errors import StoreError
from .failures import TransientError
from .store import NetworkPolicy, Store
from .urls import is_server_url, redact, split_key

if TYPE_CHECKING:
    from .http.client import HttpStore

HUB_OPTIONS = frozenset({"endpoint", "token"})

_OFFICIAL = "https://huggingface.co"

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
# The hub's own refs are the only revisions with slashes that may be written as they are.
_REVISION = r"refs/convert/[^/@]+|refs/pr/[0-9]+|[^/@]+"
_URL = re.compile(rf"hf://datasets/({_NAME}/{_NAME})(?:@({_REVISION}))?(?:/(.*))?", re.IGNORECASE | re.DOTALL)

# A page names 1,000 files; together they name more than any data set has.
_MOST_PAGES = 10_000
_MOST_PAGE_BYTES = 64 << 20

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


def check_options(scheme: str, options: Mapping[str, Any]) -> None:
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
        ValueError: As ``check_options``, for what the environment gives.
    """
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


class _TreeEntry(msgspec.Struct):
    type: str
    path: str | None = None
    size: Annotated[int, msgspec.Meta(ge=0)] | None = None


def parse_tree(content: bytes) -> list[tuple[str, int]]:
    """Paths and sizes of the files in one page of a listing.

    Raises:
        ValueError: It is no such page.
    """
    try:
        entries = msgspec.json.decode(content, type=list[_TreeEntry])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ValueError(f"expected a list of files in JSON: {error}") from None
    files = [(entry.path, entry.size) for entry in entries if entry.type == "file"]
    found = [(path, size) for path, size in files if path is not None and size is not None]
    if len(found) < len(files):
        raise ValueError("expected files with a path and a size")
    return found


def next_page(link: str | None) -> str | None:
    """The target of ``rel="next"`` in a ``Link`` header (RFC 8288)."""
    match = _LINK.search(link or "")
    return match[1] if match else None


def locate(url: str, options: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[str, str]:
    """Which hub, and the URL without its scheme."""
    scheme, _, key = url.partition("://")
    endpoint = str(options.get("endpoint") or environ.get("HF_ENDPOINT") or "")
    return f"{scheme.lower()}\n{endpoint.rstrip('/')}", key


def open_store(
    scheme: str, place: str, options: Mapping[str, Any], network: NetworkPolicy
) -> AbstractAsyncContextManager[Store]:
    """A store of the whole hub."""
    from .http.client import HttpStore

    hub = hub_of(options, os.environ)
    return HttpStore.open(
        connect_s=network.connect_s,
        headers=hub.headers,
        target_of=lambda url: parse_hub_url(url).file_url(hub.endpoint),
    )


async def list_pages(
    root: str, folder: str, options: Mapping[str, Any], network: NetworkPolicy, after: str | None = None
) -> AsyncGenerator[list[tuple[str, int]], None]:
    """All files of the folder in one page; see ``router.ListedBackend``."""
    from .http.client import HttpStore

    url = root + folder
    place, hub = parse_hub_url(url), hub_of(options, os.environ)
    base = split_key(url[: len(url) - len(place.path)].rstrip("/"))[1]
    found: list[tuple[str, int]] = []
    page: str | None = place.tree_url(hub.endpoint)
    async with HttpStore.open(connect_s=network.connect_s, headers=hub.headers) as store:
        for _ in range(_MOST_PAGES):
            if page is None:
                break
            files, page = await _page(store, page, url, network.answer_s)
            found += files
    if page is not None:
        raise StoreError(f"the hub's listing has more than {_MOST_PAGES} pages", shard=redact(url))
    if found:
        yield sorted((f"{base}/{path}", size) for path, size in found)


async def _page(
    store: HttpStore, page: str, url: str, patience_s: float
) -> tuple[list[tuple[str, int]], str | None]:
    """The files of one page, and the next one."""
    try:
        async with asyncio.timeout(patience_s):
            headers, content = await store.fetch(page, _MOST_PAGE_BYTES)
        files = parse_tree(content)
    except StoreError as error:
        error.shard = redact(url)
        raise
    except TimeoutError:
        raise TransientError(f"no listing came within {patience_s:g} s", shard=redact(url)) from None
    except ValueError as error:
        raise StoreError(f"the hub's answer is no listing: {error}", shard=redact(url)) from None
    following = next_page(headers.get("Link"))
    # Only its query is used, on the URL of this request: a mirror passes on links to the hub that it mirrors,
    # and the token is for the mirror alone.
    return files, following and f"{page.partition('?')[0]}?{urlsplit(following).query}"


# Which configurations and splits a data set of the hub has in Parquet, by the names of its files. Pure.

#: The branch in which the hub keeps its own conversion of a data set: ``CONFIG/SPLIT/0000.parquet``.
CONVERTED = "refs/convert/parquet"

_PARQUET = ".parquet"
_DEFAULT, _TRAIN = "default", "train"

# The number of a file within its split: ``-00000-of-00003``, perhaps followed by a fingerprint.
_NUMBERED = re.compile(r"[-_.](?:part[-_.]?)?\d+(?:-of-\d+)?(?:-[0-9a-f]{6,})?$")
# A name that is only such a number.
_ONLY_NUMBER = re.compile(
    r"(?:part|shard|file|chunk)?(?:[-_.]?\d+)+(?:-of-\d+)?(?:-[0-9a-f-]{6,})?(?:\.\w+)*"
)

# How many a message lists.
_MOST_SHOWN = 20


@dataclass(frozen=True)
class Sets:
    """Files by configuration and split.

    Attributes:
        files: Paths in the data set, in their order.
    """

    files: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)

    def find(self, config: str | None, split: str) -> tuple[str, ...]:
        """The files of a split; none if it is not there.

        Args:
            config: None for the only configuration there is, or the one named ``default``.
            split: Its name.
        """
        return self.files.get(self.meant(config) or "", {}).get(split, ())

    def meant(self, config: str | None) -> str | None:
        """The configuration of this name, or the default one; None if it is ambiguous."""
        if config is not None:
            return config
        return (
            next(iter(self.files)) if len(self.files) == 1 else _DEFAULT if _DEFAULT in self.files else None
        )

    def describe(self) -> str:
        """The sets, for messages: ``'en': 'train' (4 files), 'test' (1 file)``."""
        shown = [
            f"{config!r}: " + ", ".join(f"{split!r} ({_counted(paths)})" for split, paths in splits.items())
            for config, splits in self.files.items()
        ]
        more = len(shown) - _MOST_SHOWN
        return "; ".join(shown[:_MOST_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def arrange(paths: Iterable[str], revision: str) -> Sets:
    """The configuration and split of each file, by its name.

    In the hub's own conversion the folders are configuration and split. In other revisions a file is named
    after its split (``train-00000-of-00003.parquet``, ``train.parquet``), or the folder that it is in is, if
    its name is a number; the folders above, but for ``data``, are its configuration, or there is none:
    ``default``.

    Args:
        paths: Of all files.
        revision: That they are of.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for path in sorted(path for path in paths if path.endswith(_PARQUET)):
        place = _converted(path) if revision == CONVERTED else _named(path)
        if place is not None:
            config, split = place
            found.setdefault(config, {}).setdefault(split, []).append(path)
    return Sets(
        {config: {split: tuple(files) for split, files in splits.items()} for config, splits in found.items()}
    )


def _converted(path: str) -> tuple[str, str] | None:
    *folders, _ = path.split("/")
    return ("/".join(folders[:-1]), folders[-1]) if len(folders) > 1 else None


def _named(path: str) -> tuple[str, str]:
    *folders, name = path.split("/")
    stem = name.removesuffix(_PARQUET)
    if _ONLY_NUMBER.fullmatch(stem):
        split = folders.pop() if folders and folders[-1] != "data" else _TRAIN
    else:
        split = _NUMBERED.sub("", stem)
    return "/".join(folder for folder in folders if folder != "data") or _DEFAULT, split


def _counted(paths: tuple[str, ...]) -> str:
    return f"{len(paths)} file{'s' * (len(paths) != 1)}"
