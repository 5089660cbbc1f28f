from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from asyncloader import testing
from asyncloader.errors import StoreError
from asyncloader.stores import http as http_module
from asyncloader.stores.http import HttpStore
from asyncloader.stores.store import Body

Fetch = Callable[..., Awaitable[tuple[Body, bytes]]]
Shown = Callable[[BaseException], str]
Serve = Callable[..., testing.Server]

CONTENT = bytes(range(256)) * 4


@pytest.mark.parametrize(("start", "stop"), [(0, 1024), (0, 1), (10, 20), (1023, 1024), (1000, 5000)])
async def test_a_range_is_asked_for_and_told(
    serve: Serve, http: HttpStore, fetch: Fetch, start: int, stop: int
) -> None:
    server = serve({"x": CONTENT})
    body, content = await fetch(http, server.url_of("x"), start, stop)
    assert content == CONTENT[start:stop]
    assert (body.start, body.stop, body.total) == (start, min(stop, 1024), 1024)
    assert body.etag is not None
    assert server.requests[0].range == f"bytes={start}-{stop - 1}"


async def test_an_ignored_range_is_told_as_the_whole_object(
    serve: Serve, http: HttpStore, fetch: Fetch
) -> None:
    server = serve({"x": CONTENT}, [testing.IgnoreRange()])
    body, content = await fetch(http, server.url_of("x"), 10, 20)
    assert (body.start, body.stop, body.total, content) == (0, 1024, 1024, CONTENT)


async def test_an_empty_object_is_an_empty_body(serve: Serve, http: HttpStore, fetch: Fetch) -> None:
    body, content = await fetch(http, serve({"x": b""}).url_of("x"), 0, 10)
    assert (body.start, body.stop, body.total, content) == (0, 0, 0, b"")


async def test_a_range_behind_the_end_is_an_error(serve: Serve, http: HttpStore, fetch: Fetch) -> None:
    with pytest.raises(StoreError, match="shorter") as caught:
        await fetch(http, serve({"x": CONTENT}).url_of("x"), 5000, 6000)
    assert (caught.value.status, caught.value.offset) == (416, 5000)


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
async def test_a_refusal_tells_status_shard_and_offset(
    serve: Serve, http: HttpStore, fetch: Fetch, status: int, shown: Shown
) -> None:
    server = serve({"x": CONTENT}, [testing.Status(status)])
    with pytest.raises(StoreError, match=str(status)) as caught:
        await fetch(http, server.url_of("x") + "?sig=SECRET", 7, 9)
    error = caught.value
    assert (error.shard, error.status, error.offset) == (server.url_of("x"), status, 7)
    assert "SECRET" not in shown(error)


async def test_a_body_in_chunks_has_no_length_but_an_end(
    raw_server: Any, http: HttpStore, fetch: Fetch
) -> None:
    response = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    async with raw_server(response) as (url, _):
        body, content = await fetch(http, f"{url}/x")
    assert (body.start, body.stop, body.total, content) == (0, None, None, b"abcde")


