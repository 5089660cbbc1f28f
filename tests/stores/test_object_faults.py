"""Object stores over a server with faults, which their clients read just as well as the real ones."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from moto_s3 import serve_s3
from waiting import AT_ONCE_S

from asyncloader import testing
from asyncloader.errors import StoreError
from asyncloader.observe.statistics import NetworkCounts
from asyncloader.stores.failures import ThrottledError, TransientError
from asyncloader.stores.network import NetworkStore
from asyncloader.stores.objects.store import ObjectStore
from asyncloader.stores.pacing import RetryBudget
from asyncloader.stores.store import Body, NetworkPolicy

Fetch = Callable[..., Awaitable[tuple[Body, bytes]]]
Serve = Callable[..., testing.Server]

MiB = 1 << 20
CONTENT = random.Random(0).randbytes(3 * MiB)

pytestmark = pytest.mark.usefixtures("no_environment")


def faulty(server: testing.Server) -> ObjectStore:
    return ObjectStore("s3", "corpus", {"endpoint": server.url, "anonymous": True})


def impatient(server: testing.Server) -> NetworkStore:
    policy = NetworkPolicy(stall_s=0.1, attempts=1)
    return NetworkStore(faulty(server), policy, RetryBudget(), NetworkCounts())


@pytest.mark.parametrize("fault", [testing.CutAt(MiB), testing.Reset(MiB)], ids=["cut", "reset"])
async def test_a_cut_is_told_with_the_first_missing_byte(serve: Serve, fault: testing.Fault) -> None:
    store = faulty(serve({"corpus/x": CONTENT}, [fault]))
    got = b""
    with pytest.raises(TransientError, match="was cut") as caught:
        async with store.read("s3://corpus/x", 500, 3 * MiB) as body:
            async for chunk in body.chunks:
                got += bytes(chunk)
    assert caught.value.offset == 500 + len(got)
    assert CONTENT[500:].startswith(got)


async def test_a_refused_range_is_an_empty_object_only_if_its_length_says_so(
    serve: Serve, fetch: Fetch
) -> None:
    store = faulty(serve({"corpus/x": CONTENT, "corpus/empty": b""}, [testing.Status(416, method="GET")]))
    with pytest.raises(StoreError, match="416"):
        await fetch(store, "s3://corpus/x")
    body, _ = await fetch(store, "s3://corpus/empty")
    assert body.total == 0


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        (testing.Status(429), ThrottledError, "429 Too Many Requests"),
        (testing.Status(503), ThrottledError, "503 Service Unavailable"),
        (testing.Status(408), TransientError, "408 Request Timeout"),
        (testing.Status(500), TransientError, "500 Internal Server Error"),
        (testing.Status(502), TransientError, "502 Bad Gateway"),
        (testing.Status(504), TransientError, "504 Gateway Timeout"),
        (testing.Status(400), StoreError, "400 Bad Request"),
        (testing.Status(401), StoreError, "401 Unauthorized; pass credentials by storage_options="),
        (testing.Status(403), StoreError, "403 Forbidden; check credentials"),
        (testing.Status(404), StoreError, "404 Not Found"),
        (testing.Status(410), StoreError, "410 Gone"),
        (testing.HangUp(), TransientError, "without an answer"),
        (testing.IgnoreRange(), TransientError, "ignored the range"),
        (testing.WrongRange(3), TransientError, "another range"),
        (testing.NoLength(), StoreError, "without a length"),
    ],
    ids=str,
)
async def test_faults_are_named_and_not_retried(
    serve: Serve, fetch: Fetch, fault: testing.Fault, kind: type[StoreError], message: str
) -> None:
    server = serve({"corpus/x": CONTENT}, [fault])
    with pytest.raises(StoreError, match=message) as caught:
        await fetch(faulty(server), "s3://corpus/x", 0, 100)
    assert type(caught.value) is kind
    assert caught.value.__cause__ is caught.value.__context__ is None, "the client's text would be shown"
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "code", "told"),
    [
        (403, "RequestTimeTooSkewed", "403 RequestTimeTooSkewed: this machine's clock"),
        (400, "ExpiredToken", "400 ExpiredToken: the session token has expired.*credential_provider"),
        (403, "AccessDenied", "403 AccessDenied; check credentials"),
    ],
)
async def test_codes_that_say_what_is_wrong_are_told_with_what_to_do(
    fetch: Fetch, status: int, code: str, told: str
) -> None:
    answer = f"<Error><Code>{code}</Code><Message>SENTINEL</Message></Error>".encode()

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            options = {"endpoint": f"http://127.0.0.1:{server.server_port}", "anonymous": True}
            with pytest.raises(StoreError, match=told) as caught:
                await fetch(ObjectStore("s3", "corpus", options), "s3://corpus/x", 0, 100)
        finally:
            server.shutdown()
            thread.join()
    assert caught.value.status == status and not isinstance(caught.value, TransientError)


async def test_another_version_than_the_one_asked_for_may_go_away(serve: Serve, fetch: Fetch) -> None:
    # As if the condition had not been looked at.
    server = serve({"corpus/x": CONTENT}, [testing.WrongETag(after=1)])
    body, _ = await fetch(faulty(server), "s3://corpus/x", 0, 100)
    with pytest.raises(TransientError, match="was changed"):
        await fetch(faulty(server), "s3://corpus/x", 100, 200, etag=body.etag)


async def test_an_object_that_google_unpacks_is_an_error_that_says_why(serve: Serve, fetch: Fetch) -> None:
    server = serve({"corpus/x": CONTENT}, [testing.IgnoreRange()])
    store = ObjectStore("gs", "corpus", {"endpoint": server.url, "anonymous": True})
    with pytest.raises(StoreError, match="Content-Encoding: gzip, which it unpacks") as caught:
        await fetch(store, "gs://corpus/x", 0, 100)
    assert not isinstance(caught.value, TransientError)


_ACCOUNTS: dict[str, dict[str, Any]] = {
    "s3": {"anonymous": True},
    "gs": {"anonymous": True},
    "az": {"account_name": "me", "sas_key": "sig=SENTINEL"},
}


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
async def test_a_server_that_cannot_be_reached_is_named(
    fetch: Fetch, unused_tcp_port: int, scheme: str
) -> None:
    place = f"127.0.0.1:{unused_tcp_port}"
    options = {"endpoint": f"http://me:SENTINEL@{place}/path", **_ACCOUNTS[scheme]}
    with pytest.raises(TransientError) as caught:
        await fetch(ObjectStore(scheme, "corpus", options), f"{scheme}://corpus/x")
    assert caught.value.args == (f"the connection failed: no server could be reached at http://{place}",)


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
async def test_a_host_that_does_not_exist_is_named_and_not_asked_again(fetch: Fetch, scheme: str) -> None:
    host = f"{'x' * 64}.invalid"  # a label too long to be looked up
    options = {"endpoint": f"http://me:SENTINEL@{host}:9/path", **_ACCOUNTS[scheme]}
    with pytest.raises(StoreError) as caught:
        await fetch(ObjectStore(scheme, "corpus", options), f"{scheme}://corpus/x")
    assert f"unknown host: http://{host}:9; check endpoint" in str(caught.value)
    assert "SENTINEL" not in str(caught.value)
    assert not isinstance(caught.value, TransientError)


async def test_missing_credentials_are_told(serve: Serve, fetch: Fetch) -> None:
    # In place of the address where a machine of the cloud would be told its role.
    nobody = serve({}).url
    store = ObjectStore("s3", "corpus", {"endpoint": nobody, "metadata_endpoint": nobody})
    with pytest.raises(StoreError, match="no credentials were found"):
        await fetch(store, "s3://corpus/x")


async def test_a_stalled_body_is_an_error(serve: Serve, fetch: Fetch) -> None:
    server = serve({"corpus/x": CONTENT}, [testing.Stall(MiB, 5)])
    with pytest.raises(StoreError, match=r"bytes came in 0\.1 s") as caught:
        await fetch(impatient(server), "s3://corpus/x", 0, 3 * MiB)
    assert caught.value.offset is not None
    assert caught.value.offset <= MiB


async def test_a_slow_consumer_is_no_fault(serve: Serve) -> None:
    store = impatient(serve({"corpus/x": bytes(30 * MiB)}))
    total = 0
    async with store.read("s3://corpus/x", 0, 30 * MiB) as body:
        async for chunk in body.chunks:
            if total == 0:
                await asyncio.sleep(0.4)
            total += len(chunk)
    assert total == 30 * MiB


async def test_a_consumer_that_stops_reading_stops_the_server(serve: Serve) -> None:
    server = serve({"corpus/x": bytes(100 * MiB)})
    async with faulty(server).read("s3://corpus/x", 0, 100 * MiB) as body:
        await anext(body.chunks)
        await asyncio.sleep(0.2)
        sent = server.counters.bytes_sent
        await asyncio.sleep(0.1)
        assert server.counters.bytes_sent == sent < 50 * MiB
    assert await asyncio.to_thread(server.wait_idle), "leaving the body closes its connection"


async def test_a_cancelled_request_closes_its_socket(serve: Serve, fetch: Fetch) -> None:
    faults = [testing.Stall(10, 30, key="corpus/x"), testing.Delay(30, key="corpus/y")]
    server = serve({"corpus/x": CONTENT, "corpus/y": CONTENT}, faults)
    store = faulty(server)
    tasks = [asyncio.create_task(fetch(store, f"s3://corpus/{key}")) for key in "xy"]
    while server.counters.concurrent < 2:  # noqa: ASYNC110 - the server is in another thread
        await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert await asyncio.to_thread(server.wait_idle)


async def test_an_exception_of_the_caller_passes_as_it_is(serve: Serve) -> None:
    store = faulty(serve({"corpus/x": CONTENT}))
    for error in (OSError("mine"), ValueError("mine")):
        with pytest.raises(type(error)) as caught:
            async with store.read("s3://corpus/x", 0, 10):
                raise error
        assert caught.value is error


_LISTED_THEN_FORKED = """
import asyncio, json, os, sys
from asyncloader.stores.listing import look

