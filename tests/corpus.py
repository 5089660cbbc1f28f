"""Shards on disk whose samples can be told apart, and what a loader made of them."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import sys
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import asyncloader as al
from asyncloader import testing
from asyncloader.pipeline.dataset import dataset_of, stages_of
from asyncloader.pipeline.shards import Shards

__all__ = ["Corpus", "deal_whole", "fingerprint", "in_turn", "keys_of", "write_corpus"]


def _zstd(content: bytes) -> bytes:
    if sys.version_info >= (3, 14):
        from compression import zstd

        return zstd.compress(content)
    import zstandard

    return zstandard.compress(content)


_COMPRESS: Mapping[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "zst": _zstd,
    "xz": lzma.compress,
    "bz2": bz2.compress,
}


@dataclass(frozen=True)
class Corpus:
    """Shards on disk.

    Attributes:
        folder: Where they are.
        paths: In order.
        sizes: Samples of each.
    """

    folder: Path
    paths: tuple[str, ...]
    sizes: tuple[int, ...]

    @property
    def keys(self) -> list[str]:
        """The key of every sample, ``SHARD-INDEX``, in rising order."""
        return sorted(f"{shard}-{index}" for shard, size in enumerate(self.sizes) for index in range(size))

    def first(self, count: int) -> Corpus:
        """Only the first shards."""
        return Corpus(self.folder, self.paths[:count], self.sizes[:count])

    def urls(self, server: testing.Server) -> list[str]:
        """The shards on a server of the folder that all corpora are in."""
        return [server.url_of(str(Path(path).relative_to(self.folder.parent))) for path in self.paths]


def write_corpus(folder: Path, suffix: str, sizes: Sequence[int]) -> Corpus:
    """Write a shard of each size; of a size of 0, an empty one that is valid."""
    paths = []
    for shard, size in enumerate(sizes):
        path = folder / f"shard-{shard:03d}.{suffix}"
        if size:
            with al.ShardWriter(path) as writer:
                for index in range(size):
                    writer.write(_sample(shard, index, suffix))
        else:
            path.write_bytes(_empty(suffix))
        paths.append(str(path))
    return Corpus(folder, tuple(paths), tuple(sizes))


def deal_whole(folder: Path) -> None:
    """Make an index as it was before there were offsets: by it, lanes are dealt whole shards."""
    path = folder / "asyncloader-index.json"
    document = json.loads(path.read_bytes())
    for entry in document["shards"]:
        entry.pop("offsets", None)
    path.write_text(json.dumps(document))


def in_turn(recipe: al.Dataset) -> al.Dataset:
    """Whole shards dealt to lanes in turn, as those of which nobody knows how large they are."""
    source = stages_of(recipe).source
    assert isinstance(source, Shards)
    return dataset_of(source.whole())


def tar_of(samples: int, sample_bytes: int) -> bytes:
    """A tar of samples of zeros."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for index in range(samples):
            member = tarfile.TarInfo(f"{index:03d}.txt")
            member.size = sample_bytes
            tar.addfile(member, io.BytesIO(bytes(sample_bytes)))
    return out.getvalue()


def _sample(shard: int, index: int, suffix: str) -> dict[str, Any]:
    number = 100 * shard + index
    if suffix.startswith("tar"):
        return {"__key__": f"{shard}-{index}", "txt": f"sample {number}", "cls": number}
    return {"key": f"{shard}-{index}", "number": number, "tokens": [number] * (number % 7)}


def _empty(suffix: str) -> bytes:
    name, _, compression = suffix.partition(".")
    content = bytes(1024) if name == "tar" else b""  # a tar ends with two blocks of zeros
    return _COMPRESS[compression](content) if compression else content


def keys_of(batches: Iterable[Any]) -> list[str]:
    """The keys of all samples of collated batches, as they came."""
    return [key for batch in batches for key in batch["__key__" if "__key__" in batch else "key"]]


def fingerprint(value: Any) -> Any:
    """What ``value`` consists of, down to types, shapes and bytes; equal only if all of it is."""
    if isinstance(value, torch.Tensor):
        return "tensor", str(value.dtype), tuple(value.shape), value.contiguous().numpy().tobytes()
    if isinstance(value, np.ndarray):
        return "array", str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return type(value).__name__, [(name, fingerprint(part)) for name, part in value.items()]
    if isinstance(value, list | tuple):
        return type(value).__name__, [fingerprint(part) for part in value]
    return type(value).__name__, value
