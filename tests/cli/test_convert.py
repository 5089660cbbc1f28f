"""``convert``, of shards and of files, from a folder and from a bucket."""

from __future__ import annotations

from pathlib import Path

import pytest

import asyncloader as al

from .conftest import JSONL_SAMPLES, ROWS, TAR_SAMPLES, Ask, Place


@pytest.mark.parametrize(
    ("names", "options", "samples"),
    [
        (("tar/",), ("--to", "parquet", "--samples-per-shard", "9"), TAR_SAMPLES),
        (("jsonl/s-0.jsonl.gz", "jsonl/s-1.jsonl.gz"), ("--to", "tar", "--num-workers", "1"), 20),
        (("columns/a.parquet", "columns/b.arrow"), ("--to", "jsonl.zst", "--columns", "id,x"), 2 * ROWS),
    ],
)
def test_convert_writes_what_from_urls_reads(
    ask: Ask, place: Place, tmp_path: Path, names: tuple[str, ...], options: tuple[str, ...], samples: int
) -> None:
    command = ("convert", *place(*names), tmp_path / "out", "--num-workers", "0", *options)
    if place.options:  # they stand behind the names
        command = ("convert", *place.options, *place(*names)[: len(names)], tmp_path / "out", *options)
    told = ask(*command, "--json")
    assert told.status == 0, told.err
    assert (told.json["samples"], told.json["made"]) == (samples, told.json["shards"])
    assert len(al.from_urls(f"{tmp_path}/out/").head(1000)) == samples
    again = ask(*command)
    assert (again.status, again.err) == (0, "")
    assert again.out.startswith(f"{tmp_path}/out: {samples} samples in {told.json['shards']} shard")
    assert "existed" in again.out


def test_convert_writes_to_a_bucket(ask: Ask, corpus: Path, bucket: Place) -> None:
    told = ask("convert", *bucket.options, f"{corpus}/jsonl/", "s3://corpus/converted", "--to", "jsonl")
    assert told.status == 0, told.err
    assert told.out.startswith(f"s3://corpus/converted/: {JSONL_SAMPLES} samples in 1 shard, ")
    assert ask("head", *bucket("converted/"), "-n", "1").status == 0


def test_types_of_csv(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text\n7,x\n")
    told = ask("convert", tmp_path / "a.csv", tmp_path / "out", "--to", "jsonl", "--types", "id=int")
    assert told.status == 0, told.err
    assert al.from_urls(f"{tmp_path}/out/").head() == [{"id": 7, "text": "x"}]


def test_convert_makes_samples_of_files(ask: Ask, tmp_path: Path) -> None:
    for name in ("cat/1.jpg", "cat/1.txt", "dog/1.jpg", ".hidden"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(b"x")
    told = ask("convert", tmp_path / "in", tmp_path / "out", "--labels", "--num-workers", "0", "--no-shuffle")
    assert told.status == 0, told.err
    assert told.out.startswith(f"{tmp_path}/out: 2 samples in 1 shard, ")
    assert told.out.endswith("1 hidden file left out\n")
    assert "shuffled" not in told.out
    found = al.from_urls(f"{tmp_path}/out/").head()
    assert [(sample["__key__"], sample["cls"]) for sample in found] == [("cat/1", b"0"), ("dog/1", b"1")]


def test_convert_shuffles_files_and_says_by_which_seed(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(50):
        (tmp_path / f"in/{number:02d}.txt").write_text(str(number))
    orders = []
    for seed, options in ((0, ()), (7, ("--shuffle", "7"))):
        told = ask("convert", tmp_path / "in", tmp_path / f"out{seed}", *options, "--num-workers", "0")
        assert told.status == 0, told.err
        assert told.out.endswith(f"; shuffled with seed {seed}\n")
        orders.append([sample["txt"] for sample in al.from_urls(f"{tmp_path}/out{seed}/").head(99)])
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(b"%d" % number for number in range(50))


def test_convert_shuffles_if_it_is_given_a_seed(ask: Ask, corpus: Path, tmp_path: Path) -> None:
    told = ask(
        "convert",
        f"{corpus}/jsonl/",
        tmp_path / "out",
        "--to",
        "jsonl",
        "--shuffle",
        "3",
        "--num-workers",
        "0",
    )
    assert told.status == 0, told.err
    assert told.out.endswith("; shuffled with seed 3\n")
    before, after = (
        al.from_urls(f"{folder}/").head(1000) for folder in (f"{corpus}/jsonl", tmp_path / "out")
    )
    assert after != before
    assert sorted(map(str, after)) == sorted(map(str, before))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "zip"], "written as tar or jsonl"),
        (["--shard-size", "large"], "shard_size should be a number with its unit"),
        (["--samples-per-shard", "0"], "samples_per_shard should be a positive integer"),
        (["--samples-per-shard", "x"], "invalid int value: 'x'"),
        (["--num-workers", "-1"], "num_workers should be 0 or a positive integer"),
        (["--columns", "a,,b"], "--columns should be names separated by commas"),
        (["--columns", "nix"], "expected the field 'nix'"),
        (["--types", "id"], "--types should be NAME=TYPE"),
        (["--types", "id=date"], "type of 'id' should be one of int, float, bool, str, json, but is 'date'"),
        (["--index", "/nowhere.json"], "there is no index /nowhere.json"),
        (["--to", "jsonl", "--columns", "jpg"], "JSON has no form for: write tar or parquet"),
    ],
    ids=lambda value: "-".join(value)[:40],
)
def test_bad_arguments_of_convert(
    ask: Ask, corpus: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    told = ask("convert", f"{corpus}/tar/", tmp_path / "out", "--num-workers", "0", *arguments)
    assert (told.status, told.out) == (2, "")
    assert message in told.err
    assert not [*tmp_path.glob("out/shard-*")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{in}"], "arguments are required: OUT"),
        (["{in}/nowhere", "{out}", "--format", "files"], "there is no folder"),
        (["{in}/nowhere", "{out}"], "there is no file or folder '{in}/nowhere'"),
        (["{in}", "{in}/out"], "is in the folder of files"),
        (["{in}", "{out}", "--labels"], "labels are the names of subfolders"),
        (["{in}", "https://h/x"], "shards are written to a folder or an object store"),
        (["{in}", "s3://b/x", "--option", "regoin=x"], "did you mean 'region'?"),
        (["{in}", "{out}", "--to", "jsonl"], "JSON has no form for"),
    ],
    ids=lambda value: "-".join(value)[:40],
)
def test_bad_arguments_of_convert_with_files(
    ask: Ask, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.bin").write_bytes(b"x")
    names = {"in": tmp_path / "in", "out": tmp_path / "out"}
    told = ask("convert", *(argument.format(**names) for argument in arguments))
    assert (told.status, told.out) == (2, "")
    assert message.format(**names) in told.err


@pytest.mark.parametrize("end", ["", "/"])
def test_an_option_of_a_wrong_type_for_the_output_is_told_in_a_line(
    ask: Ask, tmp_path: Path, end: str
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl").write_text('{"n": 1}\n')
    (tmp_path / "options.json").write_text('{"region": 5}')
    told = ask("convert", f"{tmp_path}/in{end}", "s3://corpus/out", "--options", tmp_path / "options.json")
    assert told.status == 2
    assert told.err == ("asyncloader convert: option 'region' should be a string, not int\n")
