"""A shard that is being written: takes encoded samples, and makes a finished file and its index entry.

The bytes depend on the samples alone. All shards of Parquet have the same schema, and no value is converted
to another one.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, reduce
from typing import IO, Any

import numpy as np

from ..atomic_file import named
from ..blocks import Ragged, bytes_of
from ..formats.arrow_columns import arrow, check_pyarrow
from ..formats.compression import zstd
from ..formats.digest import Digest, open_digest
from ..formats.fields import encode_jsonl_sample, encode_tar_sample, tar_end
from ..types import Buffer
from .destinations import Pending
from .expectations import Expected
from .index_entries import OffsetPicker

# Length of a row group in memory. Readers request whole row groups and resume at one: some stored megabytes.
_GROUP_BYTES = 32 << 20
_MOST_GROUP_ROWS = 1 << 20

# Arrow's names of the types that a user may name.
_NAMED = {"int": "int64", "float": "float64", "bool": "bool_", "str": "string"}

_UNFIT = "write jsonl, or leave it out by naming the others as columns"


def check_written(format: str, compression: str | None) -> None:
    """Refuse formats that cannot be written.

    Raises:
        ValueError: Another format than tar, JSON Lines and Parquet, or Parquet compressed as a whole.
        ImportError: Parquet, and pyarrow is not installed.
    """
    if format not in _ENCODERS or (format == "parquet" and compression):
        raise ValueError(
            "shards are written as tar or jsonl, alone or with .gz, .zst, .xz or .bz2 after it, or as "
            f"parquet; {format} {f'with {compression} ' if compression else ''}is not written"
        )
    if format == "parquet":
        check_pyarrow()


_ENCODERS: Mapping[str, Callable[[Mapping[str, Any]], bytes | Mapping[str, Any]]] = {
    "tar": encode_tar_sample,
    "jsonl": encode_jsonl_sample,
    "parquet": lambda sample: {name: value for name, value in sample.items() if name != "__url__"},
}


def encode(format: str, sample: Mapping[str, Any]) -> bytes | Mapping[str, Any]:
    """A sample as a shard of this format takes it.

    Raises:
        TypeError, ValueError: It is no mapping, has no encoding, or would not read back.
    """
    if not isinstance(sample, Mapping):
        raise TypeError(f"a sample must be a dict, not {type(sample).__name__}")
    return _ENCODERS[format](sample)


def open_shard(draft: Pending, format: str, compression: str | None, schema: Any = None) -> OpenShard:
    """Begin a shard; ``schema`` is a ``pyarrow.Schema`` for Parquet, None to take it from the samples."""
    return OpenTable(draft, schema) if format == "parquet" else OpenShard(draft, format, compression)


class OpenShard:
    """A shard of tar or JSON Lines that is being written, and not visible yet.

    Args:
        draft: The file to write to.
        format: Its format.
        compression: The compression of the whole file; None for none.
    """

    schema: Any = None

    def __init__(self, draft: Pending, format: str, compression: str | None) -> None:
        self.samples = 0
        self.size_bytes = 0
        self._end = tar_end if format == "tar" else b""
        self._last_key: object = None
        self._keyed = format == "tar"
        # A compressed file can only be read from its beginning, and Parquet by its footer.
        self._offsets = OffsetPicker() if compression is None and format != "parquet" else None
        self._draft = draft
        self._stored = _StoredBytes(draft.file)
        self._stream: Any = self._stored
        try:
            self._stream = _open_compressor(self._stored, compression)
        except BaseException:
            self.discard()
            raise

    def check(self, sample: Mapping[str, Any]) -> None:
        """Refuse a sample that would not read back after the one before it. Call it before ``write``.

        Raises:
            ValueError: It has the key of the sample before it.
        """
        if self._keyed:
            key = sample["__key__"]
            if self.samples and key == self._last_key:
                raise ValueError(
                    f"two samples in a row have the __key__ {key!r}, and would read as one: give them "
                    "different keys, write jsonl or parquet, or name the sources in another order"
                )
            self._last_key = key

    def write(self, encoded: Any) -> None:
        """Write an encoded sample."""
        if self._offsets is not None:
            self._offsets.add(self.samples, self.size_bytes)
        self._stream.write(encoded)
        self.samples += 1
        self.size_bytes += len(encoded)

    def finish(self) -> Expected:
        """Finish the shard, and publish it under its name.

        Returns:
            Its entry for the index.
        """
        try:
            self._write_end()
            self._draft.publish()
        except BaseException:
            self.discard()
            raise
        offsets = () if self._offsets is None else self._offsets.picked(self.samples)
        digests = {name: digest.digest() for name, digest in self._stored.digests.items()}
        return Expected(
            self._stored.size_bytes, self.samples, digests.get("sha256"), digests.get("crc32c"), offsets
        )

    def _write_end(self) -> None:
        self._stream.write(self._end)
        if self._stream is not self._stored:
            self._stream.close()

    def discard(self) -> None:
        """Remove the unfinished shard."""
        self._stored.is_discarded = True
        with suppress(Exception):
            self._stream.close()
        self._draft.discard()


class OpenTable(OpenShard):
    """A shard of Parquet: rows are kept until they are a row group.

    The same samples make the same row groups: a group ends by the number and size of its rows alone.
    """

    def __init__(self, draft: Pending, schema: Any) -> None:
        super().__init__(draft, "parquet", None)
        self.schema = schema
        self._rows: list[Mapping[str, Any]] = []
        self._group_bytes = 0

    def check(self, sample: Mapping[str, Any]) -> None:
        if self.schema is not None and not sample.keys() <= self._names:
            odd = next(name for name in sample if name not in self._names)
            raise ValueError(
                f"field {odd!r} is in none of the samples from which the columns were taken: name it in the "
                "types, or leave it out by naming the others as columns"
            )

    @cached_property
    def _names(self) -> set[str]:
        return {*self.schema.names, "__url__"}

    def write(self, encoded: Any) -> None:
        size = bytes_of(encoded)
        self._rows.append(encoded)
        self._group_bytes += size
        self.samples += 1
        self.size_bytes += size
        if self._group_bytes >= _GROUP_BYTES or len(self._rows) == _MOST_GROUP_ROWS:
            self._write_group()

    def _write_end(self) -> None:
        if self._rows:
            self._write_group()
        self._stream.close()

    def _write_group(self) -> None:
        import pyarrow.parquet

        rows, self._rows, self._group_bytes = self._rows, [], 0
        if self.schema is None:
            self.schema = schema_of(rows)
        table = table_of(self.schema, rows)
        if self._stream is self._stored:
            self._stream = pyarrow.parquet.ParquetWriter(self._stored, self.schema, compression="zstd")
        self._stream.write_table(table, row_group_size=len(rows))


class _StoredBytes(io.RawIOBase):
    """A file for a compressor or pyarrow to write to, which sees the bytes as they are stored.

    Closing it leaves the file open.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size_bytes = 0
        #: Ignores further writes: compressors write their end when they are closed or finalized.
        self.is_discarded = False
        # The first is for the user. The second is fifteen times faster to verify.
        digests = {name: open_digest(name) for name in ("sha256", "crc32c")}
        self.digests: dict[str, Digest] = {name: digest for name, digest in digests.items() if digest}

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size_bytes

    def write(self, chunk: Buffer) -> int:  # type: ignore[override]  # a buffer of pyarrow's is one
        length = memoryview(chunk).nbytes
        if self.is_discarded:
            return length
        try:
            self._file.write(chunk)
        except OSError as error:
            raise named(error, self._file) from None
        self.size_bytes += length
        for digest in self.digests.values():
            digest.update(chunk)
        return length


