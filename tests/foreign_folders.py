"""Folders of MDS and of LitData's chunks with their index, of the same samples, made by neither library."""

from __future__ import annotations

import hashlib
import io
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from litdata.making import LEAF, index, items, table, tree
from mds_files import joined, mds

__all__ = ["BLOCK", "jpeg_of", "record", "write_litdata", "write_mds", "write_tokens", "write_tuples"]

#: Of tokens a sample, where chunks hold nothing else.
BLOCK = 4
_MDS_COLUMNS = [
    ("id", "int", 8),
    ("image", "jpeg", None),
    ("text", "str", None),
    ("tokens", "ndarray:int32", None),
]
_LEAVES = {"id": "int", "image": "jpeg", "text": "str", "tokens": "no_header_numpy:2"}


def record(number: int) -> dict[str, Any]:
    """A sample; its image as the bytes of its file."""
    tokens = np.arange(number, number + number % 5 + 1, dtype=np.int32)
    return {"id": number, "image": jpeg_of(number), "text": f"sample {number} é", "tokens": tokens}


def jpeg_of(number: int) -> bytes:
    """A file of 64 x 48 pixels, of which no two are the same."""
    return _jpeg() + struct.pack("<I", number)


@cache
def _jpeg() -> bytes:
    from PIL import Image

    Image.new("RGB", (64, 48), (9, 90, 200)).save(file := io.BytesIO(), "JPEG")
    return file.getvalue()


def write_mds(folder: Path, counts: Sequence[int], compression: str | None = None) -> Path:
    """Shards of so many samples, numbered through, with a sha256 of each."""
    sizes = [size for _, _, size in _MDS_COLUMNS]
    numbers = _numbers(counts)
    entries = []
    folder.mkdir(parents=True)
    for shard, count in enumerate(counts):
        content = mds(_MDS_COLUMNS, [joined(_mds_values(next(numbers)), sizes) for _ in range(count)])
        entries.append(_mds_entry(folder, f"shard.{shard:05d}.mds", content, count, compression))
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": entries}))
    return folder


def _mds_values(number: int) -> list[bytes]:
    sample = record(number)
    tokens = sample["tokens"]
    array = bytes([4, len(tokens)]) + tokens.tobytes()
    return [struct.pack("<q", number), sample["image"], sample["text"].encode(), array]


def _mds_entry(
    folder: Path, name: str, content: bytes, count: int, compression: str | None
) -> dict[str, Any]:
    names, encodings, sizes = zip(*_MDS_COLUMNS, strict=True)
    entry: dict[str, Any] = {"samples": count, "format": "mds", "version": 2, "compression": compression}
    entry |= {"column_names": names, "column_encodings": encodings, "column_sizes": sizes}
    entry["raw_data"] = _mds_file(name, content)
    if compression is not None:
        name, content = f"{name}.{compression}", zstandard.compress(content)
        entry["zip_data"] = _mds_file(name, content)
    (folder / name).write_bytes(content)
    return entry


def _mds_file(name: str, content: bytes) -> dict[str, Any]:
    return {
        "basename": name,
        "bytes": len(content),
        "hashes": {"sha256": hashlib.sha256(content).hexdigest()},
    }


def write_litdata(folder: Path, counts: Sequence[int], compression: str | None = None) -> Path:
    """Chunks of so many samples, numbered through; compressed as a whole, if they are."""

    def values(number: int) -> list[bytes]:
        sample = record(number)
        return [
            struct.pack("<q", number),
            sample["image"],
            sample["text"].encode(),
            sample["tokens"].tobytes(),
        ]

    spec = tree(**dict.fromkeys(_LEAVES, LEAF))
    return _write_chunks(folder, counts, [*_LEAVES.values()], spec, values, compression=compression)


def write_tuples(folder: Path, counts: Sequence[int]) -> Path:
    """Chunks of tuples: a number and a text."""
    spec = {"type": "builtins.tuple", "context": "null", "children_spec": [LEAF, LEAF]}

    def values(number: int) -> list[bytes]:
        return [struct.pack("<q", number), f"text {number}".encode()]

    return _write_chunks(folder, counts, ["int", "str"], spec, values)


def write_tokens(folder: Path, counts: Sequence[int]) -> Path:
    """Chunks of so many documents of tokens, which are 0, 1, 2 and so on over all of them."""
    bounds = [0]

    def values(number: int) -> list[bytes]:
        bounds.append(bounds[-1] + number % 3 + 1)
        return [np.arange(*bounds[-2:], dtype=np.int32).tobytes()]

    return _write_chunks(folder, counts, ["no_header_numpy:2"], LEAF, values, item_loader="TokensLoader")


def _write_chunks(
    folder: Path,
    counts: Sequence[int],
    leaves: Sequence[str],
    spec: Any,
    values: Callable[[int], list[bytes]],
    **config: Any,
) -> Path:
    numbers = _numbers(counts)
    entries = []
    folder.mkdir(parents=True)
    for chunk, count in enumerate(counts):
        samples = [values(next(numbers)) for _ in range(count)]
        is_tokens = "item_loader" in config
        content = table([each for (each,) in samples] if is_tokens else items(samples))
        entry = {
            "filename": f"chunk-0-{chunk}.bin",
            "chunk_size": count,
            "chunk_bytes": len(content),
            "dim": None,
        }
        if config.get("compression"):
            entry["filename"] = f"chunk-0-{chunk}.{config['compression']}.bin"
            content = zstandard.compress(content)
        (folder / str(entry["filename"])).write_bytes(content)
        entries.append(entry)
    (folder / "index.json").write_bytes(index(leaves, spec, entries, **config))
    return folder


def _numbers(counts: Sequence[int]) -> Iterator[int]:
    return iter(range(sum(counts)))
