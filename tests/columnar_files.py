"""Parquet and Arrow files of every writer, codec and encoding, and what pyarrow itself reads of them."""

from __future__ import annotations

import datetime as dt
import io
import math
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet as pq

from asyncloader.blocks import Ragged
from asyncloader.formats.arrow import FlatTable

ROWS = 100


def table(rows: int = ROWS) -> pa.Table:
    """Columns of the types that all writers have, with and without nulls, and nested ones."""
    numbers = range(rows)
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, 678901)
    some = [number % 3 != 0 for number in numbers]
    maybe = [number if there else None for number, there in zip(numbers, some, strict=True)]
    gaps = [None if n % 5 == 0 else [n, None] if n % 7 == 0 else [n] for n in numbers]
    words = [["a", f"b{number}"][: number % 3] for number in numbers]
    deep = [[[1, number], [], [2]][: number % 4] for number in numbers]
    records = [{"x": n, "y": None if n % 4 else [float(n)]} for n in numbers]
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "small": pa.array([number % 100 for number in numbers], pa.int8()),
            "float": pa.array([number / 7 for number in numbers], pa.float64()),
            "single": pa.array([math.nan if number == 5 else number / 3 for number in numbers], pa.float32()),
            "flag": pa.array(some),
            "text": pa.array([f"text {number % 17}" for number in numbers]),
            "raw": pa.array([bytes([number % 256]) * (number % 5) for number in numbers]),
            "moment": pa.array([moment + dt.timedelta(hours=n) for n in numbers], pa.timestamp("us")),
            "day": pa.array([moment.date() + dt.timedelta(days=number) for number in numbers]),
            "price": pa.array([Decimal(number) / 4 for number in numbers], pa.decimal128(12, 2)),
            "maybe": pa.array(maybe, pa.int32()),
            "maybe_text": pa.array([None if each is None else str(each) for each in maybe]),
            "tokens": pa.array([list(range(number % 9)) for number in numbers], pa.list_(pa.int32())),
            "gaps": pa.array(gaps, pa.list_(pa.int64())),
            "words": pa.array(words, pa.list_(pa.string())),
            "deep": pa.array(deep, pa.list_(pa.list_(pa.int64()))),
            "record": pa.array(records, pa.struct([("x", pa.int64()), ("y", pa.list_(pa.float64()))])),
            "nothing": pa.array([None] * rows, pa.int16()),
        }
    )


CODECS = ("none", "snappy", "gzip", "brotli", "zstd", "lz4")
ENCODINGS = {
    "plain": {},
    "delta": {"id": "DELTA_BINARY_PACKED", "maybe": "DELTA_BINARY_PACKED", "text": "DELTA_BYTE_ARRAY",
              "raw": "DELTA_LENGTH_BYTE_ARRAY", "maybe_text": "DELTA_LENGTH_BYTE_ARRAY", "flag": "RLE",
              "tokens.list.element": "DELTA_BINARY_PACKED"},
    "split": {"id": "BYTE_STREAM_SPLIT", "float": "BYTE_STREAM_SPLIT", "single": "BYTE_STREAM_SPLIT",
              "maybe": "BYTE_STREAM_SPLIT", "price": "BYTE_STREAM_SPLIT"},
}  # fmt: skip


