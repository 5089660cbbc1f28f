"""Writing shards: what is written reads back, and half a shard is never seen."""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
import warnings
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from examples_drawn import examples
from hypothesis import given
from hypothesis import strategies as st

import asyncloader as al
from asyncloader import from_urls
from asyncloader.formats import format_of, open_decoder
from asyncloader.formats.digest import open_digest
from asyncloader.formats.fields import _tar_member, decode_sample
from asyncloader.shards.expectations import Expected
from asyncloader.shards.index_entries import parse_index
from asyncloader.shards.shard_writer import ShardWriter

COMPRESSIONS = ["", ".gz", ".zst", ".xz", ".bz2"]


def read(path: str | Path) -> list[Any]:
    decoder = open_decoder(format_of(str(path)))
    blocks = list(decoder.feed(Path(path).read_bytes())) + list(decoder.finish())
    return [sample for block in blocks for sample in block.rows()]


def sample(index: int, size: int = 3) -> dict[str, Any]:
    return {"__key__": f"d/{index:05d}", "bin": b"x" * size}


_KEYS = st.text(st.characters(exclude_characters=".\0", exclude_categories=["Cs"]), min_size=1, max_size=150)


@examples(40)
@given(
    st.lists(
        st.tuples(
            _KEYS.filter(lambda key: not key.endswith("/")),
            st.dictionaries(
                st.from_regex(r"[a-zü]{1,5}(\.[a-z]{1,60}){0,3}", fullmatch=True),
                st.binary(max_size=600),
                min_size=1,
            ),
        ),
        unique_by=lambda pair: pair[0],
        max_size=5,
    )
)
def test_tar_samples_read_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, samples: list[tuple[str, dict[str, bytes]]]
) -> None:
    path = tmp_path_factory.mktemp("shards") / "s.tar"
    written = [{"__key__": key, **fields} for key, fields in samples]
    with ShardWriter(path) as writer:
        for item in written:
            writer.write(item)
    assert (read(path) if written else []) == written


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("format_name", ["tar", "jsonl"])
def test_every_suffix_reads_back(tmp_path: Path, format_name: str, compression: str) -> None:
    samples = [sample(index) if format_name == "tar" else {"n": index, "ü": [None]} for index in range(50)]
    path = tmp_path / f"s.{format_name}{compression}"
    with ShardWriter(path) as writer:
        for item in samples:
            writer.write(item)
    assert read(path) == samples
    assert [(shard.path, shard.samples) for shard in writer.shards] == [(str(path), 50)]
    if compression:
        assert path.stat().st_size < writer.shards[0].size_bytes
    assert sorted(os.listdir(tmp_path)) == ["asyncloader-index.json", path.name]


@pytest.mark.parametrize("suffix", ["tar", "tgz", "tzst", "txz", "tbz2", "jsonl.zst"])
def test_the_same_samples_make_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    for name in ("a", "b"):
        with ShardWriter(tmp_path / f"{name}.{suffix}") as writer:
            writer.write({"__key__": "ü" * 80, "txt": "text"})
    assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


def test_values_are_encoded_by_extension(tmp_path: Path) -> None:
    values = {
        "__key__": "a", "json": {"ü": [1, None]}, "en.txt": "ü", "cls": numpy.int64(7), "index": True,
        "npy": numpy.arange(6).reshape(2, 3), "raw": bytearray(b"1"), "view": memoryview(b"2"),
    }  # fmt: skip
    with ShardWriter(tmp_path / "s.tar") as writer:
        writer.write({"__url__": "left out", **values})
    (read_back,) = map(decode_sample, read(tmp_path / "s.tar"))
    numpy.testing.assert_array_equal(read_back.pop("npy"), values.pop("npy"))
    assert read_back == values | {"cls": 7, "index": 1, "raw": b"1", "view": b"2"}


@pytest.mark.parametrize("pattern", ["c-%03d.tar", "c-{:03d}.tar", "c-{0:03}.tar"])
def test_a_new_shard_begins_at_samples_per_shard(tmp_path: Path, pattern: str) -> None:
    with ShardWriter(tmp_path / pattern, samples_per_shard=4) as writer:
        for index in range(10):
            writer.write(sample(index))
    assert [(os.path.basename(shard.path), shard.samples) for shard in writer.shards] == [
        ("c-000.tar", 4), ("c-001.tar", 4), ("c-002.tar", 2),
    ]  # fmt: skip
    assert [item for shard in writer.shards for item in read(shard.path)] == [sample(i) for i in range(10)]


