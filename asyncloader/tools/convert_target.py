"""The shards to make: their format, size and fields, and how each value is kept. Pure.

A value that a format cannot keep is refused, with the formats that can.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from ..blocks import Ragged
from ..formats import split_suffix
from ..formats.fields import decode_sample, default_handlers, encode_jsonl_sample, encode_tar_sample, encoders
from ..quantity import as_count, as_whole
from ..shards.open_shard import check_written

# Images stay encoded: decoded ones are larger, and no format stores them as well.
_TEXTUAL = {name: default_handlers[name] for name in ("json", "txt", "text", "cls", "index", "count", "npy")}
# Of the pipeline's own fields only the key is kept: the URL of the source is not part of the sample.
_KEY, _URL = "__key__", "__url__"


def _as_bool(text: str) -> bool:
    try:
        return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
    except KeyError:
        raise ValueError("expected true, false, 1 or 0") from None


#: Types to which the text of a field can be converted.
_TYPES: Mapping[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "bool": _as_bool,
    "str": str,
    "json": json.loads,
}


@dataclass
class ShardTarget:
    """The shards to make: arguments of ``convert``, checked.

    Attributes:
        to: The suffix of their names, without the dot.
        shard_size: Most bytes of a shard, before compression.
        samples_per_shard: Most samples of a shard; None for the number that makes up ``shard_size``.
        columns: The fields to keep, in this order; None for all.
        types: The types to convert the text of fields to, by name.
        decode: Whether to decode fields of bytes by their extension, except for images.
        shuffle: Seed of the samples' order; None for that of the sources.

    Raises:
        ValueError, TypeError: An argument is wrong; the message says what is possible.
        ImportError: Parquet, and pyarrow is not installed.
    """

    to: str
    shard_size: int
    samples_per_shard: int | None
    columns: list[str] | None
    types: Mapping[str, str]
    decode: bool
    shuffle: int | None

    def __post_init__(self) -> None:
        try:
            self.format, self.compression = split_suffix(f"x.{self.to}")
        except ValueError:
            self.format, self.compression = repr(self.to), None
        check_written(self.format, self.compression)
        self.decode = self.decode or self.format == "jsonl"  # JSON has no bytes at all
        self.shard_size = as_count("shard_size", self.shard_size)
        if self.samples_per_shard is not None:
            self.samples_per_shard = as_count("samples_per_shard", self.samples_per_shard)
        if self.columns is not None and not 0 < len({*self.columns}) == len(self.columns):
            raise ValueError(f"columns should name each field once, but got {self.columns}")
        for name, kind in self.types.items():
            if kind not in _TYPES:
                raise ValueError(
                    f"the type of {name!r} should be one of {', '.join(_TYPES)}, but is {kind!r}"
                )
        given, self.shuffle = self.shuffle, as_whole(self.shuffle)
        if given is not None and self.shuffle is None:
            raise TypeError(
                f"shuffle should be a seed, a whole number, or False to keep the order, but got {given!r}"
            )

    def keep(self, sample: Any, number: int) -> tuple[Mapping[str, Any], Any]:
        """Convert a sample, which has this number among all.

        Returns:
            The sample to keep, and its encoding.

        Raises:
            TypeError, ValueError: It has a value that the format cannot keep.
        """
        if not isinstance(sample, dict):
            raise TypeError(f"expected a sample of named fields, found {type(sample).__name__}")
        if self.decode:
            sample = decode_sample(sample, handlers=_TEXTUAL)
        if self.columns is not None:
            sample = _chosen(self.columns, sample)
        return _KEEPS[self.format](_typed(self.types, sample), number)


def _chosen(columns: list[str], sample: dict[str, Any]) -> dict[str, Any]:
    missing = [name for name in columns if name not in sample]
    if missing:
        found = [name for name in sample if name != _URL]
        raise ValueError(f"expected the field {missing[0]!r}, which columns names, found only {found}")
    kept = {name: sample[name] for name in columns}
    return {_KEY: sample[_KEY], **kept} if _KEY in sample else kept


def _typed(types: Mapping[str, str], sample: dict[str, Any]) -> dict[str, Any]:
    for name, kind in types.items():
        if isinstance(text := sample.get(name), str):
            try:
                sample = {**sample, name: _TYPES[kind](text)}
            except ValueError as error:
                raise ValueError(f"field {name!r} is {text[:60]!r}, which is no {kind}: {error}") from None
    return sample


def _keep_in_json(sample: Mapping[str, Any], number: int) -> tuple[Mapping[str, Any], bytes]:
    try:
        return sample, encode_jsonl_sample(sample, allow_nan=False)
    except (TypeError, ValueError):  # a value of NumPy, or one to refuse by the field's name
        plain = {name: _json_value(name, value) for name, value in sample.items() if name != _URL}
        return plain, encode_jsonl_sample(plain)


def _json_value(name: str, value: Any) -> Any:
    """A value as JSON: NumPy's numbers as numbers, arrays as lists.

    Raises:
        ValueError: It would not be the same when it is read again.
    """
    if type(value) is float and not isfinite(value):
        raise ValueError(
            f"field {name!r} is {value}, a number that JSON does not have: write parquet, which keeps it, or "
            "leave the field out by naming the others as columns"
        )
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, dict):
        return {key: _json_value(f"{name}.{key}", item) for key, item in value.items()}
    if isinstance(value, list | tuple | Ragged):
        return [_json_value(name, item) for item in value]
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        plain = value.tolist()
        return _json_value(name, plain) if value.dtype.kind == "f" else plain
    is_bytes = isinstance(value, bytes | bytearray | memoryview)
    keeps = (
        "tar or parquet, which keep it (tar not within a list or an object)"
        if is_bytes
        else "parquet, which keeps times and decimals, or tar, which keeps arrays"
    )
    raise ValueError(
        f"field {name!r} is {'bytes' if is_bytes else type(value).__name__}, which JSON has no form for: "
        f"write {keeps}, or leave the field out by naming the others as columns"
    )


def _keep_in_tar(sample: Mapping[str, Any], number: int) -> tuple[Mapping[str, Any], bytes]:
    """The sample as members of a tar.

    Bytes and values that fit their extension keep their names, arrays become ``name.npy``, and all other
    values are together in ``json``. Without a key its number is the key.
    """
    key = sample.get(_KEY, f"{number:09d}")
    if not isinstance(key, str):
        raise ValueError(
            f"the __key__ of a sample in tar is text, but found {key!r}: write jsonl or parquet, "
            "which keep it"
        )
    members: dict[str, Any] = {_KEY: key}
    others: dict[str, Any] = {}
    for name, value in sample.items():
        extension = name.rpartition(".")[2]
        if name.startswith("__"):
            if name not in (_KEY, _URL):
                raise ValueError(
                    f"field {name!r} cannot be kept in tar, where names that begin with __ are the "
                    "pipeline's: write jsonl or parquet, or leave it out by naming the others as columns"
                )
        elif isinstance(value, bytes):
            members[name] = value
        elif _fits(extension, value):
            members[name] = _json_value(name, value) if extension == "json" else value
        elif isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
            members[f"{name}.npy"] = value
        else:
            others[name] = _json_value(name, value)
    if others:
        if "json" in members:
            raise ValueError(
                f"fields {', '.join(map(repr, others))} have no form in tar but that of a member 'json', and "
                "there is a field of that name: write jsonl or parquet, or choose among them by columns"
            )
        members["json"] = others
    return members, encode_tar_sample(members)


def _keep_in_table(sample: Mapping[str, Any], number: int) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    return sample, sample


_KEEPS = {"tar": _keep_in_tar, "jsonl": _keep_in_json, "parquet": _keep_in_table}


def _fits(extension: str, value: Any) -> bool:
    """Whether this value is unchanged after encoding and decoding it by an extension."""
    if extension in ("txt", "text"):
        return isinstance(value, str)
    if extension in ("cls", "index", "count"):
        return isinstance(value, int | np.integer) and not isinstance(value, bool)
    if extension == "npy":
        return isinstance(value, np.ndarray) and not value.dtype.hasobject
    return extension in encoders and not isinstance(value, np.ndarray | np.generic | Ragged)
