"""Each fault as it is seen on the wire."""

from __future__ import annotations

import asyncio
import gzip
import time
from typing import Literal

import aiohttp
import pytest

from asyncloader.testing import (
    Capacity,
    ChangeObject,
    CutAt,
    Delay,
    Drip,
    Fault,
    FlipBit,
    GzipEncoding,
    HangUp,
    Headers,
    IgnoreRange,
    NoLength,
    Redirect,
    RequireQuery,
    Reset,
    Stall,
    Status,
    WrongETag,
    WrongLength,
    WrongRange,
    serve,
)

from .wire import connect, get, read_answer, request_head

CONTENT = bytes(range(256)) * 40
BIG = bytes(range(256)) * 20_000


@pytest.mark.parametrize("byte", [0, 1, 5000, 10_239])
def test_cut_body_ends_in_order_at_the_byte(byte: int) -> None:
    with serve({"a": CONTENT}, [CutAt(byte)]) as server, connect(server) as sock:
        sock.sendall(request_head("a"))
        answer = read_answer(sock)
        assert (answer.status, answer.headers["content-length"]) == (200, "10240")
        assert (answer.body, answer.ended) == (CONTENT[:byte], "closed")
        assert server.requests[0].bytes_sent == byte and server.requests[0].faults == ("CutAt",)


def test_cut_of_a_range_counts_bytes_of_its_body() -> None:
    with serve({"a": CONTENT}, [CutAt(10)]) as server:
        answer = get(server, "a", Range="bytes=100-199")
    assert (answer.status, answer.body) == (206, CONTENT[100:110])


@pytest.mark.parametrize("byte", [0, 1, 5000, 4_000_000])
def test_reset_comes_after_exactly_the_bytes_before_it(byte: int) -> None:
    with serve({"a": BIG}, [Reset(byte)]) as server, connect(server) as sock:
        sock.sendall(request_head("a"))
        answer = read_answer(sock)
    assert (answer.body, answer.ended) == (BIG[:byte], "reset")


async def test_aiohttp_sees_a_cut_and_a_reset_as_errors() -> None:
    with serve({"a": CONTENT}, [CutAt(100, times=1), Reset(100, times=1)]) as server:
        async with aiohttp.ClientSession() as session:
            for expected in (aiohttp.ClientPayloadError, (aiohttp.ClientError, ConnectionResetError)):
                with pytest.raises(expected):
                    async with session.get(server.url_of("a")) as response:
                        await response.read()
            async with session.get(server.url_of("a")) as response:
                assert await response.read() == CONTENT


def test_a_fault_that_does_not_fit_a_response_is_not_used_up_by_it() -> None:
    faults = [CutAt(100, times=1), FlipBit(500, times=1), WrongRange(1, times=1)]
    with serve({"a": CONTENT, "small": b"x"}, faults) as server:
        assert get(server, "a", "HEAD").headers["content-length"] == "10240"
        assert get(server, "small").body == b"x"
        assert get(server, "missing").status == 404
        assert get(server, "a", Range="bytes=0-9", If_Match='"x"').status == 412
        assert all(entry.faults == () for entry in server.requests)
        assert get(server, "a").body == CONTENT[:100]


def test_stall_pauses_at_the_byte_and_goes_on() -> None:
    with serve({"a": CONTENT}, [Stall(100, seconds=0.3)]) as server, connect(server) as sock:
        sock.sendall(request_head("a"))
        begun = time.monotonic()
        before = b""
        while len(before.partition(b"\r\n\r\n")[2]) < 100:
            before += sock.recv(4096)
        assert before.endswith(CONTENT[:100]) and len(before.partition(b"\r\n\r\n")[2]) == 100
        rest = sock.recv(4096)
        assert time.monotonic() - begun >= 0.29 and CONTENT[100:].startswith(rest)


def test_drip_sends_the_head_at_once_and_the_body_slowly() -> None:
    with serve({"a": b"0123456789"}, [Drip(100)]) as server, connect(server) as sock:
        begun = time.monotonic()
        sock.sendall(request_head("a"))
        received = [sock.recv(4096)]
        first_s = time.monotonic() - begun
        while sum(map(len, received)) < len(received[0].partition(b"\r\n\r\n")[0]) + 4 + 10:
            received.append(sock.recv(4096))
        assert 0.085 <= time.monotonic() - begun > first_s
        assert len(received) > 1 and b"".join(received).endswith(b"0123456789")


def test_delay_adds_to_latency_and_composes_with_a_cut() -> None:
    with serve({"a": CONTENT}, [Delay(0.06), CutAt(5)], latency_s=0.05) as server:
        begun = time.monotonic()
        assert get(server, "a").body == CONTENT[:5]
        assert time.monotonic() - begun >= 0.11
        assert server.requests[0].faults == ("Delay", "CutAt")


