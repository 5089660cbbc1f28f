"""The table of schemes: each row is whole, and stores in one recipe are told their own options."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

import asyncloader as al
from asyncloader.observe.statistics import NetworkCounts
from asyncloader.stores import hub
from asyncloader.stores.http import backend as http
from asyncloader.stores.local import LocalStore
from asyncloader.stores.objects import backend as objects
from asyncloader.stores.router import Backend, ListedBackend, Stores, backend_of, lister_of
from asyncloader.stores.store import Access
from asyncloader.stores.urls import SCHEMES

URLS = {
    "http": "http://h/x.tar",
    "https": "https://h/x.tar",
    "s3": "s3://b/x.tar",
    "gs": "gs://b/x.tar",
    "az": "az://c/x.tar",
    "hf": "hf://datasets/me/set/x.tar",
    "file": "file:///x.tar",
}


#: So that the type checker holds each file to its protocol: the table names them by text alone.
BACKENDS: tuple[Backend, ...] = (http, objects, hub)
LISTED: tuple[ListedBackend, ...] = (objects, hub)


def test_the_files_of_stores_are_those_that_are_checked_to_keep_the_protocol() -> None:
    remote = [row for row in SCHEMES.values() if not row.is_local]
    assert all(backend_of(row) in BACKENDS for row in remote)
    assert all(lister_of(row) in LISTED for row in remote if row.is_listed)


@pytest.mark.parametrize("name", SCHEMES)
async def test_each_scheme_has_a_store(name: str) -> None:
    row, url = SCHEMES[name], URLS[name]
    async with AsyncExitStack() as resources:
        store = await Stores(resources, Access(), NetworkCounts()).of(url)
        assert isinstance(store, LocalStore) is row.is_local
    if not row.is_local:
        backend_of(row).check_options(name, {})
        server, key = backend_of(row).locate(url, {}, {})
        assert server.startswith(name) and key.endswith("x.tar" if not row.is_web else "x.tar?")


@pytest.mark.parametrize("name", [name for name, row in SCHEMES.items() if row.is_listed])
def test_each_scheme_that_is_listed_has_a_lister(name: str) -> None:
    assert callable(lister_of(SCHEMES[name]).list_pages)


@pytest.mark.parametrize("name", [name for name, row in SCHEMES.items() if not row.is_local])
def test_an_endpoint_is_another_server_wherever_there_is_one(name: str) -> None:
    locate, url = backend_of(SCHEMES[name]).locate, URLS[name]
    own = locate(url, {"endpoint": "https://own/"}, {})
    assert (own == locate(url, {}, {})) is SCHEMES[name].is_web
    assert own == locate(url, {"endpoint": "https://own"}, {})


@pytest.mark.parametrize("name", ["s3", "hf"])
async def test_headers_of_web_servers_are_no_matter_to_another_store_of_the_recipe(name: str) -> None:
    urls, options = [URLS["https"], URLS[name]], {"headers": {"Authorization": "Bearer SENTINEL"}}
    al.from_urls(urls, storage_options=options, index=None)
    async with AsyncExitStack() as resources:
        stores = Stores(resources, Access(options), NetworkCounts())
        for url in urls:
            await stores.of(url)  # was a ValueError in the worker, where the other is opened


@pytest.mark.parametrize("urls", [[URLS["hf"]], [URLS["s3"], URLS["gs"]]])
def test_headers_that_no_store_of_a_recipe_sends_are_refused(urls: list[str]) -> None:
    with pytest.raises(ValueError, match="unknown option 'headers' for "):
        al.from_urls(urls, storage_options={"headers": {}})
