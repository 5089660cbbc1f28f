"""Prefixes and globs of object stores: looked up in a child, against moto's S3 and a failing server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moto_s3 import KEYS, S3, serve_s3

from asyncloader import testing
from asyncloader.errors import StoreError
from asyncloader.stores.listing import look
from asyncloader.stores.listing_process import choose_shards
from asyncloader.stores.store import NetworkPolicy
from asyncloader.stores.urls import is_remote_pattern

Serve = Callable[..., testing.Server]

pytestmark = pytest.mark.usefixtures("no_environment")

OBJECTS = {
    "d/": b"",
    "d/b.tar": b"bb",
    "d/a.tar": b"a",
    "d/deep/": b"",
    "d/deep/er/c.tar": b"ccc",
    "d/readme.md": b"no shard",
    "d/asyncloader-index.json": b"{}",
    "odd/x[1]*.tar": b"odd",
    "odd/x1.tar": b"",
    "odd/#a b%20ü.tar": b"odd",
    "top.tar": b"top",
    "bare/notes.md": b"",
    "bare/more.md": b"",
}


def is_tar(url: str) -> bool:
    return url.endswith(".tar")


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with serve_s3() as s3:
        s3.client.create_bucket(Bucket="shelf")
        for key, content in OBJECTS.items():
            s3.client.put_object(Bucket="shelf", Key=key, Body=content)
        yield s3


FOUND = {
    "d/": ["d/a.tar", "d/b.tar", "d/deep/er/c.tar"],
    "d/*": ["d/a.tar", "d/asyncloader-index.json", "d/b.tar", "d/readme.md"],
    "d/[ab].tar": ["d/a.tar", "d/b.tar"],
    "d/**/*.tar": ["d/a.tar", "d/b.tar", "d/deep/er/c.tar"],
    "*/deep/": ["d/deep/er/c.tar"],
    "?op.tar": ["top.tar"],
    "odd/x[1]*.tar": ["odd/x[1]*.tar"],
    "odd/x[[]1[]][*].tar": ["odd/x[1]*.tar"],
    "odd/x?.tar": ["odd/x1.tar"],
    "odd/#*ü.ta?": ["odd/#a b%20ü.tar"],
    "": [
        "d/a.tar",
        "d/b.tar",
        "d/deep/er/c.tar",
        *sorted(k for k in OBJECTS if k[:3] == "odd"),
        "top.tar",
    ],
}


def test_patterns_are_looked_up_with_their_sizes(s3: S3) -> None:
    # All by one child: each takes half a second to begin.
    matches = look([f"s3://shelf/{pattern}" for pattern in FOUND], s3.options, is_tar).matches
    for (pattern, keys), match in zip(FOUND.items(), matches, strict=True):
        assert match.urls == [f"s3://shelf/{key}" for key in keys], pattern
        assert match.sizes == [len(OBJECTS[key]) for key in keys], pattern


def test_an_index_beside_the_shards_is_found_and_fetched(s3: S3, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"local")
    patterns = ["s3://shelf/d/", "s3://shelf/d/deep/"]
    found = look(
        patterns, s3.options, is_tar, indexes=True, fetch=["s3://shelf/top.tar", str(tmp_path / "x")]
    )
    assert [match.index for match in found.matches] == [b"{}", None]
    assert found.fetched == (b"top", b"local")
    (match,) = look(patterns[:1], s3.options, lambda url: True).matches
    assert match.index is None, "it was not asked for"
    assert "s3://shelf/d/asyncloader-index.json" not in match.urls


def test_many_pages_are_listed(s3: S3) -> None:
    s3.client.create_bucket(Bucket="many")
    for number in range(1100):
        s3.client.put_object(Bucket="many", Key=f"x/{number:04}.tar", Body=b"x")
    (match,) = look(["s3://many/x/"], s3.options, is_tar).matches
    assert match.urls == [f"s3://many/x/{number:04}.tar" for number in range(1100)]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("bare/", r"no object is a shard by its suffix for s3://shelf/bare/; there are 2 other objects"),
        ("nowhere/", r"no object .* s3://shelf/nowhere/; there is no object at all below"),
        (
            "d/*.zip",
            r"no object matches for s3://shelf/d/\*.zip; there are 5 other objects below s3://shelf/d/",
        ),
        ("d/x?sig=SENTINEL", r"no object matches for s3://shelf/d/x\.\.\.;"),
    ],
)
def test_a_pattern_without_a_shard_is_refused(s3: S3, pattern: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        look([f"s3://shelf/{pattern}"], s3.options, is_tar)
    assert "SENTINEL" not in str(caught.value)


@pytest.mark.parametrize(
    ("faults", "asked"), [([testing.Status(503, times=2)], 3), ([testing.HangUp(times=1)], 2)], ids=str
)
def test_a_listing_that_fails_for_a_while_is_asked_again(serve: Serve, faults: Any, asked: int) -> None:
    server = serve({"corpus": _page("x/a.tar")}, faults)
    found = look(["s3://corpus/x/"], {"endpoint": server.url, "anonymous": True}, is_tar)
    assert (found.matches[0].urls, found.matches[0].sizes) == (["s3://corpus/x/a.tar"], [7])
    assert len(server.requests) == asked


def test_a_listing_that_goes_on_failing_is_an_error_without_secrets(
    serve: Serve, shown: Callable[[BaseException], str]
) -> None:
    server = serve({}, [testing.Status(500)])
    options = {"endpoint": server.url, "account_name": "me", "sas_key": "sv=1&sig=SENTINEL"}
    network = NetworkPolicy(attempts=2)
    with pytest.raises(StoreError, match="500 Internal Server Error") as caught:
        look(["az://corpus/x/"], options, is_tar, network=network)
    assert len(server.requests) == 2
    assert (caught.value.shard, caught.value.offset) == ("az://corpus/x/", None)
    assert "SENTINEL" not in shown(caught.value)


def test_a_listing_that_hangs_ends_at_its_deadline(serve: Serve) -> None:
    server = serve({}, [testing.Delay(30)])
    begun = time.monotonic()
    with pytest.raises(StoreError, match=r"took more than 0\.5 s"):
        look(["s3://corpus/x/"], {"endpoint": server.url, "anonymous": True}, is_tar, deadline_s=0.5)
    assert time.monotonic() - begun < 15  # half a second, and it would hang for thirty
    assert server.wait_idle(1)


def test_no_secret_is_on_the_command_line_or_in_the_environment_of_the_child(s3: S3, tmp_path: Path) -> None:
    mine = dict(os.environ)

    def spy(url: str) -> bool:
        print("a user's print is no answer")
        for name in ("cmdline", "environ"):
            (tmp_path / name).write_bytes(Path(f"/proc/self/{name}").read_bytes())
        return True

    look(["s3://shelf/d/"], s3.options, spy)
    command = (tmp_path / "cmdline").read_bytes()
    assert b"ASYNCLOADER_PROGRAM" in command
    assert all(value.encode() not in command for value in KEYS.values())
    found = {item.partition(b"=")[0].decode() for item in (tmp_path / "environ").read_bytes().split(b"\0")}
    # readline sets these two behind Python's back; the third is the child's program.
    assert found - {"", "LINES", "COLUMNS", "ASYNCLOADER_PROGRAM"} <= set(mine)
    assert b"SENTINEL" not in (tmp_path / "environ").read_bytes()


def test_an_error_of_the_predicate_and_wrong_options_come_back(s3: S3) -> None:
    def broken(url: str) -> bool:
        raise KeyError("SENTINEL")

    with pytest.raises(RuntimeError, match=r"listing failed with KeyError at test_listing.py:\d+") as caught:
        look(["s3://shelf/d/"], s3.options, broken)
    assert "SENTINEL" not in str(caught.value)
    with pytest.raises(ValueError, match="unknown option 'nonsense'"):
        look(["s3://shelf/d/"], {"nonsense": 1}, is_tar)


def test_the_child_ends_with_its_parent(serve: Serve) -> None:
    server = serve({}, [testing.Delay(60)])
    program = (
        "import sys; from asyncloader.stores.listing import look\n"
        "look(['s3://corpus/x/'], {'endpoint': sys.argv[1], 'anonymous': True}, len)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, server.url])
    try:
        _wait_for(lambda: server.counters.concurrent == 1)
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    assert server.wait_idle(5), "the request of the child goes with it"


def test_a_child_that_is_killed_is_told(s3: S3) -> None:
    def die(url: str) -> bool:
        os.kill(os.getpid(), signal.SIGKILL)
        return True

    with pytest.raises(RuntimeError, match="ended with status -9 and no answer"):
        look(["s3://shelf/d/"], s3.options, die)


def test_nothing_is_started_for_nothing() -> None:
    assert look([], {}, is_tar).matches == ()


_SEGMENT = st.text(alphabet="ab", min_size=1, max_size=2)


@given(
    st.dictionaries(st.lists(_SEGMENT, min_size=1, max_size=4).map("/".join), st.integers(0, 2), max_size=20)
)
def test_a_prefix_means_all_below_it_but_folder_markers(sizes: dict[str, int]) -> None:
    try:
        shards = {url.removeprefix("s3://b/") for url in choose_shards("s3://b/a/", sizes, lambda url: True)}
    except ValueError:
        shards = set()
    markers = {key for key, size in sizes.items() if not size and any(k.startswith(key + "/") for k in sizes)}
    assert shards == {key for key in sizes if key.startswith("a/")} - markers


@pytest.mark.parametrize(
    ("url", "is_pattern"),
    [
        ("s3://b/x/", True),
        ("gs://b/", True),
        ("az://b/x*", True),
        ("S3://b/[x]", True),
        ("hf://datasets/a/b/", True),
        ("s3://b/x", False),
        ("s3://b", False),
        ("http://h/x/", False),
        ("https://h/*", False),
        ("/x/", False),
        ("file:///x/*", False),
    ],
)
def test_what_a_server_must_be_asked_for(url: str, is_pattern: bool) -> None:
    assert is_remote_pattern(url) is is_pattern


def test_a_listing_that_breaks_off_goes_on_behind_the_last_key(serve: Serve) -> None:
    keys = [f"x/{number:04}.tar" for number in range(1001)]
    more = "<NextContinuationToken>t</NextContinuationToken>"
    answers = iter([_page(*keys[:1000], more=more), b"never sent", _page(keys[1000])])
    server = serve({"corpus": lambda: next(answers)}, [testing.Status(500, after=1, times=1)])
    (match,) = look(["s3://corpus/x/"], {"endpoint": server.url, "anonymous": True}, is_tar).matches
    assert match.urls == [f"s3://corpus/{key}" for key in keys]
    assert len(server.requests) == 3


def _page(*keys: str, more: str = "") -> bytes:
    contents = "".join(
        f"<Contents><Key>{key}</Key><LastModified>2020-01-01T00:00:00.000Z</LastModified>"
        "<Size>7</Size></Contents>"
        for key in keys
    )
    return f"<ListBucketResult>{more}{contents}</ListBucketResult>".encode()


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
