"""Data sets of the Hugging Face hub, over HTTPS; see ``urls`` for their names.

The hub redirects to a content network with a URL signed for a while; each read begins at the hub again,
so that none expires. The token goes to the hub's own origin, never to where it redirects.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from ..errors import StoreError
from .failures import TransientError
from .http.client import HttpStore
from .hub import Hub, hub_of, next_page, parse_hub_url, parse_tree
from .store import Body, NetworkPolicy, Store, read_as
from .urls import redact

# A page names 1,000 files; together they name more than any data set has.
_MOST_PAGES = 10_000
_MOST_PAGE_BYTES = 64 << 20


class HubStore:
    """Files of the hub's data sets.

    Args:
        inner: An ``HttpStore`` that sends the hub's headers to a shard's own origin.
        hub: Which one.
    """

    def __init__(self, inner: Store, hub: Hub) -> None:
        self._inner = inner
        self._hub = hub

    @classmethod
    @asynccontextmanager
    async def open(cls, hub: Hub, *, connect_s: float = NetworkPolicy().connect_s) -> AsyncIterator[HubStore]:
        """A store with clients of its own, to be used in this process and loop only."""
        async with HttpStore.open(connect_s=connect_s, headers=hub.headers) as inner:
            yield cls(inner, hub)

    def read(
        self, url: str, start: int, stop: int, *, etag: str | None = None
    ) -> AbstractAsyncContextManager[Body]:
        target = parse_hub_url(url).file_url(self._hub.endpoint)
        return read_as(self._inner, target, url, start, stop, etag=etag)


async def list_hub(
    url: str, options: Mapping[str, Any], *, network: NetworkPolicy | None = None
) -> list[tuple[str, int]]:
    """Every file below a folder of a data set: ``hf://`` URLs in order of their paths, and sizes in bytes.

    Args:
        url: ``hf://datasets/OWNER/NAME[@REVISION][/folder]``.
        options: Of the hub; see ``hub_of``.
        network: Time-outs, of each page.

    Raises:
        ValueError: A URL or options that cannot be.
        TransientError: The listing was unavailable this time.
        StoreError: There is no such folder, it may not be read, or the answer is no listing.
    """
    network = NetworkPolicy() if network is None else network
    place, hub = parse_hub_url(url), hub_of(options, os.environ)
    base = f"{url[: len(url) - len(place.path)].rstrip('/')}/"
    found: list[tuple[str, int]] = []
    page: str | None = place.tree_url(hub.endpoint)
    async with HttpStore.open(connect_s=network.connect_s, headers=hub.headers) as store:
        for _ in range(_MOST_PAGES):
            if page is None:
                return sorted((f"{base}{path}", size) for path, size in found)
            files, page = await _page(store, page, url, network.answer_s)
            found += files
    raise StoreError(f"the hub's listing has more than {_MOST_PAGES} pages", shard=redact(url))


async def _page(
    store: HttpStore, page: str, url: str, patience_s: float
) -> tuple[list[tuple[str, int]], str | None]:
    """The files of one page, and the next one."""
    try:
        async with asyncio.timeout(patience_s):
            headers, content = await store.fetch(page, _MOST_PAGE_BYTES)
        files = parse_tree(json.loads(content))
    except StoreError as error:
        error.shard = redact(url)
        raise
    except TimeoutError:
        raise TransientError(f"no listing came within {patience_s:g} s", shard=redact(url)) from None
    except ValueError as error:
        raise StoreError(f"the hub's answer is no listing: {_reason(error)}", shard=redact(url)) from None
    following = next_page(headers.get("Link"))
    # Only its query is used, on the URL of this request: a mirror passes on links to the hub that it mirrors,
    # and the token is for the mirror alone.
    return files, following and f"{page.partition('?')[0]}?{urlsplit(following).query}"


def _reason(error: ValueError) -> str:
    return "it is not JSON" if isinstance(error, json.JSONDecodeError | UnicodeDecodeError) else str(error)


# Which configurations and splits a data set of the hub has in Parquet, by the names of its files. Pure.

#: The branch in which the hub keeps its own conversion of a data set: ``CONFIG/SPLIT/0000.parquet``.
CONVERTED = "refs/convert/parquet"

_SUFFIX = ".parquet"
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
    for path in sorted(path for path in paths if path.endswith(_SUFFIX)):
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
    stem = name.removesuffix(_SUFFIX)
    if _ONLY_NUMBER.fullmatch(stem):
        split = folders.pop() if folders and folders[-1] != "data" else _TRAIN
    else:
        split = _NUMBERED.sub("", stem)
    return "/".join(folder for folder in folders if folder != "data") or _DEFAULT, split


def _counted(paths: tuple[str, ...]) -> str:
    return f"{len(paths)} file{'s' * (len(paths) != 1)}"
