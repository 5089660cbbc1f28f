"""Whole readings: an engine, real servers, and a consumer in another thread, as in a worker."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from waiting import AT_ONCE_S

from asyncloader import testing
from asyncloader.errors import StoreError
from asyncloader.flow.budget import claim_alone
from asyncloader.flow.channel import Channel, ChannelClosed, EndOfChannel
from asyncloader.flow.engine import Engine, EngineStopped
from asyncloader.observe.statistics import NetworkCounts
from asyncloader.stores.lookahead import FIRST_PART_BYTES, PART_BYTES
from asyncloader.stores.reading import read_shards
from asyncloader.stores.router import Stores
from asyncloader.stores.store import BUFFER_BYTES, Access, NetworkPolicy

Serve = Callable[..., testing.Server]

MiB = 1 << 20
BOUNDARIES = [0, 1, FIRST_PART_BYTES, FIRST_PART_BYTES + PART_BYTES]
SIZES = sorted({max(0, size + off) for size in BOUNDARIES for off in (-1, 0, 1)} | {300, 3 * MiB})


@pytest.fixture(scope="module")
def objects() -> dict[str, bytes]:
    rng = random.Random(0)
    return {f"{size}.bin": rng.randbytes(size) for size in SIZES}


@pytest.fixture
def stops_soon() -> Any:
    """Fails a test whose block takes more than a second."""

    class Watch:
        def __enter__(self) -> None:
            self.begun = time.monotonic()

        def __exit__(self, *_: object) -> None:
            assert time.monotonic() - self.begun < AT_ONCE_S

    return Watch()


@pytest.mark.parametrize("budget", [1, 4 * MiB, 64 * MiB])
@pytest.mark.parametrize("fault", [None, testing.IgnoreRange()], ids=str)
def test_every_byte_of_every_shard_comes_in_order(
    serve: Serve, reading: Any, objects: dict[str, bytes], budget: int, fault: testing.Fault | None
) -> None:
    server = serve(objects, [fault] if fault else [])
    with reading([server.url_of(key) for key in objects], budget) as run:
        assert run.all_shards() == list(objects.values())
    asked = [(request.path, request.range) for request in server.requests]
    assert len(set(asked)) == len(asked), "no range is asked for twice"


def test_local_shards_are_read_alike(reading: Any, objects: dict[str, bytes], tmp_path: Path) -> None:
    for key, content in objects.items():
        (tmp_path / key).write_bytes(content)
    with reading([str(tmp_path / key) for key in objects]) as run:
        assert run.all_shards() == list(objects.values())


def test_many_shards_come_in_the_order_asked_for(serve: Serve, reading: Any) -> None:
    objects = {f"{number}": random.Random(number).randbytes(1000 + number) for number in range(100)}
    server = serve(objects, latency_s=testing.Latency(0.002, sigma=1.0))
    order = sorted(objects, key=lambda key: hash((key, 1)))
    with reading([server.url_of(key) for key in order]) as run:
        assert run.all_shards() == [objects[key] for key in order]


@pytest.mark.parametrize("fault", [None, testing.IgnoreRange()], ids=str)
@pytest.mark.parametrize("size", [0, 1, FIRST_PART_BYTES, FIRST_PART_BYTES + PART_BYTES + 1])
def test_a_shard_is_reopened_anywhere_even_at_its_very_end(
    serve: Serve, reading: Any, objects: dict[str, bytes], size: int, fault: testing.Fault | None
) -> None:
    content = objects[f"{size}.bin"]
    starts = sorted({0, size // 2, max(0, size - 1), size})
    server = serve(objects, [fault] if fault else [])
    with reading([(server.url_of(f"{size}.bin"), start) for start in starts]) as run:
        assert run.all_shards() == [content[start:] for start in starts]


@pytest.mark.parametrize("fault", [None, testing.IgnoreRange()], ids=str)
def test_a_shard_shorter_than_its_start_is_an_error(
    serve: Serve, reading: Any, fault: testing.Fault | None, tmp_path: Path
) -> None:
    server = serve({"x": b"short"}, [fault] if fault else [])
    (tmp_path / "x").write_bytes(b"short")
    for url in (server.url_of("x"), str(tmp_path / "x")):
        with reading([(url, 7)]) as run, pytest.raises(StoreError, match="was it changed") as caught:
            run.all_shards()
        assert caught.value.shard == url


def test_a_body_in_chunks_is_all_there_is(reading: Any) -> None:
    # 2 MiB, so that it is more than the part asked for.
    chunk = b"%x\r\n" % MiB + b"x" * MiB + b"\r\n"
    response = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk * 2 + b"0\r\n\r\n"
    with _answering(response) as url, reading([url, (url, 5)]) as run:
        assert [len(shard) for shard in run.all_shards()] == [2 * MiB, 2 * MiB - 5]


def test_the_length_of_a_shard_is_told_with_its_first_bytes_or_not_known_at_all(
    serve: Serve, reading: Any
) -> None:
    in_chunks = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    server = serve({"x": b"abc"})
    with _answering(in_chunks) as url, reading([server.url_of("x"), url]) as run:
        for total in (3, None):
            chunks = run.out.receive()
            assert (chunks.receive(), chunks.shard.length) == (b"abc", total)
            with pytest.raises(EndOfChannel):
                chunks.receive()


def test_a_server_that_ignores_later_ranges_gives_no_byte_twice(
    serve: Serve, reading: Any, objects: dict[str, bytes]
) -> None:
    key, content = next((key, value) for key, value in objects.items() if len(value) > 9 * MiB)
    server = serve(objects, [testing.IgnoreRange(after=1)])
    with reading([server.url_of(key)], 8 * MiB) as run:
        assert run.all_shards() == [content]
    assert len(server.requests) > 3


def test_fewer_bytes_than_asked_for_are_an_error(reading: Any) -> None:
    head = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 3\r\nContent-Range: bytes 0-2/6\r\n\r\n"
    with _answering(head + b"abc") as url, reading([url]) as run:
        with pytest.raises(StoreError, match="Content-Range 'bytes 0-2/6'") as caught:
            run.all_shards()
        assert caught.value.offset == 0


def test_more_bytes_than_promised_are_an_error(reading: Any) -> None:
    head = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 6\r\nContent-Range: bytes 0-2/3\r\n\r\n"
    answering = _answering(head + b"abcdef")
    with answering as url, reading([url]) as run, pytest.raises(StoreError, match="but Content-Length '6'"):
        run.all_shards()


def test_a_file_that_shrinks_while_it_is_read_is_an_error(reading: Any, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(32 * MiB))
    with reading([str(path)], 2 * MiB) as run:
        chunks = run.out.receive()
        chunks.receive()
        with path.open("r+b") as file:
            file.truncate(8 * MiB)
        with pytest.raises(StoreError, match="changed"):
            while True:
                chunks.receive()


def test_an_object_that_changes_between_its_parts_is_an_error(serve: Serve, reading: Any) -> None:
    server = serve({"x": bytes(6 * MiB)}, [testing.ChangeObject(bytes(5 * MiB), after=1)])
    with reading([server.url_of("x")]) as run, pytest.raises(StoreError, match="was changed"):
        run.all_shards()


def test_a_length_that_changes_between_parts_is_noticed_without_etags(reading: Any) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
    responses = [
        b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-%d/3000000\r\n\r\n" % (MiB - 1) + bytes(MiB),
        head % 2_000_000 + bytes(2_000_000),
    ]
    answering = _answering(*responses)
    with answering as url, reading([url]) as run, pytest.raises(StoreError, match="had 3000000 bytes"):
        run.all_shards()


def test_the_error_of_a_later_shard_comes_in_its_turn(serve: Serve, reading: Any) -> None:
    server = serve({"0": b"zero" * MiB, "2": b"two"}, latency_s=0.01)
    with reading([server.url_of(key) for key in "012"]) as run:
        assert run.next_shard() == b"zero" * MiB
        with pytest.raises(StoreError, match="404") as caught:
            run.next_shard()
        assert caught.value.shard == server.url_of("1")
        for _ in range(2):  # an error stays one, and is never followed by a quiet end
            with pytest.raises(StoreError, match="404"):
                run.out.receive()


def test_a_shard_that_may_not_be_had_for_an_hour_holds_up_none_before_it(serve: Serve, reading: Any) -> None:
    faults = [testing.CutAt(100, key="0", times=1), testing.Status(503, retry_after=3600, key="1")]
    server = serve({"0": bytes(MiB), "1": b"one"}, faults)
    network = NetworkPolicy(backoff_s=0.5, deadline_s=1.0)
    with reading([server.url_of(key) for key in "01"], network=network) as run:
        assert run.out.receive(5).receive(5)
        began = time.monotonic()
        with pytest.raises(StoreError, match="asks to wait 3600 s"):
            run.all_shards()
        assert time.monotonic() - began < 10


def test_a_cut_shard_gives_its_bytes_before_the_error(serve: Serve, reading: Any) -> None:
    content = random.Random(1).randbytes(3 * MiB)
    server = serve({"x": content}, [testing.CutAt(1000, after=1)])
    with reading([server.url_of("x")]) as run:
        chunks, got = run.out.receive(), bytearray()
        with pytest.raises(StoreError, match="cut before") as caught:
            while True:
                got += chunks.receive()
    assert caught.value.offset == len(got) == FIRST_PART_BYTES + 1000
    assert content.startswith(got)


def test_a_wrong_call_reaches_the_consumer_too(reading: Any) -> None:
    run = reading(["s3://bucket/key"], options={"no_such_option": 1})
    with run, pytest.raises(ValueError, match="no_such_option"):
        run.next_shard()


def test_a_consumer_that_stops_reading_stops_the_requests(serve: Serve, reading: Any) -> None:
    budget = 8 * MiB
    objects = {f"{number}": bytes(20 * MiB) for number in range(8)}
    server = serve(objects)
    with reading([server.url_of(key) for key in objects], budget) as run:
        chunks = run.out.receive()
        received = len(chunks.receive())
        before = -1
        while (now := server.counters.bytes_sent) != before:  # until nothing moves any more
            before = now
            time.sleep(0.1)
        spans = [request.range.removeprefix("bytes=").split("-") for request in server.requests]
        requested = sum(int(last) + 1 - int(first) for first, last in spans)
        handed_over = 3 * BUFFER_BYTES  # the channel to the consumer, and the chunk on its way there
        assert requested <= budget + received + handed_over
        assert server.counters.bytes_sent <= requested


def test_the_first_bytes_take_one_round_trip(serve: Serve, reading: Any) -> None:
    latency_s = 0.05
    server = serve({f"{number}": bytes(4 * MiB) for number in range(4)}, latency_s=latency_s)
    with reading([server.url_of(str(number)) for number in range(4)]) as run:
        chunks = run.out.receive()
        chunks.receive()
        # Since the first of them: how long the client took until then says nothing of rounds.
        begun_s = min(request.time_s for request in server.requests)
        asked_in_first_round = [
            request for request in server.requests if request.time_s - begun_s < latency_s
        ]
        assert sorted(request.path for request in asked_in_first_round) == ["/0", "/1", "/2", "/3"]


def test_closing_the_shards_ends_all_requests(serve: Serve, reading: Any) -> None:
    objects = {f"{number}": bytes(20 * MiB) for number in range(4)}
    server = serve(objects)
    with reading([server.url_of(key) for key in objects]) as run:
        run.out.receive().receive()
        run.out.close()
        assert server.wait_idle(1)


def test_closing_the_shards_ends_requests_that_wait_for_a_stalled_server(serve: Serve, reading: Any) -> None:
    server = serve({"0": bytes(MiB), "1": bytes(MiB)}, [testing.Stall(100, 30), testing.Delay(30, key="1")])
    with reading([server.url_of(key) for key in "01"]) as run:
        chunks = run.out.receive()
        chunks.receive()
        run.out.close()
        assert server.wait_idle(1)
        with pytest.raises(EngineStopped):
            chunks.receive()


def test_closing_one_shard_ends_the_reading(serve: Serve, reading: Any) -> None:
    server = serve({"0": bytes(20 * MiB), "1": bytes(MiB)})
    with reading([server.url_of(key) for key in "01"]) as run:
        chunks = run.out.receive()
        chunks.receive()
        chunks.close()
        assert server.wait_idle(1)
        with pytest.raises(ChannelClosed):
            run.out.receive()


def test_stopping_the_engine_wakes_a_consumer_in_the_middle_of_a_shard(
    serve: Serve, reading: Any, stops_soon: Any
) -> None:
    server = serve({"0": bytes(MiB)}, [testing.Stall(100, 30)])
    ended: list[BaseException] = []

    def consume(run: Any) -> None:
        try:
            run.next_shard()
        except EngineStopped as error:
            ended.append(error)

    with reading([server.url_of("0")]) as run:
        consumer = threading.Thread(target=consume, args=[run])
        consumer.start()
        while server.counters.bytes_sent == 0:
            time.sleep(0.01)
        with stops_soon:
            run.engine.stop()
            consumer.join(1)
    assert ended


def test_nothing_is_left_behind(serve: Serve, reading: Any, objects: dict[str, bytes]) -> None:
    server = serve(objects, latency_s=0.001)
    with testing.check_leaks(), reading([server.url_of(key) for key in objects]) as run:
        run.next_shard()
        run.next_shard()
    while server.counters.open_connections:
        time.sleep(0.01)


async def test_reading_can_be_cancelled_at_every_await(serve: Serve) -> None:
    server = serve({"0": bytes(100), "1": bytes(3 * MiB)})
    urls = [(server.url_of("0"), 0), (server.url_of("1"), 0)]
    cancelled = finished = 0
    while not finished:
        steps = cancelled
        engine = Engine()  # only its stack of resources is used: the loop is the test's
        out: Channel[Any] = Channel(1)

        async def consume(out: Channel[Any] = out) -> None:
            try:
                while True:
                    chunks = await out.receive_async()
                    while True:
                        try:
                            await chunks.receive_async()
                        except EndOfChannel:
                            break
            except (EndOfChannel, EngineStopped):
                pass

        async with engine.resources:
            stores = Stores(engine.resources, Access(), NetworkCounts())
            tasks = [asyncio.create_task(read_shards(stores, urls, claim_alone(8 * MiB), out))]
            tasks.append(asyncio.create_task(consume()))
            for _ in range(steps):
                await asyncio.sleep(0)
            finished = tasks[0].done()
            tasks[0].cancel()
            await asyncio.wait(tasks[:1])
            out.close()
            await asyncio.wait(tasks)
            assert len(asyncio.all_tasks()) == 1
        cancelled += 1
        assert cancelled < 5000
    assert await asyncio.to_thread(server.wait_idle)


class _answering:
    """A server in a thread that gives each request the next response (the last stays), and hangs up."""

    def __init__(self, *responses: bytes) -> None:
        self._responses = list(responses)

    def __enter__(self) -> str:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/x"

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client:
                client.recv(65536)
                with suppress(OSError):  # the client may have seen enough
                    client.sendall(self._responses[0])
                del self._responses[: len(self._responses) > 1]