def written(source: pa.Table, **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(source, out, **options)
    return out.getvalue()


def parquet_files() -> Iterator[tuple[str, bytes]]:
    """By pyarrow, polars and DuckDB: each codec, encoding and page version, in 1 and 50 row groups."""
    source = table()
    for groups in (1, 50):
        size = ROWS // groups
        for codec in CODECS:
            for version in ("1.0", "2.0"):
                name = f"pyarrow-{codec}-v{version[0]}-{groups}"
                yield name, written(source, compression=codec, data_page_version=version, row_group_size=size)
        for encoding, columns in ENCODINGS.items():
            yield f"pyarrow-{encoding}-{groups}", written(
                source, use_dictionary=False, column_encoding=columns or None, row_group_size=size,
                write_page_checksum=True, write_page_index=True,
            )  # fmt: skip
    yield "pyarrow-old", written(source, version="1.0", use_deprecated_int96_timestamps=True)
    yield from ((name, content) for name, content in _by_others().items() if content.startswith(b"PAR1"))


@cache
def _by_others() -> dict[str, bytes]:
    """Files of polars and DuckDB, written in a process of their own: their threads stay for good."""
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(table(), Path(folder, "source"))
        program = Path(__file__).with_name("columnar_writers.py")
        subprocess.run([sys.executable, program, folder, str(ROWS)], check=True, capture_output=True)
        return {path.name: path.read_bytes() for path in sorted(Path(folder).glob("*-*"))}


def arrow_files() -> Iterator[tuple[str, bytes]]:
    """Files and streams of Arrow IPC, by pyarrow and polars and as of arrow-rs, whole and in many batches."""
    source = table()
    coded = source.set_column(5, "text", source.column("text").dictionary_encode())
    for codec in (None, "lz4", "zstd"):
        for size in (ROWS, 7):
            for kind, open_writer in (("file", pa.ipc.new_file), ("stream", pa.ipc.new_stream)):
                out = io.BytesIO()
                with open_writer(
                    out, coded.schema, options=pa.ipc.IpcWriteOptions(compression=codec)
                ) as writer:
                    writer.write_table(coded, max_chunksize=size)
                yield f"pyarrow-{kind}-{codec}-{size}", out.getvalue()
    out = io.BytesIO()
    pa.feather.write_feather(source, out, chunksize=30)
    yield "feather", out.getvalue()
    yield "padded", padded(out.getvalue())
    yield from ((name, content) for name, content in _by_others().items() if content[:4] != b"PAR1")


def padded(content: bytes) -> bytes:
    """A file as of arrow-rs: its first message begins at byte 64."""
    stop = len(content) - 10 - int.from_bytes(content[-10:-6], "little")
    footer = content[stop:]
    table = FlatTable(footer[:-10], "the footer")
    for start, metadata, _ in (*table.structs(2, "<qi4xq"), *table.structs(3, "<qi4xq")):
        block = struct.pack("<qi", start, metadata)
        assert footer.count(block) == 1
        footer = footer.replace(block, struct.pack("<qi", start + 56, metadata))
    return content[:8] + bytes(56) + content[8:stop] + footer


def read_by_pyarrow(content: bytes) -> pa.Table:
    """The whole file, by pyarrow's own readers."""
    if content.startswith(b"PAR1"):
        return pq.read_table(io.BytesIO(content))
    open_reader = pa.ipc.open_file if content.startswith(b"ARROW1") else pa.ipc.open_stream
    return open_reader(io.BytesIO(content)).read_all()


def rows_of(source: pa.Table) -> list[dict[str, Any]]:
    """Its rows as plain values; times as numbers of their unit."""
    columns = {name: [_told(scalar) for scalar in source.column(name)] for name in source.column_names}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _told(scalar: Any) -> Any:
    if not scalar.is_valid:
        return None
    if isinstance(scalar, pa.ExtensionScalar | pa.DictionaryScalar):
        return _told(scalar.value)
    if isinstance(scalar, pa.MapScalar):
        return [(_told(pair["key"]), _told(pair["value"])) for pair in scalar.values]
    if isinstance(scalar, pa.ListScalar | pa.FixedSizeListScalar | pa.LargeListScalar):
        return [_told(each) for each in scalar.values]
    if isinstance(scalar, pa.StructScalar):
        return {name: _told(each) for name, each in scalar.items()}
    if pa.types.is_temporal(scalar.type) and not pa.types.is_interval(scalar.type):
        return scalar.value
    return plain(scalar.as_py())


def plain(value: Any) -> Any:
    """A value of a sample as a plain one, likewise."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        return int(value.astype(np.int64))
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray | Ragged | list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return tuple(plain(each) for each in value)
    return "nan" if isinstance(value, float) and math.isnan(value) else value