@pytest.mark.parametrize(
    ("code", "retry_after"), [(429, 2), (503, "Wed, 21 Oct 2015 07:28:00 GMT"), (500, None)]
)
def test_status_is_sent_with_retry_after_and_the_connection_kept(
    code: int, retry_after: float | str | None
) -> None:
    with serve({"a": b"x"}, [Status(code, retry_after, times=1)]) as server, connect(server) as sock:
        sock.sendall(request_head("a"))
        refused = read_answer(sock)
        assert refused.status == code
        assert refused.headers.get("retry-after") == (None if retry_after is None else str(retry_after))
        sock.sendall(request_head("a"))
        assert read_answer(sock).body == b"x"


def test_status_for_head_has_no_body_and_can_be_for_head_only() -> None:
    with serve({"a": b"x"}, [Status(403, method="HEAD")]) as server, connect(server) as sock:
        sock.sendall(request_head("a", "HEAD"))
        assert read_answer(sock, has_body=False).status == 403
        sock.sendall(request_head("a"))
        assert read_answer(sock).body == b"x"


@pytest.mark.parametrize(("delta", "ended"), [(5, "closed"), (-5, "open")])
def test_wrong_length_announces_what_is_not_sent(delta: int, ended: str) -> None:
    with serve({"a": CONTENT}, [WrongLength(delta)]) as server, connect(server) as sock:
        sock.sendall(request_head("a"))
        answer = read_answer(sock)
        assert int(answer.headers["content-length"]) == len(CONTENT) + delta
        assert answer.ended == ended
        if ended == "open":
            sock.sendall(request_head("a", Connection="close"))
            rest = answer.body + read_answer(sock, to_end=True).body
            assert CONTENT in rest or rest.startswith(CONTENT[:-5])
        else:
            assert answer.body == CONTENT


@pytest.mark.parametrize("cut", [None, 77])
def test_no_length_ends_the_body_with_the_connection(cut: int | None) -> None:
    with serve({"a": CONTENT}, [NoLength(cut)]) as server, connect(server) as sock:
        sock.sendall(request_head("a"))
        answer = read_answer(sock)
    assert "content-length" not in answer.headers and "transfer-encoding" not in answer.headers
    assert answer.headers["connection"] == "close"
    assert (answer.body, answer.ended) == (CONTENT[:cut], "closed")


@pytest.mark.parametrize(
    ("lies", "claimed", "body"),
    [
        ("both", "bytes 110-209/10240", CONTENT[110:210]),
        ("body", "bytes 100-199/10240", CONTENT[110:210]),
        ("header", "bytes 110-209/10240", CONTENT[100:200]),
    ],
)
def test_wrong_range_lies_in_header_body_or_both(
    lies: Literal["both", "body", "header"], claimed: str, body: bytes
) -> None:
    with serve({"a": CONTENT}, [WrongRange(10, lies=lies)]) as server:
        answer = get(server, "a", Range="bytes=100-199")
        assert (answer.status, answer.headers["content-range"], answer.body) == (206, claimed, body)
        assert get(server, "a", Range="bytes=-5").body == CONTENT[-5:]
        assert get(server, "a").body == CONTENT


def test_ignored_range_gets_the_whole_object() -> None:
    with serve({"a": CONTENT}, [IgnoreRange()]) as server:
        answer = get(server, "a", Range="bytes=100-199")
    assert (answer.status, answer.body, "content-range" in answer.headers) == (200, CONTENT, False)


def test_wrong_etag_is_another_while_if_match_goes_by_the_true_one() -> None:
    with serve({"a": CONTENT}, [WrongETag(after=1)]) as server:
        true = get(server, "a").headers["etag"]
        wrong = get(server, "a", If_Match=true, Range="bytes=0-1")
    assert wrong.status == 206 and wrong.headers["etag"] != true
    assert wrong.headers["etag"].startswith('"') and wrong.headers["etag"].endswith('"')


@pytest.mark.parametrize("bit", [0, 7])
def test_flipped_bit_is_at_its_place_in_the_object_whatever_the_range(bit: int) -> None:
    damaged = bytearray(CONTENT)
    damaged[150] ^= 1 << bit
    with serve({"a": CONTENT}, [FlipBit(150, bit)]) as server:
        healthy = get(server, "a", "HEAD")
        for asked, span in (("0-", (0, None)), ("150-150", (150, 151)), ("0-149", (0, 150))):
            answer = get(server, "a", Range=f"bytes={asked}")
            assert answer.body == damaged[slice(*span)]
            assert answer.headers["etag"] == healthy.headers["etag"]
    assert CONTENT[150] == 150


def test_changed_object_is_another_from_the_hit_request_on() -> None:
    with serve({"a": CONTENT, "b": b"b"}, [ChangeObject(b"new", key="a", after=1)]) as server:
        old = get(server, "a", Range="bytes=0-9")
        refused = get(server, "a", Range="bytes=10-19", If_Match=old.headers["etag"])
        new = get(server, "a")
        assert (old.body, refused.status, new.body) == (CONTENT[:10], 412, b"new")
        assert refused.headers["etag"] == new.headers["etag"] != old.headers["etag"]
        assert get(server, "b").body == b"b"


