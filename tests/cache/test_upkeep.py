"""A cache listed and pruned while it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncloader import testing
from asyncloader.cache.folder import FILLING, CacheFolder, identity_of
from asyncloader.cache.locks import CacheFile, claim, withdraw
from asyncloader.cache.upkeep import choose_old, list_cache, prune_cache

from .epochs import read_epoch
from .test_damage import Serve

CONTENT = bytes(range(256)) * 4000


@given(
    sizes=st.lists(st.integers(1, 100), max_size=12),
    to_bytes=st.none() | st.integers(0, 600),
    older_than_s=st.none() | st.integers(0, 13),
    bad=st.sets(st.integers(0, 11)),
)
def test_what_goes_is_bad_or_oldest_and_no_more_than_was_asked(
    sizes: list[int], to_bytes: int | None, older_than_s: int | None, bad: set[int]
) -> None:
    count = len(sizes)
    files = [CacheFile(str(n), size, float(count - n), n in bad) for n, size in enumerate(sizes)]
    gone = choose_old(files, to_bytes, older_than_s)
    left = [file for file in files if file not in gone]
    if older_than_s is not None:
        assert all(file.unused_s < older_than_s for file in left)
    young = [file for file in gone if older_than_s is None or file.unused_s < older_than_s]
    left_bytes = sum(file.size_bytes for file in left)
    if to_bytes is None:
        assert young == []
        return
    assert left_bytes <= to_bytes
    if young:  # the last one that went had to
        last = max(young, key=lambda file: (not file.is_bad, -file.unused_s))
        assert left_bytes + last.size_bytes > to_bytes
        assert all((file.is_bad, file.unused_s) <= (last.is_bad, last.unused_s) for file in left)


def test_a_download_is_counted_and_stays(serve: Serve, new_run: Any, kept: Any, tmp_path: Path) -> None:
    server = serve({"x": CONTENT})
    read_epoch(new_run(), [server.url_of("x")])
    folder = CacheFolder(str(tmp_path / "cache"))
    claimed = claim(folder, identity_of("http://h/y", {}, {}))
    assert claimed is not None
    try:
        with testing.check_leaks():
            contents = list_cache(tmp_path / "cache")
            assert (len(contents.files), contents.downloads) == (1, 1)
            pruned = prune_cache(tmp_path / "cache", to_bytes=0)
        assert (len(pruned.removed), pruned.left, kept("shards")) == (1, 0, [])
        assert len(folder.names(FILLING)) == 1
    finally:
        withdraw(folder, claimed)
        claimed.close()
        folder.close()
    assert list_cache(tmp_path / "cache").downloads == 0


def test_an_epoch_goes_on_over_shards_that_are_pruned_under_it(
    serve: Serve, new_run: Any, kept: Any, tmp_path: Path
) -> None:
    objects = {str(number): bytes([number]) * 2_000_000 for number in range(4)}
    server = serve(objects)
    urls = [server.url_of(key) for key in objects]
    setting = new_run()
    assert read_epoch(setting, urls) == [*objects.values()]
    prune_cache(tmp_path / "cache", to_bytes=4_500_000)
    assert len(kept("shards")) == 2
    assert read_epoch(setting, urls) == [*objects.values()]
    assert len(kept("shards")) == 4


def test_a_limit_must_be_said_and_be_none_below_zero(tmp_path: Path) -> None:
    for limits in ({}, {"to_bytes": -1}, {"older_than_s": -1.0}):
        with pytest.raises(ValueError, match=r"needs a limit|0 or more"):
            prune_cache(tmp_path, **limits)
    assert [*tmp_path.iterdir()] == []