async def test_a_cut_body_in_chunks_is_an_error(raw_server: Any, http: HttpStore, fetch: Fetch) -> None:
    async with raw_server(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n") as (url, _):
        with pytest.raises(StoreError, match="cut before"):
            await fetch(http, f"{url}/x")


async def test_a_body_that_ends_with_the_connection_is_refused(
    raw_server: Any, http: HttpStore, fetch: Fetch
) -> None:
    async with raw_server(b"HTTP/1.1 200 OK\r\n\r\nabc") as (url, _):
        with pytest.raises(StoreError, match="Content-Length"):
            await fetch(http, f"{url}/x")


@pytest.mark.parametrize(
    "content_range", ["bytes 1-5/10", "bytes 0-5/*", "bytes 0-10/11", "0-5/10", "lines 0-5/10", ""]
)
async def test_another_range_than_asked_for_is_refused(
    raw_server: Any, http: HttpStore, fetch: Fetch, content_range: str
) -> None:
    head = f"HTTP/1.1 206 Partial Content\r\nContent-Length: 6\r\nContent-Range: {content_range}\r\n\r\n"
    async with raw_server(head.encode() + b"abcdef") as (url, _):
        with pytest.raises(StoreError, match="Content-Range"):
            await fetch(http, f"{url}/x", 0, 10)


async def test_an_encoded_body_is_refused(serve: Serve, http: HttpStore, fetch: Fetch) -> None:
    with pytest.raises(StoreError, match="Content-Encoding gzip"):
        await fetch(http, serve({"x": CONTENT}, [testing.GzipEncoding()]).url_of("x"))


@pytest.mark.parametrize(
    "fault",
    [testing.CutAt(100), testing.Reset(100), testing.WrongLength(5)],
    ids=lambda fault: type(fault).__name__,
)
async def test_a_cut_is_told_with_the_first_missing_byte(
    serve: Serve, http: HttpStore, fault: testing.Fault
) -> None:
    url = serve({"x": CONTENT}, [fault]).url_of("x")
    got = b""
    with pytest.raises(StoreError, match=r"cut|connection failed") as caught:
        async with http.read(url, 500, 1024) as body:
            async for chunk in body.chunks:
                got += chunk
    assert caught.value.offset == 500 + len(got)
    assert CONTENT[500:].startswith(got)


async def test_a_server_that_hangs_up_is_an_error(serve: Serve, http: HttpStore, fetch: Fetch) -> None:
    with pytest.raises(StoreError, match="connection failed: ServerDisconnected"):
        await fetch(http, serve({"x": CONTENT}, [testing.HangUp()]).url_of("x"))


async def test_no_server_is_an_error(http: HttpStore, fetch: Fetch, unused_tcp_port: int) -> None:
    with pytest.raises(StoreError, match="connection failed"):
        await fetch(http, f"http://127.0.0.1:{unused_tcp_port}/x?sig=SECRET")


async def test_a_stalled_body_is_an_error(
    serve: Serve, fetch: Fetch, monkeypatch: pytest.MonkeyPatch, shown: Shown
) -> None:
    monkeypatch.setattr(http_module, "_TIMEOUT", http_module.aiohttp.ClientTimeout(sock_read=0.1))
    server = serve({"x": CONTENT}, [testing.Stall(10, 5)])
    async with HttpStore.open() as http:
        with pytest.raises(StoreError, match="in time") as caught:
            await fetch(http, server.url_of("x") + "?sig=SECRET")
    assert caught.value.offset == 10
    assert "SECRET" not in shown(caught.value)


async def test_a_changed_object_is_told_with_both_etags(serve: Serve, http: HttpStore, fetch: Fetch) -> None:
    server = serve({"x": CONTENT}, [testing.ChangeObject(b"another" * 100, after=1)])
    body, _ = await fetch(http, server.url_of("x"), 0, 10)
    with pytest.raises(StoreError, match="was changed") as caught:
        await fetch(http, server.url_of("x"), 10, 20, etag=body.etag)
    assert caught.value.status == 412
    assert str(caught.value).count('"') >= 4, "both ETags"
    assert str(body.etag) in str(caught.value)


async def test_another_etag_is_noticed_though_the_server_ignores_if_match(
    raw_server: Any, http: HttpStore, fetch: Fetch
) -> None:
    response = b'HTTP/1.1 200 OK\r\nContent-Length: 3\r\nETag: "new"\r\n\r\nabc'
    async with raw_server(response) as (url, heads):
        with pytest.raises(StoreError, match='was "old", now "new"'):
            await fetch(http, f"{url}/x", etag='"old"')
        assert b'If-Match: "old"' in heads[0]


async def test_a_weak_etag_is_compared_but_not_sent(raw_server: Any, http: HttpStore, fetch: Fetch) -> None:
    response = b'HTTP/1.1 200 OK\r\nContent-Length: 3\r\nETag: W/"v1"\r\n\r\nabc'
    async with raw_server(response) as (url, heads):
        _, content = await fetch(http, f"{url}/x", etag='W/"v1"')
        assert content == b"abc"
        assert b"if-match" not in heads[0].lower()
        with pytest.raises(StoreError, match="was changed"):
            await fetch(http, f"{url}/x", etag='W/"v0"')


async def test_a_redirect_is_followed_with_the_range(serve: Serve, http: HttpStore, fetch: Fetch) -> None:
    server = serve({"x": CONTENT}, [testing.Redirect("/x", key="moved")])
    body, content = await fetch(http, server.url_of("moved"), 10, 20)
    assert (body.start, content) == (10, CONTENT[10:20])


async def test_a_circle_of_redirects_is_an_error_without_its_secrets(
    serve: Serve, http: HttpStore, fetch: Fetch, shown: Shown
) -> None:
    server = serve({"x": CONTENT}, [testing.Redirect("/x?sig=SECRET")])
    with pytest.raises(StoreError, match="redirects more than") as caught:
        await fetch(http, server.url_of("x"))
    assert "SECRET" not in shown(caught.value)


@pytest.mark.parametrize(
    "url", ["http://", "http://[bad/x", "http://h:99999/x", "http://me:SECRET@/x?SECRET", "http://h:port/x"]
)
async def test_an_invalid_url_is_an_error_without_its_secrets(
    http: HttpStore, fetch: Fetch, url: str, shown: Shown
) -> None:
    with pytest.raises(StoreError, match="not a valid URL") as caught:
        await fetch(http, url)
    assert "SECRET" not in shown(caught.value)


@pytest.mark.parametrize("path", ["/a%2Cb%7Ec%27d/x", "/x?sig=a%2Fb%2B%3D+~'&d=%7e"])
async def test_a_url_goes_out_as_it_was_written(
    raw_server: Any, http: HttpStore, fetch: Fetch, path: str
) -> None:
    async with raw_server(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as (url, heads):
        await fetch(http, url + path)
    assert heads[0].startswith(f"GET {path} HTTP/1.1\r\n".encode())


async def test_a_redirect_goes_out_as_it_was_written(raw_server: Any, http: HttpStore, fetch: Fetch) -> None:
    path = "/x?sig=a%2Fb%2B%3D~'&d=%7e"
    async with raw_server(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as (url, heads):
        moved = f"HTTP/1.1 302 Found\r\nLocation: {url}{path}\r\nContent-Length: 0\r\n\r\n"
        async with raw_server(moved.encode()) as (first, _):
            await fetch(http, first)
    assert heads[0].startswith(f"GET {path} HTTP/1.1\r\n".encode())


async def test_a_url_with_spaces_and_umlauts_is_escaped(serve: Serve, http: HttpStore, fetch: Fetch) -> None:
    server = serve({"ä b.tar": CONTENT})
    _, content = await fetch(http, f"{server.url}/ä b.tar")
    assert content == CONTENT


async def test_an_exception_of_the_caller_passes_as_it_is(serve: Serve, http: HttpStore) -> None:
    url = serve({"x": CONTENT}).url_of("x")
    for error in (OSError("mine"), TimeoutError("mine"), ValueError("mine")):
        with pytest.raises(type(error)) as caught:
            async with http.read(url, 0, 10):
                raise error
        assert caught.value is error


async def test_a_cancelled_request_closes_its_socket(serve: Serve, http: HttpStore, fetch: Fetch) -> None:
    server = serve({"x": CONTENT, "y": CONTENT}, [testing.Stall(10, 30, key="x"), testing.Delay(30, key="y")])
    tasks = [asyncio.create_task(fetch(http, server.url_of(key))) for key in "xy"]
    while server.counters.concurrent < 2:  # noqa: ASYNC110 - the server is in another thread
        await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert await asyncio.to_thread(server.wait_idle)
