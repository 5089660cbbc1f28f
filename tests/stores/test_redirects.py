from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from public_network import HOSTS, PUBLIC
from telling import all_told
from yarl import URL

import asyncloader
from asyncloader import testing
from asyncloader.errors import StoreError
from asyncloader.stores.http.client import HttpStore
from asyncloader.stores.http.redirects import (
    NotPublicError,
    PublicResolver,
    WatchingResolver,
    fault_of,
    is_public,
    next_url,
    origin_of,
)
from asyncloader.stores.store import Body

Fetch = Callable[..., Awaitable[tuple[Body, bytes]]]
Serve = Callable[..., testing.Server]


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:4700::1111", True),
        ("::ffff:8.8.8.8", True),
        ("64:ff9b::8.8.8.8", True),
        ("2002:808:808::1", True),
        ("0.0.0.0", False),
        ("10.1.2.3", False),
        ("100.64.0.1", False),
        ("127.0.0.1", False),
        ("127.255.1.1", False),
        ("169.254.169.254", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("198.18.0.1", False),
        ("224.0.0.1", False),
        ("240.0.0.1", False),
        ("255.255.255.255", False),
        ("::", False),
        ("::1", False),
        ("::7f00:1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:a00:1", False),
        ("64:ff9b::127.0.0.1", False),
        ("64:ff9b::a9fe:a9fe", False),
        ("2002:7f00:1::", False),
        ("fc00::1", False),
        ("fd00:ec2::254", False),
        ("fe80::1", False),
        ("fe80::1%eth0", False),
        ("fec0::1", False),
        ("ff02::1", False),
        ("2001:db8::1", False),
        ("127.1", False),
        ("2130706433", False),
        ("127.0.0.1.", False),
        ("no address", False),
        ("", False),
    ],
)
def test_an_address_is_public_if_all_the_internet_means_the_same_by_it(address: str, public: bool) -> None:
    assert is_public(address) is public


@pytest.mark.parametrize(
    ("here", "there", "from_public", "fault"),
    [
        ("http://h/x", "http://h/y", True, None),
        ("http://h/x", "https://h/y", True, None),
        ("https://h/x", "https://other/y", True, None),
        ("http://10.0.0.1/x", "http://127.0.0.1/y", False, None),
        ("http://h/x", "http://93.184.216.34/y", True, None),
        ("http://h/x", "http://[2606:4700::1111]:80/y", True, None),
        ("https://h/x", "http://h/x", False, "https to http"),
        ("HTTPS://h/x", "HTTP://h/x", True, "https to http"),
        ("http://h/x", "ftp://h/x", False, "no http"),
        ("http://h/x", "file:///etc/passwd", False, "no http"),
        ("http://h/x", "http:///x", False, "no http"),
        ("http://h/x", "http://127.0.0.1/y", True, "private"),
        ("http://h/x", "http://127.1/y", True, "private"),
        ("http://h/x", "http://169.254.169.254/latest/meta-data", True, "private"),
        ("http://h/x", "http://user:pw@10.0.0.1:81/y", True, "private"),
        ("http://h/x", "http://[::1]/y", True, "private"),
        ("http://h/x", "http://[::ffff:10.0.0.1]/y", True, "private"),
    ],
)
def test_what_a_redirect_may_lead_to(here: str, there: str, from_public: bool, fault: str | None) -> None:
    found = fault_of(URL(here, encoded=True), URL(there, encoded=True), from_public)
    assert (found is None) if fault is None else (found is not None and fault in found)


@pytest.mark.parametrize(
    ("location", "url"),
    [
        ("/y?sig=a%2Fb%2B", "http://h:81/y?sig=a%2Fb%2B"),
        ("y", "http://h:81/d/y"),
        ("../y", "http://h:81/y"),
        ("?z", "http://h:81/d/x?z"),
        ("//o/y", "http://o/y"),
        ("https://o/y%2c#part", "https://o/y%2c"),
        (" http://o/y ", "http://o/y"),
    ],
)
def test_a_location_is_relative_to_the_url_that_sent_it(location: str, url: str) -> None:
    assert next_url("http://h:81/d/x?q", location) == url


def test_an_origin_is_scheme_host_and_port() -> None:
    assert origin_of(URL("http://H.:80/x")) == origin_of(URL("http://u:p@h/y?q"))
    others = ["https://h/", "http://h:81/", "http://www.h/"]
    assert len({origin_of(URL(url)) for url in ["http://h/", *others]}) == 4


