"""What is asked for: the form of the shards, how large they are, which fields, of which types; pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..formats import split_suffix
from ..formats.arrow_columns import check_pyarrow
from ..quantity import as_count, as_whole, parse_bytes

__all__ = ["TYPES", "Target", "make_target"]


def _as_bool(text: str) -> bool:
    try:
        return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
    except KeyError:
        raise ValueError("expected true, false, 1 or 0") from None


#: What a field's text may be made into.
TYPES: Mapping[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "bool": _as_bool,
    "str": str,
    "json": json.loads,
}

_WRITTEN = ("tar", "jsonl", "parquet")


@dataclass(frozen=True)
class Target:
    """What the shards are to be.

    Attributes:
        format: ``tar``, ``jsonl`` or ``parquet``.
        compression: Of the file as a whole; None for none.
        suffix: Of their names.
        most_bytes: Of a shard, before compression.
        most_samples: Of a shard; None for as many as ``most_bytes`` are.
        columns: The fields that are kept, in this order; None for all.
        types: What the text of fields is made into, by name.
        decode: Whether fields of bytes become values by their extension, but for images.
        shuffle: Seed of the samples' order; None for that of the sources.
    """

    format: str
    compression: str | None
    suffix: str
    most_bytes: int
    most_samples: int | None = None
    columns: tuple[str, ...] | None = None
    types: Mapping[str, str] | None = None
    decode: bool = False
    shuffle: int | None = None

    def describe(self) -> dict[str, Any]:
        """What two runs must agree in, as JSON values."""
        return {
            "to": self.suffix.removeprefix("."),
            "shard_size": self.most_bytes,
            "samples_per_shard": self.most_samples,
            "columns": None if self.columns is None else [*self.columns],
            "types": dict(self.types or {}),
            "decode": self.decode,
            "shuffle": self.shuffle,
        }


def make_target(
    to: str,
    shard_size: int | str,
    samples_per_shard: int | None,
    columns: Any = None,
    types: Mapping[str, str] | None = None,
    decode: bool = False,
    shuffle: int | None = None,
) -> Target:
    """Check what was asked for; the arguments are those of ``convert``.

    Raises:
        ValueError, TypeError: Something that cannot be; the message says what can.
        ImportError: Parquet, and pyarrow is not installed.
    """
    try:
        format, compression = split_suffix(f"x.{to}")
    except ValueError:
        format, compression = "", None
    if format not in _WRITTEN or (format == "parquet" and compression):
        raise ValueError(
            f"shards are written as tar or jsonl, alone or with .gz, .zst, .xz or .bz2 after it, or as "
            f"parquet, but not as {to!r}"
        )
    if format == "parquet":
        check_pyarrow()
    if isinstance(columns, str):
        raise TypeError(f"columns should be a list of names, but got the text {columns!r}")
    names = None if columns is None else tuple(columns)
    if names is not None and (not names or len({*names}) < len(names)):
        raise ValueError(f"columns should name each field once, but got {[*names]}")
    for name, kind in (types or {}).items():
        if kind not in TYPES:
            raise ValueError(f"the type of {name!r} should be one of {', '.join(TYPES)}, but is {kind!r}")
    if shuffle is not None and (seed := as_whole(shuffle)) is None:
        raise TypeError(
            f"shuffle should be a seed, a whole number, or None to keep the order, but got {shuffle!r}"
        )
    most_bytes = parse_bytes("shard_size", shard_size)
    if most_bytes < 1:
        raise ValueError(f"shard_size should be at least 1 byte, but got {shard_size!r}")
    return Target(
        format,
        compression,
        f".{to}",
        most_bytes,
        None if samples_per_shard is None else as_count("samples_per_shard", samples_per_shard),
        names,
        dict(types or {}),
        # JSON has no bytes at all.
        decode or format == "jsonl",
        None if shuffle is None else seed,
    )
