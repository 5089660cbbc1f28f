"""Files that are not what was put into the cache: found, put aside, fetched again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from asyncloader import testing
from asyncloader.cache.folder import HEADER_BYTES, Header
from asyncloader.cache.upkeep import verify_cache

from .epochs import Epoch, read_epoch

CONTENT = bytes(range(256)) * 20_000
Serve = Callable[..., testing.Server]


def flip(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(HEADER_BYTES + 1_000_000)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def lengthen(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


def empty(path: Path) -> None:
    os.truncate(path, 0)


def spoil_header(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(os.urandom(200))


def unfinish(path: Path) -> None:
    with path.open("r+b") as file:
        header = Header.parse(file.read(HEADER_BYTES))
        assert header is not None
        file.seek(0)
        file.write(replace(header, sha256=bytes(32)).encode())


def rename_another_version(path: Path) -> None:
    with path.open("r+b") as file:
        header = Header.parse(file.read(HEADER_BYTES))
        assert header is not None
        file.seek(0)
        file.write(replace(header, etag='"another"').encode())


def link(path: Path) -> None:
    target = path.with_name("elsewhere")
    path.rename(target)
    path.symlink_to(target)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def give_away(path: Path) -> None:
    os.chown(path, 12345, 12345)


DAMAGES = [
    flip,
    truncate,
    lengthen,
    empty,
    spoil_header,
    unfinish,
    rename_another_version,
    link,
    pipe,
    folder,
    pytest.param(
        give_away, marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
    ),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_put_aside_and_fetched_again(
    damage: Callable[[Path], None], serve: Serve, new_run: Any, kept: Any
) -> None:
    server = serve({"x": CONTENT})
    url = server.url_of("x") + "?token=SENTINEL"
    read_epoch(new_run(), [url])
    (path,) = kept("shards")
    damage(path)
    second = new_run()
    with testing.check_leaks(), pytest.warns(RuntimeWarning, match="damaged copy") as told:
        assert read_epoch(second, [url]) == [CONTENT]
    (message,) = [str(warning.message) for warning in told]
    assert server.url_of("x") in message and "SENTINEL" not in message
    assert path.stat().st_size == Header("", len(CONTENT)).file_bytes and not path.is_symlink()
    assert len(list(path.parents[2].joinpath("quarantine").iterdir())) == 1
    before = server.counters.requests
    assert read_epoch(second, [url]) == [CONTENT]
    assert server.counters.requests == before


def test_a_read_of_less_than_is_there_is_no_damage(
    serve: Serve, new_run: Any, kept: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, pread = serve({"x": CONTENT}), os.pread
    read_epoch(new_run(), [server.url_of("x")])

    def read_less(number: int, size: int, offset: int) -> bytes:
        return pread(number, min(size, 300_000), offset)

    before = server.counters.bytes_sent
    monkeypatch.setattr(os, "pread", read_less)
    assert read_epoch(new_run(), [server.url_of("x")]) == [CONTENT]
    # One byte tells the version of the object.
    assert server.counters.bytes_sent <= before + 1 and len(kept("shards")) == 1


# Told only if a part is opened after the file was truncated.
@pytest.mark.filterwarnings("ignore:the disk cache held a damaged copy:RuntimeWarning")
def test_a_file_truncated_under_its_reader_costs_network_and_no_byte(
    serve: Serve, new_run: Any, kept: Any
) -> None:
    content = os.urandom(40 << 20)
    server, setting = serve({"x": content}), new_run()
    read_epoch(setting, [server.url_of("x")])
    with Epoch(setting, [server.url_of("x")]) as epoch:
        chunks = epoch.out.receive(10)
        got = bytearray(chunks.receive(10))
        os.truncate(kept("shards")[0], 30 << 20)
        while len(got) < len(content):
            got += chunks.receive(10)
    assert got == content


def test_a_damaged_file_that_others_read_too_is_told_of_once(
    serve: Serve, new_run: Any, kept: Any, shards: dict[str, bytes]
) -> None:
    server, setting = serve({"x": CONTENT * 4}), new_run()
    url = server.url_of("x")
    read_epoch(setting, [url])
    (path,) = kept("shards")
    content = bytearray(path.read_bytes())
    for offset in range(Header("", 4 * len(CONTENT)).begin, len(content), 1 << 20):
        content[offset] ^= 1
    path.write_bytes(content)
    with pytest.warns(RuntimeWarning, match="damaged copy") as told:
        assert read_epoch(setting, [url, url, url]) == [CONTENT * 4] * 3
    assert len(told) == 1
    assert len(kept("quarantine")) == 1


def test_quarantine_is_bounded(serve: Serve, new_run: Any, kept: Any) -> None:
    objects = {str(n): bytes([n]) * 1000 for n in range(10)}
    server = serve(objects)
    urls = [server.url_of(key) for key in objects]
    read_epoch(new_run(), urls)
    for path in kept("shards"):
        truncate(path)
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert read_epoch(new_run(), urls) == list(objects.values())
    assert 1 <= len(kept("quarantine")) <= 4


def test_verifying_on_demand_finds_what_is_bad_and_puts_it_aside(
    serve: Serve, new_run: Any, kept: Any, tmp_path: Path
) -> None:
    objects = {str(n): bytes([n]) * 3_000_000 for n in range(4)}
    server = serve(objects)
    setting = new_run()
    read_epoch(setting, [server.url_of(key) for key in objects])
    assert verify_cache(tmp_path / "cache") == []
    flip(kept("shards")[1])
    truncate(kept("shards")[2])
    with testing.check_leaks():
        bad = verify_cache(tmp_path / "cache")
    assert bad == [str(path.relative_to(tmp_path / "cache")) for path in kept("quarantine")]
    assert len(bad) == 2 and len(kept("shards")) == 2
    assert verify_cache(tmp_path / "cache") == []
    assert read_epoch(setting, [server.url_of(key) for key in objects]) == list(objects.values())


def test_the_program_prints_what_is_bad(serve: Serve, new_run: Any, kept: Any, tmp_path: Path) -> None:
    server = serve({"x": CONTENT})
    read_epoch(new_run(), [server.url_of("x")])

    def verify(*arguments: str) -> tuple[int, str, str]:
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
        command = [sys.executable, "-m", "asyncloader", "cache", "verify", *arguments]
        run = subprocess.run(command, capture_output=True, text=True, env=environment)
        return run.returncode, run.stdout, run.stderr

    assert verify(str(tmp_path / "cache")) == (0, "1 shard, 5.12 MB: none is damaged\n", "")
    flip(kept("shards")[0])
    status, printed, _ = verify(str(tmp_path / "cache"))
    first, last = printed.splitlines()
    assert (status, last.partition(";")[0]) == (1, "1 of 1 shard damaged")
    assert Path(first.removeprefix("damaged, renamed to ")).exists()
    assert verify(str(tmp_path / "none"))[0] == 2
    assert verify()[0] == 2
    status, printed, _ = verify("--help")
    assert status == 0 and "CACHE_DIR" in printed


def test_a_folder_without_a_cache_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(FileNotFoundError, match=r"there is no cache in .*'asyncloader-v1'"):
        verify_cache(tmp_path)
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_a_damaged_file_that_cannot_be_put_aside_is_closed(serve: Serve, new_run: Any, kept: Any) -> None:
    server = serve({"x": CONTENT})
    url = server.url_of("x")
    read_epoch(new_run(), [url])
    (path,) = kept("shards")
    truncate(path)
    quarantine = path.parents[2] / "quarantine"
    quarantine.rmdir()
    quarantine.touch()
    with testing.check_leaks(), pytest.warns(RuntimeWarning, match="without the disk cache where it fails"):
        assert read_epoch(new_run(), [url]) == [CONTENT]
