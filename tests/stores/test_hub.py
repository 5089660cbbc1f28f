from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from telling import all_told

from asyncloader import testing
from asyncloader.errors import StoreError
from asyncloader.stores import hub as hub_module
from asyncloader.stores.failures import TransientError
from asyncloader.stores.hub import (
    Hub,
    HubPath,
    check_options,
    hub_of,
    list_pages,
    next_page,
    open_store,
    parse_hub_url,
    parse_tree,
)
from asyncloader.stores.store import Body, NetworkPolicy, Store
from asyncloader.stores.urls import split_key

Fetch = Callable[..., Awaitable[tuple[Body, bytes]]]
Serve = Callable[..., testing.Server]


@pytest.fixture(autouse=True)
def no_hub_in_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HF_ENDPOINT", "HF_TOKEN", "HF_TOKEN_PATH", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("hf://datasets/me/set/a/b.tar", ("me/set", "main", "a/b.tar")),
        ("hf://datasets/me/set@v1.0/x", ("me/set", "v1.0", "x")),
        ("hf://datasets/me/set@refs%2Fpr%2F3/x", ("me/set", "refs/pr/3", "x")),
        ("hf://datasets/me/set@refs/pr/3/x", ("me/set", "refs/pr/3", "x")),
        ("hf://datasets/me/set@refs/convert/parquet/x/y", ("me/set", "refs/convert/parquet", "x/y")),
        ("hf://datasets/me/set@refs/x", ("me/set", "refs", "x")),
        ("hf://datasets/me/set/a@b.tar", ("me/set", "main", "a@b.tar")),
        ("hf://datasets/me/set/a?b#c%20d", ("me/set", "main", "a?b#c%20d")),
        ("hf://datasets/me/set", ("me/set", "main", "")),
        ("hf://datasets/me/set@dev/", ("me/set", "dev", "")),
        ("hf://datasets/me/set/folder/", ("me/set", "main", "folder/")),
    ],
)
def test_a_url_names_data_set_revision_and_path(url: str, parts: tuple[str, str, str]) -> None:
    assert parse_hub_url(url) == HubPath(*parts)


@pytest.mark.parametrize(
    "url",
    [
        "hf://models/me/set/x",
        "hf://me/model/x",
        "hf://spaces/me/app/x",
        "hf://datasets/only/",
        "hf://datasets//set/x",
        "hf://datasets/me/se t/x",
        "hf://datasets/me/set@/x",
        "hf://datasets/me/set/../x",
        "hf://datasets/me/set/a//x",
        "hf://datasets/me/set/./x",
        "hf://datasets/me/..",
    ],
)
def test_what_names_no_file_of_a_data_set_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"datasets/OWNER/NAME|segment"):
        parse_hub_url(url)


def test_the_path_and_the_revision_are_quoted() -> None:
    place = HubPath("me/set", "refs/pr/3", "a b/\u00e4?#%.tar")
    quoted = "a%20b/%C3%A4%3F%23%25.tar"
    assert place.file_url("https://e") == f"https://e/datasets/me/set/resolve/refs%2Fpr%2F3/{quoted}"
    assert place.tree_url("https://e/p") == (
        f"https://e/p/api/datasets/me/set/tree/refs%2Fpr%2F3/{quoted}?recursive=true"
    )
    everything = HubPath("me/set", "main", "").tree_url("https://e")
    assert everything == "https://e/api/datasets/me/set/tree/main?recursive=true"


def test_option_then_environment_then_the_official_hub() -> None:
    assert hub_of({}, {"HF_HOME": "/nowhere"}) == Hub("https://huggingface.co", None)
    environ = {"HF_ENDPOINT": "https://mirror/hf/", "HF_TOKEN": " env\n"}
    assert hub_of({}, environ) == Hub("https://mirror/hf", "env")
    assert hub_of({"endpoint": "http://own/", "token": "opt"}, environ) == Hub("http://own", "opt")


