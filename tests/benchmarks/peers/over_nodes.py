"""torchdata's nodes, on threads, which read a whole shard each: a sample is too little to be handed over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import default_collate
from torchdata import nodes

from . import over_torch
from .given import BATCH, TINY_BATCH, Source, decode, keep

__all__ = ["images", "lines", "parquet", "tar", "tiny_lines", "tiny_tar"]


def tar(source: Source) -> Any:
    return _loader(source, over_torch.read_bodies)


def images(source: Source) -> Any:
    """The threads decode sample by sample: that takes long enough."""
    shards = nodes.Mapper(nodes.IterableWrapper(source.urls), _all(over_torch.read_pairs))
    packed = nodes.Unbatcher(shards)
    images = nodes.ParallelMapper(packed, _decode_pair, source.threads, method="thread")
    return nodes.Loader(nodes.Mapper(nodes.Batcher(images, BATCH, drop_last=False), default_collate))


def parquet(source: Source) -> Any:
    return _loader(source, over_torch.read_parquet, collate=over_torch.pad)


def lines(source: Source) -> Any:
    return _loader(source, over_torch.read_lines, collate=over_torch.pad)


def tiny_tar(source: Source) -> Any:
    return _loader(source, over_torch.read_pairs, TINY_BATCH)


def tiny_lines(source: Source) -> Any:
    return _loader(source, over_torch.read_json, TINY_BATCH)


def _loader(
    source: Source,
    read: Callable[[str], Any],
    batch: int = BATCH,
    *,
    collate: Callable[[list[Any]], Any] = keep,
) -> Any:
    shards = nodes.ParallelMapper(
        nodes.IterableWrapper(source.urls), _all(read), source.threads, method="thread", max_concurrent=None
    )
    batches = nodes.Batcher(nodes.Unbatcher(shards), batch, drop_last=False)
    return nodes.Loader(nodes.Prefetcher(nodes.Mapper(batches, collate), prefetch_factor=2))


def _all(read: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    return lambda url: list(read(url))


def _decode_pair(pair: tuple[bytes, bytes]) -> dict[str, Any]:
    return decode({"jpg": pair[0], "cls": pair[1]})
