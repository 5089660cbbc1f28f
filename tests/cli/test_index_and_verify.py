"""``asyncloader index`` and ``verify``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from asyncloader import testing

from .conftest import TAR_SAMPLES, Ask, Place


def test_an_index_is_made_and_verified(ask: Ask, place: Place, corpus: Path, tmp_path: Path) -> None:
    index = tmp_path / "asyncloader-index.json"
    if place.root.startswith("/"):  # files are named by their paths from the index
        shutil.copytree(
            corpus / "tar", tmp_path / "tar", ignore=shutil.ignore_patterns("asyncloader-index.json")
        )
        place = Place(f"{tmp_path}/")
    made = ask("index", *place("tar/"), "-o", index, "--json")
    assert (made.status, made.err) == (0, "")
    told = made.json
    assert told["index"] == str(index) and told["bad"] == 0
    assert [shard["shard"] for shard in told["shards"]] == [f"{place.root}tar/s-{n}.tar" for n in range(3)]
    assert sum(shard["samples"] for shard in told["shards"]) == TAR_SAMPLES
    verified = ask("verify", *place("tar/"), "-m", index, "--json")
    assert (verified.status, verified.err) == (0, "")
    assert verified.json["bad"] == 0
    assert [shard["wrong"] for shard in verified.json["shards"]] == [[], [], []]


def test_the_index_of_a_folder_or_prefix_is_found_there(ask: Ask, place: Place) -> None:
    told = ask("verify", *place("tar/"))
    assert told.status == 0 and told.out.splitlines()[-1] == "3 shards match the index"
    one = ask("verify", *place("tar/s-1.tar"), "--json").json
    assert one["index"] == f"{place.root}tar/asyncloader-index.json" and len(one["shards"]) == 1


def test_where_there_is_no_index_it_says_what_makes_one(ask: Ask, place: Place, corpus: Path) -> None:
    told = ask("verify", *place("columns/a.parquet"))
    assert (told.status, told.out) == (2, "") and told.err.count("\n") == 1
    assert (
        f"there is no index {place.root}columns/asyncloader-index.json; asyncloader index makes one"
        in told.err
    )


def test_shards_of_two_folders_have_no_one_index(ask: Ask, place: Place) -> None:
    told = ask("verify", *place("tar/", "jsonl/"))
    assert told.status == 2 and "--index" in told.err


def test_an_index_beside_signed_urls_is_to_be_named(ask: Ask, corpus: Path) -> None:
    with testing.serve(corpus / "tar") as server:
        signed = f"{server.url}/s-{{0..2}}.tar?signature=SENTINEL"
        assert "--index" in ask("verify", signed).err
        told = ask("verify", f"{server.url}/s-{{0..2}}.tar", "--json")
    assert told.status == 0 and told.json["index"] == f"{server.url}/asyncloader-index.json"


def test_what_differs_is_told_with_both_values(ask: Ask, corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(corpus / "tar", tmp_path / "tar")
    (tmp_path / "tar/s-2.tar").unlink()
    shutil.copy(tmp_path / "tar/s-0.tar", tmp_path / "tar/s-1.tar")
    told = ask("verify", f"{tmp_path}/tar/", "--json")
    assert told.status == 1 and told.json["bad"] == 2
    wrong = {Path(shard["shard"]).name: " ".join(shard["wrong"]) for shard in told.json["shards"]}
    assert wrong["s-0.tar"] == "" and "missing" in wrong["s-2.tar"]
    assert "expected" in wrong["s-1.tar"] and "found" in wrong["s-1.tar"]


def test_a_bad_shard_is_told_and_nothing_is_written(ask: Ask, corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(corpus / "tar", tmp_path / "tar", ignore=shutil.ignore_patterns("asyncloader-index.json"))
    cut = (tmp_path / "tar/s-1.tar").read_bytes()[:700]
    (tmp_path / "tar/s-1.tar").write_bytes(cut)
    told = ask("index", f"{tmp_path}/tar/", "--json")
    assert told.status == 1
    assert (told.json["index"], told.json["bad"]) == (None, 1)
    assert [shard["error"] is None for shard in told.json["shards"]] == [True, False, True]
    assert not (tmp_path / "tar/asyncloader-index.json").exists()


def test_a_file_that_is_no_index_stays(ask: Ask, corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(corpus / "tar", tmp_path / "tar")
    other = json.dumps({"mine": 1})
    (tmp_path / "tar/asyncloader-index.json").write_text(other)
    told = ask("index", f"{tmp_path}/tar/*.tar")
    assert (told.status, told.out) == (2, "") and "not an index of shards" in told.err
    assert (tmp_path / "tar/asyncloader-index.json").read_text() == other


def test_shards_of_no_bytes_are_told(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"n": 1}\n')
    (tmp_path / "b.jsonl").touch()
    told = ask("index", f"{tmp_path}/")
    assert told.status == 0
    assert f"{tmp_path}/b.jsonl: 0 samples, 0 bytes" in told.out.splitlines()
    assert told.out.splitlines()[-1].endswith("2 shards; 1 without a sample")
    told = ask("verify", f"{tmp_path}/")
    assert told.status == 0
    assert f"{tmp_path}/b.jsonl: matches the index, empty" in told.out.splitlines()
    assert told.out.splitlines()[-1] == "2 shards match the index; 1 without a sample"
    (tmp_path / "c.jsonl.zst").touch()
    told = ask("index", f"{tmp_path}/")
    assert told.status == 1 and "zstd: truncated: the shard is empty" in told.out


def test_commands_are_told_what_separates_fields(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id;text\n1;one\n2;two\n")
    url = f"{tmp_path}/a.csv"
    for command in ("head", "index"):
        told = ask(command, url)
        assert told.status != 0 and "pass delimiter=';'" in told.out + told.err
    assert [*ask("head", url, "--delimiter", ";", "--json").json["samples"][0]] == ["id", "text"]
    assert ask("index", url, "--delimiter", ";").status == 0
    told = ask("verify", url, "--delimiter", ";", "--json")
    assert told.status == 0 and told.json["shards"][0]["samples"] == 2
    assert ask("convert", url, "--delimiter", ";", "--to", "jsonl", tmp_path / "out").status == 0
    assert (tmp_path / "out/shard-00000.jsonl").read_text().count('"text":') == 2
    (tmp_path / "b.tsv").write_text("id|text\n")
    told = ask("head", f"{tmp_path}/b.tsv", "--delimiter", "tab")
    assert (told.status, told.out) == (0, "no samples\n")
    assert "delimiter" in ask("head", "--format", "mds", f"{tmp_path}/", "--delimiter", ";").err