def test_a_new_shard_begins_before_its_size_is_passed(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "c-%d.tar", shard_size=4096) as writer:
        for index, size in enumerate((512, 512, 512, 512, 512, 9000, 512)):
            writer.write(sample(index, size))
    assert [shard.samples for shard in writer.shards] == [4, 1, 1, 1]
    assert [shard.size_bytes for shard in writer.shards] == [4096, 1024, 9728, 1024]


def test_a_folder_gets_numbered_tars(tmp_path: Path) -> None:
    for name, folder in (("a", tmp_path / "a"), ("b", f"{tmp_path}/b/")):
        (tmp_path / name).mkdir()
        with ShardWriter(folder) as writer:
            writer.write(sample(0))
        (shard,) = writer.shards
        assert (shard.path, shard.samples) == (f"{tmp_path}/{name}/shard-00000.tar", 1)


def test_a_shard_is_not_seen_before_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "s.tar"
    with ShardWriter(path) as writer:
        writer.write(sample(0))
        assert not path.exists()
        assert writer.shards == []
        assert all(name.startswith(".") for name in os.listdir(tmp_path) if name != "s.tar")
    assert read(path) == [sample(0)]


def test_a_shard_that_exists_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s.tar"
    path.write_bytes(b"the old shard")
    with ShardWriter(path) as writer, pytest.raises(FileExistsError, match=r"s\.tar' exists.*empty folder"):
        writer.write(sample(0))
    assert path.read_bytes() == b"the old shard"
    assert os.listdir(tmp_path) == ["s.tar"]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_an_exception_discards_the_open_shard_only(tmp_path: Path, compression: str) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        ShardWriter(tmp_path / f"s-%d.tar{compression}", samples_per_shard=2) as writer,
    ):
        for index in range(3):
            writer.write(sample(index))
        raise ZeroDivisionError
    assert sorted(os.listdir(tmp_path)) == ["asyncloader-index.json", f"s-0.tar{compression}"]
    with pytest.raises(RuntimeError, match="closed"):
        writer.write(sample(9))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_full_disk_leaves_no_shard(
    tmp_path: Path, compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda count: "0" * 2 * count)
    name = f"s.tar{compression}"
    writer = ShardWriter(tmp_path / name)
    writer.write({"__key__": "a", "bin": os.urandom(100)})
    temporary = next(tmp_path.iterdir())
    full = os.open("/dev/full", os.O_WRONLY)
    # The real descriptor, pointed to a device that is always full.
    fd = next(int(n) for n in os.listdir("/proc/self/fd") if _target(n) == str(temporary))
    os.dup2(full, fd)
    os.close(full)
    with pytest.raises(OSError, match=rf"No space.*: '{temporary}'"):
        writer.write({"__key__": "b", "bin": os.urandom(1_000_000)})
        writer.close()
    assert os.listdir(tmp_path) == []
    writer.close()
    assert writer.shards == []


def _target(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


def test_without_samples_nothing_is_written(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "s.tar") as writer:
        pass
    assert os.listdir(tmp_path) == writer.shards == []


@pytest.mark.parametrize("key", ["", "a.b", "d/", "d/.hidden", "a\0b", None, 7])
def test_keys_that_would_not_read_back_are_refused(tmp_path: Path, key: Any) -> None:
    writer = ShardWriter(tmp_path / "s.tar")
    with pytest.raises(ValueError, match="__key__"):
        writer.write({"__key__": key, "txt": b""})
    assert os.listdir(tmp_path) == []


def test_keys_in_folders_with_dots_are_fine(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "s.tar") as writer:
        writer.write({"__key__": "v1.0/a", "txt": b""})
    assert read(tmp_path / "s.tar")[0]["__key__"] == "v1.0/a"


@pytest.mark.parametrize("field", ["", "TXT", "a/b", "a\0"])
def test_fields_that_would_not_read_back_are_refused(tmp_path: Path, field: str) -> None:
    with pytest.raises(ValueError, match="would not read back"):
        ShardWriter(tmp_path / "s.tar").write({"__key__": "a", field: b""})


def test_samples_that_would_be_lost_or_merged_are_refused(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "s.tar") as writer:
        with pytest.raises(ValueError, match="no field"):
            writer.write({"__key__": "a", "__url__": "x"})
        writer.write({"__key__": "a", "txt": b"1"})
        with pytest.raises(ValueError, match="would read as one"):
            writer.write({"__key__": "a", "cls": b"1"})
    assert len(read(tmp_path / "s.tar")) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("wav", "str"),
        ("txt", 7),
        ("cls", 1.5),
        ("npy", [1]),
        ("npy", numpy.array([None])),
        ("json", {1, 2}),
        (7, b""),
    ],
)
def test_values_without_an_encoding_are_refused(tmp_path: Path, field: Any, value: Any) -> None:
    with pytest.raises(TypeError):
        ShardWriter(tmp_path / "s.tar").write({"__key__": "a", field: value})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("field", "message"), [("image", r"'image\.npy': numpy\.asarray"), ("npy", r"numpy\.asarray makes one")]
)
def test_a_tensor_is_refused_with_how_to_write_it(tmp_path: Path, field: str, message: str) -> None:
    tensor = torch.arange(3)
    writer = ShardWriter(tmp_path / "s.tar")
    with pytest.raises(TypeError, match=message):
        writer.write({"__key__": "a", field: tensor})
    writer.write({"__key__": "a", "image.npy": numpy.asarray(tensor)})
    writer.close()


