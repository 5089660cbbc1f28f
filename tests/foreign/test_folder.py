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
def test_a_folder_without_an_index_is_refused(folder: Path, read: Callable[..., al.Dataset]) -> None:
    for missing in (folder, folder / "none", folder / "test"):
        with pytest.raises(
            ValueError, match=r"there is no '.*index\.json': a folder of .* has an index\.json"
        ):
            read(missing)


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


def test_the_index_of_another_library_is_refused_with_its_name(folder: Path) -> None:
    for read, part in ((al.from_mds, "chunks"), (al.from_litdata, "train")):
        with pytest.raises(al.FormatError) as caught:
            read(folder / part)
        assert caught.value.shard == str(folder / part / "index.json")
