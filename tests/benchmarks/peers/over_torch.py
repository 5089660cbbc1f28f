"""torch's DataLoader over datasets as a person writes them: requests, tarfile, pyarrow, zstandard, json."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice, pairwise
from typing import Any

import requests
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from .given import BATCH, TINY_BATCH, Source, decode, keep
from .items import items_of

__all__ = ["images", "lines", "map_style", "open_shard", "parquet", "tar", "tiny_lines", "tiny_tar"]


@contextmanager
def open_shard(url: str) -> Iterator[Any]:
    """A file to read from, on disk or on a server."""
    if url.startswith("http"):
        with requests.get(url, stream=True, timeout=60) as response:
            response.raise_for_status()
            yield response.raw
    else:
        with open(url, "rb") as file:
            yield file


class Shards(IterableDataset[Any]):
    """Shards dealt to workers by number; the state is how far this worker is."""

    def __init__(self, urls: list[str], read: Callable[[str], Iterator[Any]]) -> None:
        self._urls = urls
        self._read = read
        self._shard = self._sample = 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        mine = self._urls[first::step]
        while self._shard < len(mine):
            for sample in islice(self._read(mine[self._shard]), self._sample, None):
                self._sample += 1
                yield sample
            self._shard, self._sample = self._shard + 1, 0
        self._shard = 0

    def state_dict(self) -> dict[str, int]:
        return {"shard": self._shard, "sample": self._sample}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self._shard, self._sample = state["shard"], state["sample"]


def tar(source: Source) -> Any:
    return _loader(source, read_bodies)


def images(source: Source) -> Any:
    return _loader(source, read_images, collate=None)


def parquet(source: Source) -> Any:
    return _loader(source, read_parquet, collate=pad)


def lines(source: Source) -> Any:
    return _loader(source, read_lines, collate=pad)


def tiny_tar(source: Source) -> Any:
    return _loader(source, read_pairs, TINY_BATCH)


def tiny_lines(source: Source) -> Any:
    return _loader(source, read_json, TINY_BATCH)


def map_style(source: Source) -> Any:
    return DataLoader(items_of(source), TINY_BATCH, num_workers=source.workers)


def _loader(
    source: Source,
    read: Callable[[str], Iterator[Any]],
    batch: int = BATCH,
    *,
    collate: Callable[[list[Any]], Any] | None = keep,
) -> Any:
    return DataLoader(Shards(source.urls, read), batch, num_workers=source.workers, collate_fn=collate)


def pad(sequences: list[torch.Tensor]) -> torch.Tensor:
    return pad_sequence(sequences, batch_first=True)


def read_members(url: str) -> Iterator[tuple[str, bytes]]:
    """Names and bodies."""
    with open_shard(url) as file, tarfile.open(fileobj=file, mode="r|") as tar:
        for member in tar:
            body = tar.extractfile(member)
            assert body is not None
            yield member.name, body.read()


def read_bodies(url: str) -> Iterator[bytes]:
    return (body for _, body in read_members(url))


def read_pairs(url: str) -> Iterator[tuple[bytes, bytes]]:
    """Two members make a sample."""
    members = read_bodies(url)
    return zip(members, members, strict=True)


def read_images(url: str) -> Iterator[dict[str, Any]]:
    return (decode({"jpg": jpg, "cls": cls}) for jpg, cls in read_pairs(url))


def read_parquet(url: str) -> Iterator[torch.Tensor]:
    """Row group by row group, a tensor for each row."""
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(url).iter_batches(BATCH, columns=["tokens"]):
        column = batch.column(0)
        values, offsets = column.values.to_numpy(), column.offsets.to_numpy()
        for start, stop in pairwise(offsets.tolist()):
            yield torch.as_tensor(values[start:stop].copy())


def read_lines(url: str) -> Iterator[torch.Tensor]:
    """Line by line."""
    import zstandard

    with (
        open(url.replace(".parquet", ".jsonl.zst"), "rb") as file,
        zstandard.ZstdDecompressor().stream_reader(file) as stream,
    ):
        for line in io.TextIOWrapper(stream, encoding="utf-8"):
            yield torch.tensor(json.loads(line)["tokens"], dtype=torch.int32)


def read_json(url: str) -> Iterator[Any]:
    with open(url, encoding="utf-8") as file:
        yield from map(json.loads, file)
