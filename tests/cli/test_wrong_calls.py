"""Wrong calls: one line that says what to do, and status 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Ask, Place

READERS = ("ls", "head", "bench", "index", "verify")

_SHARDS = [
    (["ftp://h/a.tar"], "unknown scheme ftp://"),
    (["gcs://b/a.tar"], "write gs://bucket/key"),
    (["/nowhere/*.tar"], "no file matches '/nowhere/*.tar'"),
    (["/nowhere/"], "there is no folder '/nowhere/'"),
    (["http://h/*.tar"], "*"),
    (["train-{000..127.tar"], "{"),
    (
        ["a.tar", "--format", "mdss"],
        "'tfrecord', or, for a folder with its index.json, 'litdata', not 'mdss'",
    ),
    (["a.tar", "--option", "region"], "--option should be NAME=VALUE"),
    (["a.tar", "--option", "region=x"], "local files have no storage options"),
    (["s3://b/a.tar", "--option", "regoin=x"], "did you mean 'region'?"),
    (["s3://b/a.tar", "--endpoint", "host:9000"], "endpoint should be http://host[:port]"),
    (["s3://b/a.tar", "--option", "anonymous=yes"], "'anonymous' should be True or False, not str"),
    (["s3://b/a.tar", "--option", "region=true"], "'region' should be a string, not bool"),
    (["http://h/a.tar", "--header", "Authorization"], "--header should be 'NAME: VALUE'"),
    (["s3://b/a.tar", "--options", "/nowhere/o.json"], ": /nowhere/o.json: No such file or directory"),
]


@pytest.mark.parametrize("end", ["", "/"])
def test_a_folder_with_an_index_is_told_how_it_is_read(ask: Ask, tmp_path: Path, end: str) -> None:
    (tmp_path / "chunk-0-0.bin").write_bytes(b"")
    (tmp_path / "index.json").write_text("{}")
    told = ask("head", f"{tmp_path}{end}")
    assert (told.status, told.out) == (2, "")
    assert (
        "; its index.json is for al.from_mds or al.from_litdata (--format mds, --format litdata)" in told.err
    )


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize(("arguments", "message"), _SHARDS, ids=lambda value: "-".join(value)[:40])
def test_bad_names_and_options_of_shards_are_refused(
    ask: Ask, command: str, arguments: list[str], message: str
) -> None:
    told = ask(command, *arguments)
    assert (told.status, told.out) == (2, "")
    assert told.err.startswith(f"asyncloader {command}: ") and told.err.count("\n") == 1
    assert message in told.err


@pytest.mark.parametrize("command", READERS)
def test_a_missing_url_is_asked_for(ask: Ask, command: str) -> None:
    told = ask(command)
    assert told.status == 2 and "arguments are required: URL" in told.err


@pytest.mark.parametrize("command", READERS)
def test_a_prefix_or_glob_that_matches_nothing_is_refused(
    ask: Ask, command: str, bucket: Place, tmp_path: Path
) -> None:
    # A bucket is listed in a process of its own, which takes a second.
    for name in ("nowhere/", "tar/*.parquet") if command == "ls" else ("nowhere/",):
        told = ask(command, *bucket(name), *(["-o", tmp_path / "m.json"] if command == "index" else []))
        assert (told.status, told.out) == (2, "") and name in told.err


@pytest.mark.parametrize("command", ["head", "bench"])
def test_a_shard_that_is_not_there_is_named(ask: Ask, command: str, bucket: Place) -> None:
    told = ask(command, *bucket("tar/s-7.tar"))
    assert told.status == 2
    assert "404" in told.err and "s3://corpus/tar/s-7.tar" in told.err and "check the URL" in told.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["head", "-n", "0"], "n should be a positive integer"),
        (["head", "-n", "x"], "invalid int value: 'x'"),
        (["head", "--columns", "a,,b"], "--columns should be names separated by commas"),
        (["bench", "--batch-size", "-3"], "batch_size should be a positive integer"),
        (["bench", "--num-workers", "-1"], "num_workers should be 0 or a positive integer"),
        (["bench", "--seconds", "0"], "--seconds should be a number above 0"),
        (["bench", "--seconds", "nan"], "--seconds should be a number above 0"),
        (["bench", "--batches", "0"], "--batches should be 1 or more"),
        (["bench", "--memory-limit", "3"], "memory_limit should be a number with its unit"),
        (["bench", "--shuffle", "0"], "window should be a positive integer"),
        (["bench", "--pad", "tokens", "--no-collate"], "exclude one another"),
        (["index", "-j", "0"], "concurrency should be a positive integer"),
        (["verify", "-j", "-1"], "concurrency should be a positive integer"),
        (["verify", "-m", "/nowhere/asyncloader-index.json"], "/nowhere/asyncloader-index.json"),
    ],
    ids=lambda value: "-".join(value)[:40],
)
def test_bad_values_are_refused(ask: Ask, corpus: Path, arguments: list[str], message: str) -> None:
    command, *options = arguments
    told = ask(command, f"{corpus}/jsonl/", *options)
    assert (told.status, told.out) == (2, "") and message in told.err


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_file_of_options_that_is_none_is_refused(ask: Ask, tmp_path: Path, content: str) -> None:
    (tmp_path / "options.json").write_text(content)
    told = ask("ls", "s3://b/a.tar", "--options", tmp_path / "options.json")
    assert told.status == 2 and "--options should name a JSON file" in told.err


def test_no_message_shows_an_option(ask: Ask, tmp_path: Path) -> None:
    secrets = {"secret_access_key": "SENTINEL"}
    (tmp_path / "options.json").write_text(json.dumps(secrets))
    told = ask("ls", "s3://b/a.tar", "--options", tmp_path / "options.json", "--option", "token=SENTINEL")
    assert told.status == 2 and "SENTINEL" not in told.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prune"], "--to 50GB, --older-than 7d"),
        (["prune", "--to", "50"], "--to should be a number with its unit"),
        (["prune", "--older-than", "7"], "--older-than should be a time with its unit"),
        (["ls"], "there is no cache in"),
        (["prune", "--to", "1GB"], "there is no cache in"),
        (["verify"], "there is no cache in"),
    ],
    ids=lambda value: "-".join(value)[:40],
)
def test_bad_calls_of_the_cache_are_refused(
    ask: Ask, tmp_path: Path, arguments: list[str], message: str
) -> None:
    told = ask("cache", *arguments, tmp_path)
    assert (told.status, told.out) == (2, "") and message in told.err
    assert [*tmp_path.iterdir()] == []
