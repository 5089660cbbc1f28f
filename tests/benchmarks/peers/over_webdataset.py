"""webdataset, which reads from servers through curl."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import webdataset

from .given import BATCH, TINY_BATCH, Source, decode, keep

__all__ = ["images", "tar", "tiny_tar"]


def tar(source: Source) -> Any:
    return _loader(source, lambda sample: sample["bin"])


def images(source: Source) -> Any:
    return _loader(source, decode, collate=None)


def tiny_tar(source: Source) -> Any:
    return _loader(source, lambda sample: (sample["num"], sample["cls"]), TINY_BATCH)


def _loader(
    source: Source,
    select: Callable[[Any], Any],
    batch: int = BATCH,
    *,
    collate: Callable[[list[Any]], Any] | None = keep,
) -> Any:
    samples = webdataset.WebDataset(source.urls, shardshuffle=False).map(select)
    return webdataset.WebLoader(samples, batch_size=batch, num_workers=source.workers, collate_fn=collate)
