"""Parquet and Arrow: what is read, value for value, and what is asked for to read it."""

from __future__ import annotations

import io
import json
import time
from typing import Any

import columnar_files
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from columnar_files import arrow_files, parquet_files, plain, read_by_pyarrow, rows_of, written
from hypothesis import given
from hypothesis import strategies as st
from planning import read

from asyncloader.blocks import Columns, Ragged
from asyncloader.errors import FormatError
from asyncloader.formats.arrow import Messages
from asyncloader.formats.arrow_columns import cut
from asyncloader.formats.decoder import FooterCache
from asyncloader.formats.selection import choose, choose_names, make_selection

FILES = {**dict(parquet_files()), **dict(arrow_files())}

NAMES = sorted(FILES)


def format_of(content: bytes) -> str:
    return "parquet" if content.startswith(b"PAR1") else "arrow"


@pytest.mark.parametrize("name", NAMES)
def test_every_value_is_the_one_that_pyarrow_reads(name: str) -> None:
    content = FILES[name]
    expected = rows_of(read_by_pyarrow(content))
    for chunk_bytes in (len(content), 1997):
        reading = read(format_of(content), content, chunk_bytes=chunk_bytes)
        assert [plain(row) for row in reading.rows] == expected
        assert reading.positions == [{"sample": row + 1} for row in range(len(expected))]
        assert all(isinstance(block, Columns) for block in reading.blocks)


@pytest.mark.parametrize(
    ("name", "step"),
    [("pyarrow-zstd-v2-50", 7), ("polars-snappy-1", 19), ("duckdb-zstd-V2", 19), ("pyarrow-file-lz4-7", 13),
     ("pyarrow-stream-None-100", 19), ("feather", 19)],
)  # fmt: skip
def test_a_shard_goes_on_at_any_row(name: str, step: int) -> None:
    content = FILES[name]
    kind = format_of(content)
    whole = [plain(row) for row in read(kind, content).rows]
    filters = pc.field("small") > 40
    kept = read(kind, content, columns=["id"], filters=filters)
    for start in {*range(0, len(whole) + 1, step), len(whole)}:
        reading = read(kind, content, start=start, chunk_bytes=len(content))
        assert [plain(row) for row in reading.rows] == whole[start:]
        assert [position["sample"] for position in reading.positions] == list(
            range(start + 1, len(whole) + 1)
        )
        rest = read(kind, content, columns=["id"], filters=filters, start=start, chunk_bytes=len(content))
        pairs = zip(kept.positions, kept.rows, strict=True)
        there = [(position, row) for position, row in pairs if position["sample"] > start]
        assert list(zip(rest.positions, rest.rows, strict=True)) == there


@pytest.mark.parametrize("name", ["pyarrow-zstd-v1-50", "pyarrow-stream-zstd-7"])
def test_columns_come_in_the_order_asked_for(name: str) -> None:
    reading = read(format_of(FILES[name]), FILES[name], columns=["tokens", "id", "record"])
    whole = rows_of(read_by_pyarrow(FILES[name]).select(["tokens", "id", "record"]))
    assert [plain(row) for row in reading.rows] == whole
    assert list(reading.rows[0]) == ["tokens", "id", "record"]