class TableResolver(AbstractResolver):
    """Resolves by a table, which a test may change as the owner of a name may."""

    def __init__(self, table: dict[str, list[str]]) -> None:
        self.table = table

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=0)
            for address in self.table[host]
        ]

    async def close(self) -> None:
        pass


async def test_a_host_that_was_public_once_stays_public() -> None:
    inner = TableResolver(
        {"h": ["93.184.216.34"], "mixed": ["10.0.0.1", "93.184.216.34"], "in": ["10.0.0.1"]}
    )
    watching = WatchingResolver(inner)
    for host in inner.table:
        await watching.resolve(host)
    inner.table["h"] = ["10.0.0.1"]
    assert (await watching.resolve("h"))[0]["host"] == "10.0.0.1"
    public = [host for host in ("h", "H.", "mixed", "in", "10.0.0.1", "8.8.8.8") if watching.is_public(host)]
    assert public == ["h", "H.", "mixed", "8.8.8.8"]


async def test_a_name_with_any_private_address_is_not_found_by_the_public_resolver() -> None:
    inner = TableResolver({"h": ["93.184.216.34"], "mixed": ["93.184.216.34", "10.0.0.1"]})
    resolver = PublicResolver(inner)
    assert (await resolver.resolve("h", 80))[0]["host"] == "93.184.216.34"
    with pytest.raises(NotPublicError):
        await resolver.resolve("mixed")
    inner.table["h"] = ["127.0.0.1"]
    with pytest.raises(NotPublicError):
        await resolver.resolve("h")


