"""Parquet that is small and would become large: refused, or decoded few rows at a time."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from columnar_files import written
from planning import read

from asyncloader.errors import FormatError
from asyncloader.formats import parquet as row_groups
from asyncloader.formats.parquet_guard import ColumnChunk, Compact

MiB = 1 << 20


@contextmanager
def memory_of_pyarrow() -> Iterator[pa.MemoryPool]:
    """What it takes within, at most at a time: ``max_memory()``."""
    default = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(default)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(default)


def header_of(uncompressed: int, compressed: int, values: int) -> bytes:
    """Of a data page, in Thrift's compact protocol: all numbers in five bytes."""

    def number(value: int) -> bytes:
        zigzag = 2 * value
        return bytes([*(zigzag >> 7 * at & 0x7F | 0x80 for at in range(4)), zigzag >> 28])

    kind, sizes = b"\x15\0", b"\x15" + number(uncompressed) + b"\x15" + number(compressed)
    return kind + sizes + b"\x2c\x15" + number(values) + b"\x15\0\x15\x06\x15\x06\0\0"


def claiming(uncompressed: int, values: int = 1000) -> bytes:
    """A shard of one page, which claims so much."""
    content = written(pa.table({"a": np.zeros(1000, np.int64)}), compression="zstd", use_dictionary=False)
    column = pq.read_metadata(io.BytesIO(content)).row_group(0).column(0)
    start, size = column.data_page_offset, column.total_compressed_size
    thrift = Compact(content[start : start + size])
    thrift.struct({})
    page = content[start + thrift.at : start + size]
    header = header_of(uncompressed, len(page), values)
    # In place, with what a page may have before its data cut off: the header is all that matters.
    return content[:start] + (header + page)[:size].ljust(size, b"\0") + content[start + size :]


@pytest.mark.parametrize("most", [1 << 29, (1 << 31) - 1])
def test_a_page_that_claims_gigabytes_is_refused(most: int) -> None:
    with memory_of_pyarrow() as pool, pytest.raises(FormatError) as caught:
        read("parquet", claiming(most))
    assert f"would become {most}; at most {256 * MiB} are decompressed" in str(caught.value)
    assert "column 'a' of row group 0, page 0" in str(caught.value)
    assert pool.max_memory() < MiB


def test_a_page_that_claims_more_values_than_any_has_is_refused() -> None:
    with pytest.raises(FormatError, match="claims 2147483647 values"):
        read("parquet", claiming(8000, (1 << 31) - 1))


def test_a_page_that_is_no_page_is_refused() -> None:
    content = bytearray(claiming(8000))
    content[4:20] = b"\xff" * 16
    with pytest.raises(FormatError, match="the page at byte 4 has no header"):
        read("parquet", bytes(content))


@pytest.mark.parametrize("use_dictionary", [False, True], ids=["data", "dictionary"])
def test_a_page_that_becomes_hundreds_of_megabytes_is_refused_before_it_does(use_dictionary: bool) -> None:
    table = pa.table({"a": pa.array([bytes(257 * MiB)])})
    content = written(
        table, compression="zstd", use_dictionary=use_dictionary, dictionary_pagesize_limit=512 * MiB,
        write_statistics=False,
    )  # fmt: skip
    assert len(content) < MiB
    with memory_of_pyarrow() as pool, pytest.raises(FormatError, match="made to use up memory"):
        read("parquet", content)
    assert pool.max_memory() < MiB


def test_what_compresses_little_may_be_as_large_as_it_is() -> None:
    content = written(pa.table({"a": pa.array([bytes(64 * MiB)])}), compression="zstd", use_dictionary=False)
    assert len(read("parquet", content).rows[0]["a"]) == 64 * MiB


def test_a_long_value_named_again_and_again_comes_a_few_rows_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows of one byte at first, so that thousands are decoded at a time when those of 256 KiB come."""
    monkeypatch.setattr(row_groups, "_MOST_EXPANDED_BYTES", 4 * MiB)
    codes = np.repeat(np.array([0, 1], np.int32), [6000, 100])
    column = pa.DictionaryArray.from_arrays(codes, pa.array([b"x", bytes(MiB >> 2)]))
    content = written(pa.table({"a": column}), compression="zstd", store_schema=False)
    assert len(content) < MiB
    with memory_of_pyarrow() as pool:
        rows = read("parquet", content).rows
    assert [len(row["a"]) for row in rows] == [1] * 6000 + [MiB >> 2] * 100
    assert pool.max_memory() < 16 * MiB


def test_a_chunk_knows_what_its_values_take() -> None:
    from asyncloader.formats.parquet_guard import parse_footer

    content = written(pa.table({"a": [1], "b": ["x"]}))
    footer = content[-8 - int.from_bytes(content[-8:-4], "little") : -8]
    chunks: list[ColumnChunk] = parse_footer(footer)[0][0].chunks
    assert [(chunk.value_bytes, chunk.values) for chunk in chunks] == [(8, 1), (None, 1)]


# --- Arrow ---


def arrow_of(kind: str, table: pa.Table, codec: str | None) -> bytes:
    """One batch, as a file or a stream."""
    out = io.BytesIO()
    make = {"file": pa.ipc.new_file, "stream": pa.ipc.new_stream}[kind]
    with make(out, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(table)
    return out.getvalue()


@pytest.mark.parametrize("kind", ["file", "stream"])
@pytest.mark.parametrize("of", ["batch", "dictionary"])
def test_a_batch_that_becomes_hundreds_of_megabytes_is_refused_before_it_does(kind: str, of: str) -> None:
    long = pa.array([bytes(257 * MiB)])
    column = long if of == "batch" else pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), long)
    content = arrow_of(kind, pa.table({"a": column}), "zstd")
    del long, column
    assert len(content) < MiB
    with memory_of_pyarrow() as pool, pytest.raises(FormatError, match="made to use up memory"):
        read("arrow", content)
    assert pool.max_memory() < MiB


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_many_buffers_that_become_hundreds_of_megabytes_together_are_refused(kind: str) -> None:
    column = np.zeros(2 * MiB, np.int64)
    content = arrow_of(kind, pa.table({f"{number}": column for number in range(17)}), "zstd")
    with memory_of_pyarrow() as pool, pytest.raises(FormatError, match=f"would become {17 * 16 * MiB}"):
        read("arrow", content)
    assert pool.max_memory() < MiB


@pytest.mark.parametrize("kind", ["file", "stream"])
@pytest.mark.parametrize("codec", [None, "zstd", "lz4"])
def test_batches_of_arrow_that_compress_little_may_be_as_large_as_they_are(
    kind: str, codec: str | None
) -> None:
    noise = np.random.default_rng(0).integers(0, 255, 32 * MiB, np.uint8)
    content = arrow_of(kind, pa.table({"a": noise}), codec)
    assert sum(map(len, read("arrow", content, chunk_bytes=MiB).blocks)) == 32 * MiB
