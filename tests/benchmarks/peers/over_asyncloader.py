"""asyncloader."""

from __future__ import annotations

import inspect
from typing import Any

# Which asyncloader imports with its first loop and request; the others have their clients before too.
import aiohttp  # noqa: F401
import uvloop  # noqa: F401

import asyncloader as al
from asyncloader import DataLoader, from_iterable, from_urls  # noqa: F401  # before the clock starts

from .given import BATCH, TINY_BATCH, Source, decode
from .items import items_of

__all__ = [
    *("images", "lines", "made", "many_shards", "map_style", "parquet", "singly", "tar", "tiny_lines"),
    "tiny_tar",
    "unindexed",
]


def tar(source: Source) -> Any:
    bodies = lambda samples: [sample["bin"] for sample in samples]  # noqa: E731
    return DataLoader(al.from_urls(source.urls), BATCH, num_workers=source.workers, collate_fn=bodies)


def unindexed(source: Source) -> Any:
    """As `tar`, without the request for an index beside the shards, which a far server answers late."""
    bodies = lambda samples: [sample["bin"] for sample in samples]  # noqa: E731
    named = "index" if "index" in inspect.signature(al.from_urls).parameters else "manifest"  # formerly
    dataset = al.from_urls(source.urls, **{named: None})
    return DataLoader(dataset, BATCH, num_workers=source.workers, collate_fn=bodies)


def singly(source: Source) -> Any:
    return DataLoader(al.from_urls(source.urls), None, num_workers=source.workers)


def made(source: Source) -> Any:
    """Tiny samples that a program makes."""
    samples = source.samples
    numbers = al.from_iterable(lambda turn: turn.split({"number": number} for number in range(samples)))
    return DataLoader(numbers, TINY_BATCH, num_workers=source.workers)


def many_shards(source: Source) -> Any:
    shards = f"{source.base}/many/train-{{{0:07}..{source.samples - 1:07}}}.tar"
    return DataLoader(al.from_urls(shards), 8, num_workers=source.workers)


def images(source: Source) -> Any:
    recipe = al.from_urls(source.urls).map(decode, concurrency=max(1, source.threads))
    return DataLoader(recipe, BATCH, num_workers=source.workers)


def parquet(source: Source) -> Any:
    return _tokens(source, source.urls)


def lines(source: Source) -> Any:
    return _tokens(source, [url.replace(".parquet", ".jsonl.zst") for url in source.urls])


def _tokens(source: Source, urls: list[str]) -> Any:
    options: Any = al.PadField if "PadField" in al.__all__ else dict  # of earlier revisions
    pad = al.Pad({"tokens": options(dtype="int32")})
    return DataLoader(al.from_urls(urls), BATCH, num_workers=source.workers, collate_fn=pad)


def tiny_tar(source: Source) -> Any:
    pairs = lambda samples: [(sample["num"], sample["cls"]) for sample in samples]  # noqa: E731
    return DataLoader(al.from_urls(source.urls), TINY_BATCH, num_workers=source.workers, collate_fn=pairs)


def tiny_lines(source: Source) -> Any:
    return DataLoader(al.from_urls(source.urls), TINY_BATCH, num_workers=source.workers, collate_fn=list)


def map_style(source: Source) -> Any:
    return DataLoader(items_of(source), TINY_BATCH, num_workers=source.workers)
