"""Folders of other libraries' data sets that are named wrongly: what there is, and what reads it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import asyncloader as al

MDS = {"version": 2, "shards": []}
LITDATA = {"chunks": [], "config": {"data_format": ["int"]}}
READERS = pytest.mark.parametrize("read", [al.from_mds, al.from_litdata])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With two parts that have an index, and one that has none."""
    for name, index in (("train", MDS), ("val", MDS), ("chunks", LITDATA)):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "index.json").write_text(json.dumps(index))
    (tmp_path / "data" / "none").mkdir()
    return tmp_path / "data"


@READERS
def test_a_folder_of_parts_names_those_that_are_in_it_or_beside_it(
    folder: Path, read: Callable[..., al.Dataset]
) -> None:
    with pytest.raises(ValueError, match=r"; folders in it that have one: 'chunks', 'train', 'val'$"):
        read(folder)
    for missing in ("none", "test"):
        with pytest.raises(ValueError, match=r"; folders beside it that have one: 'chunks', 'train', 'val'$"):
            read(folder / missing)
    with pytest.raises(ValueError, match=r"there is no '.*index\.json': ") as caught:
        read(folder / "far" / "away")
    assert "that have one" not in str(caught.value)


def test_what_to_do_is_said_in_the_words_of_the_function(folder: Path) -> None:
    with pytest.raises(ValueError, match="split="):
        al.from_mds(folder, split="test")
    with pytest.raises(ValueError, match="name one of them, or join") as caught:
        al.from_litdata(folder)
    assert "split" not in str(caught.value)


@READERS
def test_the_index_in_place_of_its_folder_is_told(folder: Path, read: Callable[..., al.Dataset]) -> None:
    for name in (folder / "train/index.json", "https://host/train/index.json?signature=SENTINEL"):
        with pytest.raises(ValueError, match=r"the folder that the index\.json is in") as caught:
            read(name)
        assert "SENTINEL" not in str(caught.value)


def test_the_index_of_another_library_names_what_reads_it(folder: Path) -> None:
    with pytest.raises(al.FormatError) as caught:
        al.from_mds(folder / "chunks")
    assert caught.value.__notes__ == [
        "it looks like the index of LitData's chunks, which al.from_litdata reads"
    ]
    with pytest.raises(al.FormatError) as caught:
        al.from_litdata(folder / "train")
    assert caught.value.__notes__ == ["it looks like the index of MDS, which al.from_mds reads"]
    (folder / "train/index.json").write_text("[" * 100_000)
    with pytest.raises(al.FormatError) as caught:
        al.from_litdata(folder / "train")
    assert not hasattr(caught.value, "__notes__")
