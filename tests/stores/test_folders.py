"""The files that local folders and globs mean, and folders that hide theirs."""

from __future__ import annotations

import glob
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from asyncloader import StoreError
from asyncloader.stores.globs import files_below, find_matches

_NOBODY = 65534


@contextmanager
def as_somebody_else() -> Iterator[None]:
    """Root may look into every folder."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def half_hidden() -> Iterator[Path]:
    """Two folders of shards, of which one cannot be looked into."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        for shard in ("open/deep/a.tar", "hidden/deep/b.tar"):
            (folder / shard).parent.mkdir(parents=True)
            (folder / shard).touch()
        (folder / "hidden").chmod(0)
        yield folder
        (folder / "hidden").chmod(0o755)


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "*/*/*.tar",
        "**/*.tar",
        "hidden/*/b.tar",
        "hidden/deep/*.tar",
        "*/deep/*.tar",
        "*/deep/a.tar",
        "h*/**",
    ],
)
def test_a_folder_that_cannot_be_looked_into_is_an_error(half_hidden: Path, pattern: str) -> None:
    with (
        as_somebody_else(),
        pytest.raises(StoreError, match=r"may be shards in it: Permission denied") as failure,
    ):
        find_matches(f"{half_hidden}/{pattern}") if pattern else files_below(f"{half_hidden}/")
    assert str(failure.value.shard).startswith(f"{half_hidden}/hidden")
    assert f"cannot read the folder '{half_hidden}/hidden" in str(failure.value)


def test_what_the_error_of_such_a_folder_says_leaves_it_out(half_hidden: Path) -> None:
    pattern = f"{half_hidden}/**/*.tar"
    with as_somebody_else():
        with pytest.raises(
            StoreError, match=r"sorted\(glob\.glob\(pattern, recursive=True\)\) .* skips such folders"
        ):
            find_matches(pattern)
        assert sorted(glob.glob(pattern, recursive=True)) == [f"{half_hidden}/open/deep/a.tar"]


def test_a_folder_beside_those_that_are_meant_need_not_be_readable(half_hidden: Path) -> None:
    with as_somebody_else():
        for pattern in ("open/*/*.tar", "o*/**/*.tar", "open/deep/[a].tar"):
            assert find_matches(f"{half_hidden}/{pattern}") == [f"{half_hidden}/open/deep/a.tar"]
        assert files_below(f"{half_hidden}/open") == [f"{half_hidden}/open/deep/a.tar"]
        assert find_matches(f"{half_hidden}/*.tar") == []


def test_what_the_file_system_keeps_for_itself_holds_no_shards(half_hidden: Path) -> None:
    (half_hidden / "hidden").rename(half_hidden / "lost+found")
    with as_somebody_else():
        assert files_below(str(half_hidden)) == [f"{half_hidden}/open/deep/a.tar"]
        assert find_matches(f"{half_hidden}/**/*.tar") == [f"{half_hidden}/open/deep/a.tar"]
    (half_hidden / "lost+found").rename(half_hidden / "hidden")


def test_links_lead_to_folders_elsewhere_and_to_none_twice(tmp_path: Path) -> None:
    for shard in ("here/v1/a.tar", "there/b.tar", "there/more/c.tar"):
        (tmp_path / shard).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / shard).touch()
    here = tmp_path / "here"
    (here / "latest").symlink_to("v1")  # its files are there as v1/...
    (here / "round").symlink_to(here)
    (here / "more").symlink_to(tmp_path / "there/more")
    (here / "other").symlink_to(tmp_path / "there")  # what is in more/ already does not come again
    assert sorted(files_below(str(here))) == [
        f"{here}/{name}" for name in ("more/c.tar", "other/b.tar", "v1/a.tar")
    ]


def test_parts_of_a_pattern_that_are_not_there_match_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "loop").symlink_to("loop")
    for pattern in ("nowhere/*.tar", "a/*.tar", "*/b", "*/*/c.tar", "**/x", "loop/*"):
        assert find_matches(f"{tmp_path}/{pattern}") == []
