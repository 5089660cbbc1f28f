"""Configurations and splits, by the names of a data set's files."""

from __future__ import annotations

import pytest

from asyncloader.stores.hub import CONVERTED, Sets, arrange


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("train-00000-of-00003.parquet", ("default", "train")),
        ("data/train-00000-of-00003-5ec63c0b2a5d5e1c.parquet", ("default", "train")),
        ("data/test.parquet", ("default", "test")),
        ("en/validation-00000-of-00001.parquet", ("en", "validation")),
        ("data/en/validation_3.parquet", ("en", "validation")),
        ("wiki/2023.en/train/0000.parquet", ("wiki/2023.en", "train")),
        ("train/part-00000-8a1c5b0e-3c6b.c000.snappy.parquet", ("default", "train")),
        ("data/CC-MAIN-2013-20/000_00000.parquet", ("default", "CC-MAIN-2013-20")),
        ("0.parquet", ("default", "train")),
        ("data/0007.parquet", ("default", "train")),
        ("a/b.parquet", ("a", "b")),
    ],
)
def test_a_file_is_of_a_configuration_and_a_split(path: str, place: tuple[str, str]) -> None:
    config, split = place
    assert arrange([path, "README.md", "x.json"], "main").files == {config: {split: (path,)}}


def test_folders_of_the_conversion_are_configuration_and_split() -> None:
    paths = [
        "en/train/0001.parquet",
        "en/train/0000.parquet",
        "en/partial-test/0000.parquet",
        ".gitattributes",
    ]
    sets = arrange([*paths, "loose.parquet"], CONVERTED)
    assert sets.files == {
        "en": {"partial-test": ("en/partial-test/0000.parquet",), "train": (paths[1], paths[0])}
    }
    assert sets.describe() == "'en': 'partial-test' (1 file), 'train' (2 files)"


def test_no_configuration_means_the_only_one_or_the_default() -> None:
    one, two = arrange(["en/a.parquet"], "main"), arrange(["en/a.parquet", "de/a.parquet"], "main")
    assert one.find(None, "a") == one.find("en", "a") == ("en/a.parquet",)
    assert two.find(None, "a") == two.find("fr", "a") == two.find("de", "b") == ()
    three = arrange(["en/a.parquet", "a.parquet"], "main")
    assert three.find(None, "a") == ("a.parquet",)
    assert Sets().find(None, "a") == ()


def test_many_configurations_are_told_in_part() -> None:
    sets = arrange([f"c{number:02d}/train.parquet" for number in range(25)], "main")
    assert sets.describe().endswith("'c19': 'train' (1 file); and 5 more")