def test_a_missing_folder_is_made_with_the_first_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for pattern in (tmp_path / "one" / "two" / "s.tar", "~/three/s.tar"):
        with ShardWriter(pattern) as writer:
            assert not os.path.exists(os.path.dirname(os.path.expanduser(pattern)))
            writer.write({"__key__": "a", "txt": "b"})
    for folder in ("one/two", "three"):
        assert sorted(os.listdir(tmp_path / folder)) == ["asyncloader-index.json", "s.tar"]


def test_a_shard_without_a_folder_in_its_name_goes_where_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with ShardWriter("s.tar") as writer:
        writer.write({"__key__": "a", "txt": "b"})
    assert (tmp_path / "s.tar").exists()


def test_a_file_where_the_folder_should_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="this is a file") as caught:
        ShardWriter(tmp_path / "file" / "s.tar").write({"__key__": "a", "txt": "b"})
    assert caught.value.filename == str(tmp_path / "file")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (numpy.int64(3), "field 'x': JSON has no form for a numpy.int64; write dicts, lists"),
        (numpy.bool_(True), "field 'x': JSON has no form for a numpy.bool; write dicts"),
        ([1, {"y": numpy.arange(3)}], "field 'x': JSON has no form for a numpy.ndarray"),
        (numpy.arange(3), "booleans and None, such as .item() or .tolist() of it"),
        (numpy.array(3.5), "such as .item() or .tolist() of it"),
        (torch.arange(3), "field 'x': JSON has no form for a torch.Tensor; write dicts, lists"),
        ({numpy.int64(3): 1}, "field 'x': keys must be str"),
        (b"bytes", "field 'x': JSON has no form for a bytes; write dicts, lists, strings"),
        (({1, 2},), "field 'x': JSON has no form for a set; write dicts, lists"),
        (object(), "field 'x': JSON has no form for a object"),
    ],
)
def test_what_json_has_no_form_for_is_named_with_what_to_write(
    tmp_path: Path, value: Any, message: str
) -> None:
    with ShardWriter(tmp_path / "s.jsonl") as writer:
        with pytest.raises(TypeError, match=re.escape(message)):
            writer.write({"good": [1, "a", None, True, 0.5, numpy.float64(1)], "x": value})
        writer.write({"x": 1})
    assert read(tmp_path / "s.jsonl") == [{"x": 1}]


def test_a_field_of_json_in_a_tar_names_what_has_no_form_too(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"field 'json': JSON has no form for a numpy\.int64"):
        ShardWriter(tmp_path / "s.tar").write({"__key__": "a", "json": {"n": numpy.int64(1)}})


