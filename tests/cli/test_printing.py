"""What commands print of names that are not to be trusted."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from .conftest import Ask

EVIL = "e\x1b[31mv\x9b31mil\u202e.jsonl"
SHOWN = r"e\x1b[31mv\x9b31mil\u202e.jsonl"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (EVIL, "plain.jsonl"):
        (tmp_path / name).write_text('{"n": 1}\n')
    return tmp_path


@pytest.mark.parametrize("command", ["index", "ls", "verify"])
def test_a_name_cannot_write_to_the_terminal(ask: Ask, folder: Path, command: str) -> None:
    if command == "verify":
        ask("index", folder / "*.jsonl")
    told = ask(command, folder / "*.jsonl")
    assert told.status == 0 and f"{folder}/{SHOWN}" in told.out
    assert all(line.isprintable() for line in told.out.splitlines())


@pytest.mark.parametrize("command", ["index", "verify"])
def test_nor_can_that_of_a_bad_shard(ask: Ask, folder: Path, command: str) -> None:
    ask("index", folder / "*.jsonl")
    (folder / EVIL).write_text("{")
    told = ask(command, folder / "*.jsonl", *(["-o", folder / "other.json"] if command == "index" else []))
    assert told.status == 1 and SHOWN in told.out
    assert all(line.isprintable() for line in told.out.splitlines())


@pytest.mark.parametrize("command", ["index", "ls", "verify"])
def test_json_tells_names_exactly_and_as_what_can_be_printed(ask: Ask, folder: Path, command: str) -> None:
    ask("index", folder / "*.jsonl")
    told = ask(command, folder / "*.jsonl", "--json")
    assert all(line.isprintable() for line in told.out.splitlines())
    assert f"{folder}/{EVIL}" in [shard.get("url", shard.get("shard")) for shard in told.json["shards"]]


def test_a_name_that_is_no_text_can_be_told(ask: Ask, tmp_path: Path) -> None:
    name = os.fsdecode(b"odd-\xff.jsonl")
    (tmp_path / name).write_text("{}\n")
    told = ask("ls", tmp_path / "*.jsonl")
    assert told.status == 0 and r"odd-\udcff.jsonl" in told.out
    (shard,) = json.loads(ask("ls", tmp_path / "*.jsonl", "--json").out)["shards"]
    assert shard["url"] == f"{tmp_path}/{name}"


def test_an_error_cannot_write_to_the_terminal(ask: Ask, tmp_path: Path) -> None:
    told = ask("head", tmp_path / "there-is-no\x1b[31m.jsonl")
    assert told.status == 2 and told.err.count("\n") == 1
    assert r"there-is-no\x1b[31m.jsonl" in told.err and told.err[:-1].isprintable()
