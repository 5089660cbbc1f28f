"""Epochs through the cache: what comes from the network, and when."""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from waiting import AT_ONCE_S, until

from asyncloader import testing
from asyncloader.cache import fetch as intake
from asyncloader.cache.locks import claim
from asyncloader.errors import StoreError
from asyncloader.flow.channel import EndOfChannel
from asyncloader.flow.engine import EngineStopped
from asyncloader.formats.digest import open_digest

from .epochs import Epoch, read_epoch

MiB = 1 << 20
Serve = Callable[..., testing.Server]


def urls_of(server: testing.Server, objects: dict[str, bytes]) -> list[str]:
    return [server.url_of(key) for key in objects]


def test_the_second_epoch_reads_no_network(
    serve: Serve, new_run: Any, kept: Any, shards: dict[str, bytes]
) -> None:
    server, setting = serve(shards), new_run()
    with testing.check_leaks():
        assert read_epoch(setting, urls_of(server, shards)) == list(shards.values())
    before = server.counters
    assert before.bytes_sent == sum(map(len, shards.values()))  # each byte once
    with testing.check_leaks():
        assert read_epoch(setting, urls_of(server, shards)) == list(shards.values())
    assert server.counters.requests == before.requests
    assert len(kept("shards")) == len(shards) and not kept("filling")


