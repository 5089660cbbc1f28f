from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from certificates import self_signed
from telling import all_told

from asyncloader import testing
from asyncloader.errors import StoreError
from asyncloader.stores.failures import ThrottledError, TransientError
from asyncloader.stores.http.client import HttpStore, _store_error
from asyncloader.stores.store import Body

Fetch = Callable[..., Awaitable[tuple[Body, bytes]]]
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


@pytest.mark.parametrize("content", [b"", CONTENT])
async def test_a_range_refused_without_a_length_is_asked_for_without_a_range(
    content: bytes, serve: Serve, http: HttpStore, fetch: Fetch
) -> None:
    server = serve({"x": content}, [testing.Status(416, times=1)])
    body, found = await fetch(http, server.url_of("x"), 0, 10)
    assert (body.start, body.stop, body.total, found) == (0, len(content), len(content), content)
    assert [request.range for request in server.requests] == ["bytes=0-9", None]


async def test_a_shard_that_is_refused_with_and_without_a_range_is_no_empty_one(
    serve: Serve, http: HttpStore, fetch: Fetch
) -> None:
    with pytest.raises(StoreError, match="416"):
        await fetch(http, serve({"x": CONTENT}, [testing.Status(416)]).url_of("x"), 0, 10)


@pytest.mark.parametrize("span", [b"0-2", b"0-5"])
async def test_a_part_of_an_object_whose_length_is_not_told_is_asked_for_without_a_range(
    raw_server: Any, http: HttpStore, fetch: Fetch, span: bytes
) -> None:
    """Where such a part ends, the object may go on."""
    part = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 3\r\nContent-Range: bytes %b/*\r\n\r\nabc" % span
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabcdef"
    async with raw_server(part, whole) as (url, heads):
        body, content = await fetch(http, f"{url}/x", 0, 3)
    assert (body.start, body.stop, body.total, content) == (0, 6, 6, b"abcdef")
    assert [b"Range: bytes=0-2" in head for head in heads] == [True, False]


async def test_a_range_behind_the_end_is_an_error(serve: Serve, http: HttpStore, fetch: Fetch) -> None:
    with pytest.raises(StoreError, match="shorter") as caught:
        await fetch(http, serve({"x": CONTENT}).url_of("x"), 5000, 6000)
    assert (caught.value.status, caught.value.offset) == (416, 5000)


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
async def test_a_refusal_tells_status_shard_and_offset(
    serve: Serve, http: HttpStore, fetch: Fetch, status: int
) -> None:
    server = serve({"x": CONTENT}, [testing.Status(status)])
    with pytest.raises(StoreError, match=str(status)) as caught:
        await fetch(http, server.url_of("x") + "?sig=SENTINEL", 7, 9)
    error = caught.value
    assert (error.shard, error.status, error.offset) == (server.url_of("x"), status, 7)
    assert "SENTINEL" not in all_told(error)


async def test_a_body_in_chunks_has_no_length_but_an_end(
    raw_server: Any, http: HttpStore, fetch: Fetch
) -> None:
    response = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    async with raw_server(response) as (url, _):
        body, content = await fetch(http, f"{url}/x")
    assert (body.start, body.stop, body.total, content) == (0, None, None, b"abcde")


async def test_a_cut_body_in_chunks_is_an_error(raw_server: Any, http: HttpStore, fetch: Fetch) -> None:
    async with raw_server(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n") as (url, _):
        with pytest.raises(TransientError, match="cut before"):
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
    [testing.CutAt(100), testing.Reset(100), testing.CutAt(0)],
    ids=repr,
)
@pytest.mark.parametrize("start", [0, 500])
async def test_a_cut_is_told_with_the_first_missing_byte(
    serve: Serve, http: HttpStore, fault: testing.Fault, start: int
) -> None:
    url = serve({"x": CONTENT}, [fault]).url_of("x")
    got = b""
    with pytest.raises(TransientError, match=r"cut|connection failed") as caught:
        async with http.read(url, start, 1024) as body:
            async for chunk in body.chunks:
                got += chunk
    assert caught.value.offset == start + len(got)
    assert CONTENT[start:].startswith(got)


@pytest.mark.parametrize(
    "fault", [testing.WrongLength(5), testing.WrongLength(-5), testing.WrongRange(3)], ids=repr
)
async def test_another_part_than_asked_for_is_an_error(
    serve: Serve, http: HttpStore, fetch: Fetch, fault: testing.Fault
) -> None:
    # What lies behind a length that is too short may come with the head, and is no HTTP.
    with pytest.raises(TransientError, match=r"Content-Range|not HTTP"):
        await fetch(http, serve({"x": CONTENT}, [fault]).url_of("x"), 500, 600)


async def test_a_server_that_hangs_up_is_an_error(serve: Serve, http: HttpStore, fetch: Fetch) -> None:
    with pytest.raises(TransientError, match="connection failed: ServerDisconnected"):
        await fetch(http, serve({"x": CONTENT}, [testing.HangUp()]).url_of("x"))


async def test_no_server_is_an_error(http: HttpStore, fetch: Fetch, unused_tcp_port: int) -> None:
    with pytest.raises(TransientError, match="connection failed"):
        await fetch(http, f"http://127.0.0.1:{unused_tcp_port}/x?sig=SENTINEL")


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        (
            socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
            "Temporary failure in name",
        ),
        (ssl.SSLEOFError(8, "[SSL: UNEXPECTED_EOF_WHILE_READING] unexpected eof"), "UNEXPECTED_EOF"),
        (OSError(errno.ENETUNREACH, "Connect call failed ('192.0.2.1', 443)"), "Network is unreachable"),
    ],
)
async def test_why_a_connection_failed_is_told_in_the_words_of_its_layer(cause: OSError, told: str) -> None:
    class Failing(aiohttp.TCPConnector):
        async def connect(self, request: Any, *_: Any, **__: Any) -> Any:
            raise aiohttp.ClientConnectorError(request.connection_key, cause)

    async with aiohttp.ClientSession(connector=Failing()) as session:
        with pytest.raises(aiohttp.ClientConnectorError) as caught:
            await session.get("http://host.invalid/shard.tar")
    error = _store_error(caught.value, "http://host.invalid/shard.tar", 0)
    assert f"the connection failed: {told}" in str(error) or f"[SSL: {told}" in str(error)
    assert "192.0.2.1" not in str(error)


async def test_no_connection_in_time_is_an_error(fetch: Fetch) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as stack:
        address = listener.getsockname()
        for _ in range(3):  # fills the queue of a server that accepts nobody
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        async with HttpStore.open(connect_s=0.1) as http, asyncio.timeout(5):
            with pytest.raises(TransientError, match="in time"):
                await fetch(http, f"http://127.0.0.1:{address[1]}/x")


@pytest.mark.parametrize(
    "answer",
    [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 20x OK\r\n\r\n", b"\x16\x03\x01\x00", b"HTTP/1.1 200 OK\r\nx"],
)
async def test_an_answer_that_is_not_http_is_an_error(
    raw_server: Any, http: HttpStore, fetch: Fetch, answer: bytes
) -> None:
    async with raw_server(answer) as (url, _):
        with pytest.raises(TransientError, match=r"not HTTP|connection failed"):
            await fetch(http, f"{url}/x")


async def test_a_broken_body_in_chunks_is_an_error(raw_server: Any, http: HttpStore, fetch: Fetch) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with raw_server(head + b"3\r\nabc\r\nno length\r\n") as (url, _):
        with pytest.raises(TransientError):
            await fetch(http, f"{url}/x")


@pytest.mark.parametrize(
    ("sent", "offset"), [(b"3\r\nabc\r\n0\r\n\r\n", 13), (b"6\r\nabcdef\r\n0\r\n\r\n", 15)]
)
async def test_a_part_in_chunks_of_another_length_is_an_error(
    raw_server: Any, http: HttpStore, fetch: Fetch, sent: bytes, offset: int
) -> None:
    head = (
        b"HTTP/1.1 206 Partial Content\r\nTransfer-Encoding: chunked\r\nContent-Range: bytes 10-14/20\r\n\r\n"
    )
    async with raw_server(head + sent) as (url, _):
        with pytest.raises(TransientError, match="not at byte 15") as caught:
            await fetch(http, f"{url}/x", 10, 15)
    assert caught.value.offset == offset


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
    serve: Serve, http: HttpStore, fetch: Fetch
) -> None:
    server = serve({"x": CONTENT}, [testing.Redirect("/x?sig=SENTINEL")])
    with pytest.raises(StoreError, match="redirects more than") as caught:
        await fetch(http, server.url_of("x"))
    assert "SENTINEL" not in all_told(caught.value)


@pytest.mark.parametrize(
    "url",
    ["http://", "http://[bad/x", "http://h:99999/x", "http://me:SENTINEL@/x?SENTINEL", "http://h:port/x"],
)
async def test_an_invalid_url_is_an_error_without_its_secrets(
    http: HttpStore, fetch: Fetch, url: str
) -> None:
    with pytest.raises(StoreError, match="not a valid URL") as caught:
        await fetch(http, url)
    assert "SENTINEL" not in all_told(caught.value)


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


async def _refuse_anything(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """What nginx does: a greeting of TLS is a bad request."""
    await reader.read(100)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    writer.close()
    await writer.wait_closed()


async def test_a_server_without_tls_is_an_error_for_good(http: HttpStore, fetch: Fetch) -> None:
    async with await asyncio.start_server(_refuse_anything, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(StoreError, match=r"speaks no TLS at this port; .* is it http://\?") as caught:
            await fetch(http, f"https://127.0.0.1:{port}/x?sig=SENTINEL")
    assert type(caught.value) is StoreError, "not to be tried again"


async def test_a_certificate_that_nobody_vouches_for_is_an_error_for_good(
    http: HttpStore, fetch: Fetch, tmp_path: Path
) -> None:
    async with await asyncio.start_server(_say_nothing, "127.0.0.1", 0, ssl=self_signed(tmp_path)) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(StoreError, match="certificate cannot be trusted") as caught:
            await fetch(http, f"https://127.0.0.1:{port}/x?sig=SENTINEL")
    assert type(caught.value) is StoreError
    assert "SENTINEL" not in all_told(caught.value)


async def _say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def test_a_throttled_request_tells_how_long_to_wait(
    serve: Serve, http: HttpStore, fetch: Fetch
) -> None:
    with pytest.raises(ThrottledError) as caught:
        await fetch(http, serve({"x": CONTENT}, [testing.Status(503, retry_after=7)]).url_of("x"))
    assert caught.value.retry_after_s == 7


async def test_without_etags_the_time_of_modification_is_pinned(
    http: HttpStore, fetch: Fetch, serve: Serve, tmp_path: Path
) -> None:
    (tmp_path / "x").write_bytes(CONTENT)
    os.utime(tmp_path / "x", (1_000_000_000, 1_000_000_000))
    date = {"Date": "Sun, 09 Sep 2001 02:00:00 GMT", "ETag": None}
    server = serve(tmp_path, [testing.Headers(date)])
    body, _ = await fetch(http, server.url_of("x"), 0, 10)
    assert body.etag == "last-modified:Sun, 09 Sep 2001 01:46:40 GMT"
    body, content = await fetch(http, server.url_of("x"), 10, 20, body.etag)
    assert content == CONTENT[10:20]
    assert server.requests[1].headers["if-unmodified-since"] == "Sun, 09 Sep 2001 01:46:40 GMT"
    os.utime(tmp_path / "x", (1_000_000_001, 1_000_000_001))
    with pytest.raises(StoreError, match="time of last modification was Sun, 09 Sep 2001 01:46:40 GMT"):
        await fetch(http, server.url_of("x"), 20, 30, body.etag)


async def test_stated_digests_are_told(serve: Serve, http: HttpStore, fetch: Fetch) -> None:
    server = serve({"x": CONTENT}, [testing.Headers({"x-goog-hash": "crc32c=AAECAw=="})])
    assert (await fetch(http, server.url_of("x"), 10, 20))[0].digests == {"crc32c": b"\0\1\2\3"}


@pytest.mark.parametrize(
    ("headers", "query", "asked"),
    [
        ({}, "", True),
        ({"X-Other": "1"}, "", True),
        ({}, "?sig=1", False),
        ({"authorization": "AWS4 x"}, "", False),
    ],
)
async def test_digests_are_asked_for_where_no_signature_forbids_it(
    serve: Serve, fetch: Fetch, headers: dict[str, str], query: str, asked: bool
) -> None:
    server = serve({"x": CONTENT})
    async with HttpStore.open(headers=headers) as http:
        await fetch(http, server.url_of("x") + query)
    assert ("x-amz-checksum-mode" in server.requests[0].headers) is asked


async def test_no_cookie_of_one_answer_is_sent_with_the_next_request(
    serve: Serve, http: HttpStore, fetch: Fetch
) -> None:
    server = serve({"x": CONTENT}, [testing.Headers({"Set-Cookie": "a=b"})])
    for _ in range(2):
        await fetch(http, server.url_of("x"))
    assert "cookie" not in server.requests[1].headers


async def test_a_small_document_is_fetched_whole_and_a_large_one_not(serve: Serve, http: HttpStore) -> None:
    server = serve({"x": CONTENT}, [testing.Redirect("/x", key="moved")])
    headers, content = await http.fetch(server.url_of("moved"), 1024)
    assert (content, headers["content-length"]) == (CONTENT, "1024")
    with pytest.raises(StoreError, match="longer than 1023"):
        await http.fetch(server.url_of("x"), 1023)
    with pytest.raises(StoreError, match="404"):
        await http.fetch(server.url_of("y"), 1024)


FAILURES: dict[str, list[testing.Fault]] = {
    **{
        f"status {code}": [testing.Status(code, retry_after=1)]
        for code in (400, 401, 403, 404, 412, 429, 500, 503)
    },
    "status 416": [testing.Status(416), testing.Headers({"Content-Range": "bytes */9"})],
    "hang up": [testing.HangUp()],
    "cut": [testing.CutAt(10)],
    "reset": [testing.Reset(10)],
    "no length": [testing.NoLength(), testing.IgnoreRange(), testing.NoLength()],
    "gzip": [testing.GzipEncoding()],
    "wrong range": [testing.WrongRange(1)],
    "wrong length": [testing.WrongLength(1)],
    "wrong ETag": [testing.WrongETag()],
    "no ETag": [testing.Headers({"ETag": None})],
    "broken digest": [testing.Headers({"x-goog-hash": "md5=?"})],
    "circle": [testing.Redirect("/x?sig=SENTINEL")],
    "redirect to another scheme": [testing.Redirect("ftp://u:SENTINEL@h/?sig=SENTINEL")],
    "redirect to no URL": [testing.Redirect("http://h:port/?sig=SENTINEL")],
    "redirect to nobody": [testing.Redirect("http://u:SENTINEL@127.0.0.1:1/?sig=SENTINEL")],
    "redirect to no name": [testing.Redirect(f"http://u:SENTINEL@{64 * 'h'}/?sig=SENTINEL")],
    "no TLS": [],
}


@pytest.mark.parametrize("name", FAILURES)
async def test_no_secret_is_told_whatever_fails(
    name: str, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server = serve({"x": CONTENT}, FAILURES[name])
    shard = server.url_of("x").replace("http:", "https:" if name == "no TLS" else "http:")
    url = shard.replace("//", "//SENTINEL:SENTINEL@") + "?sig=SENTINEL#SENTINEL"
    secrets = {"Authorization": "SENTINEL", "X-Token": "SENTINEL"}
    async with HttpStore.open(headers=secrets, connect_s=0.5) as http:
        with pytest.raises(StoreError) as caught:
            async with http.read(url, 1, 1000, etag='"pinned"' if "ETag" in name else None) as body:
                assert "SENTINEL" not in repr(body) + repr(http)
                async for _ in body.chunks:
                    pass
    assert "SENTINEL" not in all_told(caught.value)
    assert "SENTINEL" not in caplog.text + "".join(str(vars(record)) for record in caplog.records)
    assert caught.value.shard == shard
