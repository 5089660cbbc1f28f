"""A server, settings and what is on the disk, for all tests of the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from asyncloader import testing
from asyncloader.cache.store import cache_setting
from asyncloader.stores.store import CacheSetting


@pytest.fixture
def serve() -> Iterator[Callable[..., testing.Server]]:
    """``testing.serve``, until the test ends."""
    with ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(testing.serve(*args, **kwargs))


@pytest.fixture
def new_run(tmp_path: Path) -> Callable[..., CacheSetting]:
    """A setting for the test's cache, each with a run of its own."""

    def new_run(limit: int = 1 << 30) -> CacheSetting:
        setting = cache_setting(tmp_path / "cache", limit)
        assert setting is not None
        return setting

    return new_run


@pytest.fixture
def kept(tmp_path: Path) -> Callable[[str], list[Path]]:
    """The files below ``shards``, ``filling`` or ``quarantine``."""

    def kept(folder: str) -> list[Path]:
        below = tmp_path / "cache" / "asyncloader-v1" / folder
        return sorted(path for path in below.rglob("*") if not path.is_dir() or path.is_symlink())

    return kept


@pytest.fixture(scope="session")
def shards() -> dict[str, bytes]:
    """Contents below two folders, with base names in common, longer than a part and shorter than a piece."""
    sizes = (1, 4096, 1 << 20, (3 << 20) + 7, 9_000_001)
    return {
        f"{folder}/{n}.tar": Random(f"{folder}{n}").randbytes(size)
        for folder in "ab"
        for n, size in enumerate(sizes)
    }
