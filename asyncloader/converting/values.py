"""Samples as a format can keep them; what it cannot keep is refused, with the format that could. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import isfinite
from typing import Any

import numpy as np

from ..blocks import Ragged
from ..formats.fields import decode_sample, default_handlers, encoders
from .target import TYPES, Target

__all__ = ["prepared", "to_json", "to_tar"]

# Images stay the bytes that they are: what is decoded is larger, and no format keeps it as well.
_TEXTUAL = {name: default_handlers[name] for name in ("json", "txt", "text", "cls", "index", "count", "npy")}
# Of the pipeline's own fields the key is kept, and where a sample was read from says nothing of it.
_KEY, _URL = "__key__", "__url__"

_Step = Callable[[dict[str, Any]], dict[str, Any]]


def prepared(target: Target) -> _Step:
    """What is done to each sample before it is encoded."""
    steps: list[_Step] = []
    if target.decode:
        steps.append(partial(decode_sample, handlers=_TEXTUAL))
    if target.columns is not None:
        steps.append(partial(_chosen, target.columns))
    if target.types:
        steps.append(partial(_typed, target.types))

    def prepare(sample: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(sample, dict):
            raise TypeError(f"expected a sample of named fields, found {type(sample).__name__}")
        for step in steps:
            sample = step(sample)
        return sample

    return prepare


def _chosen(columns: tuple[str, ...], sample: dict[str, Any]) -> dict[str, Any]:
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
                sample = {**sample, name: TYPES[kind](text)}
            except ValueError as error:
                raise ValueError(f"field {name!r} is {text[:60]!r}, which is no {kind}: {error}") from None
    return sample


def to_json(sample: Mapping[str, Any]) -> dict[str, Any]:
    """The sample as JSON has it: NumPy's numbers as numbers, arrays as lists.

    Raises:
        ValueError: A value that would not be the same when it is read again.
    """
    return {name: _json_value(name, value) for name, value in sample.items() if name != _URL}


def _json_value(name: str, value: Any) -> Any:
    if type(value) is float and not isfinite(value):
        raise ValueError(
            f"field {name!r} is {value}, a number that JSON does not have: write parquet, which keeps it, or "
            "leave the field out by naming the others as columns"
        )
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, dict):
        return {key: _json_value(f"{name}.{key}", item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(name, item) for item in value]
    if isinstance(value, Ragged):
        return [_json_value(name, item) for item in value]
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        plain = value.tolist()
        return _json_value(name, plain) if value.dtype.kind == "f" else plain
    kind = "bytes" if isinstance(value, bytes | bytearray | memoryview) else type(value).__name__
    keeps = "parquet, which keeps times and decimals, or tar, which keeps arrays"
    if kind == "bytes":
        keeps = "tar or parquet, which keep it (tar not within a list or an object)"
    raise ValueError(
        f"field {name!r} is {kind}, which JSON has no form for: write {keeps}, or leave the field out by "
        "naming the others as columns"
    )


def to_tar(sample: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The sample as members of a tar: bytes and what an extension says how to encode by their names, arrays
    as ``name.npy``, and all other values together as ``json``.

    Args:
        sample: With a ``__key__`` or without.
        number: Of the sample among all, which is the key of one that has none.

    Raises:
        ValueError: A field that would not read back.
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
        if name.startswith("__"):
            if name not in (_KEY, _URL):
                raise ValueError(
                    f"field {name!r} cannot be kept in tar, where names that begin with __ are the "
                    "pipeline's: write jsonl or parquet, or leave it out by naming the others as columns"
                )
        elif isinstance(value, bytes) or _fits(name.rpartition(".")[2], value):
            is_json = name.rpartition(".")[2] == "json" and not isinstance(value, bytes)
            members[name] = _json_value(name, value) if is_json else value
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
    return members


def _fits(extension: str, value: Any) -> bool:
    """Whether the encoding that an extension stands for gives this very value back."""
    if extension in ("txt", "text"):
        return isinstance(value, str)
    if extension in ("cls", "index", "count"):
        return isinstance(value, int | np.integer) and not isinstance(value, bool)
    if extension == "npy":
        return isinstance(value, np.ndarray) and not value.dtype.hasobject
    return extension in encoders and not isinstance(value, np.ndarray | np.generic | Ragged)
