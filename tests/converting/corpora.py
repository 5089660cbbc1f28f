"""Samples as each format has them, and what a conversion has left."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import asyncloader as al

FORMATS = ("tar", "tar.gz", "jsonl", "jsonl.zst", "parquet", "csv", "text", "arrow", "npy", "npz")
SAMPLES = 60


def write_corpus(kind: str, folder: Path, samples: int = SAMPLES, shards: int = 3) -> list[str]:
    """Shards of one format, of unequal lengths, with an empty one where the format has such."""
    folder.mkdir(parents=True, exist_ok=True)
    bounds = [samples * number**2 // shards**2 for number in range(shards + 1)]
    return [
        _WRITERS[kind.partition(".")[0]](folder / f"part-{number}.{_SUFFIX.get(kind, kind)}", first, stop)
        for number, (first, stop) in enumerate(pairwise(bounds))
    ]


_SUFFIX = {"text": "txt"}


def record(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "name": f"näme {number}",
        "score": number / 7,
        "tokens": list(range(number % 5)),
        "deep": {"a": [number], "b": None if number % 2 else "x"},
    }


def _tar(path: Path, first: int, stop: int) -> str:
    with al.ShardWriter(path) as writer:
        for number in range(first, stop):
            fields = {"txt": f"text {number}", "cls": number, "bin": bytes([number % 256]) * number}
            writer.write({"__key__": f"a/{number:05d}", "json": record(number), **fields})
    return str(path)


def _jsonl(path: Path, first: int, stop: int) -> str:
    with al.ShardWriter(path) as writer:
        for number in range(first, stop):
            writer.write(record(number))
    return str(path)


def _csv(path: Path, first: int, stop: int) -> str:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text"])
        writer.writerows([number, f'line "{number}",\nand more'] for number in range(first, stop))
    return str(path)


def _text(path: Path, first: int, stop: int) -> str:
    path.write_text("".join(f"line {number}\n" for number in range(first, stop)))
    return str(path)


def _table(first: int, stop: int) -> Any:
    import pyarrow as pa

    numbers = range(first, stop)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int32()),
            "raw": [bytes([number % 256]) * 3 for number in numbers],
            "text": [None if number % 4 == 3 else f"text {number}" for number in numbers],
            "when": pa.array([number * 1000 for number in numbers], pa.timestamp("ms")),
            "vector": [np.full(number % 3, number, np.float32) for number in numbers],
            "matrix": [[[number, 1], [2]] for number in numbers],
        }
    )


def _parquet(path: Path, first: int, stop: int) -> str:
    import pyarrow.parquet as pq

    pq.write_table(_table(first, stop), path, row_group_size=7)
    return str(path)


def _arrow(path: Path, first: int, stop: int) -> str:
    import pyarrow as pa

    table = _table(first, stop)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    return str(path)


def _arrays(first: int, stop: int) -> dict[str, Any]:
    numbers = np.arange(first, stop)
    return {
        "id": numbers.astype(">i4"),
        "raw": np.array([bytes([65 + number % 26]) * 3 for number in numbers], "S3"),
        "text": np.array([f"täxt {number}" for number in numbers], "U9"),
        "when": (numbers * 1000).astype("M8[ms]"),
        "vector": np.asfortranarray(np.repeat(numbers[:, None], 3, axis=1).astype(np.float32)),
    }


def _npy(path: Path, first: int, stop: int) -> str:
    arrays = _arrays(first, stop)
    kinds = [(name, array.dtype, array.shape[1:]) for name, array in arrays.items()]
    rows = np.zeros(stop - first, kinds)
    for name, array in arrays.items():
        rows[name] = array
    np.save(path, rows)
    return str(path)


def _npz(path: Path, first: int, stop: int) -> str:
    (np.savez_compressed if first else np.savez)(path, **_arrays(first, stop))
    return str(path)


_WRITERS: dict[str, Callable[[Path, int, int], str]] = {
    "tar": _tar,
    "jsonl": _jsonl,
    "csv": _csv,
    "text": _text,
    "parquet": _parquet,
    "arrow": _arrow,
    "npy": _npy,
    "npz": _npz,
}


def samples_of(urls: Any, **options: Any) -> list[dict[str, Any]]:
    """All samples, in order, without where they are from."""
    found = al.from_urls(urls, **options).head(1_000_000)
    return [{name: value for name, value in sample.items() if name != "__url__"} for sample in found]


def plain(value: Any) -> Any:
    """A value as Python has it, so that values of several formats can be compared."""
    if isinstance(value, np.ndarray | np.generic | al.Ragged):
        return plain(value.tolist())
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def files_of(folder: Path) -> dict[str, bytes]:
    """The shards and their index, by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def counts_of(folder: Path) -> list[int]:
    """Samples of each shard, as the index says."""
    return [
        shard["samples"] for shard in json.loads((folder / "asyncloader-index.json").read_bytes())["shards"]
    ]