async def read():
    from asyncloader.stores.objects.store import ObjectStore
    async with ObjectStore("s3", "corpus", options).read("s3://corpus/x/a.tar", 0, 10) as body:
        return b"".join([bytes(chunk) async for chunk in body.chunks])

options = json.load(sys.stdin)
found = look(["s3://corpus/x/"], options, lambda url: url.endswith(".tar"))
assert found.matches[0].urls[0] == "s3://corpus/x/a.tar", found
assert "obstore" not in sys.modules and "torch" not in sys.modules
if os.fork() == 0:
    print(asyncio.run(read()).decode(), flush=True)
    os._exit(0)
os.wait()
print(asyncio.run(read()).decode())
"""


@pytest.mark.servers
def test_a_fork_after_listing_reads() -> None:
    with serve_s3() as s3:
        s3.put("x/a.tar", b"content")
        command = [sys.executable, "-W", "error", "-c", _LISTED_THEN_FORKED]
        found = subprocess.run(
            command, input=json.dumps(s3.options), capture_output=True, text=True, timeout=30
        )
    assert (found.stdout, found.stderr) == ("content\ncontent\n", "")


def test_the_router_opens_one_store_for_each_bucket(serve: Serve, reading: Any) -> None:
    server = serve({"one/x": b"1", "two/x": b"2"})
    options = {"endpoint": server.url, "anonymous": True}
    with reading(["s3://one/x", "s3://two/x", "s3://one/x"], options=options) as run:
        assert run.all_shards() == [b"1", b"2", b"1"]


def test_stopping_the_engine_in_the_middle_of_a_request_is_quick_and_quiet(
    serve: Serve, reading: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    server = serve({"corpus/x": bytes(30 * MiB)}, [testing.Stall(5 * MiB, 30, after=1)])
    with reading(["s3://corpus/x"], options={"endpoint": server.url, "anonymous": True}) as run:
        run.out.receive().receive()
        begun = time.monotonic()
    assert time.monotonic() - begun < AT_ONCE_S
    assert server.wait_idle(5)  # or 30 s, if the stalled one went on
    assert capfd.readouterr().err == ""


_FORK = """
import asyncio, json, os, sys
from asyncloader.stores.failures import ThrottledError, TransientError
from asyncloader.stores.objects.store import ObjectStore

