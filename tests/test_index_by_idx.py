"""Indexes made of the ``.idx`` beside tars: without reading these, and never of other ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from idx_files import idx_of

import asyncloader as al
from asyncloader import testing
from asyncloader.cli import main
from asyncloader.errors import FormatError, StoreError

SAMPLES = (30, 7, 12)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Tars with an index each, the first of them with several offsets."""
    for shard, count in enumerate(SAMPLES):
        with al.ShardWriter(tmp_path / f"s-{shard}.tar") as writer:
            for number in range(count):
                text = "x" * (700_000 if shard == 0 else 100)
                writer.write({"__key__": f"{shard}-{number:03d}", "txt": text, "cls": number})
        (tmp_path / f"s-{shard}.idx").write_bytes(idx_of((tmp_path / f"s-{shard}.tar").read_bytes()))
    return tmp_path


def entries(folder: Path) -> list[dict[str, object]]:
    document = json.loads((folder / "asyncloader-index.json").read_text())
    return [{name: value for name, value in entry.items() if "2" not in name} for entry in document["shards"]]


def test_it_is_the_index_that_reading_makes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    by_reading = entries(folder)
    assert any(entry["offsets"] for entry in by_reading)
    (folder / "asyncloader-index.json").unlink()
    assert main(["index", "--idx", f"{folder}/*.tar"]) == 0
    assert entries(folder) == by_reading
    assert main(["verify", f"{folder}/*.tar"]) == 0
    capsys.readouterr()
    by_rank = []
    for rank in range(4):
        recipe = al.from_urls(f"{folder}/*.tar")
        loader = al.DataLoader(recipe, 5, rank=rank, world_size=4, lanes=4, collate_fn=list)
        by_rank.append([sample["__key__"] for batch in loader for sample in batch])
        assert len(loader) == 3
    keys = [f"{shard}-{number:03d}" for shard, count in enumerate(SAMPLES) for number in range(count)]
    assert [key for mine in by_rank for key in mine] == keys
    assert {*map(len, by_rank)} == {12, 13}


def test_next_to_nothing_of_a_shard_is_read(folder: Path, tmp_path: Path) -> None:
    with testing.serve(folder) as server:
        urls = [server.url_of(f"s-{shard}.tar") for shard in range(3)]
        index = al.build_index(urls, output=tmp_path / "far.json", idx=True)
        assert server.counters.bytes_sent < 100_000
        assert len(al.DataLoader(al.from_urls(urls, index=index), 7, lanes=1)) == 7


def test_an_index_of_an_older_shard_is_refused(folder: Path) -> None:
    (folder / "s-1.idx").write_bytes((folder / "s-2.idx").read_bytes())
    with pytest.raises(FormatError, match=r"the \.idx beside it is of another shard") as caught:
        al.build_index(f"{folder}/s-1.tar", idx=True)
    assert str(caught.value.shard).endswith("s-1.idx") or str(caught.value.shard).endswith("s-1.tar")
    (folder / "s-1.idx").unlink()
    with pytest.raises(StoreError, match=r"s-1\.idx"):
        al.build_index(f"{folder}/*.tar", idx=True)
    with pytest.raises(ValueError, match=r"whose name ends with \.tar"):
        al.build_index(f"{folder}/x.tar.gz", idx=True)


def test_a_lie_that_looks_sound_is_told_when_the_shard_is_read(folder: Path) -> None:
    """Two samples taken for one: every member is where it should be, and the count is not."""
    content = (folder / "s-0.tar").read_bytes()
    version, *lines = idx_of(content, "v1.1").decode().splitlines()
    joined = [version.replace("30", "29"), f"{lines[0]} {lines[1]}", *lines[2:]]
    (folder / "s-0.idx").write_text("\n".join(joined) + "\n")
    (folder / "asyncloader-index.json").unlink()
    assert al.build_index(f"{folder}/s-0.tar", idx=True)
    for lanes in (1, 2, 3, 5):
        with pytest.raises(FormatError, match="the index promises"):
            list(al.DataLoader(al.from_urls(f"{folder}/s-0.tar"), 4, lanes=lanes, collate_fn=list))
