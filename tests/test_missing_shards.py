"""A shard that an index lists and a folder, glob or prefix lacks is missed; a selection is not."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from end_to_end.harness import python
from servers import run_moto

import asyncloader as al
from asyncloader.pipeline.dataset import stages_of


def write(folder: Path, count: int = 4) -> list[Path]:
    """Shards of two samples each, and their index."""
    folder.mkdir(parents=True, exist_ok=True)
    with al.ShardWriter(folder / "s-%d.tar", samples_per_shard=2) as writer:
        for number in range(2 * count):
            writer.write({"__key__": f"{number}", "txt": f"sample {number}"})
    return [Path(shard.path) for shard in writer.shards]


def names_of(urls: Any, **given: Any) -> list[str]:
    return [os.path.basename(url) for url in stages_of(al.from_urls(urls, **given)).source.urls]  # type: ignore[attr-defined]


@pytest.mark.parametrize("pattern", ["{}/", "file://{}/", "{}/*.tar", "{}/s-[0-9].tar", "{}/../*/**/s-*.tar"])
@pytest.mark.parametrize("named", [False, True], ids=["found", "named"])
def test_a_shard_that_is_gone_from_a_folder_is_missed(pattern: str, named: bool, tmp_path: Path) -> None:
    shards = write(tmp_path / "d")
    urls = pattern.format(tmp_path / "d")
    given: Any = {"index": tmp_path / "d" / "asyncloader-index.json"} if named else {}
    assert len(names_of(urls, **given)) == 4
    shards[1].unlink()
    message = rf"lacks 1 of the shards that the index .*asyncloader-index\.json lists: {shards[1]}\. Restore"
    with pytest.raises(al.StoreError, match=message) as caught:
        al.from_urls(urls, **given)
    assert caught.value.shard == str(shards[1])


def test_a_folder_that_is_looked_at_from_within_is_held_against_its_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "[x]*"
    write(folder)[0].unlink()
    monkeypatch.chdir(folder)
    for urls in ("*.tar", "./", "./s-?.tar"):
        with pytest.raises(al.StoreError, match=r"s-0\.tar"):
            al.from_urls(urls)


def test_of_many_that_are_gone_a_few_are_named_and_all_counted(tmp_path: Path) -> None:
    for shard in write(tmp_path, 12)[2:]:
        shard.unlink()
    with pytest.raises(al.StoreError, match=r"lacks 10 of .* lists: \S+, \S+, \S+, \.\.\.\. Restore"):
        al.from_urls(f"{tmp_path}/*.tar")


def test_a_folder_whose_shards_are_all_gone_is_missed_beside_others(tmp_path: Path) -> None:
    write(tmp_path / "a")
    for shard in write(tmp_path / "b"):
        shard.unlink()
    for urls in (f"{tmp_path}/", f"{tmp_path}/*/s-*.tar", f"{tmp_path}/**/*.tar"):
        with pytest.raises(
            al.StoreError, match=r"lacks 4 of the shards that .*b/asyncloader-index\.json lists"
        ):
            al.from_urls(urls)
    assert len(names_of(f"{tmp_path}/a/*.tar")) == 4


def test_a_selection_is_no_loss(tmp_path: Path) -> None:
    shards = write(tmp_path)
    index = tmp_path / "asyncloader-index.json"
    assert names_of(f"{tmp_path}/s-[01].tar") == ["s-0.tar", "s-1.tar"]
    shards[3].unlink()
    for urls in (shards[:2], f"{tmp_path}/s-{{0..2}}.tar", f"{tmp_path}/s-[0-2].tar", str(shards[0])):
        assert names_of(urls) == names_of(urls, index=index)
    shards[2].rename(tmp_path / "x.tar")
    assert names_of(f"{tmp_path}/x*.tar") == ["x.tar"]


def test_entries_of_other_places_are_not_missed(tmp_path: Path) -> None:
    write(tmp_path / "a")
    path = tmp_path / "a" / "asyncloader-index.json"
    document = json.loads(path.read_text())
    entry = document["shards"][0]
    others = ("sub/s-9.tar", "s3://b/s-9.tar", "s-9.tar.part", ".s-9.tar")
    document["shards"] += [{**entry, "name": name} for name in others]
    path.write_text(json.dumps(document))
    assert len(names_of(f"{tmp_path}/a/*.tar")) == 4
    with pytest.raises(al.StoreError, match=r"lacks 2 of .* lists: \S+a/sub/s-9\.tar, \S+a/\.s-9\.tar\. "):
        al.from_urls(f"{tmp_path}/a/")


def test_a_range_that_goes_beyond_what_is_there_and_listed_is_told_before_reading(tmp_path: Path) -> None:
    write(tmp_path)
    for root in ("", "file://"):
        loader = al.DataLoader(al.from_urls(f"{root}{tmp_path}/s-{{0..9}}.tar"), 1)
        with pytest.raises(al.StoreError, match="check the path, and the ranges in its braces") as caught:
            next(iter(loader))
        assert caught.value.shard == f"{root}{tmp_path}/s-4.tar"
    for number in range(4, 10):
        (tmp_path / f"s-{number}.tar").touch()
    assert len(names_of(f"{tmp_path}/s-{{0..9}}.tar")) == 10
    assert len(names_of(f"{tmp_path}/t-{{0..9}}.tar")) == 10  # of shards that it says nothing of, nothing


@pytest.mark.servers
def test_an_object_that_is_gone_from_a_prefix_or_glob_is_missed(tmp_path: Path) -> None:
    pytest.importorskip("moto")
    shards = write(tmp_path)
    with run_moto() as server:
        client = server.client()
        client.create_bucket(Bucket="corpus")
        for path in [*shards[1:], tmp_path / "asyncloader-index.json"]:
            client.upload_file(str(path), "corpus", f"train/{path.name}")
        client.close()
        given: Any = {"storage_options": server.options}
        named = {**given, "index": "s3://corpus/train/asyncloader-index.json"}
        for urls in ("s3://corpus/train/", "s3://corpus/train/*.tar", "s3://corpus/train/s-?.tar"):
            for options in (given, named):
                message = (
                    r"lacks 1 of .*train/asyncloader-index\.json lists: s3://corpus/train/s-0\.tar\. Restore"
                )
                with pytest.raises(al.StoreError, match=message):
                    al.from_urls(urls, **options)
        with pytest.raises(al.StoreError, match=r"s-0\.tar"):
            al.from_urls("s3://corpus/*/*.tar", **named)
        assert len(names_of("s3://corpus/train/s-[1-3].tar", **given)) == 3
        assert len(names_of("s3://corpus/train/s-{1..2}.tar", **named)) == 2


def test_a_check_names_what_is_missing(tmp_path: Path) -> None:
    shards = write(tmp_path)
    shards[2].unlink()
    ran = python("-m", "asyncloader", "verify", f"{tmp_path}/*.tar", f"{tmp_path}/")
    assert ran.returncode == 1
    assert ran.stdout.count(f"BAD {shards[2]}: missing, and listed in the index") == 1
    assert ran.stdout.splitlines()[-1] == "1 of 7 shards bad"
    assert python("-m", "asyncloader", "verify", f"{tmp_path}/s-{{0..1}}.tar").returncode == 0
    assert python("-m", "asyncloader", "index", f"{tmp_path}/*.tar").returncode == 0
    assert python("-m", "asyncloader", "verify", f"{tmp_path}/").returncode == 0
