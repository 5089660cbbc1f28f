"""Parquet and Arrow that is damaged, or made to hurt: one clear error, whatever is wrong."""

from __future__ import annotations

import base64
import gzip
import io
import random
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from columnar_files import arrow_files, table, written
from planning import read

from asyncloader.errors import FormatError
from asyncloader.formats import open_decoder

SOURCE = table(60)
PARQUET = written(SOURCE, row_group_size=20)
ARROW = {
    name: content
    for name, content in arrow_files()
    if name in ("pyarrow-file-lz4-7", "pyarrow-stream-zstd-7", "polars-file")
}


def fault(name: str, content: bytes, **options: Any) -> FormatError:
    with pytest.raises(FormatError) as caught:
        read(name, content, **options)
    return caught.value


def test_a_truncated_shard_says_so() -> None:
    for length in (0, 4, 11, 100, len(PARQUET) // 2, len(PARQUET) - 1):
        assert "truncated" in str(fault("parquet", PARQUET[:length]))
    for content in ARROW.values():
        for length in (0, 3, len(content) // 2, len(content) - 20):
            assert "truncated" in str(fault("arrow", content[:length])) or length == 3


@pytest.mark.parametrize("legacy", [False, True])
def test_a_stream_ends_with_its_end_marker_and_nothing_behind_it(legacy: bool) -> None:
    out = io.BytesIO()
    ends = []  # of each batch
    options = pa.ipc.IpcWriteOptions(use_legacy_format=legacy)
    with pa.ipc.new_stream(out, SOURCE.schema, options=options) as writer:
        for batch in SOURCE.to_batches(20):
            writer.write_batch(batch)
            ends.append(out.tell())
    content = out.getvalue()
    assert [end < len(content) for end in ends] == [True] * 3
    assert len(read("arrow", content).rows) == 60
    for end in ends:
        error = fault("arrow", content[:end])
        assert "before its end marker" in str(error)
        assert "truncated, or" in str(error)
        assert error.offset == end
    for more in (b"\0", b"\0" * 8, content):
        for chunk_bytes in (1, len(content), len(content) + len(more)):
            error = fault("arrow", content + more, chunk_bytes=chunk_bytes)
            assert "after its end marker" in str(error)
            assert error.offset == len(content)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"<html>" * 100, "expected the magic b'PAR1', found b'<htm'; the bytes look like a web page"),
        (
            gzip.compress(PARQUET),
            "look like gzip; Parquet is not supported when it is compressed as a whole: decompress it",
        ),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
        (b"PAR1" + bytes(100), "truncated or damaged: expected the magic b'PAR1' at the end"),
        (
            PARQUET[:-8] + (1 << 31).to_bytes(4, "little") + b"PAR1",
            "claims 2147483648 bytes, and the whole shard",
        ),
        (PARQUET[:-8] + len(PARQUET).to_bytes(4, "little") + b"PAR1", "and the whole shard has"),
        (b"PAR1" + bytes(100) + (90).to_bytes(4, "little") + b"PAR1", "the footer cannot be read"),
        (b"PARE" + PARQUET[4:], "the footer is encrypted"),
    ],
)
def test_what_is_no_parquet_is_told(content: bytes, says: str) -> None:
    assert says in str(fault("parquet", content))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            b"<html>" * 100,
            "expected the magic b'ARROW1' or a stream of messages, found b'<html>'; the bytes look",
        ),
        (gzip.compress(ARROW["polars-file"]), "look like gzip; Arrow is not supported when it is compressed"),
        (PARQUET, "the bytes look like Parquet"),
        (b"FEA1" + bytes(100), "Feather version 1"),
        (
            b"ARROW1\0\0" + bytes(100) + (1 << 30).to_bytes(4, "little") + b"ARROW1",
            "the footer claims 1073741824",
        ),
        (b"\xff" * 4 + (1 << 30).to_bytes(4, "little") + bytes(100), "claims 1073741824 bytes of metadata"),
        (b"\xff" * 4 + (8).to_bytes(4, "little") + b"\xff" * 8, "an offset points to byte"),
    ],
)
def test_what_is_no_arrow_is_told(content: bytes, says: str) -> None:
    assert says in str(fault("arrow", content))


class Keys(pe.KmsClient):
    """Wraps keys by not wrapping them."""

    def __init__(self, _: Any) -> None:
        super().__init__()

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
        return base64.b64decode(wrapped_key)


@pytest.mark.parametrize("plaintext_footer", [False, True])
def test_encrypted_columns_are_refused_and_others_are_read(plaintext_footer: bool) -> None:
    factory = pe.CryptoFactory(Keys)
    config = pe.EncryptionConfiguration(
        "footer", column_keys={"key": ["text"]}, plaintext_footer=plaintext_footer
    )
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), config)
    out = io.BytesIO()
    with pq.ParquetWriter(
        out, SOURCE.select(["id", "text"]).schema, encryption_properties=properties
    ) as writer:
        writer.write_table(SOURCE.select(["id", "text"]))
    assert "encrypted" in str(fault("parquet", out.getvalue()))
    assert not plaintext_footer or len(read("parquet", out.getvalue(), columns=["id"]).rows) == 60


