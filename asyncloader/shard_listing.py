"""What shards there are: each with its length, as far as listings tell or their stores are asked."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from ._flow.channel import Channel
from ._flow.engine import Engine, Scope
from .errors import StoreError
from .formats import check_format, compression_named, format_of, may_be_empty
from .shard_search import find_shards
from .statistics import NetworkCounts
from .stores.access import Access
from .stores.router import Stores
from .stores.urls import redact, suffix_path

__all__ = ["ListedShard", "ShardList", "open_lengths", "open_shard_list"]

# Requests at a time. Each takes a round trip and next to no bytes; stores take thousands of them a second.
_AT_ONCE = 32


@dataclass(frozen=True)
class ListedShard:
    """A shard.

    Attributes:
        url: Its URL or path, without query and user info.
        format: By its suffix, or as was said; None if neither tells.
        size_bytes: Its length; None if the store does not tell, or it cannot be had.
        error: Why it cannot be had or read: it is not there, or has no byte where its format wants some; else
            None.
    """

    url: str
    format: str | None
    size_bytes: int | None
    error: str | None


@dataclass
class ShardList:
    """Shards that are being looked at; see ``open_shard_list``.

    Attributes:
        count: How many there are.
        shards: Each of them, in order, as it becomes known; to be iterated once.
    """

    count: int
    shards: Iterator[ListedShard]


@contextmanager
def open_shard_list(
    urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    format: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[ShardList]:
    """Find shards and their lengths. What a listing has told is not asked for again.

    Args:
        urls: Shards, as ``from_urls`` takes them; a shard that is named may be of an unknown format.
        format: Of all of them; None to go by the suffixes.
        storage_options: As of ``from_urls``.

    Raises:
        TypeError: ``urls`` holds something else than strings and paths.
        ValueError: No shard, or names that do not fit.
        StoreError: A server cannot be asked for a listing. That a shard cannot be had is told with it.
    """
    if format is not None:
        check_format(format)
    options = dict(storage_options or {})
    found = find_shards(urls, format, options)
    told = {shard.url: shard.size for listing in found.listings for shard in listing.shards}
    formats = (format or _format_of(url) for url in found.names)
    with open_lengths(found.names, formats, Access(options), told) as listed:
        yield listed


@contextmanager
def open_lengths(
    urls: Sequence[str], formats: Iterable[str | None], access: Access, told: Mapping[str, int] | None = None
) -> Iterator[ShardList]:
    """Find the lengths of shards.

    Args:
        urls: In order.
        formats: Of each; None where it is not known.
        access: How they are reached.
        told: Lengths that are known already, by URL.
    """
    untold = [url for url in urls if url not in told] if told else urls
    with Engine() as engine:
        stores = Stores(engine.resources, access, NetworkCounts())
        lengths = Channel[int | str | None](_AT_ONCE)
        engine.submit(partial(_ask_lengths, stores, untold, lengths), lengths)
        with closing(lengths):
            yield ShardList(len(urls), _each(urls, formats, told or {}, lengths))


def _each(
    urls: Iterable[str],
    formats: Iterable[str | None],
    told: Mapping[str, int],
    lengths: Channel[int | str | None],
) -> Iterator[ListedShard]:
    for url, format in zip(urls, formats, strict=True):
        length = told[url] if url in told else lengths.receive()
        error = length if isinstance(length, str) else None
        if length == 0 and format is not None and not may_be_empty(format, suffix_path(url)):
            error = f"it has 0 bytes, which is no whole {compression_named(suffix_path(url)) or format}"
        yield ListedShard(redact(url), format, None if isinstance(length, str) else length, error)


async def _ask_lengths(stores: Stores, urls: Sequence[str], lengths: Channel[int | str | None]) -> None:
    """The length of each shard in order, or why it cannot be had."""
    for first in range(0, len(urls), _AT_ONCE):
        answers: dict[int, int | str | None] = {}
        async with Scope() as scope:
            for number in range(first, min(first + _AT_ONCE, len(urls))):
                scope.start(partial(_ask_length, stores, urls[number], number, answers))
        for number in sorted(answers):
            await lengths.send_async(answers[number])


async def _ask_length(stores: Stores, url: str, number: int, answers: dict[int, int | str | None]) -> None:
    try:
        store = await stores.of(url)
        # One byte of it: some servers and signatures know GET alone.
        async with store.read(url, 0, 1) as body:
            answers[number] = body.total
    except StoreError as error:
        answers[number] = str(error.args[0])


def _format_of(url: str) -> str | None:
    try:
        return format_of(suffix_path(url))
    except ValueError:
        return None
