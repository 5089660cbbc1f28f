"""``asyncloader head``."""

from __future__ import annotations

import json
from pathlib import Path

from .conftest import Ask, Place


def test_samples_of_tar_tell_images_and_arrays_by_their_headers(ask: Ask, place: Place) -> None:
    told = ask("head", *place("tar/"), "-n", "2", "--json")
    first, second = told.json["samples"]
    assert [*first] == ["__key__", "cls", "jpg", "npy", "__url__"]
    assert (first["jpg"]["kind"], first["jpg"]["shape"]) == ("jpeg", [48, 64])
    assert (first["npy"]["kind"], first["npy"]["dtype"], first["npy"]["shape"]) == ("npy", "float32", [3, 4])
    assert (first["cls"]["beginning"], second["cls"]["beginning"]) == ("0", "1")
    printed = ask("head", *place("tar/"), "-n", "1").out.splitlines()
    assert printed[0] == "sample 0"
    assert "jpeg 64x48" in printed[3] and "npy float32 (3, 4)" in printed[4]


def test_three_samples_come_where_nothing_is_said(ask: Ask, place: Place) -> None:
    told = ask("head", *place("jsonl/"))
    assert told.out.count("sample ") == 3
    assert "list of 2 int" in told.out and r"text\n1" in told.out


def test_every_format_is_read(ask: Ask, place: Place) -> None:
    for name in ("columns/a.parquet", "columns/b.arrow"):
        (sample,) = ask("head", *place(name), "-n1", "--json").json["samples"]
        assert sample["id"]["dtype"] == "int64" and sample["name"]["beginning"] == "n0"
        assert sample["x"]["beginning"] == "0.5"
    (sample,) = ask("head", *place("columns/c.txt"), "-n1", "--json").json["samples"]
    assert sample["text"]["beginning"] == "one"


def test_columns_are_picked_in_order_whatever_the_format(ask: Ask, place: Place) -> None:
    for name, columns in (("columns/a.parquet", "name,id"), ("jsonl/", "text, id"), ("tar/", "npy,cls")):
        (sample,) = ask("head", *place(name), "-n1", "--columns", columns, "--json").json["samples"]
        assert [*sample] == columns.replace(" ", "").split(",")


def test_a_field_that_is_not_there_is_a_wrong_call_that_names_those_that_are(ask: Ask, place: Place) -> None:
    for name, there in (("columns/a.parquet", "'name'"), ("jsonl/", "'tokens'")):
        told = ask("head", *place(name), "--columns", "nonsense")
        assert (told.status, told.out) == (2, "")
        assert "'nonsense'" in told.err and there in told.err and told.err.count("\n") == 1


def test_a_shard_cannot_write_to_the_terminal(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("red \x1b[31m and \x9b31m\n")
    assert r"red \x1b[31m and \x9b31m" in ask("head", tmp_path / "a.txt").out


def test_a_long_name_is_whole_in_json_and_cut_in_the_table(ask: Ask, tmp_path: Path) -> None:
    names = ["n" * 80 + "\x1b", "n" * 80 + "b"]
    (tmp_path / "a.jsonl").write_text(json.dumps(dict.fromkeys(names, 1)))
    (sample,) = ask("head", tmp_path / "a.jsonl", "--json").json["samples"]
    assert [*sample] == names
    rows = ask("head", tmp_path / "a.jsonl").out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["n" * 57 + "..."] * 2
