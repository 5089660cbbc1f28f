"""Calls that cannot be: the error says what was expected, what was found and what to do."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncloader as al
from asyncloader.cli import main
from asyncloader.tools import convert as tools_convert

from .corpora import files_of, write_corpus


def lines(path: Path, *samples: Any) -> str:
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return str(path)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"to": "zip"}, ValueError, "written as tar or jsonl.*or as parquet; 'zip' is not written"),
        ({"to": "parquet.gz"}, ValueError, "parquet with gzip is not written"),
        ({"to": "text"}, ValueError, "text is not written"),
        ({"shard_size": "much"}, ValueError, "shard_size should be a number with its unit"),
        ({"shard_size": 0}, ValueError, "shard_size should be a positive integer"),
        ({"samples_per_shard": 0}, ValueError, "samples_per_shard should be a positive integer"),
        (
            {"num_workers": -1},
            ValueError,
            "num_workers should be 0 or a positive integer value, but got num_workers=-1",
        ),
        ({"columns": "id"}, TypeError, "columns should be a list of names, but got the text 'id'"),
        ({"columns": []}, ValueError, "columns should name each field once"),
        (
            {"columns": ["id", "nix"]},
            ValueError,
            r"expected the field 'nix'.*found only \['id', .*in sample 0 of",
        ),
        ({"types": {"id": "int32"}}, ValueError, "type of 'id' should be one of int, float, .*'int32'"),
        ({"types": {"name": "int"}, "to": "jsonl"}, ValueError, "field 'name' is 'näme 0', which is no int"),
        ({"format": "zip"}, ValueError, "format must be one of"),
        ({"output": "https://host/x/"}, ValueError, "written to a folder or an object store, not to https"),
        ({"output": "hf://datasets/a/b"}, ValueError, "written to a folder or an object store"),
        ({"output": 7}, TypeError, "output should be a path or a URL, but got int"),
        ({"urls": []}, ValueError, "at least one shard"),
        ({"urls": "nowhere/*.tar"}, ValueError, "no file matches"),
        (
            {"urls": "nowhere.tar"},
            al.StoreError,
            r"cannot read the file: .* \(looked from .*; check the path",
        ),
    ],
)
def test_bad_arguments(options: dict[str, Any], error: type[Exception], message: str, tmp_path: Path) -> None:
    output = tmp_path / "out"
    call = {"urls": write_corpus("jsonl", tmp_path / "in"), "output": output, "num_workers": 0, **options}
    with pytest.raises(error) as caught:
        al.convert(call.pop("urls"), call.pop("output"), **call)
    said = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert re.search(message, said, re.DOTALL), said
    assert not output.exists()


@pytest.mark.parametrize(
    ("sample", "to", "message"),
    [
        ({"__x__": 1}, "tar", "field '__x__' cannot be kept in tar"),
        ({"json": 1, "n": 2}, "tar", "fields 'n' have no form in tar but that of a member 'json'"),
        ({"__key__": 17, "n": 1}, "tar", "the __key__ of a sample in tar is text, but found 17: write jsonl"),
        ({"__key__": "a.b", "n": 1}, "tar", "__key__ 'a.b' would not read back"),
        ({"big": 1 << 70}, "parquet", "field 'big' cannot be kept as int64"),
    ],
)
def test_values_that_a_format_cannot_keep(sample: Any, to: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        al.convert(lines(tmp_path / "a.jsonl", sample), tmp_path / "out", to=to, num_workers=0)
    assert not (tmp_path / "out").exists()
    assert to == "parquet" or "in sample 0 of" in caught.value.__notes__[-1]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("late", "message"),
    [
        ({"n": "text"}, "field 'n' cannot be kept as int64, the type of"),
        ({"n": True}, "field 'n' cannot be kept as int64, the type of the first samples: .*bool"),
        ({"n": 1.5}, "field 'n' cannot be kept as int64, the type of"),
        ({"n": 1, "new": 2}, "field 'new' is in none of the samples from which the columns were taken"),
        ({"n": 1, "s": {"b": 2}}, "field 's' cannot be kept as struct<a: int64>, the type of"),
        ({"n": 1, "t": 5}, "field 't' cannot be kept as string, the type of"),
        ({"n": 1, "no": 5}, "field 'no' cannot be kept as null, the type of .*give its type"),
    ],
)
def test_values_that_come_late_and_do_not_fit(workers: int, late: Any, message: str, tmp_path: Path) -> None:
    early = {"n": 1, "s": {"a": 1}, "t": "x", "no": None}
    source = lines(tmp_path / "a.jsonl", *[early] * 300, {**early, **late})
    with pytest.raises(ValueError, match=message):
        al.convert(source, tmp_path / "out", to="parquet", samples_per_shard=100, num_workers=workers)
    whole = {path.name for path in (tmp_path / "out").glob("shard-*")}
    notes = {"job.json", *(f"{name}.json" for name in whole)}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {".convert", *whole}
    assert {path.name for path in (tmp_path / "out/.convert").iterdir()} == notes
    if "no" in late:
        options: Any = {"overwrite": True, "types": {"no": "int"}, "num_workers": workers}
        assert al.convert(source, tmp_path / "out", to="parquet", **options).samples == 301


def test_two_samples_of_one_key_in_a_row(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with al.ShardWriter(tmp_path / f"{name}.tar") as writer:
            writer.write({"__key__": "same", "txt": "x"})
    urls = [str(tmp_path / "a.tar"), str(tmp_path / "b.tar")]
    with pytest.raises(ValueError, match="two samples in a row have the __key__ 'same'") as caught:
        al.convert(urls, tmp_path / "out", num_workers=0)
    assert "b.tar" in caught.value.__notes__[-1]
    assert al.convert(urls, tmp_path / "lines", to="jsonl", num_workers=0).samples == 2


def test_another_call_is_told_what_is_different(tmp_path: Path) -> None:
    urls = write_corpus("jsonl", tmp_path / "in")
    out = tmp_path / "out"
    al.convert(urls, out, samples_per_shard=9, num_workers=0)
    before = files_of(out)
    for call, message in (
        ({"to": "jsonl"}, r"was made with to='tar', and is now to be made with 'jsonl'; call it again"),
        ({"samples_per_shard": 8}, r"was made with samples_per_shard=9.* with 8; .*--overwrite"),
        ({"urls": urls[:2]}, "was made of other sources, or of the same in another order"),
        ({"urls": [*urls, *write_corpus("tar", tmp_path / "more")]}, r"part-0.tar' is new"),
    ):
        options: Any = {"urls": urls, "samples_per_shard": 9, **call}
        with pytest.raises(ValueError, match=message):
            al.convert(options.pop("urls"), out, num_workers=0, **options)
    assert files_of(out) == before
    al.convert(urls, out, to="jsonl", samples_per_shard=30, num_workers=0, overwrite=True)
    assert {*files_of(out)} == {"shard-00000.jsonl", "shard-00001.jsonl", "asyncloader-index.json"}


def test_a_source_that_was_changed_is_another(tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    al.convert(lines(source, {"n": 1}), tmp_path / "out", num_workers=0)
    lines(source, {"n": 1}, {"n": 2})
    with pytest.raises(ValueError, match=r"a.jsonl' has changed since"):
        al.convert(source, tmp_path / "out", num_workers=0)


def test_a_shard_of_others_is_not_taken_in_when_a_run_goes_on(tmp_path: Path) -> None:
    urls, out = write_corpus("jsonl", tmp_path / "in"), tmp_path / "out"
    al.convert(urls, out, num_workers=0)
    (out / "readme.md").write_text("what no loader reads may lie there")
    made = al.convert(urls, out, num_workers=0)
    assert made.made == 0
    (out / "foreign.tar").write_bytes(b"")
    with pytest.raises(ValueError, match=r"has 'foreign.tar' in it, which convert has not made: move it"):
        al.convert(urls, out, num_workers=0)


def test_what_others_have_made_is_never_removed(tmp_path: Path) -> None:
    urls = write_corpus("jsonl", tmp_path / "in")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/notes.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(ValueError, match=r"has 'notes.txt' in it, which convert has not made"):
            al.convert(urls, tmp_path / "out", overwrite=overwrite)
        assert [path.name for path in (tmp_path / "out").iterdir()] == ["notes.txt"]
    (tmp_path / "out/notes.txt").rename(tmp_path / "out/shard-00000.tar")
    with pytest.raises(ValueError, match=r"has shards of another program in it.*--overwrite"):
        al.convert(urls, tmp_path / "out")
    with pytest.raises(ValueError, match=r"but .*part-0.jsonl' is a file"):
        al.convert(urls, urls[0])


def test_a_bad_source_says_where(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n{"n": \n')
    with pytest.raises(al.FormatError, match=r"a.jsonl, offset \d+, sample 1"):
        al.convert(tmp_path / "a.jsonl", tmp_path / "out", num_workers=0)


def test_a_source_that_is_damaged_is_held_against_its_index(tmp_path: Path) -> None:
    (source,) = write_corpus("tar", tmp_path / "in", shards=1)
    content = bytearray(Path(source).read_bytes())
    content[content.index(b"text 7")] ^= 1
    Path(source).write_bytes(content)
    with pytest.raises(al.StoreError, match=r"sha256|crc32c"):
        al.convert(source, tmp_path / "out", num_workers=0)
    assert not (tmp_path / "out").exists()


def damage(path: str, before: bytes) -> None:
    content = bytearray(Path(path).read_bytes())
    content[content.index(before)] ^= 1
    Path(path).write_bytes(content)


@pytest.mark.parametrize(
    ("kind", "workers"), [("tar", 0), ("tar", 2), ("jsonl", 0), ("jsonl.zst", 0), ("parquet", 0)]
)
def test_a_damaged_source_that_several_runs_share_is_held_against_its_index(
    kind: str, workers: int, tmp_path: Path
) -> None:
    urls = write_corpus(kind, tmp_path / "in")
    if kind == "parquet":
        assert main(["index", str(tmp_path / "in/*.parquet")]) == 0
    damage(urls[2], {"tar": b"text 40", "jsonl": b"me 40"}.get(kind, Path(urls[2]).read_bytes()[40:48]))
    options: Any = {"to": "tar", "samples_per_shard": 7, "num_workers": workers}
    if kind == "parquet":
        options["columns"] = ["id"]
    with pytest.raises((al.StoreError, al.FormatError)):
        al.convert(urls, tmp_path / "out", **options)
    assert not (tmp_path / "out/asyncloader-index.json").exists()
    # Nor does a second call, which finds most shards made, take them for sound.
    with pytest.raises((al.StoreError, al.FormatError)):
        al.convert(urls, tmp_path / "out", **options)
    assert not (tmp_path / "out/asyncloader-index.json").exists()


@pytest.mark.parametrize("samples_per_shard", [4, 1000])
@pytest.mark.parametrize("said", [0, 7, 9, 11])
@pytest.mark.parametrize("kind", ["tar", "jsonl.zst"])
def test_an_index_of_another_count_is_an_error(
    kind: str, said: int, samples_per_shard: int, tmp_path: Path
) -> None:
    urls = write_corpus(kind, tmp_path / "in", 30, shards=3)
    path = tmp_path / "in/asyncloader-index.json"
    index = json.loads(path.read_bytes())
    assert index["shards"][1]["samples"] == 10
    index["shards"][1] |= {"samples": said, "offsets": []}
    path.write_text(json.dumps(index))
    with pytest.raises(al.FormatError, match=f"promises {said} samples of this shard, found 10"):
        al.convert(urls, tmp_path / "out", samples_per_shard=samples_per_shard, num_workers=0)
    assert not (tmp_path / "out/asyncloader-index.json").exists()


def test_a_source_that_is_changed_meanwhile_is_an_error_before_there_is_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "a.jsonl"
    lines(source, *[{"n": 1}] * 10)
    # The bar moves when a shard is made.
    monkeypatch.setattr("tqdm.auto.tqdm.update", lambda bar: os.utime(source, ns=(1, 1)))
    with pytest.raises(al.StoreError, match="was changed while it was being converted"):
        al.convert(source, tmp_path / "out", samples_per_shard=5, num_workers=0, progress=True)
    assert {*files_of(tmp_path / "out")} == {"shard-00000.tar", "shard-00001.tar"}


@pytest.mark.parametrize("found", ["nan", "inf", "-Infinity"])
@pytest.mark.parametrize("to", ["jsonl", "tar"])
def test_numbers_that_json_does_not_have(to: str, found: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"id,x\n1,{found}\n")
    with pytest.raises(ValueError, match=f"field 'x' is {float(found)}, a number that JSON does not have"):
        al.convert(tmp_path / "a.csv", tmp_path / "out", to=to, types={"x": "float"}, num_workers=0)
    assert not (tmp_path / "out").exists()
    done = al.convert(tmp_path / "a.csv", tmp_path / "out", to="parquet", types={"x": "float"}, num_workers=0)
    assert done.samples == 1


def test_arrays_with_numbers_that_json_does_not_have(tmp_path: Path) -> None:
    with al.ShardWriter(tmp_path / "a.tar") as writer:
        writer.write({"__key__": "a", "x.npy": np.array([[1.0, np.nan]], np.float32)})
    with pytest.raises(ValueError, match=r"field 'x.npy' is nan, a number that JSON does not have"):
        al.convert(tmp_path / "a.tar", tmp_path / "out", to="jsonl", num_workers=0)
    al.convert(tmp_path / "a.tar", tmp_path / "out", num_workers=0)


def test_a_job_that_came_to_no_plan_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n{"n": \n')
    with pytest.raises(al.FormatError):
        al.convert(tmp_path / "a.jsonl", tmp_path / "out", num_workers=0)
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    assert al.convert(tmp_path / "a.jsonl", tmp_path / "out", to="parquet", num_workers=0).samples == 2


def test_files_that_come_while_samples_are_counted_are_neither_removed_nor_mixed_with_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    look, target = tools_convert._look, tmp_path / "out"

    def look_late(*arguments: Any) -> Any:
        (target / "below").mkdir(parents=True)
        (target / "below" / "mine.bin").write_text("mine")
        return look(*arguments)

    monkeypatch.setattr(tools_convert, "_look", look_late)
    with pytest.raises(ValueError, match=r"'below/mine\.bin' while the samples were counted"):
        al.convert(str(tmp_path / "a.jsonl"), str(target), to="jsonl", num_workers=0)
    assert (target / "below" / "mine.bin").read_text() == "mine"
