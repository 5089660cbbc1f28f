"""Parquet as it is written: one schema for all shards, row groups of one length, the same bytes each time."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..blocks import Ragged
from ..formats.columnar.importing import arrow
from ..index.expectations import Expected
from ..types import Buffer
from ..writer.open_shard import OpenShard, Pending
from .target import Target

__all__ = ["Schema", "TableFile", "make_schema"]

# A reader asks for whole row groups, and resumes at one: some megabytes, as of a request. Before compression.
_GROUP_BYTES = 32 << 20
_MOST_GROUP_ROWS = 1 << 20

# Of the types that a target asks for.
_ARROW_NAMES = {"int": "int64", "float": "float64", "bool": "bool_", "str": "string"}


@dataclass(frozen=True)
class Schema:
    """The columns of all shards.

    Attributes:
        encoded: A schema of Arrow, as its IPC format has it.
        group_rows: Rows of a row group, but for the last of a shard.
    """

    encoded: bytes
    group_rows: int

    def decoded(self) -> Any:
        """The ``pyarrow.Schema``."""
        pa = arrow()
        return pa.ipc.read_schema(pa.py_buffer(self.encoded))


def make_schema(target: Target, samples: Sequence[Mapping[str, Any]]) -> tuple[Schema, float]:
    """The schema that fits samples, and what one of them takes in memory, in bytes.

    Args:
        target: Says the types of some fields.
        samples: Some of all.

    Raises:
        ValueError: A field of values that no one type fits.
    """
    pa = arrow()
    fields: dict[str, Any] = {name: None for sample in samples for name in sample if name != "__url__"}
    for name in fields:
        kind = _ARROW_NAMES.get((target.types or {}).get(name, ""))
        given = getattr(pa, kind)() if kind else None
        fields[name] = given or _type_of(name, [sample.get(name) for sample in samples])
    for name, kind in (target.types or {}).items():
        if name not in fields and kind in _ARROW_NAMES:
            fields[name] = getattr(pa, _ARROW_NAMES[kind])()
    schema = pa.schema([*fields.items()])
    size = _table(schema, samples).nbytes / max(len(samples), 1)
    rows = min(max(int(_GROUP_BYTES / max(size, 1)), 1), _MOST_GROUP_ROWS)
    return Schema(schema.serialize().to_pybytes(), rows), size


class TableFile:
    """A Parquet file that is being written.

    Args:
        draft: What it is written to.
        schema: Of all shards.
    """

    def __init__(self, draft: Pending, schema: Schema) -> None:
        import pyarrow.parquet

        self._shard = OpenShard(draft, None, is_entered=False)
        self._schema = schema.decoded()
        self._names = {*self._schema.names}
        self._group_rows = schema.group_rows
        self._rows: list[Mapping[str, Any]] = []
        self._samples = 0
        self._sink = _Sink(self._shard)
        self._writer = pyarrow.parquet.ParquetWriter(self._sink, self._schema, compression="zstd")

    def add(self, sample: Mapping[str, Any], number: int) -> None:
        if not sample.keys() <= self._names:
            odd = [name for name in sample if name not in self._names and name != "__url__"]
            if odd:
                raise ValueError(
                    f"field {odd[0]!r} is in none of the samples that the columns were told by: name it in "
                    "types, or leave it out by naming the others as columns"
                )
        self._rows.append(sample)
        if len(self._rows) == self._group_rows:
            self._write_group()

    def finish(self) -> Expected:
        self._write_group()
        self._writer.close()
        self._shard.samples = self._samples
        return self._shard.finish(b"")

    def discard(self) -> None:
        # Else its finalizer writes a footer, to a closed file.
        self._sink.is_heard = False
        with suppress(Exception):
            self._writer.close()
        self._shard.discard()

    def _write_group(self) -> None:
        if self._rows:
            self._samples += len(self._rows)
            rows, self._rows = self._rows, []
            self._writer.write_table(_table(self._schema, rows), row_group_size=len(rows))


class _Sink(io.RawIOBase):
    """An open shard as pyarrow writes to it."""

    def __init__(self, shard: OpenShard) -> None:
        self._shard = shard
        self.is_heard = True

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._shard.size_bytes

    def write(self, content: Buffer) -> int:  # type: ignore[override]  # a buffer of pyarrow's is one
        if self.is_heard:
            self._shard.write(content, 0)
        return memoryview(content).nbytes


def _table(schema: Any, rows: Sequence[Mapping[str, Any]]) -> Any:
    arrays = [_array(field.name, field.type, [row.get(field.name) for row in rows]) for field in schema]
    return arrow().Table.from_arrays(arrays, schema=schema)


def _array(name: str, kind: Any, values: list[Any]) -> Any:
    """A column; raises ValueError if a value would not be the same when it is read again."""
    pa = arrow()
    try:
        plain = [*map(_plain, values)]
        _check_types(kind, plain)
        return pa.array(plain, kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        how = str(error).partition("\n")[0]
        raise ValueError(
            f"field {name!r} cannot be kept as {kind}, as which the first samples are: {how}; say by types "
            "what it is, write jsonl, or leave it out by naming the others as columns"
        ) from None


def _check_types(kind: Any, values: list[Any]) -> None:
    """Refuse what Arrow would change without a word: 1.5 to 1, text to bytes, an object's unknown member to
    nothing."""
    pa = arrow()
    found = {*map(type, values)} - {type(None)}
    kept = next((kept for test, kept in _KEPT if getattr(pa.types, test)(kind)), None)
    if kept is None:
        merged = _merged(kind, pa.infer_type(values))
        odd = None if merged == kind else merged
    else:
        odd = next(
            (each.__name__ for each in found if not issubclass(each, kept) or each in _BOOLS - {*kept}), None
        )
    if odd is not None:
        raise pa.ArrowInvalid(f"found {odd}")


# Tests of Arrow's types, and what a value of each must be. True is an int to Python.
_BOOLS = {bool, np.bool_}
_KEPT = (
    ("is_string", (str,)),
    ("is_binary", (bytes,)),
    ("is_boolean", (bool, np.bool_)),
    ("is_integer", (int, np.integer)),
    ("is_floating", (float, int, np.floating, np.integer)),
)


def _plain(value: Any) -> Any:
    """What Arrow takes: arrays of more than one dimension as lists of arrays."""
    if isinstance(value, Ragged) or (isinstance(value, np.ndarray) and value.ndim > 1):
        return [*map(_plain, value)]
    return value


def _type_of(name: str, values: Iterable[Any]) -> Any:
    pa = arrow()
    kind = pa.null()
    try:
        for value in values:
            kind = _merged(kind, _type_of_one(value))
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise ValueError(
            f"field {name!r} has values that no one type of Parquet fits: "
            f"{str(error).partition(chr(10))[0]}; write jsonl, or leave it out by naming the others as "
            "columns"
        ) from None
    return kind


def _type_of_one(value: Any) -> Any:
    pa = arrow()
    if isinstance(value, np.generic):
        return pa.from_numpy_dtype(value.dtype)
    if isinstance(value, np.ndarray):
        kind = pa.from_numpy_dtype(value.dtype)
        return _nested(pa.list_, kind, value.ndim)
    if isinstance(value, Ragged):
        values = value.values
        inner = _type_of_one(values) if isinstance(values, Ragged | np.ndarray) else pa.infer_type([*values])
        return pa.list_(inner)
    return pa.infer_type([value])


def _nested(make: Callable[[Any], Any], kind: Any, depth: int) -> Any:
    for _ in range(depth):
        kind = make(kind)
    return kind


def _merged(kind: Any, found: Any) -> Any:
    """The type that both are of."""
    if kind == found:
        return kind
    pa = arrow()
    schemas = [pa.schema([("", each)]) for each in (kind, found)]
    return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