def test_jsonl_takes_dicts_of_json_values_only(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path / "s.jsonl")
    for wrong in ([1], {"a": b"bytes"}):
        with pytest.raises(TypeError):
            writer.write(wrong)  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("pattern", "options", "message"),
    [
        ("a.orc", {}, "cannot tell the format"), ("a.txt", {}, "not written"),
        ("a.parquet.gz", {}, "not written"), ("a.tar", {"schema": 1}, "schema is of Parquet"),
        ("a.tar", {"storage_options": {"anonymous": True}}, "are of an object store"),
        ("a.tar", {"samples_per_shard": 3}, "needs a number"),
        ("a-%d.tar", {"samples_per_shard": 0}, "positive integer"),
        ("a-%d.tar", {"shard_size": 0}, "positive integer"), ("a-%d-%d.tar", {}, "expected one number"),
        ("a-{}-{}.tar", {}, "expected one number"),
        ("a-{name}.tar", {}, r"expected one number .* such as \{:05d\}:"),
    ],
)  # fmt: skip
def test_wrong_calls_are_refused_before_anything_is_opened(
    tmp_path: Path, pattern: str, options: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ShardWriter(tmp_path / pattern, **options)  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == []


def test_a_url_of_what_is_only_read_is_refused_without_its_secrets() -> None:
    with pytest.raises(ValueError, match="an object store, not to https://host/x") as caught:
        ShardWriter("https://me:SENTINEL@host/x/a-{:05d}.tar?sig=SENTINEL")
    assert "SENTINEL" not in str(caught.value)


# --- Parquet ---


def rows_of(path: str | Path) -> list[dict[str, Any]]:
    found = from_urls(str(path)).head(100_000)
    return [{name: value for name, value in row.items() if name != "__url__"} for row in found]


def test_parquet_has_the_columns_of_its_samples(tmp_path: Path) -> None:
    samples = [
        {"n": index, "text": f"text {index}", "x": None if index % 2 else index / 2} for index in range(10)
    ]
    with ShardWriter(tmp_path / "s-%d.parquet", samples_per_shard=4) as writer:
        for item in samples:
            writer.write(item)
    assert [(shard.samples, shard.size_bytes) for shard in writer.shards] == [(4, 72), (4, 72), (2, 36)]
    assert [row for shard in writer.shards for row in rows_of(shard.path)] == samples
    assert {name: entry.samples for name, entry in index_of(tmp_path).items()} == {
        "s-0.parquet": 4, "s-1.parquet": 4, "s-2.parquet": 2
    }  # fmt: skip
    with ShardWriter(tmp_path / "again" / "s-%d.parquet", samples_per_shard=4) as writer:
        for item in samples:
            writer.write(item)
    assert [(tmp_path / "again" / f"s-{number}.parquet").read_bytes() for number in range(3)] == [
        (tmp_path / f"s-{number}.parquet").read_bytes() for number in range(3)
    ]


def test_a_row_group_is_some_megabytes(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    with ShardWriter(tmp_path / "s.parquet") as writer:
        for index in range(50):
            writer.write({"n": index, "raw": bytes(1 << 20)})
    groups = pq.ParquetFile(tmp_path / "s.parquet").metadata
    assert [groups.row_group(number).num_rows for number in range(groups.num_row_groups)] == [32, 18]


def test_a_schema_says_what_columns_are(tmp_path: Path) -> None:
    import pyarrow as pa

    schema = pa.schema([("n", pa.int32()), ("late", pa.string())])
    with ShardWriter(tmp_path / "s.parquet", schema=schema) as writer:
        writer.write({"n": 1})
        writer.write({"n": 2, "late": "x"})
        with pytest.raises(ValueError, match="field 'more' is in none of the samples"):
            writer.write({"n": 3, "more": 1})
    assert pa.parquet.read_schema(tmp_path / "s.parquet").equals(schema)
    assert rows_of(tmp_path / "s.parquet") == [{"n": 1, "late": None}, {"n": 2, "late": "x"}]


@pytest.mark.parametrize("late", [1.5, True, "1", 1 << 70, [1]])
def test_a_value_that_a_column_would_change_is_refused(tmp_path: Path, late: Any) -> None:
    with ShardWriter(tmp_path / "s-%d.parquet", samples_per_shard=2) as writer:
        for value in (1, 2, 3):
            writer.write({"n": value})
        writer.write({"n": late})
        with pytest.raises(ValueError, match="field 'n' cannot be kept as int64"):
            writer.write({"n": 5})  # the shard before it is finished now
    assert sorted(os.listdir(tmp_path)) == ["asyncloader-index.json", "s-0.parquet"]


DAY, MINUTE = date(2020, 1, 1), datetime(2020, 1, 1, 23, 59)
UTC_MINUTE = MINUTE.replace(tzinfo=UTC)
OTHER_ZONE = MINUTE.replace(tzinfo=timezone(timedelta(hours=1)))


@pytest.mark.parametrize("is_late", [False, True], ids=["first group", "later group"])
@pytest.mark.parametrize(
    "values",
    [
        (DAY, MINUTE),
        (MINUTE, UTC_MINUTE),
        (UTC_MINUTE, MINUTE),
        (UTC_MINUTE, OTHER_ZONE),
        (1.5, True),
        (numpy.bool_(True), 3),
        (3, numpy.bool_(True)),
    ],
    ids=str,
)
def test_values_of_which_arrow_would_change_one_are_refused(
    tmp_path: Path, values: tuple[Any, Any], is_late: bool
) -> None:
    with al.ShardWriter(tmp_path / "s-%d.parquet", samples_per_shard=2) as writer:
        for value in (*([values[0]] * 2 if is_late else ()), *values):
            writer.write({"x": value})
        with pytest.raises(ValueError, match=r"field 'x' (has values that no|cannot be kept as)"):
            writer.write({"x": values[0]})  # the shard before it is finished now


# --- the index ---


def index_of(folder: Path) -> dict[str, Expected]:
    return dict(parse_index((folder / "asyncloader-index.json").read_bytes()))


def crc32c_of(content: bytes) -> bytes:
    digest = open_digest("crc32c")
    assert digest is not None
    digest.update(content)
    return digest.digest()


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("format_name", ["tar", "jsonl"])
def test_the_index_tells_what_was_stored(tmp_path: Path, format_name: str, compression: str) -> None:
    with ShardWriter(tmp_path / f"s-%d.{format_name}{compression}", samples_per_shard=4) as writer:
        for index in range(10):
            writer.write({"__key__": f"{index}", "txt": "text" * 100 * index})
    entries = index_of(tmp_path)
    for shard, samples in zip(writer.shards, (4, 4, 2), strict=True):
        stored = Path(shard.path).read_bytes()
        assert (shard.samples, shard.stored_bytes) == (samples, len(stored))
        assert shard.sha256 == hashlib.sha256(stored).hexdigest()
        assert entries.pop(os.path.basename(shard.path)) == Expected(
            len(stored), samples, hashlib.sha256(stored).digest(), crc32c_of(stored), ()
        )
    assert entries == {}


def test_writers_of_other_patterns_add_to_the_index_of_their_folder(tmp_path: Path) -> None:
    for pattern in ("a-%d.tar", "b-%d.jsonl"):
        with ShardWriter(tmp_path / pattern) as writer:
            writer.write(sample(0) if "tar" in pattern else {"n": 1})
    assert sorted(index_of(tmp_path)) == ["a-0.tar", "b-0.jsonl"]
    (tmp_path / "a-0.tar").unlink()
    with ShardWriter(tmp_path / "c.tar") as writer:
        writer.write(sample(0))
    assert sorted(index_of(tmp_path)) == ["b-0.jsonl", "c.tar"], "what is gone has no entry"


def test_a_relative_pattern_has_its_index_beside_it(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with ShardWriter("s.tar") as writer:
        writer.write(sample(0))
    assert list(index_of(tmp_path)) == ["s.tar"]


def test_finished_shards_have_entries_whatever_ends_the_writing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), ShardWriter(tmp_path / "s-%d.tar", samples_per_shard=2) as writer:
        for index in range(5):
            writer.write(sample(index))
        raise ZeroDivisionError
    assert sorted(index_of(tmp_path)) == ["s-0.tar", "s-1.tar"]


def test_the_first_exception_is_heard_of_where_the_index_fails_too(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with (
        pytest.raises(ZeroDivisionError) as caught,
        ShardWriter(folder / "s-%d.tar", samples_per_shard=1) as writer,
    ):
        for index in range(3):
            writer.write(sample(index))
        folder.rename(tmp_path / "moved")
        raise ZeroDivisionError
    assert "no entry in their index" in caught.value.__notes__[0]


def test_a_close_after_the_close_writes_nothing(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path / "s.tar")
    writer.write(sample(0))
    writer.close()
    (tmp_path / "asyncloader-index.json").unlink()
    writer.close()
    assert os.listdir(tmp_path) == ["s.tar"]


def test_an_index_of_another_program_stays_and_a_warning_says_so(tmp_path: Path) -> None:
    (tmp_path / "asyncloader-index.json").write_text('{"name": "a web app"}')
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with ShardWriter(tmp_path / "s.tar") as writer:
            writer.write(sample(0))
    (warning,) = caught
    assert "no index" in str(warning.message) and str(tmp_path / "asyncloader-index.json") in str(
        warning.message
    )
    assert (tmp_path / "asyncloader-index.json").read_text() == '{"name": "a web app"}'
    assert read(tmp_path / "s.tar") == [sample(0)]


def test_a_field_whose_name_is_no_text_is_refused_in_json_lines(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "x.jsonl") as writer, pytest.raises(TypeError, match="not 1"):
        writer.write({1: 2, "1": 3})


@given(st.text(st.characters(max_codepoint=300), max_size=120), st.integers(0, 3000))
def test_headers_are_those_of_tarfile(name: str, size: int) -> None:
    described = tarfile.TarInfo(name)
    described.size = size
    header = described.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    assert _tar_member(name, bytes(size)) == header + bytes(size) + bytes(-size % 512)