def _open_compressor(file: _StoredBytes, compression: str | None) -> Any:
    """A binary stream that writes to ``file`` and leaves it open when it is closed."""
    target: Any = file  # a file to compressors, if not to their types
    if compression is None:
        return target
    if compression == "gzip":
        return gzip.GzipFile("", "wb", fileobj=target, mtime=0)
    if compression == "xz":
        return lzma.LZMAFile(target, "wb")
    if compression == "bzip2":
        return bz2.BZ2File(target, "wb")
    assert compression == "zstd", compression
    return zstd().ZstdFile(target, "wb", options={zstd().CompressionParameter.checksum_flag: 1})


def schema_of(samples: Sequence[Mapping[str, Any]], types: Mapping[str, str] | None = None) -> Any:
    """The ``pyarrow.Schema`` that fits samples.

    Args:
        samples: Some of those to be written.
        types: Types of some fields, by name: ``int``, ``float``, ``bool``, ``str``; others are ignored.

    Raises:
        ValueError: The values of a field have no common type.
    """
    pa = arrow()
    given = {name: getattr(pa, _NAMED[kind])() for name, kind in (types or {}).items() if kind in _NAMED}
    names = dict.fromkeys([name for sample in samples for name in sample if name != "__url__"] + [*given])
    return pa.schema(
        [
            (name, given.get(name) or _type_of(name, (sample.get(name) for sample in samples)))
            for name in names
        ]
    )


