"""The cache's options, and the private folder that they make."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from asyncloader import testing
from asyncloader.cache.store import DEFAULT_LIMIT_BYTES, cache_setting


def test_no_folder_is_no_cache(tmp_path: Path) -> None:
    assert cache_setting(None, None) is None


def test_the_folder_is_made_private(tmp_path: Path) -> None:
    with testing.check_leaks():
        setting = cache_setting(tmp_path / "new" / "cache", None)
    assert setting is not None
    assert (setting.folder, setting.limit_bytes) == (str(tmp_path / "new" / "cache"), DEFAULT_LIMIT_BYTES)
    assert (tmp_path / "new/cache/asyncloader-v1").stat().st_mode & 0o777 == 0o700
    assert pickle.loads(pickle.dumps(setting)) == setting


def test_the_limit_may_be_a_text(tmp_path: Path) -> None:
    setting = cache_setting(tmp_path, "1.5 GiB")
    assert setting is not None and setting.limit_bytes == 3 << 29


def test_each_recipe_is_another_run(tmp_path: Path) -> None:
    one, other = cache_setting(tmp_path, 10), cache_setting(str(tmp_path), 10)
    assert one is not None and other is not None and one.run != other.run


@pytest.mark.parametrize(
    ("folder", "limit", "error", "match"),
    [
        ("x", "1G", ValueError, "number with its unit"),
        ("x", "0 GB", ValueError, "positive"),
        ("x", 1.5, TypeError, "number of bytes"),
        ("x", True, TypeError, "number of bytes"),
        ("x", 0, ValueError, "positive"),
        ("x", -1, ValueError, "positive"),
        (None, 10, ValueError, "pass cache_dir too"),
        (7, None, TypeError, "should be a path"),
        (b"x", None, TypeError, "should be a path"),
        ("", None, ValueError, "empty path"),
        ("/proc/nowhere", None, ValueError, "cannot be used"),
    ],
)
def test_wrong_arguments_are_refused(folder: Any, limit: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        cache_setting(folder, limit)


def test_a_folder_that_others_can_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "asyncloader-v1").mkdir()
    (tmp_path / "asyncloader-v1").chmod(0o755)
    with testing.check_leaks(), pytest.raises(ValueError, match=r"private.*0755"):
        cache_setting(tmp_path, None)


def test_a_link_in_the_folders_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "asyncloader-v1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="link"):
        cache_setting(tmp_path, None)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_another_users_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "asyncloader-v1").mkdir(mode=0o700)
    os.chown(tmp_path / "asyncloader-v1", 12345, 12345)
    with pytest.raises(ValueError, match="belongs to 12345"):
        cache_setting(tmp_path, None)
