"""Shards in memory whose every sample is known, and what a loader makes of them."""

from __future__ import annotations

import gzip
import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from corpus import in_turn

import asyncloader as al
from asyncloader.shards.expectations import Expected
from asyncloader.shards.index_building import update_index

__all__ = ["Sample", "Shards", "loader_of", "make_shards", "sample_of", "samples_of"]

# The least that a loader takes: with two lanes, parts are of 1 MiB.
_MEMORY = 16 << 20

Sample = tuple[str, bytes]


@dataclass(frozen=True)
class Shards:
    """Shards of one format.

    Attributes:
        kind: Their suffix, such as ``tar`` or ``jsonl.gz``.
        folder: Where they and their ``asyncloader-index.json`` are.
        contents: By name, in order.
        samples: Key and text of each sample, as they were written.
    """

    kind: str
    folder: Path
    contents: dict[str, bytes]
    samples: list[Sample]

    @property
    def paths(self) -> list[str]:
        return [str(self.folder / name) for name in self.contents]

    def in_order(self, **arguments: Any) -> list[Sample]:
        """The samples as a healthy pass of such a loader delivers them, if it deals shards in turn."""
        found = samples_of(loader_of(in_turn(al.from_urls(self.paths)), **arguments))
        assert Counter(found) == Counter(self.samples), "the data set itself is read wrongly"
        return found


def make_shards(kind: str, sizes: Sequence[tuple[str, int, int]], folder: Path, seed: int = 0) -> Shards:
    """Write shards, and an index of all of them.

    Args:
        kind: Their suffix.
        sizes: Name, number of samples and bytes of a sample of each.
        folder: Where to; made if it is not there.
        seed: Of the texts.
    """
    source = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    contents, samples = {}, []
    for name, count, sample_bytes in sizes:
        path = folder / f"{name}.{kind}"
        # As text, so that all formats can hold it.
        rows = [(f"{name}-{index:03d}", source.randbytes(sample_bytes // 2).hex()) for index in range(count)]
        if kind == "parquet":
            _write_parquet(path, rows)
        elif count == 0:
            _write_empty(path)
        else:
            with al.ShardWriter(path) as writer:
                for key, text in rows:
                    writer.write({"__key__": key, "txt": text})
        samples += [(key, text.encode()) for key, text in rows]
        contents[path.name] = path.read_bytes()
    return Shards(kind, folder, contents, samples)


def _write_empty(path: Path) -> None:
    content = bytes(1024) if ".tar" in path.name else b""
    if path.suffix == ".gz":
        content = gzip.compress(content)
    path.write_bytes(content)
    _promise(path, 0)


def _write_parquet(path: Path, rows: Sequence[tuple[str, str]]) -> None:
    """In row groups that take a request each, with the texts as they are."""
    keys, texts = zip(*rows, strict=True) if rows else ((), ())
    table = pa.table({"__key__": pa.array(keys, pa.string()), "txt": pa.array(texts, pa.string())})
    pq.write_table(table, path, row_group_size=16, compression="none", use_dictionary=False)
    _promise(path, len(rows))


def _promise(path: Path, count: int) -> None:
    content = path.read_bytes()
    entry = Expected(len(content), count, hashlib.sha256(content).digest())
    update_index(str(path.parent / "asyncloader-index.json"), {path.name: entry})


def loader_of(recipe: al.Dataset, workers: int = 0, **arguments: Any) -> al.DataLoader[Any]:
    """Batches are lists of samples as they were read, in one order for any number of workers."""
    defaults: dict[str, Any] = {"batch_size": 4, "lanes": 2, "memory_limit": _MEMORY}
    return al.DataLoader(recipe, num_workers=workers, collate_fn=list, **(defaults | arguments))


def samples_of(batches: Iterable[list[dict[str, Any]]]) -> list[Sample]:
    """Key and text of every sample, in order."""
    return [sample_of(sample) for batch in batches for sample in batch]


def sample_of(sample: dict[str, Any]) -> Sample:
    text = sample["txt"]
    return sample["__key__"], text.encode() if isinstance(text, str) else bytes(text)
