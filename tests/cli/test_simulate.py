"""``asyncloader simulate``: of shards that are there and of those that are made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from servers import run_moto

import asyncloader as al
from asyncloader.cli import main

MADE_UP = ("--shards", "12", "--shard-size", "10MB", "--shard-samples", "100")


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["simulate", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def write(folder: Path) -> None:
    """Shards with their index."""
    with al.ShardWriter(folder / "s-{:d}.tar", samples_per_shard=30) as writer:
        for number in range(100):
            writer.write({"__key__": str(number), "txt": "x" * 1000})


def test_shards_that_are_made_up_are_played(capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, *MADE_UP, "--decode", "2ms", "--num-workers", "2", "--batch-size", "10")
    assert found["samples"] == 1200
    assert found["samples_per_s"] == pytest.approx(1000, rel=0.05)
    assert (found["limit"], found["resized"]) == ("decode", None)


def test_it_tells_in_lines_how_a_pass_goes(capsys: pytest.CaptureFixture[str]) -> None:
    options = "--first-byte 50ms --connection 20MB/s --ranks 2 --lanes 4 --batch-size 10 --step 100ms"
    assert main(["simulate", *MADE_UP, *options.split(), "--resize-to", "4", "--at", "0.25"]) == 0
    out = capsys.readouterr().out
    lines = [line.split(maxsplit=1) for line in out.splitlines()]
    assert lines[0][1] == "shards, 120 MB in all, 1,200 samples; 2 ranks with 0 workers each, 4 lanes"
    rows = dict(reversed(lines))
    assert rows["throughput"].endswith("/s of shards")
    assert out.count("consumer; time per batch of a rank: store ") == 2
    assert rows["stopped"] == "after 300 samples, continued with 4 ranks"
    assert rows["read"].startswith("again")
    assert "220 to 230 samples for each rank" in out


def test_without_times_it_says_which_ones_it_needs_and_no_rate(capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, *MADE_UP)
    assert (found["samples"], found["samples_per_s"], found["limit"]) == (1200, None, None)
    assert main(["simulate", *MADE_UP]) == 0
    out = capsys.readouterr().out
    assert "samples/s" not in out
    assert "unknown: pass the time of at least one stage: --first-byte, --decode, --map" in out


def test_shards_of_a_folder_are_as_their_index_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path)
    found = told(capsys, f"{tmp_path}/*.tar", "--ranks", "3", "--batch-size", "5")
    assert (found["samples"], found["undelivered_samples"]) == (100, 0)
    assert found["lane_samples"] == {"least": 33, "most": 34}, "it is an index"


@pytest.mark.servers
def test_shards_of_a_bucket_are_as_their_index_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("moto")
    write(tmp_path)
    with run_moto() as server:
        client = server.client()
        client.create_bucket(Bucket="corpus")
        for path in tmp_path.iterdir():
            client.upload_file(str(path), "corpus", f"train/{path.name}")
        client.close()
        options = tmp_path / "options.json"
        options.write_text(json.dumps(server.options))
        found = told(capsys, "s3://corpus/train/", "--options", str(options), "--step", "10ms")
    assert (found["samples"], found["limit"]) == (100, "consumer")


WRONG = {
    "nothing": ((), "missing: --shards, --shard-size, --shard-samples"),
    "half": (("--shards", "3"), "missing: --shard-size, --shard-samples"),
    "none": (("--shards", "0", *MADE_UP[2:]), "should be 1 or more"),
    "both": (("here.tar", *MADE_UP), "but got both"),
    "size": ((*MADE_UP, "--shard-size", "10"), "--shard-size should be a number with its unit"),
    "rate": ((*MADE_UP, "--link", "10MB"), "--link should be a number of bytes a second"),
    "connection": ((*MADE_UP, "--connection", "fast"), "--connection should be a number of bytes a second"),
    "time": ((*MADE_UP, "--first-byte", "50"), "--first-byte should be a time with its unit"),
    "step": ((*MADE_UP, "--step", "-1s"), "--step"),
    "threads": ((*MADE_UP, "--concurrency", "4"), "concurrency=4 needs map_s, the time of one call"),
    "calls": ((*MADE_UP, "--map", "1ms", "--concurrency", "0"), "concurrency should be a positive integer"),
    "ranks": ((*MADE_UP, "--ranks", "0"), "ranks should be a positive integer"),
    "too many": ((*MADE_UP, "--ranks", "13"), "12 shards cannot be split over 13 ranks"),
    "workers": ((*MADE_UP, "--num-workers", "-1"), "num_workers should be 0 or a positive integer"),
    "lanes": ((*MADE_UP, "--lanes", "3", "--ranks", "2"), "they fit a world size of 1, 3"),
    "memory": ((*MADE_UP, "--memory-limit", "1MB"), "memory_limit should be at least"),
    "resize": ((*MADE_UP, "--ranks", "4", "--resize-to", "3"), "they fit a world size of 1, 2, 4"),
    "at": ((*MADE_UP, "--resize-to", "1", "--at", "2"), "between 0 and 1"),
    "word": ((*MADE_UP, "--ranks", "two"), "invalid int value: 'two'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_told_in_a_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, message = WRONG[name]
    assert main(["simulate", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    last = captured.err.splitlines()[-1]
    assert last.startswith("asyncloader simulate: ")
    assert message in last


def test_shards_without_an_index_are_told_to_need_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.tar").write_bytes(bytes(1024))
    assert main(["simulate", f"{tmp_path}/*.tar"]) == 2
    assert (
        "the number of samples of 1 of the 1 shards: make one with asyncloader index"
        in capsys.readouterr().err
    )
