"""Shards as they are written: samples in, the bytes of a file out. The same samples make the same bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ..formats.encode import encode_jsonl_sample, encode_tar_sample, tar_end
from ..index.expectations import Expected
from ..writer.open_shard import OpenShard, Pending
from .tables import Schema, TableFile
from .target import Target
from .values import to_json, to_tar

__all__ = ["Encoder", "encoded_bytes", "open_encoder"]


class Encoder(Protocol):
    """A shard that is being written."""

    def add(self, sample: Mapping[str, Any], number: int) -> None:
        """Write a sample, which is number ``number`` of all."""
        ...

    def finish(self) -> Expected:
        """Publish it; says what it is."""
        ...

    def discard(self) -> None:
        """Leave nothing of it."""
        ...


def open_encoder(target: Target, draft: Pending, schema: Schema | None) -> Encoder:
    """Begin a shard.

    Args:
        target: What it is to be.
        draft: What it is written to.
        schema: Of Parquet.
    """
    if target.format == "parquet":
        assert schema is not None, "it was worked out for the plan"
        return TableFile(draft, schema)
    shard = OpenShard(draft, target.compression)
    return _TarFile(shard) if target.format == "tar" else _JsonLines(shard)


def encoded_bytes(target: Target, sample: Mapping[str, Any], number: int) -> int:
    """What a sample takes in a shard, before compression; raises what ``add`` would raise."""
    if target.format == "tar":
        return len(encode_tar_sample(to_tar(sample, number)))
    return len(_json_line(sample))


class _TarFile:
    def __init__(self, shard: OpenShard) -> None:
        self._shard = shard
        self._last_key: object = None
        self.discard = shard.discard

    def add(self, sample: Mapping[str, Any], number: int) -> None:
        members = to_tar(sample, number)
        if members["__key__"] == self._last_key:
            raise ValueError(
                f"two samples in a row have the __key__ {self._last_key!r}, and would read as one: write "
                "jsonl or parquet, or name the sources in another order"
            )
        self._last_key = members["__key__"]
        self._shard.write(encode_tar_sample(members))

    def finish(self) -> Expected:
        return self._shard.finish(tar_end)


class _JsonLines:
    def __init__(self, shard: OpenShard) -> None:
        self._shard = shard
        self.discard = shard.discard

    def add(self, sample: Mapping[str, Any], number: int) -> None:
        self._shard.write(_json_line(sample))

    def finish(self) -> Expected:
        return self._shard.finish(b"")


def _json_line(sample: Mapping[str, Any]) -> bytes:
    try:
        return encode_jsonl_sample(sample, allow_nan=False)
    except (TypeError, ValueError):  # the exception: NumPy's values, and what to_json refuses by its name
        return encode_jsonl_sample(to_json(sample))
