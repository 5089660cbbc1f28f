"""Shards that are not read from front to back: a plan asks for what it must see, and decides what is read."""

from __future__ import annotations

import asyncio
import json
import os
import random
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from asyncloader import testing
from asyncloader.errors import FormatError, StoreError
from asyncloader.flow.budget import claim_alone
from asyncloader.flow.channel import Channel, EndOfChannel
from asyncloader.flow.engine import Engine, EngineStopped
from asyncloader.observe.statistics import NetworkCounts
from asyncloader.stores.local import FileSpan
from asyncloader.stores.lookahead import FIRST_PART_BYTES, PART_BYTES, SMALL_PART_BYTES
from asyncloader.stores.reading import read_shards
from asyncloader.stores.router import Stores
from asyncloader.stores.store import Access, NetworkPolicy
from asyncloader.types import Answer, Layout, Planning, Span

Serve = Callable[..., testing.Server]

MiB = 1 << 20
HEAD_BYTES = 100


def packed(pieces: Sequence[bytes]) -> bytes:
    """A shard with a table of its pieces at its end, and the table's length behind it."""
    spans, at = [], 0
    for piece in pieces:
        spans.append((at, at + len(piece)))
        at += len(piece)
    table = json.dumps(spans).encode()
    return b"".join(pieces) + table + struct.pack("<I", len(table))


def wanting(*numbers: int, seen: list[Answer] | None = None) -> Planning:
    """Reads pieces of such a shard, in this order."""
    head = yield Span(0, HEAD_BYTES)
    assert len(head.content) == min(HEAD_BYTES, head.length)
    end = yield Span(head.length - 4, head.length)
    (table_bytes,) = struct.unpack("<I", end.content)
    if table_bytes > head.length:
        raise FormatError(f"the table is longer ({table_bytes} bytes) than the shard")
    table = yield Span(head.length - 4 - table_bytes, head.length - 4)
    if seen is not None:
        seen += [head, end, table]
    spans = json.loads(table.content)
    return Layout(tuple(Span(*spans[number]) for number in numbers), no_decoder, len(spans))


def no_decoder() -> NoReturn:
    raise AssertionError("nothing is decoded here")


@pytest.fixture(scope="module")
def pieces() -> list[bytes]:
    rng = random.Random(0)
    sizes = [1, 1000, 50, FIRST_PART_BYTES, 3 * MiB, PART_BYTES + 1, 7]
    return [rng.randbytes(size) for size in sizes]


ORDERS: list[tuple[int, ...]] = [(), (2,), (0, 1, 2), (6, 4, 1), (5, 3)]