def test_a_codec_that_is_missing_is_named() -> None:
    content = written(pa.table({"a": [1] * 1000}), compression="snappy", store_schema=False)
    # In the footer: the path, one name long, and the codec's number behind it, of which 3 is LZO.
    assert content.count(b"\x19\x18\x01a\x15\x02") == 1
    content = content.replace(b"\x19\x18\x01a\x15\x02", b"\x19\x18\x01a\x15\x06")
    assert "row group 0 cannot be read: While LZO compression" in str(fault("parquet", content))


@pytest.mark.parametrize(("name", "content"), [("parquet", PARQUET), ("arrow", ARROW["pyarrow-file-lz4-7"])])
def test_columns_and_filters_that_do_not_fit_are_told_with_what_there_is(name: str, content: bytes) -> None:
    naive = datetime(2024, 1, 1)
    for options, says, there in [
        (
            {"columns": ["id", "nope"]},
            "no column 'nope', which columns names,",
            "it has 'id', 'small', 'float'",
        ),
        (
            {"columns": ["ID"]},
            "no column 'ID', which columns names, in this shard; did you mean 'id'?",
            "'id'",
        ),
        ({"columns": ["smal"]}, "did you mean 'small'?", "'id'"),
        ({"filters": [("nope", ">", 1)]}, "no column 'nope', which filters names,", "it has 'id', 'small'"),
        ({"filters": [("ID", ">", 1)]}, "did you mean 'id'?", "it has 'id', 'small'"),
        ({"filters": [("text", ">", 1)]}, "no kernel matching input types (string", "'text' ("),
    ]:
        told = str(fault(name, content, **options))
        assert says in told and there in told
    zoned = pa.table({"at": pa.array([naive], pa.timestamp("us", "UTC"))})
    told = str(fault("parquet", written(zoned), filters=[("at", ">", naive)]))
    assert "timezone" in told and "'at' (timestamp[us, tz=UTC])" in told


def test_views_of_strings_are_filtered_and_filtered_by() -> None:
    source = pa.table(
        {
            "s": pa.array(["a", None, "b"], pa.string_view()),
            "b": pa.array([b"a", b"b", None], pa.binary_view()),
            "n": [1, 2, 3],
        }
    )
    out = io.BytesIO()
    with pa.ipc.new_file(out, source.schema) as writer:
        writer.write_table(source)
    for filters, kept in [([("n", ">", 1)], [1, 2]), ([("s", "in", ["b"])], [2]), ([("b", "!=", b"a")], [1])]:
        rows = read("arrow", out.getvalue(), filters=filters).rows
        assert rows == [source.to_pylist()[index] for index in kept]


def test_two_columns_of_one_name_are_refused() -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "a", "b"])
    assert "several columns 'a'" in str(fault("parquet", written(twice)))
    assert len(read("parquet", written(twice), columns=["b"]).rows) == 1


def test_a_page_that_does_not_keep_its_checksum_is_an_error() -> None:
    content = bytearray(written(pa.table({"a": range(1000)}), write_page_checksum=True, use_dictionary=False))
    content[len(content) // 3] ^= 1
    error = fault("parquet", bytes(content))
    assert (error.sample, "row group 0 cannot be read" in str(error)) == (0, True)


def test_a_shard_with_fewer_rows_than_were_had_has_changed() -> None:
    assert "at least 61 rows" in str(fault("parquet", PARQUET, start=61))
    for content in ARROW.values():
        assert "at least 1001 rows" in str(fault("arrow", content, start=1001))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["parquet", *ARROW])
def test_damage_anywhere_is_a_format_error_or_other_values(name: str, seed: int) -> None:
    content = PARQUET if name == "parquet" else ARROW[name]
    draw = random.Random(seed)
    outcomes = []
    for _ in range(60):
        damaged = bytearray(content)
        # Half of it at the ends, where the structure is.
        near = (
            draw.randrange(len(content)) if draw.random() < 0.5 else len(content) - 1 - draw.randrange(2000)
        )
        for at in range(near, min(near + draw.choice([1, 1, 8]), len(content))):
            damaged[at] = draw.randrange(256)
        try:
            rows = read("parquet" if name == "parquet" else "arrow", bytes(damaged), chunk_bytes=1 << 16).rows
        except FormatError as error:
            outcomes.append(str(error))
        else:
            assert len(rows) <= 200
    assert outcomes


def test_a_plan_is_not_fed() -> None:
    with pytest.raises(AssertionError, match="not read from front to back"):
        open_decoder("parquet")