def test_a_public_server_cannot_send_anybody_to_a_private_address(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text(HOSTS)
    outcomes = json.loads(_run_in_a_network_of_its_own("public_network.py", hosts))
    for case, found in outcomes.items():
        source, _, target = case.partition(" -> ")
        if source in (PUBLIC, "public.test") and target not in (PUBLIC, "other.test"):
            assert "private, loopback or link-local" in found, case
        else:
            assert found == "read", case
        assert "SENTINEL" not in found
    assert len(outcomes) == 20


def _run_in_a_network_of_its_own(program: str, hosts: Path) -> str:
    """What the program prints where only ``lo`` is, with a public address, and names are as in ``hosts``."""
    unshare, ip = shutil.which("unshare"), shutil.which("ip", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if unshare is None or ip is None:
        pytest.skip("unshare and ip (util-linux, iproute2) are not installed")
    prepare = f"{ip} link set lo up && {ip} addr add {PUBLIC}/32 dev lo && mount --bind {hosts} /etc/hosts"
    namespace = [unshare, "--user", "--map-root-user", "--net", "--mount", "sh", "-c"]
    allowed = subprocess.run([*namespace, prepare], capture_output=True, text=True, timeout=20)
    if allowed.returncode != 0:
        pytest.skip(f"network namespaces are not permitted here: {allowed.stderr.strip()}")
    path = Path(__file__).with_name(program)
    run = subprocess.run(
        [*namespace, f"{prepare} && exec {sys.executable} -W error {path}"],
        capture_output=True,
        text=True,
        timeout=40,
        env=os.environ | {"PYTHONPATH": str(Path(asyncloader.__file__).parent.parent)},
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
async def test_a_redirect_is_followed_with_range_and_version(
    serve: Serve, http: HttpStore, fetch: Fetch, code: int
) -> None:
    server = serve({"x": bytes(100)}, [testing.Redirect("/x", code=code, key="moved")])
    first, _ = await fetch(http, server.url_of("x"))
    body, content = await fetch(http, server.url_of("moved"), 10, 20, first.etag)
    assert (body.start, content) == (10, bytes(10))
    assert [entry.headers["if-match"] for entry in server.requests[1:]] == [first.etag] * 2


async def test_five_redirects_are_followed_and_no_more(serve: Serve, http: HttpStore, fetch: Fetch) -> None:
    faults = [testing.Redirect(f"/{number - 1}", key=str(number)) for number in range(1, 7)]
    server = serve({"0": b"abc"}, faults)
    assert (await fetch(http, server.url_of("5")))[1] == b"abc"
    with pytest.raises(StoreError, match="more than 5 times") as caught:
        await fetch(http, server.url_of("6"))
    assert caught.value.shard == server.url_of("6")


@pytest.mark.parametrize(
    "location", ["ftp://h/x?SENTINEL", "https://?SENTINEL", "http://h:port/?SENTINEL", "http://[h/"]
)
async def test_a_redirect_to_what_is_no_url_is_an_error_without_its_secrets(
    serve: Serve, http: HttpStore, fetch: Fetch, location: str
) -> None:
    server = serve({"x": b""}, [testing.Redirect(location)])
    with pytest.raises(StoreError, match="no http") as caught:
        await fetch(http, server.url_of("x"))
    assert "SENTINEL" not in all_told(caught.value)
    assert type(caught.value) is StoreError


async def test_a_redirect_to_nowhere_is_an_error(raw_server: Any, http: HttpStore, fetch: Fetch) -> None:
    async with raw_server(b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n") as (url, _):
        with pytest.raises(StoreError, match="no http"):
            await fetch(http, f"{url}/x")


async def test_credentials_stay_with_their_origin(serve: Serve, fetch: Fetch) -> None:
    back = serve({"x": b"abc", "kept": b"abc"}, [testing.Redirect("/kept", key="own")])
    elsewhere = serve({}, [testing.Redirect(back.url_of("x"))])
    first = serve({"x": b"abc"}, [testing.Redirect(elsewhere.url_of("x"), key="x")])
    async with HttpStore.open(headers={"Authorization": "Bearer SENTINEL", "X-Token": "SENTINEL"}) as http:
        assert (await fetch(http, first.url_of("x")))[1] == b"abc"
        assert first.requests[0].headers["authorization"] == "Bearer SENTINEL"
        assert first.requests[0].headers["x-token"] == "SENTINEL"
        for entry in (elsewhere.requests[0], back.requests[0]):
            assert "SENTINEL" not in str(entry.headers)
        await fetch(http, back.url_of("own"))
        assert [entry.headers["x-token"] for entry in back.requests[1:]] == ["SENTINEL"] * 2


@dataclass(frozen=True)
class RedirectLater(testing.Fault):
    """A redirect whose location is known when both servers run."""

    location: list[str]

    def apply(self, request: Any, obj: Any, response: Any) -> Any:
        return testing.Redirect(self.location[0]).apply(request, obj, response)


async def test_credentials_are_not_sent_again_after_another_origin(serve: Serve, fetch: Fetch) -> None:
    end: list[str] = []
    away = serve({}, [RedirectLater(end)])
    home = serve({"end": b"abc"}, [testing.Redirect(away.url_of("x"), key="x")])
    end.append(home.url_of("end"))
    async with HttpStore.open(headers={"X-Token": "SENTINEL"}) as http:
        assert (await fetch(http, home.url_of("x")))[1] == b"abc"
    assert ["x-token" in entry.headers for entry in home.requests] == [True, False]


async def test_user_info_is_sent_to_its_origin_only(serve: Serve, fetch: Fetch) -> None:
    target = serve({"x": b"abc"})
    first = serve({}, [testing.Redirect(target.url_of("x"))])
    url = first.url_of("x").replace("http://", "http://me:p%40ss@")
    async with HttpStore.open(headers={"authorization": "Bearer other"}) as http:
        assert (await fetch(http, url))[1] == b"abc"
    assert first.requests[0].headers["authorization"] == "Basic bWU6cEBzcw=="
    assert "authorization" not in target.requests[0].headers


async def test_user_info_of_a_location_is_not_sent(serve: Serve, http: HttpStore, fetch: Fetch) -> None:
    target = serve({"x": b"abc"})
    location = target.url_of("x").replace("http://", "http://evil:twin@")
    await fetch(http, serve({}, [testing.Redirect(location)]).url_of("x"))
    assert "authorization" not in target.requests[0].headers


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refusal_behind_a_redirect_is_the_shards_and_each_read_starts_anew(
    serve: Serve, http: HttpStore, fetch: Fetch, status: int
) -> None:
    content = serve({"x": b"abc"}, [testing.Status(status, times=1)])
    first = serve({}, [testing.Redirect(content.url_of("x") + "?sig=SENTINEL")])
    with pytest.raises(StoreError) as caught:
        await fetch(http, first.url_of("x"))
    assert (caught.value.shard, caught.value.status) == (first.url_of("x"), status)
    assert (await fetch(http, first.url_of("x")))[1] == b"abc"
    assert len(first.requests) == 2