@pytest.mark.parametrize("budget", [1, 4 * MiB, 64 * MiB])
def test_the_pieces_come_in_the_order_of_the_plan_and_nothing_else_is_asked_for(
    serve: Serve, reading: Any, pieces: list[bytes], budget: int
) -> None:
    server = serve({"x": packed(pieces)})
    with reading([(server.url_of("x"), wanting(*order)) for order in ORDERS], budget) as run:
        assert run.all_shards() == [b"".join(pieces[number] for number in order) for order in ORDERS]
    wanted = sum(len(pieces[number]) for order in ORDERS for number in order)
    asked = sum(int(last) + 1 - int(first) for first, last in spans_of(server))
    assert asked < wanted + len(ORDERS) * (HEAD_BYTES + 200)
    parts = sum(-(-len(pieces[number]) // SMALL_PART_BYTES) for order in ORDERS for number in order)
    assert budget < 64 * MiB or len(server.requests) == 3 * len(ORDERS) + parts


@pytest.mark.parametrize("budget", [1, 4 * MiB, 64 * MiB])
@pytest.mark.parametrize("cached", [True, False])
def test_local_shards_are_read_alike(
    reading: Any,
    pieces: list[bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cached: bool,
    budget: int,
) -> None:
    (tmp_path / "x").write_bytes(packed(pieces))
    if not cached:
        monkeypatch.setattr("asyncloader.stores.local.is_cached", lambda *_: False)
    with reading([(str(tmp_path / "x"), wanting(*order)) for order in ORDERS], budget) as run:
        assert run.all_shards() == [b"".join(pieces[number] for number in order) for order in ORDERS]
    assert str(tmp_path / "x") not in [
        os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
    ]


def test_shards_that_wait_for_their_turn_hold_no_descriptors(reading: Any, tmp_path: Path) -> None:
    for number in range(64):
        (tmp_path / f"{number}").write_bytes(packed([b"abc"]))
    with reading([(f"{tmp_path}/{number}", wanting(0)) for number in range(64)]) as run:
        chunks = run.out.receive()
        assert chunks.receive() == b"abc"
        time.sleep(0.1)  # meanwhile others are planned
        opened = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
        # That of the first, and of those that are being planned.
        assert sum(path.startswith(str(tmp_path)) for path in opened) <= 8
        chunks.close()
        run.out.close()


def test_what_a_plan_wants_of_a_file_comes_as_one_object(
    reading: Any, pieces: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").write_bytes(packed(pieces))
    spans: list[Sequence[Span]] = []
    make = FileSpan.__init__

    def noted(self: FileSpan, url: str, wanted: Sequence[Span], version: str) -> None:
        spans.append(wanted)
        make(self, url, wanted, version)

    monkeypatch.setattr(FileSpan, "__init__", noted)
    with reading([(str(tmp_path / "x"), wanting(5, 3))]) as run:
        assert run.all_shards() == [pieces[5] + pieces[3]]
    assert [sum(stop - start for start, stop in each) for each in spans] == [len(pieces[5] + pieces[3])]


def test_shards_with_and_without_plans_come_in_one_order(
    serve: Serve, reading: Any, pieces: list[bytes]
) -> None:
    content = packed(pieces[:3])
    server = serve({"x": content}, latency_s=testing.Latency(0.002, sigma=1.0))
    wanted = [number % 3 for number in range(60)]
    shards = [(server.url_of("x"), wanting(number) if number else 5) for number in wanted]
    with reading(shards) as run:
        assert run.all_shards() == [pieces[number] if number else content[5:] for number in wanted]


def test_a_plan_is_told_length_and_version_and_its_layout_goes_along(serve: Serve, reading: Any) -> None:
    server = serve({"x": packed([b"abc", b"de"])})
    seen: list[Answer] = []
    with reading([(server.url_of("x"), wanting(1, seen=seen))]) as run:
        chunks = run.out.receive()
        assert chunks.receive() == b"de"
        layout = chunks.shard.layout
        assert (chunks.shard.length, layout.spans, layout.samples) == (seen[0].length, ((3, 5),), 2)
    assert len({answer.version for answer in seen}) == 1 and seen[0].version is not None


def test_a_plan_runs_beside_the_loop(serve: Serve, reading: Any) -> None:
    threads: list[threading.Thread] = []

    def plan() -> Planning:
        threads.append(threading.current_thread())
        answer = yield Span(0, 3)
        threads.append(threading.current_thread())
        return Layout((Span(0, answer.length),), no_decoder)

    server = serve({"x": b"abcdef"})
    with reading([(server.url_of("x"), plan())]) as run:
        assert run.all_shards() == [b"abcdef"]
        assert run.engine._thread not in threads


def test_shards_are_planned_while_another_one_is_read(serve: Serve, reading: Any) -> None:
    server = serve({"x": packed([bytes(4 * MiB)])}, latency_s=0.05)
    with reading([(server.url_of("x"), wanting(0)) for _ in range(3)]) as run:
        run.out.receive().receive()
        assert len(server.requests) >= 3 * 3


def test_what_a_plan_raises_comes_in_its_turn(serve: Serve, reading: Any) -> None:
    server = serve({"x": packed([b"abc"]), "bad": b"no table: ABC"})
    shards = [(server.url_of(key), wanting(0)) for key in ("x", "bad", "x")]
    with reading(shards) as run:
        assert run.next_shard() == b"abc"
        with pytest.raises(FormatError, match="the table is longer"):
            run.next_shard()
        for _ in range(2):  # an error stays one, and is never followed by a quiet end
            with pytest.raises(FormatError, match="the table is longer"):
                run.out.receive()


@pytest.mark.parametrize("after", [1, 2, 3])
def test_an_object_that_changes_under_its_plan_is_an_error(serve: Serve, reading: Any, after: int) -> None:
    content = packed([b"abc", b"def"])
    server = serve({"x": content}, [testing.ChangeObject(bytes(len(content)), after=after)])
    with reading([(server.url_of("x"), wanting(1, 0))]) as run:
        with pytest.raises(StoreError, match="was changed") as caught:
            run.next_shard()
        assert caught.value.shard == server.url_of("x")


def test_cut_answers_to_a_plan_are_resumed(serve: Serve, reading: Any, pieces: list[bytes]) -> None:
    network = NetworkPolicy(backoff_s=0.001, hedge=False)
    server = serve({"x": packed(pieces)}, [testing.CutAt(2, times=1), testing.CutAt(60, after=3, times=3)])
    with reading([(server.url_of("x"), wanting(4, 1))], network=network) as run:
        assert run.all_shards() == [pieces[4] + pieces[1]]
    assert run.counts.retries == 4


def test_ranges_that_are_ignored_do_no_harm_to_a_small_shard(
    serve: Serve, reading: Any, pieces: list[bytes]
) -> None:
    server = serve({"x": packed(pieces[:5])}, [testing.IgnoreRange()])
    with reading([(server.url_of("x"), wanting(3, 1))]) as run:
        assert run.all_shards() == [pieces[3] + pieces[1]]


def test_a_large_shard_is_not_read_once_for_each_of_its_parts(
    serve: Serve, reading: Any, pieces: list[bytes]
) -> None:
    server = serve({"x": packed(pieces)}, [testing.IgnoreRange()])
    with reading([(server.url_of("x"), wanting(3, 1))]) as run:
        with pytest.raises(StoreError, match=r"ignores ranges.*cache_dir=") as caught:
            run.all_shards()
        assert caught.value.shard == server.url_of("x")
    assert len(server.requests) == 1


def test_a_shard_without_a_length_cannot_be_planned(reading: Any, raw_server: Any) -> None:
    async def read() -> None:
        in_chunks = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
        async with raw_server(in_chunks) as (url, _):
            await asyncio.to_thread(attempt, url)

    def attempt(url: str) -> None:
        with (
            reading([(f"{url}/x", wanting(0))]) as run,
            pytest.raises(StoreError, match="state the length of the shard"),
        ):
            run.all_shards()

    asyncio.run(read())


def test_many_small_pieces_are_not_all_asked_for_at_once(serve: Serve, reading: Any) -> None:
    budget = 8 * MiB
    pieces = [b"%04d" % number for number in range(1000)]
    server = serve({"x": packed(pieces)}, [testing.Stall(0, 30, after=3)])
    with reading([(server.url_of("x"), wanting(*range(0, 1000, 2)))], budget) as run:
        run.out.receive()
        before = -1
        while (now := len(server.requests)) != before:  # until nothing moves any more
            before = now
            time.sleep(0.1)
        assert 3 < now <= 3 + budget // (128 << 10)


def test_a_plan_that_waits_for_a_stalled_server_is_let_go(serve: Serve, reading: Any) -> None:
    server = serve({"x": packed([b"abc"])}, [testing.Delay(30, after=1)])
    with testing.check_leaks():
        with reading([(server.url_of("x"), wanting(0))]) as run:
            chunks = run.out.receive()
            while len(server.requests) < 2:
                time.sleep(0.01)
            run.out.close()
            assert server.wait_idle(1)
            with pytest.raises(EngineStopped):
                chunks.receive()
        while server.counters.open_connections:
            time.sleep(0.01)


async def test_planned_reading_can_be_cancelled_at_every_await(serve: Serve) -> None:
    server = serve({"x": packed([b"abc", bytes(2 * MiB)])})
    cancelled = finished = 0
    while not finished:
        engine = Engine()  # only its stack of resources is used: the loop is the test's
        out: Channel[Any] = Channel(1)
        async with engine.resources:
            stores = Stores(engine.resources, Access(), NetworkCounts())
            shards = [(server.url_of("x"), wanting(0, 1)), (server.url_of("x"), wanting(1))]
            tasks = [asyncio.create_task(read_shards(stores, shards, claim_alone(8 * MiB), out))]
            tasks.append(asyncio.create_task(_drain(out)))
            for _ in range(cancelled):
                await asyncio.sleep(0)
            finished = tasks[0].done()
            tasks[0].cancel()
            await asyncio.wait(tasks[:1])
            out.close()
            await asyncio.wait(tasks)
            assert len(asyncio.all_tasks()) == 1
        cancelled += 1 if cancelled < 60 else 25
        assert cancelled < 20_000
    assert await asyncio.to_thread(server.wait_idle)


async def _drain(out: Channel[Any]) -> None:
    try:
        while True:
            chunks = await out.receive_async()
            try:
                while True:
                    await chunks.receive_async()
            except EndOfChannel:
                pass
    except (EndOfChannel, EngineStopped):
        pass


def spans_of(server: testing.Server) -> Iterator[list[str]]:
    for request in server.requests:
        yield request.range.removeprefix("bytes=").split("-")