async def test_gzip_encoding_is_sent_unasked_and_undone_by_aiohttp() -> None:
    with serve({"a": CONTENT}, [GzipEncoding()]) as server:
        answer = get(server, "a", Accept_Encoding="identity")
        assert answer.headers["content-encoding"] == "gzip"
        assert int(answer.headers["content-length"]) == len(answer.body) != len(CONTENT)
        assert gzip.decompress(answer.body) == CONTENT
        async with aiohttp.ClientSession() as session, session.get(server.url_of("a")) as response:
            assert await response.read() == CONTENT


async def test_redirect_leads_to_its_location() -> None:
    with serve({"b": b"there"}, [Redirect("/b", code=307, key="a")]) as server:
        answer = get(server, "a")
        assert (answer.status, answer.headers["location"]) == (307, "/b")
        async with aiohttp.ClientSession() as session, session.get(server.url_of("a")) as response:
            assert await response.read() == b"there"


def test_hang_up_closes_a_kept_connection_without_an_answer() -> None:
    with serve({"a": b"x"}, [HangUp(after=1, times=1)]) as server, connect(server) as sock:
        sock.sendall(request_head("a"))
        assert read_answer(sock).body == b"x"
        sock.sendall(request_head("a"))
        gone = read_answer(sock)
        assert (gone.status, gone.body, gone.ended) == (0, b"", "closed")
        assert server.requests[1].status == 0
        assert get(server, "a").body == b"x"


async def test_capacity_refuses_what_is_above_the_limit() -> None:
    with serve({"a": b"x"}, [Capacity(3)], latency_s=0.3) as server:
        async with aiohttp.ClientSession() as session:

            async def status() -> int:
                async with session.get(server.url_of("a")) as response:
                    return response.status

            statuses = await asyncio.gather(*(status() for _ in range(8)))
            assert sorted(statuses) == [200] * 3 + [503] * 5
            assert await status() == 200
        assert server.counters.max_concurrent == 4


def test_faults_pick_by_key_method_after_and_times() -> None:
    with serve({"x/a": b"a", "b": b"b"}, [Status(500, key="x/*", after=1, times=2)]) as server:
        assert [get(server, "x/a").status for _ in range(5)] == [200, 500, 500, 200, 200]
        assert get(server, "b").status == 200


def test_faults_pick_by_the_query_as_it_was_sent() -> None:
    with serve({"a": b"a"}, [Status(500, query="*page=2*"), Status(502, query="")]) as server:
        targets = ("a", "a?page=1", "a?x=%20&page=2")
        assert [get(server, target).status for target in targets] == [502, 200, 500]
        assert [entry.query for entry in server.requests] == ["", "page=1", "x=%20&page=2"]


def test_a_query_without_the_signature_is_refused_and_not_shown() -> None:
    with serve({"a": b"a"}, [RequireQuery("sig=SENTINEL")]) as server:
        statuses = [get(server, target).status for target in ("a", "a?sig=old", "a?x=1&sig=SENTINEL")]
        assert statuses == [403, 403, 200]
        assert server.requests[2].headers["host"] == "test"
        assert "SENTINEL" not in repr(server.requests) + repr(RequireQuery("sig=SENTINEL"))


def test_headers_are_replaced_added_and_left_out() -> None:
    with serve({"a": b"a"}, [Headers({"etag": None, "last-modified": "never", "X-New": "1"})]) as server:
        headers = get(server, "a").headers
    assert "etag" not in headers
    assert (headers["last-modified"], headers["x-new"], headers["content-length"]) == ("never", "1", "1")


def _statuses(seed: int, keys: list[str]) -> dict[tuple[str, int], int]:
    """The statuses by key and attempt, two attempts each, asked for in the order given."""
    with serve(dict.fromkeys(keys, b"x"), [Status(503, probability=0.5)], seed=seed) as server:
        asked = [(key, attempt) for attempt in range(2) for key in keys]
        return {(key, attempt): get(server, key).status for key, attempt in asked}


def test_a_seed_gives_the_same_faults_each_run_in_any_order_of_arrival() -> None:
    keys = [f"{number}.tar" for number in range(40)]
    first = _statuses(7, keys)
    assert _statuses(7, keys[::-1]) == first != _statuses(8, keys)
    assert 20 < list(first.values()).count(503) < 60


@pytest.mark.parametrize(
    "make",
    [
        lambda: CutAt(-1),
        lambda: FlipBit(0, 8),
        lambda: Drip(0),
        lambda: Status(500, probability=1.1),
        lambda: Status(500, times=0),
    ],
)
def test_a_fault_that_cannot_be_is_refused(make: type[Fault]) -> None:
    with pytest.raises(ValueError):
        make()