def schema_from(message: bytes) -> Any:
    """The ``pyarrow.Schema`` of an IPC message, as ``schema.serialize()`` makes it."""
    return arrow().ipc.read_schema(arrow().py_buffer(message))


def table_of(schema: Any, rows: Sequence[Mapping[str, Any]]) -> Any:
    """Samples as a table of this schema.

    Raises:
        ValueError: A value would not be the same when it is read again.
    """
    columns = [_column(field.name, field.type, [row.get(field.name) for row in rows]) for field in schema]
    return arrow().Table.from_arrays(columns, schema=schema)


def _column(name: str, kind: Any, values: list[Any]) -> Any:
    pa = arrow()
    try:
        kinds = {*map(type, values)}
        plain = [*map(_plain, values)] if kinds & {np.ndarray, Ragged} else values
        found = pa.array(plain)
        # Arrow would make a datetime beside a date a date, True beside 1.5 a number, and all zones the first.
        if len(kinds) > 1 or pa.types.is_timestamp(found.type):
            each = {(type(value), getattr(value, "tzinfo", None)): value for value in values}
            reduce(_common, map(_type_of_one, each.values()))
        # Given the type, Arrow would convert 1.5 and True to 1, and drop an unknown member of a struct. So a
        # value fits only if the common type of both is the column's. Text for bytes is an extra case.
        whole = pa.types.is_integer(kind) and pa.types.is_integer(found.type)
        if not whole and found.type != kind and _common(kind, found.type) != kind:
            raise pa.ArrowInvalid(f"found {found.type}")
        if pa.types.is_binary(kind) and any(issubclass(each, str) for each in kinds):
            raise pa.ArrowInvalid("found string")
        return found if found.type == kind else pa.array(plain, kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        how = str(error).partition("\n")[0]
        raise ValueError(
            f"field {name!r} cannot be kept as {kind}, the type of the first samples: {how}; give its type, "
            f"{_UNFIT}"
        ) from None


def _plain(value: Any) -> Any:
    """A value that Arrow takes: arrays of more than one dimension as lists of arrays."""
    if isinstance(value, Ragged) or (isinstance(value, np.ndarray) and value.ndim > 1):
        return [*map(_plain, value)]
    return value


def _type_of(name: str, values: Iterable[Any]) -> Any:
    pa = arrow()
    try:
        return reduce(_common, map(_type_of_one, values), pa.null())
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        how = str(error).partition("\n")[0]
        raise ValueError(
            f"field {name!r} has values that no one type of Parquet fits: {how}; {_UNFIT}"
        ) from None


def _type_of_one(value: Any) -> Any:
    # By the dtype if there is one: an empty array has it too.
    pa = arrow()
    if isinstance(value, np.generic):
        return pa.from_numpy_dtype(value.dtype)
    if isinstance(value, np.ndarray):
        kind = pa.from_numpy_dtype(value.dtype)
        for _ in range(value.ndim):
            kind = pa.list_(kind)
        return kind
    if isinstance(value, Ragged):
        inner = value.values
        return pa.list_(
            _type_of_one(inner) if isinstance(inner, Ragged | np.ndarray) else pa.infer_type([*inner])
        )
    return pa.infer_type([value])


def _common(kind: Any, found: Any) -> Any:
    """The common type of two types."""
    if kind == found:
        return kind
    pa = arrow()
    schemas = [pa.schema([("", each)]) for each in (kind, found)]
    return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