async def read(store):
    async with store.read("s3://corpus/x", 0, 10) as body:
        return b"".join([bytes(chunk) async for chunk in body.chunks]).decode()

def fork(store):
    sender, receiver = os.pipe()
    if os.fork() == 0:
        try:
            answer = asyncio.run(read(store))
        except RuntimeError as error:
            answer = str(error)
        os.write(receiver, json.dumps(answer).encode())
        os._exit(0)
    os.wait()
    return json.loads(os.read(sender, 10000))

options = {"endpoint": sys.argv[1], "anonymous": True}
first, second = ObjectStore("s3", "corpus", options), ObjectStore("s3", "corpus", options)
before = fork(first)
asyncio.run(read(first))
print(json.dumps([before, fork(first), fork(second)]))
"""


def test_a_fork_after_the_first_use_is_refused_instead_of_hanging(serve: Serve) -> None:
    server = serve({"corpus/x": b"content"})
    found = subprocess.run(
        [sys.executable, "-c", _FORK, server.url], capture_output=True, text=True, timeout=20, check=True
    )
    before, same_store, other_store = json.loads(found.stdout)
    assert before == "content", "forking before the first use is fine"
    assert "forkserver" in same_store
    assert "forkserver" in other_store


async def test_a_cancelled_read_leaves_obstores_thread_the_time_to_hand_over(serve: Serve) -> None:
    server = serve({"corpus/x": CONTENT}, [testing.Delay(3600)])

    async def read() -> None:
        async with faulty(server).read("s3://corpus/x", 0, 10):
            pass

    reading = asyncio.create_task(read())
    while not server.counters.concurrent:  # noqa: ASYNC110 - the server is in another thread
        await asyncio.sleep(0.005)
    began_s = time.monotonic()
    reading.cancel()
    await asyncio.wait([reading], timeout=5)
    # Whoever waits for the task closes the loop next. A thread that finds it closed is a race that about one
    # pass in a hundred lost under load; so the time is measured, and not the race.
    assert reading.cancelled() and 0.015 < time.monotonic() - began_s < AT_ONCE_S