@pytest.mark.parametrize(
    "filters",
    [
        pc.field("id") >= 75, [("id", ">=", 75)], [[("id", "<", 3)], [("id", ">", 97), ("small", ">", 0)]],
        pc.field("maybe") > 50, pc.field("maybe").is_null(), pc.field("text").isin(["text 3"]),
        pc.field("record", "x") == 8, pc.field("flag"), ~pc.field("flag") | (pc.field("id") == 1),
        pc.field("id") < 0, pc.scalar(True), [("text", "in", {"text 1"})],
        [("text", "in", ["text 1", "text 2"])],
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("name", ["pyarrow-zstd-v1-50", "pyarrow-stream-zstd-7"])
def test_a_filter_keeps_the_rows_that_pyarrow_keeps(name: str, filters: Any) -> None:
    content = FILES[name]
    expression = pq.filters_to_expression(filters) if isinstance(filters, list) else filters
    whole = read_by_pyarrow(content)
    expected = rows_of(whole.filter(expression).select(["price"]))
    reading = read(format_of(content), content, columns=["price"], filters=filters)
    assert [plain(row) for row in reading.rows] == expected
    ids = whole.filter(expression).column("id").to_pylist()
    assert [position["sample"] for position in reading.positions] == [each + 1 for each in ids]
    places = [block.trail.place(index).sample for block in reading.blocks for index in range(len(block))]
    assert places == ids


def test_one_column_of_twenty_is_less_than_a_tenth_of_the_bytes() -> None:
    rng = np.random.default_rng(0)
    source = pa.table({f"c{number}": rng.integers(0, 1 << 60, 20_000) for number in range(20)})
    for rows in (20_000, 400):
        content = written(source, row_group_size=rows)
        reading = read("parquet", content, columns=["c7"])
        assert [row["c7"] for row in reading.rows] == source.column("c7").to_pylist()
        assert reading.requested_bytes < len(content) / 10
        assert len(reading.layout.spans) == 20_000 // rows


def test_neighbouring_columns_are_one_request_and_all_columns_are_one_for_all_row_groups() -> None:
    content = FILES["pyarrow-snappy-v1-50"]
    assert len(read("parquet", content).layout.spans) == 1
    assert len(read("parquet", content, columns=["id", "small", "float"]).layout.spans) == 50


def test_row_groups_without_such_a_row_are_not_asked_for() -> None:
    content = FILES["pyarrow-snappy-v1-50"]
    reading = read("parquet", content, columns=["tokens"], filters=pc.field("id") > 95)
    groups = pq.read_metadata(io.BytesIO(content))
    first = groups.row_group(48).column(0).data_page_offset
    assert all(start >= first - 1000 for start, _ in reading.layout.spans)
    assert len(reading.rows) == 4
    none = read("parquet", content, filters=pc.field("id") > 1000)
    assert (none.layout.spans, none.rows, none.layout.samples) == ((), [], columnar_files.ROWS)


NAN = float("nan")
X, Y = pc.field("x"), pc.field("y")


@pytest.mark.parametrize(
    ("filters", "asked"),
    [
        ([("x", "!=", 1.5)], 2), ([("x", "not in", [1.5])], 2), (X.is_nan(), 2), (~(X < 2), 2),
        (~(X == 1.5), 2), (X.isin([NAN]), 2), ((X * 1).is_nan(), 2), ((X != 1.5) & (Y != 1.5), 2),
        (X.cast("string") == "nan", 2), (X.is_null(nan_is_null=True), 2), (pc.field("in", "x") != 1.5, 2),
        ((X != 1.5) & (pc.field("n") > 1), 1),
        ((X > 2) | (pc.field("n") > 1), 1), (X > 2, 0), ([("x", "in", [2.5]), ("y", ">=", 0)], 0),
        (X == 1.5, 2), ((X > 2) & (Y != 1.5), 0), (pc.field("half").is_nan(), 2),
    ],
    ids=str,
)  # fmt: skip
def test_statistics_do_not_rule_out_nan(filters: Any, asked: int) -> None:
    values = pa.array([1.5, NAN, 1.5, NAN], pa.float32())
    source = pa.table(
        {
            "x": values,
            "y": values.cast(pa.float64()),
            "half": values.cast(pa.float16()),
            "n": [1, 1, 2, 2],
            "in": pa.StructArray.from_arrays([values], ["x"]),
            "id": range(4),
        }
    )
    expression = pq.filters_to_expression(filters) if isinstance(filters, list) else filters
    expected = source.filter(expression).column("id").to_pylist()
    content = written(source, row_group_size=2)
    reading = read("parquet", content, columns=["id"], filters=filters)
    assert [row["id"] for row in reading.rows] == expected
    decoder: Any = reading.layout.open_decoder()
    assert len(decoder._groups) == asked


def test_a_large_footer_takes_one_more_request_and_a_known_one_none() -> None:
    source = pa.table({f"column number {number}": [number] * 50 for number in range(100)})
    content = written(source, row_group_size=1)
    footers = FooterCache()
    first = read("parquet", content, footers=footers)
    assert len(first.asked) == 3
    assert sum(stop - start for start, stop in first.asked) < len(content)
    second = read("parquet", content, footers=footers)
    assert (len(second.asked), second.rows) == (1, first.rows)
    assert len(read("parquet", FILES["pyarrow-snappy-v1-1"]).asked) == 2


def test_numbers_are_views_of_what_pyarrow_decoded() -> None:
    block, *_ = read("parquet", FILES["pyarrow-none-v1-1"], columns=["id", "tokens", "flag"]).blocks
    ids, tokens = block.column("id"), block.column("tokens")
    assert isinstance(ids, np.ndarray) and ids.dtype == np.int64 and not ids.flags.owndata
    assert isinstance(tokens, Ragged) and isinstance(tokens.values, np.ndarray)
    assert tokens.values.dtype == np.int32 and not tokens.values.flags.owndata


def test_equal_strings_of_a_dictionary_are_decoded_a_few_at_a_time() -> None:
    source = pa.table({"text": ["x"] * 100 + ["x" * 20_000] * 3000 + ["x"] * 9000})
    content = written(source)
    assert len(content) < 100_000
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(pool)
    try:
        reading = read("parquet", content)
    finally:
        pa.set_memory_pool(usual)
    assert [row["text"] for row in reading.rows] == source.column("text").to_pylist()
    assert 0 < pool.max_memory() < 36 << 20
    assert max(map(len, reading.blocks)) > 400


SHARED = [
    pa.array(["x" * 20_000]).take(pa.array([0] * 2000)).dictionary_encode(),
    pa.array([["x" * 10_000] * 2] * 2000).cast(pa.list_(pa.dictionary(pa.int8(), pa.string()))),
    pc.run_end_encode(pa.array(["x" * 20_000] * 2000)),
    pa.array([{"a": None, "b": "x" * 20_000}] * 2000).cast(
        pa.struct([("a", pa.int8()), ("b", pa.dictionary(pa.int8(), pa.string()))])
    ),
    pa.array(["x" * 20_000] * 2000, pa.string_view()),
    pa.MapArray.from_arrays(
        range(0, 4001, 2), ["", "k"] * 2000, pa.array(["x" * 10_000] * 4000).dictionary_encode()
    ),
]


@pytest.mark.parametrize("array", SHARED, ids=lambda array: str(array.type))
def test_values_that_rows_share_are_cut_by_what_they_take_when_decoded(array: pa.Array) -> None:
    array = pa.concat_arrays([array.slice(1998), pa.nulls(1000, array.type), array.slice(3)])
    sizes = [size for _, size in cut(pa.record_batch({"x": array.slice(1)}))]
    assert sum(sizes) == len(array) - 1
    assert sizes[0] <= 1024 and 380 <= sizes[2] <= 420 and sizes[3] == sizes[2]


@given(st.lists(st.none() | st.sampled_from(["", "a", "bc"]), max_size=9), st.integers(0, 9))
def test_cuts_take_every_row_of_any_kind_of_column(values: list[str | None], start: int) -> None:
    texts = pa.array(values, pa.string())
    nested = pa.array([None if each is None else [each, None] for each in values], pa.list_(pa.string()))
    codes = pa.dictionary(pa.int32(), pa.string())
    columns = [
        texts.dictionary_encode(), pc.run_end_encode(texts), texts.cast(pa.string_view()),
        nested.cast(pa.list_(codes)), pa.StructArray.from_arrays([texts.dictionary_encode()], ["x"]),
        pa.array([each and [(each, each)] for each in values], pa.map_(pa.string(), pa.string())),
    ]  # fmt: skip
    batch = pa.record_batch(columns, list("abcdef")).slice(start)
    assert list(cut(batch)) == ([(0, len(batch))] if len(batch) else [])


def test_a_batch_is_measured_only_where_pyarrow_can() -> None:
    """Earlier versions than 22 do not know how many bytes views take; none knows it of all that is empty."""

    class Batch:
        schema = pa.schema({"x": pa.string_view()})
        columns = (pa.array(["a", "b"], pa.string_view()),)
        nbytes = property(lambda self: pytest.fail("asked for its size"))

        def __len__(self) -> int:
            return self.rows

        def __init__(self, rows: int) -> None:
            self.rows = rows

    assert list(cut(Batch(2))) == [(0, 2)]
    assert list(cut(Batch(0))) == []


def test_a_filter_is_checked_beside_columns_of_any_type() -> None:
    """pyarrow makes no empty table of some nested types, which the filter does not look at."""
    kind = pa.map_(pa.string(), pa.large_list(pa.list_(pa.json_(), 2)))
    schema = pa.schema({"id": pa.int64(), "other": kind})
    assert choose(make_selection(None, pc.field("id") > 1), schema).tested == ("id",)


def test_blocks_stay_small() -> None:
    source = pa.table({"id": range(3000), "raw": [bytes(20_000)] * 3000})
    reading = read("parquet", written(source, use_dictionary=False, compression="none"), chunk_bytes=1 << 20)
    assert len(reading.rows) == 3000
    assert max(map(len, reading.blocks)) <= 1024
    assert max(len(block) * 20_000 for block in reading.blocks) <= 9 << 20


def test_what_is_held_is_one_row_group() -> None:
    source = pa.table({"raw": [bytes([number]) * 10_000 for number in range(100)]})
    content = written(source, use_dictionary=False, compression="none", row_group_size=10)
    held: list[int] = []
    from asyncloader.formats.decoder import HeldSpans

    class Watched(HeldSpans):
        def feed(self, chunk: bytes) -> None:
            super().feed(chunk)
            held.append(sum(len(piece) for _, piece, _ in self._pieces))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asyncloader.formats.parquet.HeldSpans", Watched)
        assert len(read("parquet", content, chunk_bytes=10_000).rows) == 100
    assert max(held) < 150_000


def test_a_shard_without_rows_has_none() -> None:
    empty = columnar_files.table(0)
    assert read("parquet", written(empty)).rows == []
    out = io.BytesIO()
    with pa.ipc.new_stream(out, empty.schema) as writer:
        writer.write_table(empty)
    assert read("arrow", out.getvalue()).rows == []


@pytest.mark.parametrize("rows", [0, 5])
def test_a_file_whose_first_message_is_aligned_to_64_bytes_is_read(rows: int) -> None:
    """As arrow-rs writes it."""
    source = pa.table({"a": list(range(rows)), "s": pa.array(["x"] * rows, pa.string()).dictionary_encode()})
    out = io.BytesIO()
    with pa.ipc.new_file(out, source.schema) as writer:
        writer.write_table(source, max_chunksize=2)
    content = columnar_files.padded(out.getvalue())
    assert read_by_pyarrow(content) == source
    assert [plain(row) for row in read("arrow", content).rows] == rows_of(source)


@pytest.mark.parametrize("writer", ["1.0.0", "1.2.8"])
def test_lengths_of_columns_that_lack_some_bytes_are_read_beyond(writer: str) -> None:
    """As of parquet-mr up to version 1.2.8 (PARQUET-816)."""
    source = pa.table({"a": list(range(1000)), "b": ["x"] * 1000})
    content = written(source, row_group_size=300)
    by = f"parquet-cpp-arrow version {pa.__version__}".encode()
    old = f"parquet-mr version {writer} (".encode()
    assert content.count(by) == 1
    content = content.replace(by, old.ljust(len(by) - 1, b"x") + b")")
    for columns in (None, ["a"], ["b"]):
        reading = read("parquet", content, columns=columns)
        assert [plain(row) for row in reading.rows] == rows_of(source.select(columns or ["a", "b"]))


def test_a_filter_reads_the_columns_that_it_tests_and_no_others() -> None:
    """Whatever its values and functions are called."""
    names = ["id", "kind", "image", "col", "my col", "string", "true", "", "a", "b"]
    source = pa.table({name: ["image", "x"] * 50 for name in names}).set_column(
        8, "a", pa.StructArray.from_arrays([pa.array(range(100))], ["b"])
    )
    for tested, filters in {
        ("kind",): pc.field("kind") == "image",
        ("kind", "my col"): (pc.field("kind") != "true") & (pc.field("my col") == "string"),
        ("a",): pc.field("a", "b") > 3,
        ("",): pc.field("").isin(["col", "a"]),
    }.items():
        assert choose(make_selection(["id"], filters), source.schema).tested == tested
    content = written(source)
    requested = [
        read("parquet", content, columns=["id"], filters=pc.field("kind") == value).requested_bytes
        for value in ("x", "image")
    ]
    assert requested[0] == requested[1]


def test_the_columns_of_a_wide_shard_are_chosen_fast() -> None:
    names = tuple(f"column {number}" for number in range(20_000))
    began = time.process_time()
    assert choose_names(None, names) == choose_names(names, names) == names
    assert time.process_time() - began < 1


def test_a_column_whose_name_has_a_dot_is_not_taken_for_another_one() -> None:
    source = pa.table({"a.b": [1, 2], "a": [{"b": 3}, {"b": 4}], "ab": [5, 6]})
    content = written(source)
    assert [plain(row) for row in read("parquet", content).rows] == rows_of(source)
    for name in source.column_names:
        assert [plain(row) for row in read("parquet", content, columns=[name]).rows] == rows_of(
            source.select([name])
        )


def test_small_messages_of_one_chunk_are_not_copied_over_and_over() -> None:
    batch = pa.record_batch({"x": [1]})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        for _ in range(2000):
            writer.write_batch(batch)
    copied = 0

    class Counted(bytes):
        def __getitem__(self, key: Any) -> Any:
            nonlocal copied
            piece = super().__getitem__(key)
            copied += len(piece)
            return Counted(piece)

    content = Counted(sink.getvalue())
    assert sum(1 for _ in Messages(0, b"").feed(content)) == 2001
    assert copied < 2 * len(content)


@pytest.mark.parametrize("filters", [pc.field(0) > 3, (pc.field("x") > 3) & (pc.field(0, 1) == 1)], ids=str)
def test_a_filter_by_position_is_refused(filters: Any) -> None:
    with pytest.raises(ValueError, match=r"refers to a column by its position.*name the column"):
        make_selection(None, filters)
    make_selection(None, pc.field("text") == 'a "FieldPath(0)')


def test_filters_of_long_lists_are_told_apart() -> None:
    among = [[*range(50), middle, *range(50)] for middle in (100, 100, 101)]
    first, same, other = (make_selection(None, pc.field("x").isin(values)).describe() for values in among)
    assert first == same and first != other and json.dumps(first)
    assert "filters_digest" not in make_selection(None, pc.field("x") > 3).describe()


# --- what Hugging Face's datasets note in the schema ---


def noted(columns: dict[str, Any], features: object) -> list[tuple[str, bytes]]:
    """The columns as a shard of each format, with the features in the metadata of its schema."""
    table = pa.table(columns)
    info = json.dumps({"info": {"features": features}})
    table = table.replace_schema_metadata({"huggingface": info, "more": "x"})
    parquet, file, stream = io.BytesIO(), io.BytesIO(), io.BytesIO()
    pq.write_table(table, parquet, row_group_size=2)
    for out, new in ((file, pa.ipc.new_file), (stream, pa.ipc.new_stream)):
        with new(out, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    return [("parquet", parquet.getvalue()), ("arrow", file.getvalue()), ("arrow", stream.getvalue())]


def test_arrays_of_datasets_have_their_shape() -> None:
    values = np.arange(24, dtype=np.int16).reshape(4, 2, 3)
    rows = [None if index == 2 else values[index].tolist() for index in range(4)]
    grown = [values.reshape(-1, 3)[: index + 1].tolist() for index in range(4)]
    columns = {
        "even": pa.array(values.tolist(), pa.list_(pa.list_(pa.int16()))),
        "null": pa.array(rows, pa.list_(pa.list_(pa.int16()))),
        "grown": pa.array(grown, pa.list_(pa.list_(pa.int16()))),
        "flags": pa.array((values % 2 == 1).tolist(), pa.list_(pa.list_(pa.bool_()))),
        "lists": pa.array(values.tolist(), pa.list_(pa.list_(pa.int16()))),
    }
    features = {
        name: {"_type": "Array2D", "shape": [None if name == "grown" else 2, 3], "dtype": "int16"}
        for name in ("even", "null", "grown", "flags")
    }
    for kind, content in noted(columns, features):
        for start in (0, 1):
            reading = read(kind, content, start=start)
            for index, row in enumerate(reading.rows, start):
                assert (row["even"].dtype, row["even"].tolist()) == (np.int16, values[index].tolist())
                assert (None if row["null"] is None else row["null"].tolist()) == rows[index]
                assert (row["grown"].shape, row["grown"].tolist()) == ((index + 1, 3), grown[index])
                assert row["flags"].dtype == np.bool_ and row["flags"].shape == (2, 3)
                assert isinstance(row["lists"], Ragged)
            assert not reading.rows[0]["even"].flags.writeable
        (one, *_) = read(kind, content).blocks
        assert one.fields["even"].shape[1:] == (2, 3)


@pytest.mark.parametrize(
    ("value", "found"),
    [([[1, 2, 3]], "length 1 in place of 2"), ([[1, 2], [3, 4]], "length 2 in place of 3"),
     ([[1, 2, None], [1, 2, 3]], "a null within"), ([None, [1, 2, 3]], "a null within")],
)  # fmt: skip
def test_arrays_of_another_shape_than_noted_are_an_error(value: Any, found: str) -> None:
    column = pa.array([[[1, 2, 3], [4, 5, 6]], value], pa.list_(pa.list_(pa.int32())))
    features = {"m": {"_type": "Array2D", "shape": [2, 3]}}
    for kind, content in noted({"m": column}, features):
        with pytest.raises(FormatError, match=f"column 'm': expected arrays of shape .*{found}"):
            read(kind, content)


def test_a_path_that_is_null_is_left_out_of_a_file() -> None:
    files = [{"bytes": b"x", "path": None}, {"bytes": b"y", "path": "b.png"}, None]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns = {name: pa.array(files, kind) for name in ("image", "other")}
    for form, content in noted(columns, {"image": {"_type": "Image"}, "other": {"_type": "Value"}}):
        rows = read(form, content).rows
        assert [row["image"] for row in rows] == [{"bytes": b"x"}, files[1], None]
        assert [row["other"] for row in rows] == files


@pytest.mark.parametrize(
    "features",
    [None, [], {"m": 3}, {"m": {"_type": "Array2D"}}, {"m": {"_type": "Array2D", "shape": [0, 3]}},
     {"m": {"_type": ["x"]}}, {"elsewhere": {"_type": "Array2D", "shape": [2, 3]}}],
)  # fmt: skip
def test_features_of_another_form_say_nothing(features: object) -> None:
    column = pa.array([[[1, 2, 3], [4, 5, 6]]], pa.list_(pa.list_(pa.int32())))
    for kind, content in noted({"m": column}, features):
        assert isinstance(read(kind, content).rows[0]["m"], Ragged)
