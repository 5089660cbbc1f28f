from __future__ import annotations

import glob
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from examples_drawn import examples
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.stores.globs import folder_before, has_special, key_matcher


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("a/*.tar", ["a/x.tar"], ["a/b/x.tar", "x.tar", "a/.x.tar", "a/x.tar.gz"]),
        ("a/?", ["a/x", "a/ü"], ["a/", "a/xy", "a//"]),
        ("a/[0-2][!x]", ["a/0y"], ["a/3y", "a/0x", "a/0"]),
        ("a/[*].tar", ["a/*.tar"], ["a/x.tar"]),
        ("a/[[]x[?]", ["a/[x?"], ["a/x"]),
        ("a/[x", ["a/[x"], ["a/x"]),
        ("**/x", ["x", "a/x", "a/b/x"], ["x/a", "a/.b/x", "ax"]),
        ("a/**", ["a/x", "a/b/x"], ["a", "b/x", "a/.x"]),
        ("a/**/b/**/c", ["a/b/c", "a/x/b/y/z/c"], ["a/c", "a/b"]),
        ("**/a/.b/**/c", ["a/.b/c", "x/a/.b/x/c"], ["a/.b/x/.x/c", "a/.b/a/.b/c", ".x/a/.b/c"]),
        ("**/a/*/**/b", ["a/x/a/b", "a/a/a/b"], ["a/b", "a/x/.a/x/b"]),
        ("a/**/**", ["a/x", "a/x/y"], ["a", "a/x/.y"]),
        ("a**b", ["ab", "axb"], ["a/b"]),
        ("A", ["A"], ["a"]),
        ("*\n", ["x\n"], ["x"]),
    ],
)
def test_patterns_of_keys(pattern: str, yes: list[str], no: list[str]) -> None:
    matches = key_matcher(pattern)
    assert [key for key in yes if not matches(key)] == []
    assert [key for key in no if matches(key)] == []


_NAME = st.text(alphabet="ab.", min_size=1, max_size=3).filter(lambda name: name.strip("."))
_SEGMENT = st.one_of(st.just("**"), st.text(alphabet="ab.*?[]!-", min_size=1, max_size=4))


@examples(200)
@given(
    st.lists(st.lists(_NAME, min_size=1, max_size=3).map("/".join), max_size=6),
    st.lists(_SEGMENT, min_size=1, max_size=3),
)
def test_keys_match_as_files_do(keys: list[str], segments: list[str]) -> None:
    if any(not segment.strip(".") for segment in segments):
        return  # folders of the file system, and no part of a key
    pattern = "/".join(segments)
    with TemporaryDirectory() as root:
        files = set()
        for key in keys:
            path = Path(root, key)
            if not any(parent.is_file() for parent in path.parents) and not path.is_dir():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
                files.add(key)
        found = {
            os.path.normpath(name)
            for name in glob.glob(pattern, root_dir=root, recursive=True)
            if os.path.isfile(os.path.join(root, name))
        }
    assert set(filter(key_matcher(pattern), files)) == found


@pytest.mark.parametrize(
    ("pattern", "key"),
    [
        ("**/" * 30 + "x", "a/" * 200),
        ("**/a/**/a/**/*.tar", "a/" * 200 + "x.json"),
        ("**/a/" * 5 + "*.tar", "a/" * 60 + "x.json"),
        ("**/" + "a/" * 30 + "*.tar", "a/" * 200 + "x.json"),
    ],
)
def test_no_pattern_takes_exponential_time(pattern: str, key: str) -> None:
    matches = key_matcher(pattern)
    calls, most = 0, 10 * len(pattern.split("/")) * len(key.split("/"))

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1
        assert calls <= most

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        assert not matches(key)
    finally:
        sys.setprofile(before)
    assert calls > 0


def test_a_key_may_have_any_number_of_segments() -> None:
    matches = key_matcher("data/**/*.tar")
    assert matches("data" + "/" * 1015 + "x.tar")
    assert not matches("data" + "/" * 1015 + "x.json")


@pytest.mark.parametrize(
    ("pattern", "folder"),
    [("a/b/*.tar", "a/b/"), ("*", ""), ("a*/b", ""), ("a/[*]", "a/"), ("a/b/", "a/b/"), ("", ""), ("x", "")],
)
def test_what_is_listed_for_a_pattern(pattern: str, folder: str) -> None:
    assert folder_before(pattern) == folder


def test_braces_are_nothing_special() -> None:
    assert not has_special("a{0..3},b")
