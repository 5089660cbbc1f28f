"""Indexed shards of every format, small, but with offsets as dense as those of large ones."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
from tfrecord_files import example, record

import asyncloader as al
from asyncloader.blocks import OffsetTrail
from asyncloader.formats import format_of, formats, open_decoder
from asyncloader.shards.expectations import Expected, Offsets
from asyncloader.shards.index_building import update_index
from asyncloader.shards.index_entries import OffsetPicker

__all__ = ["SUFFIXES", "index_entry", "write_indexed"]

SUFFIXES = (
    "tar",
    "jsonl",
    "txt",
    "jsonl.zst",
    "tar.gz",
    "parquet",
    "arrow",
    "npy",
    "npz",
    "tfrecord",
    "tfrecord.gz",
)


def write_indexed(
    folder: Path, suffix: str, counts: Sequence[int], *, rate_bytes: int = 3000, sample_bytes: int = 300
) -> list[str]:
    """Write a shard of each count, and an index with an offset every ``rate_bytes``; gives their paths.

    Sample ``i`` of shard ``s`` has the ``number`` ``1000 * s + i``; in tar, as text in ``number``, and of
    ``txt`` its line is that.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths, entries = [], {}
    for shard, count in enumerate(counts):
        path = folder / f"part-{shard:03d}.{suffix}"
        _write(path, [1000 * shard + index for index in range(count)], "x" * sample_bytes)
        paths.append(str(path))
        entries[path.name] = index_entry(path, count, rate_bytes)
    (folder / "asyncloader-index.json").unlink(missing_ok=True)  # the writer's, with its own offsets
    update_index(str(folder / "asyncloader-index.json"), entries)
    return paths


def index_entry(path: Path, count: int, rate_bytes: int) -> Expected:
    """What an index says of a shard."""
    content = path.read_bytes()
    offsets: Offsets = ()
    if formats[format_of(str(path))].open is not None:
        picker, decoder = OffsetPicker(rate_bytes), open_decoder(format_of(str(path)))
        for block in (*decoder.feed(content), *decoder.finish()):
            assert isinstance(block.trail, OffsetTrail)
            if block.trail.ends is not None:
                picker.add_run(block.trail.first, block.trail.ends)
        offsets = picker.picked(count)
    return Expected(len(content), count, hashlib.sha256(content).digest(), None, offsets)


def number_of(sample: dict[str, Any]) -> int:
    number = sample["text"] if "text" in sample else sample["number"]
    return int(number[0] if np.ndim(number) else number)


def _write(path: Path, numbers: Sequence[int], filling: str) -> None:
    if path.suffix in (".parquet", ".arrow"):
        table = pa.table({"number": pa.array(numbers, pa.int64()), "filling": [filling] * len(numbers)})
        if path.suffix == ".parquet":
            pyarrow.parquet.write_table(table, path, row_group_size=max(7, len(numbers) // 30))
        else:
            pyarrow.feather.write_feather(table, str(path), compression="uncompressed", chunksize=7)
    elif path.suffix == ".npy":
        structure = np.dtype([("number", np.int64), ("filling", f"S{len(filling)}")])
        np.save(path, np.array([(number, filling) for number in numbers], structure))
    elif path.suffix == ".npz":
        np.savez(path, number=np.array(numbers, np.int64), filling=np.array([filling] * len(numbers), "S"))
    elif ".tfrecord" in path.suffixes:
        fields = ({"number": [number], "filling": [filling.encode()]} for number in numbers)
        content = b"".join(record(example(each)) for each in fields)
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    elif path.suffix == ".txt":
        path.write_text("".join(f"{number}\n" for number in numbers))
    elif not numbers:
        path.write_bytes(bytes(1024) if path.suffix == ".tar" else _empty(path))
    else:
        with al.ShardWriter(path) as writer:
            for number in numbers:
                writer.write(
                    {"__key__": str(number), "number": b"%d" % number, "filling": filling.encode()}
                    if ".tar" in path.name
                    else {"number": number, "filling": filling}
                )


def _empty(path: Path) -> bytes:
    import gzip

    import zstandard

    if path.name.endswith(".tar.gz"):
        return gzip.compress(bytes(1024))
    return zstandard.compress(b"") if path.suffix == ".zst" else b""
