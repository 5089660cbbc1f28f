"""The options of web servers, checked where they are given."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import asyncloader as al
from asyncloader import testing
from asyncloader.stores.http.backend import check_options
from asyncloader.stores.urls import SCHEMES


def test_headers_of_the_user_are_options() -> None:
    assert SCHEMES["http"].own_options == {"headers"}
    check_options("https", {"proxy": "http://me:SENTINEL@proxy:3128"})
    check_options("https", {"proxy_url": "https://proxy"})
    check_options("http", {"proxy": "environment"})
    check_options("https", {})
    check_options("https", {"headers": {"Authorization": "Bearer x", "X-Token": "\u00e4 b"}})


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"header": {"a": "SENTINEL"}}, ValueError),
        ({"headers": "Authorization: SENTINEL"}, TypeError),
        ({"headers": {"A": b"SENTINEL"}}, TypeError),
        ({"headers": {"A": None}}, TypeError),
        ({"headers": {1: "SENTINEL"}}, TypeError),
        ({"headers": {"A": "SENTINEL\r\nRange: bytes=0-1"}}, ValueError),
        ({"headers": {"A": "SENTINEL\x00"}}, ValueError),
        ({"headers": {"A: SENTINEL": "x"}}, ValueError),
        ({"headers": {"A\n": "SENTINEL"}}, ValueError),
        ({"headers": {"": "SENTINEL"}}, ValueError),
        ({"headers": {"Range": "SENTINEL"}}, ValueError),
        ({"headers": {"if-match": "SENTINEL"}}, ValueError),
        ({"headers": {"Accept-encoding": "SENTINEL"}}, ValueError),
        ({"headers": {"HOST": "SENTINEL"}}, ValueError),
        ({"headers": {"a": "SENTINEL", "A": "SENTINEL"}}, ValueError),
        ({"proxy": "SENTINEL:3128"}, ValueError),
        ({"proxy": ["SENTINEL"]}, TypeError),
        ({"proxy": "http://SENTINEL", "proxy_url": "http://SENTINEL"}, ValueError),
        ({"root_certificate": "/nowhere/SENTINEL.pem"}, ValueError),
        ({"root_certificate": "-----BEGIN CERTIFICATE-----SENTINEL"}, ValueError),
        ({"root_certificate": "\u00fc -----BEGIN CERTIFICATE-----SENTINEL"}, ValueError),
        ({"root_certificate": 3}, TypeError),
    ],
)
def test_wrong_options_are_refused_without_their_values(
    options: dict[str, Any], kind: type[Exception]
) -> None:
    with pytest.raises(kind) as caught:
        check_options("https", options)
    assert "SENTINEL" not in str(caught.value)


@contextmanager
def forwarding(content: bytes) -> Iterator[tuple[str, list[str]]]:
    """A proxy that has the same object behind every URL, and what it was asked for."""
    asked: list[str] = []

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked.append(self.path)
            is_there = self.path.endswith(".txt")
            self.send_response(200 if is_there else 404)
            self.send_header("Content-Length", str(len(content) if is_there else 0))
            self.end_headers()
            self.wfile.write(content if is_there else b"")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def texts(url: str, **options: Any) -> list[str]:
    once = al.NetworkPolicy(attempts=1)
    recipe = al.from_urls(url, storage_options=options, network=once, index=None)
    return [sample["text"] for sample in al.DataLoader(recipe, None)]


def test_a_proxy_that_is_named_is_gone_through() -> None:
    with forwarding(b"a\nb\n") as (proxy, asked):
        assert texts("http://nowhere.invalid/x.txt", proxy=proxy) == ["a", "b"]
        assert asked == ["http://nowhere.invalid/x.txt"]
        # It cannot connect us to a server of TLS.
        with pytest.raises(al.StoreError, match=rf"the proxy {proxy} answered 501, and leads to no server"):
            texts("https://nowhere.invalid/x.txt", proxy=proxy)


def test_proxies_of_the_environment_are_used_only_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with testing.serve({"x.txt": b"mine\n"}) as server, forwarding(b"other\n") as (proxy, asked):
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert texts(server.url_of("x.txt")) == ["mine"] and not asked
        assert texts(server.url_of("x.txt"), proxy="environment") == ["other"] and len(asked) == 1
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert texts(server.url_of("x.txt"), proxy="environment") == ["mine"] and len(asked) == 1


@pytest.mark.parametrize("url", ["http://h.invalid/x.txt", "https://h.invalid/x.txt", "s3://bucket/x.txt"])
def test_a_dead_proxy_is_named_without_its_password(url: str) -> None:
    with forwarding(b"") as (proxy, _):
        address = proxy.removeprefix("http://")
    extra = {"region": "x", "anonymous": True} if url.startswith("s3") else {}
    with pytest.raises(al.StoreError, match=rf"the proxy http://{address}.*check the option proxy") as caught:
        texts(url, proxy=f"http://me:SENTINEL@{address}", **extra)
    assert "SENTINEL" not in str(caught.value)