def test_a_token_is_found_in_its_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("in-home\n")
    (tmp_path / "path").write_text("in-path\n")
    (tmp_path / "empty").write_text("\n")
    home = {"HF_HOME": str(tmp_path)}
    assert hub_of({}, home).token == "in-home"
    assert hub_of({}, home | {"HF_TOKEN_PATH": str(tmp_path / "path")}).token == "in-path"
    assert hub_of({}, home | {"HF_TOKEN_PATH": str(tmp_path / "empty")}).token is None
    assert hub_of({}, home | {"HF_TOKEN": "in-env"}).token == "in-env"
    (tmp_path / "huggingface").mkdir()
    (tmp_path / "huggingface" / "token").write_text("in-cache")
    assert hub_of({}, {"XDG_CACHE_HOME": str(tmp_path)}).token == "in-cache"


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"tokens": "SENTINEL"}, ValueError),
        ({"token": 7}, TypeError),
        ({"token": True}, TypeError),
        ({"token": "SENTINEL\r\nX: y"}, ValueError),
        ({"token": ""}, ValueError),
        ({"endpoint": "s3://SENTINEL"}, ValueError),
        ({"endpoint": "https://me:SENTINEL@h"}, ValueError),
        ({"endpoint": "https://h?SENTINEL"}, ValueError),
        ({"endpoint": "https://[SENTINEL"}, ValueError),
    ],
)
def test_wrong_options_are_refused_without_their_values(
    options: dict[str, Any], kind: type[Exception]
) -> None:
    with pytest.raises(kind) as caught:
        check_options("hf", options)
    assert "SENTINEL" not in str(caught.value)


def test_a_wrong_environment_is_refused_without_its_values() -> None:
    for environ in ({"HF_ENDPOINT": "SENTINEL"}, {"HF_TOKEN": "SENTINEL \u00e4"}):
        with pytest.raises(ValueError) as caught:
            hub_of({}, environ)
        assert "SENTINEL" not in str(caught.value)
    assert "SENTINEL" not in repr(Hub("https://h", "SENTINEL"))


CONTENT = bytes(range(256)) * 4


def store_of(hub: testing.Server) -> AbstractAsyncContextManager[Store]:
    return open_store("hf", "", {"endpoint": hub.url, "token": "SENTINEL"}, NetworkPolicy())


async def test_a_file_is_read_and_the_token_stays_with_the_hub(serve: Serve, fetch: Fetch) -> None:
    network = serve({"blob": CONTENT})
    redirect = testing.Redirect(network.url_of("blob") + "?sig=SENTINEL")
    hub = serve({}, [redirect])
    async with store_of(hub) as store:
        for start in (0, 100):
            body, content = await fetch(store, "hf://datasets/me/set/a b.tar", start, start + 10)
            assert (body.start, body.total, content) == (start, 1024, CONTENT[start : start + 10])
    assert {entry.path for entry in hub.requests} == {"/datasets/me/set/resolve/main/a b.tar"}
    assert [entry.headers["authorization"] for entry in hub.requests] == ["Bearer SENTINEL"] * 2
    assert not any("authorization" in entry.headers for entry in network.requests)


@pytest.mark.parametrize("fault", [testing.Status(403), testing.Status(500), testing.CutAt(0)], ids=repr)
async def test_errors_name_the_shard_as_it_was_listed(
    serve: Serve, fetch: Fetch, fault: testing.Fault
) -> None:
    url = "hf://datasets/me/set@dev/x.tar"
    hub = serve({"datasets/me/set/resolve/dev/x.tar": CONTENT}, [fault])
    async with store_of(hub) as store:
        with pytest.raises(StoreError) as caught:
            await fetch(store, url)
    assert caught.value.shard == url
    assert "SENTINEL" not in all_told(caught.value)


def test_a_tree_is_files_and_folders() -> None:
    page = [
        {"type": "directory", "path": "a", "oid": "1"},
        {"type": "file", "path": "a/x.tar", "size": 7, "lfs": {"size": 7}},
        {"type": "file", "path": "b", "size": 0},
    ]
    assert parse_tree(json.dumps(page).encode()) == [("a/x.tar", 7), ("b", 0)]


@pytest.mark.parametrize(
    "page",
    [
        {"error": "gone"},
        None,
        ["a"],
        [{"path": "a"}],
        [{"type": "file", "path": "a"}],
        [{"type": "file", "path": 1, "size": 1}],
        [{"type": "file", "path": "a", "size": True}],
        [{"type": "file", "path": "a", "size": -1}],
    ],
)
def test_what_is_no_tree_is_refused(page: Any) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_tree(json.dumps(page).encode())


