"""The healthy server, over aiohttp and raw sockets."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
from waiting import AT_ONCE_S

from asyncloader.testing import Drip, Latency, Stall, check_leaks, serve

from .wire import connect, get, read_answer, request_head

CONTENT = bytes(range(256)) * 40


@pytest.mark.parametrize(
    ("asked", "status", "claimed", "body"),
    [
        ("bytes=0-99", 206, "bytes 0-99/10240", CONTENT[:100]),
        ("bytes=10000-", 206, "bytes 10000-10239/10240", CONTENT[10000:]),
        ("bytes=-7", 206, "bytes 10233-10239/10240", CONTENT[-7:]),
        ("bytes=-99999", 206, "bytes 0-10239/10240", CONTENT),
        ("bytes=10239-99999", 206, "bytes 10239-10239/10240", CONTENT[-1:]),
        ("bytes=10240-", 416, "bytes */10240", None),
        ("bytes=-0", 416, "bytes */10240", None),
        ("bytes=5-1", 200, None, CONTENT),
        ("bytes=0-1,5-6", 200, None, CONTENT),
        ("lines=0-1", 200, None, CONTENT),
    ],
)
def test_ranges_are_answered_as_the_rfc_says(
    asked: str, status: int, claimed: str | None, body: bytes | None
) -> None:
    with serve({"a.tar": CONTENT}) as server:
        answer = get(server, "a.tar", Range=asked)
    assert (answer.status, answer.headers.get("content-range")) == (status, claimed)
    assert int(answer.headers["content-length"]) == len(answer.body)
    assert body is None or answer.body == body


def test_head_has_the_headers_of_get_and_no_body() -> None:
    with serve({"a.tar": CONTENT}) as server:
        got, head, missing = get(server, "a.tar"), get(server, "a.tar", "HEAD"), get(server, "b.tar", "HEAD")
    assert head.headers == got.headers and head.body == b"" and head.status == 200
    assert head.headers["content-length"] == "10240" and head.headers["accept-ranges"] == "bytes"
    assert head.headers["last-modified"].endswith(" GMT")
    assert (missing.status, missing.body) == (404, b"")


def test_etag_is_of_the_content_and_conditions_are_obeyed() -> None:
    with serve({"a": CONTENT, "same": bytes(bytearray(CONTENT)), "other": b"x"}) as server:
        etag = get(server, "a").headers["etag"]
        assert get(server, "same").headers["etag"] == etag != get(server, "other").headers["etag"]
        assert get(server, "a", If_Match=etag, Range="bytes=1-2").status == 206
        assert get(server, "a", If_Match='"older", ' + etag).status == 200
        assert get(server, "a", If_Match='"older"').status == 412
        unchanged = get(server, "a", If_None_Match=etag)
        assert (unchanged.status, unchanged.body, unchanged.headers["etag"]) == (304, b"", etag)
        assert get(server, "a", If_None_Match='"older"').status == 200
        assert get(server, "a", If_Range=etag, Range="bytes=1-2").status == 206
        assert get(server, "a", If_Range='"older"', Range="bytes=1-2").status == 200


def test_a_kept_connection_answers_many_requests_also_pipelined() -> None:
    with serve({"a": b"first", "b": b"second"}) as server, connect(server) as sock:
        for _ in range(3):
            sock.sendall(request_head("a"))
            assert read_answer(sock).body == b"first"
        sock.sendall(request_head("a") + request_head("b", Connection="close"))
        both = read_answer(sock, to_end=True)
        assert both.body.startswith(b"first") and both.body.endswith(b"second") and both.ended == "closed"
        assert server.counters.connections == 1 and server.counters.requests == 5


def test_paths_are_decoded_and_the_query_ignored() -> None:
    with serve({"a dir/ü+%.tar": b"there"}) as server:
        assert server.url_of("a dir/ü+%.tar").endswith("/a%20dir/%C3%BC%2B%25.tar")
        key = server.url_of("a dir/ü+%.tar").removeprefix(server.url + "/")
        assert get(server, key + "?signature=a/b").body == b"there"
        assert server.requests[0].path == "/a dir/ü+%.tar"


def test_what_is_not_a_request_is_refused() -> None:
    with serve({"a": b"x"}) as server:
        assert get(server, "a", "PUT").status == 405
        assert get(server, "a", Content_Length="5").status == 400
        with connect(server) as sock:
            sock.sendall(b"\x16\x03\x01 this is TLS\r\n\r\n")
            assert read_answer(sock, to_end=True).status == 400
        with connect(server) as sock:
            sock.sendall(b"GET /" + b"a" * 70_000)
            assert read_answer(sock, to_end=True).status in (431, 0)
        assert get(server, "a").body == b"x"


@pytest.mark.parametrize("named", [Path, str])
def test_a_directory_is_served_as_it_is_now(named: Callable[[Path], Path | str], tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.tar").write_bytes(CONTENT)
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path.parent / "secret").write_bytes(b"secret")
    with serve(named(tmp_path)) as server:
        first = get(server, "sub/a.tar", Range="bytes=3-5")
        assert (first.status, first.body) == (206, CONTENT[3:6])
        assert get(server, "empty").body == b""
        for key in ("", "none", "sub", "sub/", "nosuch/", "../secret", "%2e%2e/secret", "x" * 5000):
            assert get(server, key).status == 404
        (tmp_path / "sub" / "a.tar").write_bytes(b"newer")
        changed = get(server, "sub/a.tar")
        assert changed.body == b"newer" and changed.headers["etag"] != first.headers["etag"]


def test_a_callable_gives_the_content_at_each_request() -> None:
    contents = iter([b"one", b"two"])
    with serve({"a": lambda: next(contents)}) as server:
        one, two = get(server, "a"), get(server, "a")
    assert (one.body, two.body) == (b"one", b"two") and one.headers["etag"] != two.headers["etag"]


def test_an_error_of_the_users_callable_comes_out_of_the_block() -> None:
    with check_leaks(), pytest.raises(ZeroDivisionError), serve({"a": lambda: bytes(1 // 0)}) as server:
        assert get(server, "a").ended in ("closed", "reset")


@pytest.mark.parametrize("wrong", [{"rate_bytes_s": 0}, {"latency_s": -1}])
def test_wrong_arguments_are_refused_before_anything_starts(wrong: dict[str, float], tmp_path: Path) -> None:
    with check_leaks(), pytest.raises(ValueError), serve({}, **wrong):  # type: ignore[arg-type]
        pass
    with pytest.raises(ValueError, match="directory"), serve(tmp_path / "missing"):
        pass


async def test_the_log_accounts_for_all_that_concurrent_clients_received() -> None:
    objects = {f"{number}.tar": os.urandom(100_000 + number) for number in range(20)}
    with serve(objects, latency_s=0.02) as server:
        async with aiohttp.ClientSession() as session:

            async def fetch(key: str) -> bytes:
                async with session.get(server.url_of(key), headers={"Range": "bytes=10-"}) as response:
                    return await response.read()

            bodies = await asyncio.gather(*(fetch(key) for key in objects))
            # At once, without waiting: a byte that arrived has been counted.
            counters, requests = server.counters, server.requests
    assert bodies == [content[10:] for content in objects.values()]
    assert counters.requests == 20 and counters.bytes_sent == sum(map(len, bodies))
    assert 1 < counters.max_concurrent <= 20 and counters.connections <= 20
    assert {entry.path for entry in requests} == {f"/{key}" for key in objects}
    assert all((entry.method, entry.range, entry.status) == ("GET", "bytes=10-", 206) for entry in requests)
    assert [entry.time_s for entry in requests] == sorted(entry.time_s for entry in requests)
    assert server.counters.open_connections == 0


async def test_a_client_that_cancels_ends_its_request_though_the_server_stalls() -> None:
    with serve({"a": CONTENT}, [Stall(10, seconds=60)]) as server:
        async with aiohttp.ClientSession() as session:
            async with session.get(server.url_of("a")) as response:
                assert await response.content.readexactly(10) == CONTENT[:10]
                assert server.counters.concurrent == 1
                response.close()
            assert await asyncio.to_thread(server.wait_idle, 5)
        assert server.requests[0].client_left and server.requests[0].bytes_sent == 10


def test_wait_idle_says_when_a_request_is_still_answered() -> None:
    arrived = threading.Event()

    def never(rng: object) -> float:
        arrived.set()
        return 60.0

    with serve({"a": CONTENT}, latency_s=never) as server, connect(server) as sock:
        assert server.wait_idle(0)
        sock.sendall(request_head("a"))
        assert arrived.wait(5)
        assert not server.wait_idle(0.01)


def test_leaving_the_block_ends_stalled_and_blocked_connections_at_once() -> None:
    others = threading.enumerate()
    with check_leaks():
        with serve({"a": CONTENT, "big": bytes(64 << 20)}, [Stall(10, 60, key="a")]) as server:
            stalled, blocked = connect(server), connect(server)
            with stalled as one, blocked as other:
                one.sendall(request_head("a"))
                other.sendall(request_head("big"))
                assert one.recv(1) and other.recv(1)
                begun = time.monotonic()
                server_threads = [
                    thread
                    for thread in threading.enumerate()
                    if "asyncloader" in thread.name and thread not in others
                ]
                assert len(server_threads) == 1
        assert time.monotonic() - begun < AT_ONCE_S
        assert not server_threads[0].is_alive()


def test_latency_comes_before_the_first_byte() -> None:
    with serve({"a": b"x"}, latency_s=0.1) as server, connect(server) as sock:
        begun = time.monotonic()
        sock.sendall(request_head("a"))
        read_answer(sock)
        assert 0.1 <= time.monotonic() - begun < AT_ONCE_S


def test_latency_is_drawn_from_its_distribution_by_the_seed() -> None:
    def draws(latency: Latency, seed: int) -> list[float]:
        seen: list[float] = []

        def record(rng: object) -> float:
            seen.append(latency(rng))  # type: ignore[arg-type]
            return 0.0

        with serve({"a": b"x"}, latency_s=record, seed=seed) as server, connect(server) as sock:
            for _ in range(400):
                sock.sendall(request_head("a"))
                read_answer(sock)
        return seen

    heavy = Latency(0.02, sigma=0.5, stall_probability=0.05, stall_s=10)
    first = draws(heavy, 1)
    assert draws(heavy, 1) == first != draws(heavy, 2)
    assert 5 < first.count(10) < 45
    assert 0.017 < sorted(first)[200] < 0.024
    assert set(draws(Latency(0.02), 1)) == {0.02}
    with pytest.raises(ValueError, match="stall_probability"):
        Latency(1, stall_probability=2)


@pytest.mark.parametrize("kept", [True, False])
def test_the_rate_holds_for_a_connection_and_over_its_requests(kept: bool) -> None:
    with serve({"a": bytes(10_000)}, rate_bytes_s=100_000) as server, connect(server) as sock:
        begun = time.monotonic()
        for _ in range(2 if kept else 1):
            sock.sendall(request_head("a"))
            read_answer(sock)
        taken_s = time.monotonic() - begun
    # The last slice is not followed by its pause.
    assert (0.18 if kept else 0.085) <= taken_s < 1.5


def test_the_slower_of_two_rates_rules() -> None:
    with serve({"a": bytes(1_000)}, [Drip(10_000)], rate_bytes_s=1e9) as server:
        begun = time.monotonic()
        assert len(get(server, "a").body) == 1_000
        assert 0.085 <= time.monotonic() - begun < 1.5


def test_a_server_that_opens_later_refuses_connections_until_then() -> None:
    begun = time.monotonic()
    with serve({"a": CONTENT}, opens_after_s=0.3) as server:
        refused = 0
        while not refused or time.monotonic() - begun < 5:
            try:
                answer = get(server, "a")
                break
            except ConnectionRefusedError:
                refused += 1
                time.sleep(0.02)
        assert answer.body == CONTENT
    assert refused and time.monotonic() - begun >= 0.3
    with check_leaks(), serve({}, opens_after_s=1e9) as server, pytest.raises(ConnectionRefusedError):
        get(server, "a")
    with (
        pytest.raises(ValueError, match="opens_after_s must be at least 0, not -1"),
        serve({}, opens_after_s=-1),
    ):
        pass


@pytest.mark.parametrize("from_files", [False, True])
def test_throughput_is_not_the_bottleneck(from_files: bool, tmp_path: Path) -> None:
    content = os.urandom(1 << 20) * 32
    (tmp_path / "big").write_bytes(content)
    buffer = bytearray(len(content) + 4096)
    with serve(tmp_path if from_files else {"big": content}) as server, connect(server) as sock:
        begun = time.monotonic()
        sock.sendall(request_head("big", Connection="close"))
        filled = 0
        while taken := sock.recv_into(memoryview(buffer)[filled:]):
            filled += taken
        taken_s = time.monotonic() - begun
    assert buffer[:filled].endswith(content)
    # Measured above 2 GB/s; the bound only catches a server that has become slow by its construction.
    assert len(content) / taken_s > 100e6