def test_another_run_asks_once_whether_a_shard_was_changed(
    serve: Serve, new_run: Any, shards: dict[str, bytes]
) -> None:
    server = serve(shards)
    read_epoch(new_run(), urls_of(server, shards))
    before, second = server.counters, new_run()
    for _ in range(2):
        assert read_epoch(second, urls_of(server, shards)) == list(shards.values())
        assert server.counters.requests == before.requests + len(shards)
        assert server.counters.bytes_sent == before.bytes_sent + len(shards)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nothing below the folder can be written by this thread and those that it starts."""
    parts = [folder, *folder.rglob("*")]
    for part in parts:
        part.chmod(0o500 if part.is_dir() else 0o400)
    # Root writes whatever the mode, by these capabilities: see capabilities(7) and capget(2).
    libc, header = ctypes.CDLL(None, use_errno=True), (ctypes.c_uint32 * 2)(0x20080522, 0)
    held = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, held) == 0
    less = (ctypes.c_uint32 * 6)(*held)
    less[0] &= ~(1 << 1 | 1 << 2 | 1 << 3)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER
    assert libc.capset(header, less) == 0
    try:
        yield
    finally:
        assert libc.capset(header, held) == 0
        for part in parts:
            part.chmod(0o700 if part.is_dir() else 0o600)


def test_a_filled_cache_on_a_read_only_disk_is_read(
    serve: Serve, new_run: Any, kept: Any, shards: dict[str, bytes], tmp_path: Path
) -> None:
    server = serve({**shards, "new": b"x" * MiB})
    read_epoch(new_run(), urls_of(server, shards))
    before = server.counters
    with read_only(tmp_path / "cache"), testing.check_leaks():
        with pytest.raises(PermissionError):
            (tmp_path / "cache" / "asyncloader-v1" / "shards" / "new").touch()
        with Epoch(new_run(), urls_of(server, shards) * 2) as epoch:
            assert epoch.all_shards() == [*shards.values()] * 2
        # A byte of each, once: whether it was changed since another run has verified it.
        assert server.counters.requests == before.requests + len(shards)
        assert server.counters.bytes_sent == before.bytes_sent + len(shards)
        with pytest.warns(RuntimeWarning, match="reading without the disk cache where it fails"):
            assert read_epoch(new_run(), [server.url_of("new")]) == [b"x" * MiB]
    assert len(kept("shards")) == len(shards) and not kept("filling") and not kept("quarantine")


def test_a_run_whose_server_is_gone_hears_of_it(shards: dict[str, bytes], new_run: Any) -> None:
    first = new_run()
    with testing.serve(shards) as server:
        urls = urls_of(server, shards)
        read_epoch(first, urls)
    assert read_epoch(first, urls) == list(shards.values())
    with pytest.raises(StoreError, match="connection failed"):
        read_epoch(new_run(), urls)


def test_a_changed_object_is_fetched_anew_and_replaces_the_old(serve: Serve, new_run: Any, kept: Any) -> None:
    old, new = b"old" * MiB, b"newer" * MiB
    objects = {"x": old}
    server = serve({"x": lambda: objects["x"]})
    first = new_run()
    assert read_epoch(first, [server.url_of("x")]) == [old]
    objects["x"] = new
    assert read_epoch(first, [server.url_of("x")]) == [old]  # a run keeps to what it began with
    assert read_epoch(new_run(), [server.url_of("x")]) == [new]
    assert len(kept("shards")) == 1


def test_an_object_that_changes_while_it_is_downloaded_is_an_error(
    serve: Serve, new_run: Any, kept: Any
) -> None:
    server = serve({"x": bytes(9 * MiB)}, [testing.ChangeObject(bytes(8 * MiB), after=1)])
    with pytest.raises(StoreError, match="changed"):
        read_epoch(new_run(), [server.url_of("x")])
    assert not kept("shards") and not kept("filling")


def test_the_same_key_on_two_servers_is_two_shards(serve: Serve, new_run: Any) -> None:
    one, other = serve({"a/000.tar": b"one"}), serve({"a/000.tar": b"two", "b/000.tar": b"six"})
    urls = [one.url_of("a/000.tar"), other.url_of("a/000.tar"), other.url_of("b/000.tar")]
    setting = new_run()
    assert read_epoch(setting, urls) == read_epoch(setting, urls) == [b"one", b"two", b"six"]


def test_streaming_starts_before_the_download_ends(serve: Serve, new_run: Any) -> None:
    content = bytes(range(256)) * (16 << 10)
    server = serve({"x": content}, [testing.Stall(2 * MiB, 60.0, after=1)])
    began = time.monotonic()
    with Epoch(new_run(), [server.url_of("x")]) as epoch:
        chunks = epoch.out.receive(10)
        first = bytes(chunks.receive(10))
        assert time.monotonic() - began < AT_ONCE_S
        assert content.startswith(first)


def test_the_download_does_not_wait_for_its_reader(serve: Serve, new_run: Any, kept: Any) -> None:
    server = serve({"x": bytes(100 * MiB)})
    with Epoch(new_run(), [server.url_of("x")]) as epoch:
        epoch.out.receive(10).receive(10)  # and no more
        deadline = time.monotonic() + 20
        while not kept("shards"):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_at_most_four_shards_are_downloaded_at_once(serve: Serve, new_run: Any, kept: Any) -> None:
    objects = {str(n): bytes(MiB) for n in range(12)}
    server = serve(objects, latency_s=0.2)
    with Epoch(new_run(), urls_of(server, objects)) as epoch:
        until(lambda: server.counters.max_concurrent == len(kept("filling")) == 4)
        assert len(epoch.all_shards()) == 12
    assert server.counters.max_concurrent == 4


def test_a_file_that_is_claimed_while_the_engine_stops_is_removed(
    serve: Serve, new_run: Any, kept: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed = threading.Event()

    def claim_slowly(*of: Any) -> Any:
        found = claim(*of)
        claimed.set()
        time.sleep(0.3)
        return found

    monkeypatch.setattr(intake, "claim", claim_slowly)
    objects = {"x": bytes(MiB)}
    server = serve(objects)
    with testing.check_leaks(), Epoch(new_run(), urls_of(server, objects)) as epoch:
        assert claimed.wait(10)
        assert len(kept("filling")) == 1
        epoch.engine.stop()
    assert not kept("filling")


def test_a_missing_shard_is_the_servers_error(serve: Serve, new_run: Any, kept: Any) -> None:
    server = serve({"x": b"x"})
    with pytest.raises(StoreError, match="404") as caught:
        read_epoch(new_run(), [server.url_of("y")])
    assert caught.value.status == 404 and caught.value.shard == server.url_of("y")
    assert server.counters.requests == 1
    assert not kept("filling")


def test_a_cut_that_is_not_mended_below_gives_its_bytes_before_the_error(
    serve: Serve, new_run: Any, kept: Any
) -> None:
    content = bytes(range(256)) * (12 << 10)
    server = serve({"x": content}, [testing.CutAt(1000, after=1)])
    with Epoch(new_run(), [server.url_of("x")]) as epoch:
        chunks, got = epoch.out.receive(10), bytearray()
        with pytest.raises(StoreError, match="cut before"):
            while True:
                got += chunks.receive(10)
    assert got and content.startswith(got)
    assert not kept("shards") and not kept("filling")


def test_a_shard_without_an_etag_is_read_and_not_kept(new_run: Any, kept: Any) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc")
        writer.close()

    async def read() -> list[bytes]:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x"
            return await asyncio.to_thread(read_epoch, new_run(), [url])

    with pytest.warns(RuntimeWarning, match="ETag"):
        assert asyncio.run(read()) == [b"abc"]
    assert not kept("shards") and not kept("filling")


def test_an_empty_shard_is_empty(serve: Serve, new_run: Any) -> None:
    server, setting = serve({"x": b"", "y": b"y"}), new_run()
    assert read_epoch(setting, [server.url_of("x"), server.url_of("y")]) == [b"", b"y"]


def test_a_shard_opened_in_its_middle_is_not_waited_for(serve: Serve, new_run: Any, kept: Any) -> None:
    content = bytes(range(256)) * (40 << 10)
    server, setting = serve({"x": content}), new_run()
    assert read_epoch(setting, [server.url_of("x")], begin=8 * MiB) == [content[8 * MiB :]]
    assert not kept("shards")
    assert server.counters.bytes_sent <= 2 * MiB + 1
    read_epoch(setting, [server.url_of("x")])
    before = server.counters.requests
    assert read_epoch(setting, [server.url_of("x")], begin=8 * MiB) == [content[8 * MiB :]]
    assert server.counters.requests == before


@pytest.mark.parametrize("algorithm", ["sha256", "md5", "crc32", "crc32c"])
def test_a_promised_digest_is_compared(serve: Serve, new_run: Any, kept: Any, algorithm: str) -> None:
    content = bytes(range(256)) * (12 << 10)
    reference = open_digest(algorithm)
    if reference is None:
        pytest.skip("google-crc32c is not installed")
    reference.update(content)
    digest = reference.digest()
    server = serve({"x": content}, [testing.FlipBit(MiB, times=1)])
    url = server.url_of("x")
    with Epoch(new_run(), [url], digests={algorithm: digest}) as epoch:
        chunks, got = epoch.out.receive(10), 0
        with pytest.raises(StoreError, match=f"{digest.hex()} was promised"):
            while True:
                got += len(chunks.receive(10))
    assert got < len(content)  # nobody could take it for whole
    assert not kept("shards") and not kept("filling")
    assert read_epoch(new_run(), [url], digests={algorithm: digest}) == [content]
    assert len(kept("shards")) == 1


def test_stopping_in_the_middle_leaves_nothing(serve: Serve, new_run: Any, kept: Any) -> None:
    objects = {str(n): bytes(20 * MiB) for n in range(6)}
    server = serve(objects, rate_bytes_s=4 * MiB)
    setting = new_run()
    for patience_s in (0.0, 0.01, 0.1, 0.3):
        with testing.check_leaks():
            with Epoch(setting, urls_of(server, objects)) as epoch:
                time.sleep(patience_s)
                began = time.monotonic()
                epoch.engine.stop()
                assert time.monotonic() - began < AT_ONCE_S
            with pytest.raises((EngineStopped, EndOfChannel)):
                while True:
                    epoch.next_shard()
        assert not kept("filling")


def test_no_url_and_no_secret_is_in_a_name(serve: Serve, new_run: Any, tmp_path: Path) -> None:
    server = serve({"secret-key": b"x"})
    read_epoch(new_run(), [server.url_of("secret-key") + "?token=SENTINEL"])
    for path in tmp_path.rglob("*"):
        assert "secret" not in str(path.relative_to(tmp_path)) and "SENTINEL" not in str(path)
        assert path.is_dir() or (b"SENTINEL" not in path.read_bytes() and b"secret" not in path.read_bytes())
