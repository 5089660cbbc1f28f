from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
from telling import all_told

import asyncloader as al
from asyncloader import testing
from asyncloader.errors import StoreError
from asyncloader.observe.statistics import NetworkCounts
from asyncloader.stores import network as renewing
from asyncloader.stores.http.client import HttpStore
from asyncloader.stores.network import NetworkStore
from asyncloader.stores.pacing import RetryBudget
from asyncloader.stores.store import Body, NetworkPolicy, Renew

Fetch = Callable[..., Awaitable[tuple[Body, bytes]]]
Serve = Callable[..., testing.Server]

CONTENT = bytes(range(256)) * 4


class Signer:
    """Signs URLs: the query holds how often it has been asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, url: str) -> str:
        self.asked.append(url)
        return f"{url.partition('?')[0]}?sig=SENTINEL-{len(self.asked)}."


def store_of(http: HttpStore, renew: Renew) -> NetworkStore:
    return NetworkStore(http, NetworkPolicy(attempts=1), RetryBudget(), NetworkCounts(), renew=renew)


@pytest.fixture
def signer() -> Signer:
    return Signer()


@pytest.mark.parametrize("status", [400, 401, 403])
async def test_a_refused_url_is_renewed_and_used_until_it_is_refused_again(
    serve: Serve, http: HttpStore, fetch: Fetch, signer: Signer, status: int
) -> None:
    expires = testing.Status(status, query="*SENTINEL-1.*", after=2)
    server = serve({"x": CONTENT}, [testing.RequireQuery("SENTINEL-", code=status), expires])
    store = store_of(http, signer)
    listed = server.url_of("x") + "?sig=old"
    for start in range(0, 50, 10):
        body, content = await fetch(store, listed, start, start + 10)
        assert (body.start, content) == (start, CONTENT[start : start + 10])
    assert signer.asked == [listed] * 2
    assert [entry.query.removeprefix("sig=") for entry in server.requests] == [
        "old",
        *["SENTINEL-1."] * 3,
        *["SENTINEL-2."] * 3,
    ]


def test_the_request_that_is_sent_anew_is_counted_too(serve: Serve, signer: Signer) -> None:
    server = serve({f"{n}.txt": b"line" for n in range(8)}, [testing.RequireQuery("SENTINEL-")])
    recipe = al.from_urls([server.url_of(f"{n}.txt") + "?sig=old" for n in range(8)], renew=signer)
    loader = al.DataLoader(recipe)
    assert len(list(loader)) == 8
    network = loader.statistics.network
    assert (network.requests, network.retries) == (len(server.requests), 0)
    assert len(server.requests) == 16


async def test_a_url_that_is_taken_is_never_renewed(
    serve: Serve, http: HttpStore, fetch: Fetch, signer: Signer
) -> None:
    server = serve({"x": CONTENT})
    assert (await fetch(store_of(http, signer), server.url_of("x")))[1] == CONTENT
    assert signer.asked == []


@pytest.mark.parametrize("status", [404, 410, 429, 500, 503])
async def test_other_failures_pass_as_they_are(
    serve: Serve, http: HttpStore, fetch: Fetch, signer: Signer, status: int
) -> None:
    server = serve({"x": CONTENT}, [testing.Status(status)])
    with pytest.raises(StoreError) as caught:
        await fetch(store_of(http, signer), server.url_of("x"))
    assert (caught.value.status, signer.asked) == (status, [])


async def test_many_parts_refused_at_once_renew_once(
    serve: Serve, http: HttpStore, fetch: Fetch, signer: Signer
) -> None:
    server = serve({"x": CONTENT, "y": CONTENT}, [testing.RequireQuery("SENTINEL-")], latency_s=0.05)

    async def renew(url: str) -> str:
        await asyncio.sleep(0.05)
        return signer(url)

    store = store_of(http, renew)
    reads = [fetch(store, server.url_of(key), n, n + 1) for n in range(20) for key in "xy"]
    async with asyncio.timeout(10):
        contents = [content for _, content in await asyncio.gather(*reads)]
    assert contents == [CONTENT[n : n + 1] for n in range(20) for _ in "xy"]
    assert sorted(signer.asked) == [server.url_of("x"), server.url_of("y")]


async def test_a_part_refused_late_takes_the_url_that_others_had_renewed(
    serve: Serve, http: HttpStore, fetch: Fetch, signer: Signer
) -> None:
    late = testing.Delay(0.3, query="", times=1)
    server = serve({"x": CONTENT}, [testing.RequireQuery("SENTINEL-"), late])
    store = store_of(http, signer)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(fetch(store, server.url_of("x"), 0, 1))
        while not server.requests:  # noqa: ASYNC110 - the server is in another thread
            await asyncio.sleep(0.01)
        await fetch(store, server.url_of("x"), 1, 2)
        assert len(signer.asked) == 1
    assert len(signer.asked) == 1


async def test_a_renewed_url_that_is_refused_too_is_the_error(
    serve: Serve, http: HttpStore, fetch: Fetch, signer: Signer
) -> None:
    server = serve({"x": CONTENT}, [testing.Status(403)])
    with pytest.raises(StoreError, match="renew gave for it too") as caught:
        await fetch(store_of(http, signer), server.url_of("x") + "?sig=SENTINEL", 5, 9)
    error = caught.value
    assert (error.shard, error.status, error.offset) == (server.url_of("x"), 403, 5)
    assert "SENTINEL" not in all_told(error)
    assert len(server.requests) == 2


async def test_errors_name_the_listed_shard_wherever_the_fresh_url_leads(
    serve: Serve, http: HttpStore, fetch: Fetch
) -> None:
    listed = serve({}, [testing.Status(403)]).url_of("listed") + "?sig=SENTINEL"
    faults = [testing.CutAt(10, times=1), testing.Status(500, times=1, after=1)]
    elsewhere = serve({"else": CONTENT}, faults)
    store = store_of(http, lambda url: elsewhere.url_of("else") + "?sig=SENTINEL")
    for offset in (10, 0):
        with pytest.raises(StoreError) as caught:
            await fetch(store, listed)
        assert (caught.value.shard, caught.value.offset) == (listed.partition("?")[0], offset)
        assert "SENTINEL" not in all_told(caught.value)
    assert (await fetch(store, listed))[1] == CONTENT


async def test_the_users_error_keeps_its_type_and_tells_the_shard(
    serve: Serve, http: HttpStore, fetch: Fetch
) -> None:
    def renew(url: str) -> str:
        raise LookupError("mine")

    server = serve({"x": CONTENT}, [testing.Status(403)])
    with pytest.raises(LookupError, match="mine") as caught:
        await fetch(store_of(http, renew), server.url_of("x") + "?sig=SENTINEL")
    assert caught.value.__notes__ == [f"raised while the URL of shard {server.url_of('x')} was renewed"]
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (None, TypeError),
        (b"http://h/SENTINEL", TypeError),
        ("", ValueError),
        ("/path?SENTINEL", ValueError),
        ("s3://b/SENTINEL", ValueError),
        ("file:///SENTINEL", ValueError),
        ("http://", ValueError),
        ("http://?SENTINEL", ValueError),
        ("http://[h/SENTINEL", ValueError),
        ("http://h:port/SENTINEL", ValueError),
    ],
)
async def test_what_is_no_url_of_the_shards_kind_is_refused_without_its_secrets(
    serve: Serve, http: HttpStore, fetch: Fetch, given: object, kind: type[Exception]
) -> None:
    server = serve({"x": CONTENT}, [testing.Status(403)])
    with pytest.raises(kind, match="renew should return") as caught:
        await fetch(store_of(http, lambda url: given), server.url_of("x"))  # type: ignore[arg-type, return-value]
    assert "SENTINEL" not in all_told(caught.value)
    assert server.url_of("x") in caught.value.__notes__[0]


async def test_plain_functions_run_in_a_thread_and_coroutine_functions_on_the_loop(
    serve: Serve, http: HttpStore, fetch: Fetch, signer: Signer
) -> None:
    threads: list[threading.Thread] = []

    def plain(url: str) -> str:
        threads.append(threading.current_thread())
        return signer(url)

    async def asynchronous(mark: str, url: str) -> str:
        threads.append(threading.current_thread())
        return signer(url) + mark

    server = serve({"x": CONTENT}, [testing.RequireQuery("SENTINEL-")])
    for renew in (plain, partial(asynchronous, "mark")):
        assert (await fetch(store_of(http, renew), server.url_of("x")))[1] == CONTENT
    assert threads[0] is not threading.main_thread() and threads[1] is threading.main_thread()
    assert server.requests[-1].query.endswith("mark")


async def test_a_cancelled_read_leaves_the_renewing_to_the_next(
    serve: Serve, http: HttpStore, fetch: Fetch, signer: Signer
) -> None:
    begun = asyncio.Event()

    async def renew(url: str) -> str:
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        return signer(url)

    server = serve({"x": CONTENT}, [testing.RequireQuery("SENTINEL-")])
    store = store_of(http, renew)
    stuck = asyncio.create_task(fetch(store, server.url_of("x")))
    async with asyncio.timeout(10):
        await begun.wait()
        stuck.cancel()
        await asyncio.wait([stuck])
        assert (await fetch(store, server.url_of("x")))[1] == CONTENT


async def test_only_the_latest_urls_are_kept(
    serve: Serve, http: HttpStore, fetch: Fetch, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewing, "_MOST_KEPT", 2)
    server = serve({key: CONTENT for key in "xyz"}, [testing.RequireQuery("SENTINEL-")])
    store = store_of(http, signer)
    for key in "xyzzyx":
        assert (await fetch(store, server.url_of(key)))[1] == CONTENT
    assert [url[-1] for url in signer.asked] == list("xyzx")


async def test_an_error_of_the_caller_passes_as_it_is(serve: Serve, http: HttpStore, signer: Signer) -> None:
    server = serve({"x": CONTENT}, [testing.RequireQuery("SENTINEL-")])
    mine = StoreError("mine", status=403)
    with pytest.raises(StoreError) as caught:
        async with store_of(http, signer).read(server.url_of("x"), 0, 10):
            raise mine
    assert caught.value is mine and mine.shard is None
    assert len(signer.asked) == 1


def test_renew_is_refused_where_no_shard_has_a_url_that_expires(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("{}\n")
    for urls in ("s3://corpus/x.jsonl", str(tmp_path / "x.jsonl")):
        with pytest.raises(ValueError, match="renew is for presigned http"):
            al.from_urls(urls, renew=str.upper)
    al.from_urls([str(tmp_path / "x.jsonl"), "https://h/x.jsonl?sig=1"], renew=str.upper)
    with pytest.raises(TypeError, match="renew should be a function of a URL, but got str"):
        al.from_urls("https://h/x.jsonl", renew="SENTINEL")  # type: ignore[arg-type]  # what is tested
