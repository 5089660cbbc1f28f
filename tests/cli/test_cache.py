"""``asyncloader cache``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncloader import testing

from .conftest import Ask, Place


@pytest.fixture(params=["web server", pytest.param("bucket", marks=pytest.mark.servers)])
def cache(request: pytest.FixtureRequest, ask: Ask, corpus: Path, tmp_path: Path) -> Iterator[Path]:
    """A cache of the three tar shards, the first of which was not used for longest."""
    folder = tmp_path / "cache"
    with testing.serve(corpus) as server:
        place = Place(f"{server.url}/")
        if request.param == "bucket":
            place = request.getfixturevalue("bucket")
        asked = place("tar/s-{0..2}.tar")
        told = ask("bench", *asked, "--no-collate", "--cache-dir", folder)
        assert told.status == 0, told.err
    sizes = sorted((path.stat().st_size, path) for path in folder.rglob("shards/*/*"))
    assert len(sizes) == 3
    for days, (_, path) in enumerate(reversed(sizes)):
        used_ns = path.stat().st_mtime_ns - (3 - days) * 86_400 * 10**9
        os.utime(path, ns=(used_ns, used_ns))
    yield folder


def test_files_are_listed_with_their_age(ask: Ask, cache: Path) -> None:
    told = ask("cache", "ls", cache, "--json").json
    assert [round(file["unused_s"] / 86_400) for file in told["files"]] == [3, 2, 1]
    assert all((cache / file["path"]).stat().st_size == file["size_bytes"] for file in told["files"])
    assert told["size_bytes"] == sum(file["size_bytes"] for file in told["files"])
    assert told["downloads"] == 0
    *lines, total = ask("cache", "ls", cache).out.splitlines()
    assert [line.split()[2:4] for line in lines] == [["3", "d"], ["2", "d"], ["1", "d"]]
    assert total.startswith("3 files, ")


def test_what_was_not_used_for_long_is_pruned_and_the_rest_stays_sound(ask: Ask, cache: Path) -> None:
    told = ask("cache", "prune", cache, "--older-than", "36h", "--json").json
    assert len(told["removed"]) == 2 and told["left"] == 1
    assert not any((cache / file["path"]).exists() for file in told["removed"])
    assert ask("cache", "verify", cache, "--json").json["sound"] == 1


def test_it_is_pruned_to_a_size_and_no_further(ask: Ask, cache: Path) -> None:
    files = ask("cache", "ls", cache, "--json").json["files"]
    limit = files[1]["size_bytes"] + files[2]["size_bytes"]
    dry = ask("cache", "prune", cache, "--to", f"{limit}B", "--dry-run", "--json").json
    assert [file["path"] for file in dry["removed"]] == [files[0]["path"]] and dry["left_bytes"] == limit
    assert len(ask("cache", "ls", cache, "--json").json["files"]) == 3
    told = ask("cache", "prune", cache, "--to", f"{limit}B")
    assert told.out.splitlines()[-1].startswith("removed 1 file, ") and "; 2 files, " in told.out
    assert [file["path"] for file in ask("cache", "ls", cache, "--json").json["files"]] == [
        file["path"] for file in files[1:]
    ]


def test_a_damaged_shard_is_put_aside_and_pruned_first(ask: Ask, cache: Path) -> None:
    youngest = cache / ask("cache", "ls", cache, "--json").json["files"][-1]["path"]
    with youngest.open("r+b") as file:
        file.seek(-10, os.SEEK_END)
        file.write(b"damaged!!!")
    told = ask("cache", "verify", cache, "--json")
    assert told.status == 1 and told.json["sound"] == 2
    (aside,) = told.json["bad"]
    assert Path(aside).exists()
    files = ask("cache", "ls", cache, "--json").json["files"]
    assert [file["is_bad"] for file in files] == [False, False, True]
    total = sum(file["size_bytes"] for file in files)
    assert ask("cache", "prune", cache, "--to", f"{total - 1}B").status == 0
    assert not Path(aside).exists()
    assert len(ask("cache", "ls", cache, "--json").json["files"]) == 2