@pytest.mark.parametrize(
    ("link", "target"),
    [
        (None, None),
        ("", None),
        ('<https://h/x?cursor=a%3D,b>; rel="next"', "https://h/x?cursor=a%3D,b"),
        ('<https://h/1>; rel="prev", <https://h/2>; title="y"; rel="next"', "https://h/2"),
        ("<https://h/2>; rel=next", "https://h/2"),
        ('<https://h/1>; rel="last"', None),
    ],
)
def test_the_next_page_is_in_the_link_header(link: str | None, target: str | None) -> None:
    assert next_page(link) == target


async def list_hub(
    url: str, options: dict[str, Any], network: NetworkPolicy | None = None
) -> list[tuple[str, int]]:
    root, folder = split_key(url)
    pages = list_pages(root, folder, options, network or NetworkPolicy())
    return [(root + key, size) async for page in pages for key, size in page]


def tree(*files: tuple[str, int]) -> bytes:
    return json.dumps([{"type": "file", "path": path, "size": size} for path, size in files]).encode()


def paged(serve: Serve, *faults: testing.Fault) -> testing.Server:
    """A hub that lists three pages of one folder; the links lead to another host, as a mirror's do."""
    page = "api/datasets/me/set/tree/v1/train"
    link = f'<https://huggingface.co/{page}?recursive=true&cursor=%s>; rel="next"'
    contents = {page: tree(("train/2", 2)), "second": tree(("train/1", 1)), "third": tree(("train/0 a", 0))}
    return serve(
        contents,
        [
            testing.Redirect("/second", key=page, query="*cursor=2"),
            testing.Redirect("/third", key=page, query="*cursor=3%3D"),
            testing.Headers({"Link": link % "2"}, key=page, query="recursive=true"),
            testing.Headers({"Link": link % "3%3D"}, key="second"),
            *faults,
        ],
    )


async def test_a_folder_is_listed_page_by_page(serve: Serve) -> None:
    server = paged(serve)
    listed = await list_hub("hf://datasets/me/set@v1/train", {"endpoint": server.url, "token": "SENTINEL"})
    base = "hf://datasets/me/set@v1/train"
    assert listed == [(f"{base}/0 a", 0), (f"{base}/1", 1), (f"{base}/2", 2)]
    assert all(entry.headers["authorization"] == "Bearer SENTINEL" for entry in server.requests)
    assert await list_hub(f"{base}/", {"endpoint": server.url}) == listed


async def test_pages_without_an_end_are_an_error(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "_MOST_PAGES", 2)
    with pytest.raises(StoreError, match="more than 2 pages"):
        await list_hub("hf://datasets/me/set@v1/train", {"endpoint": paged(serve).url})


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (testing.Status(404), "404"),
        (testing.Status(401, query="*cursor*"), "401"),
        (testing.Redirect("/x", times=1), "404"),
        (testing.CutAt(3), "cut"),
    ],
    ids=repr,
)
async def test_a_listing_that_cannot_be_had_is_an_error_of_the_folder(
    serve: Serve, fault: testing.Fault, message: str
) -> None:
    url = "hf://datasets/me/set@v1/train"
    with pytest.raises(StoreError, match=message) as caught:
        await list_hub(url, {"endpoint": paged(serve, fault).url, "token": "SENTINEL"})
    assert caught.value.shard == url
    assert "SENTINEL" not in all_told(caught.value)


@pytest.mark.parametrize("content", [b"<html>", b"{}", b"\xff", b""])
async def test_an_answer_that_is_no_listing_is_an_error(serve: Serve, content: bytes) -> None:
    server = serve({"api/datasets/me/set/tree/main": content})
    with pytest.raises(StoreError, match="no listing"):
        await list_hub("hf://datasets/me/set", {"endpoint": server.url})


async def test_a_listing_that_does_not_come_is_an_error_in_time(serve: Serve) -> None:
    server = serve({"api/datasets/me/set/tree/main": tree()}, [testing.Stall(1, 30)])
    network = NetworkPolicy(connect_s=0.1, first_byte_s=0.1)
    with pytest.raises(TransientError, match=r"within 0\.2 s"):
        await list_hub("hf://datasets/me/set", {"endpoint": server.url}, network=network)


async def test_an_empty_folder_has_no_files(serve: Serve) -> None:
    server = serve({"api/datasets/me/set/tree/main": tree()})
    assert await list_hub("hf://datasets/me/set", {"endpoint": server.url}) == []
