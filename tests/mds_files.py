"""Shards of MDS made in memory, to be damaged at will; those of the library itself are in tests/interop."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["COLUMNS", "joined", "mds", "samples", "shard"]

#: Name, encoding and size of the columns that ``samples`` has.
COLUMNS = [("ids", "ndarray:int32", None), ("n", "int", 8), ("text", "str", None)]


def samples(count: int) -> list[dict[str, Any]]:
    """What ``shard`` has."""
    return [
        {"ids": np.arange(number % 5 + 1, dtype=np.int32), "n": number, "text": f"sample {number} é"}
        for number in range(count)
    ]


def joined(values: Sequence[bytes], sizes: Sequence[int | None]) -> bytes:
    """One sample: the lengths of the fields that have none of their own, then the fields."""
    told = [len(value) for value, size in zip(values, sizes, strict=True) if size is None]
    return struct.pack(f"<{len(told)}I", *told) + b"".join(values)


def mds(columns: Sequence[tuple[str, str, int | None]], bodies: Sequence[bytes], **config: Any) -> bytes:
    """A shard of samples that are encoded already."""
    names, encodings, sizes = zip(*columns, strict=True)
    described = {"version": 2, "format": "mds", "compression": None, "hashes": [], "size_limit": None}
    described |= {"column_names": names, "column_encodings": encodings, "column_sizes": sizes}
    header = json.dumps(described | config, sort_keys=True).encode()
    offsets = np.cumsum([8 + 4 * len(bodies) + len(header), *map(len, bodies)])
    return struct.pack(f"<{len(offsets) + 1}I", len(bodies), *offsets) + header + b"".join(bodies)


def shard(count: int) -> bytes:
    """A shard of ``samples(count)``."""
    sizes = [size for _, _, size in COLUMNS]
    bodies = [
        joined(
            [
                b"\x04" + bytes([len(row["ids"])]) + row["ids"].tobytes(),
                struct.pack("<q", row["n"]),
                row["text"].encode(),
            ],
            sizes,
        )
        for row in samples(count)
    ]
    return mds(COLUMNS, bodies)
