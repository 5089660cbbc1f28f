"""The same data set is delivered exactly once, byte for byte, by every real server; and what each refuses."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from corpus import tar_of
from servers import run_nginx

import asyncloader as al
from asyncloader.errors import StoreError

from .conftest import KINDS, DataSet, KiB, MiB, Place

SERVERS = ("nginx", "moto", "swift", "azurite", "gcs")

pytestmark = [pytest.mark.servers, pytest.mark.usefixtures("fork_server"), pytest.mark.timeout(120)]

on_every_server = pytest.mark.parametrize("server", SERVERS)
in_every_format = pytest.mark.parametrize("kind", KINDS)
with_and_without_workers = pytest.mark.parametrize("workers", [0, 2])


@pytest.fixture
def place(server: str, request: pytest.FixtureRequest) -> Place:
    """The server of that name, filled."""
    found = request.getfixturevalue(server)
    assert isinstance(found, Place)
    return found


def loader_of(urls: Sequence[str], options: dict[str, Any], **arguments: Any) -> al.DataLoader[Any]:
    """Batches are lists of samples as they were read."""
    return al.DataLoader(al.from_urls(urls, storage_options=options), 4, collate_fn=list, **arguments)


def samples_of(batches: Iterable[list[dict[str, Any]]]) -> list[tuple[str, str]]:
    """Key and digest of every sample, sorted."""
    found = []
    for batch in batches:
        for sample in batch:
            if "__key__" in sample:
                key, content = sample["__key__"], bytes(sample["txt"])
            else:
                key, content = sample["key"], sample["text"].encode()
            found.append((key, sha256(content).hexdigest()))
    return sorted(found)


def refusal(urls: Sequence[str], options: dict[str, Any]) -> StoreError:
    """What reading fails with."""
    with pytest.raises(StoreError) as caught:
        samples_of(loader_of(urls, options))
    return caught.value


@on_every_server
@in_every_format
@with_and_without_workers
def test_every_sample_is_delivered_exactly_once(
    place: Place, kind: str, workers: int, data_sets: dict[str, DataSet]
) -> None:
    data_set = data_sets[kind]
    with loader_of(place.urls(data_set), place.options, num_workers=workers) as loader:
        assert samples_of(loader) == data_set.samples


@on_every_server
def test_an_object_that_changes_in_the_middle_of_an_epoch_is_an_error(place: Place) -> None:
    # More than twice what the loader may read ahead.
    content = tar_of(160, 256 * KiB)
    place.put("changing.tar", content)
    with loader_of([f"{place.url}changing.tar"], place.options, memory_limit=16 * MiB) as loader:
        batches = iter(loader)
        next(batches)
        place.put("changing.tar", content[:-1] + b"x")  # of the same length
        with pytest.raises(StoreError, match="the object was changed while it was being read") as caught:
            samples_of(batches)
    assert caught.value.shard == f"{place.url}changing.tar"
    assert caught.value.offset is not None and caught.value.offset > 0


@on_every_server
def test_resuming_in_an_object_that_became_shorter_is_an_error(place: Place) -> None:
    place.put("shrinking.tar", tar_of(20, KiB))
    with loader_of([f"{place.url}shrinking.tar"], place.options) as loader:
        next(iter(loader))
        state = loader.state_dict()
    place.put("shrinking.tar", tar_of(1, KiB)[: 2 * KiB])
    with loader_of([f"{place.url}shrinking.tar"], place.options) as loader:
        loader.load_state_dict(state)
        with pytest.raises(StoreError, match="the object is shorter than the offset") as caught:
            samples_of(loader)
    assert caught.value.status == 416


@pytest.mark.parametrize("server", ["moto", "swift", "azurite", "gcs"])
@pytest.mark.parametrize(
    "name",
    [
        "white space+plus",
        "50%25",
        "ümläut=[0]~!'()*,:@$;",
        "q?x=1#f&g",
    ],
)
def test_a_key_of_an_object_store_may_hold_any_character(place: Place, name: str) -> None:
    place.put(f"keys/{name}/x.tar", tar_of(2, 10))
    found = samples_of(loader_of([f"{place.url}keys/{name}/x.tar"], place.options))
    assert [key for key, _ in found] == ["000", "001"]


@on_every_server
def test_an_object_that_is_not_there_is_an_error(place: Place) -> None:
    error = refusal([f"{place.url}none.tar"], place.options)
    assert (error.status, error.shard) == (404, f"{place.url}none.tar")


def test_swift_refuses_a_wrong_secret(swift: Place) -> None:
    error = refusal([f"{swift.url}shard-0.tar"], {**swift.options, "secret_access_key": "WRONG-SENTINEL"})
    assert error.status == 403
    assert "SignatureDoesNotMatch; check credentials" in str(error)
    assert "WRONG-SENTINEL" not in str(error)


def test_swift_refuses_strangers(swift: Place) -> None:
    error = refusal([f"{swift.url}shard-0.tar"], {"endpoint": swift.server.endpoint, "anonymous": True})
    assert error.status in (400, 403)


def presigned(place: Place, data_set: DataSet, lifetime_s: int) -> list[str]:
    with closing(place.server.client()) as client:
        return [
            client.generate_presigned_url(
                "get_object", {"Bucket": "corpus", "Key": name}, ExpiresIn=lifetime_s
            )
            for name in data_set.shards
        ]


@in_every_format
@with_and_without_workers
@pytest.mark.parametrize("server", ["swift", "moto"])
def test_presigned_urls_open_what_they_were_signed_for(
    place: Place, kind: str, workers: int, data_sets: dict[str, DataSet]
) -> None:
    urls = presigned(place, data_sets[kind], 600)
    with loader_of(urls, {}, num_workers=workers) as loader:
        assert samples_of(loader) == data_sets[kind].samples


def test_a_presigned_url_that_expires_between_epochs_is_refused(
    swift: Place, data_sets: dict[str, DataSet]
) -> None:
    lifetime_s = 4
    signed = time.monotonic()
    url = presigned(swift, data_sets["tar"], lifetime_s)[0]
    with loader_of([url], {}) as loader:
        assert samples_of(loader) == data_sets["tar"].samples[:3]
        # The server's clock counts in whole seconds, and the URL is good to the end of the last.
        time.sleep(max(0.0, signed + lifetime_s + 2 - time.monotonic()))
        with pytest.raises(StoreError, match="403") as caught:
            samples_of(loader)
    assert caught.value.status == 403
    assert "Signature" not in str(caught.value)


def test_a_presigned_url_that_was_changed_is_refused(swift: Place, data_sets: dict[str, DataSet]) -> None:
    url = presigned(swift, data_sets["tar"], 600)[0]
    assert refusal([url.replace("shard-0.tar", "shard-3.tar")], {}).status == 403


def sas_options(place: Place, query: str) -> dict[str, Any]:
    return {"endpoint": place.server.endpoint, "account_name": place.server.account_name, "sas_key": query}


@with_and_without_workers
def test_azurite_opens_to_a_shared_access_signature(
    azurite: Place, workers: int, data_sets: dict[str, DataSet]
) -> None:
    data_set = data_sets["tar"]
    options = sas_options(azurite, azurite.server.sas("r"))
    with loader_of(azurite.urls(data_set), options, num_workers=workers) as loader:
        assert samples_of(loader) == data_set.samples
    urls = [f"{azurite.server.endpoint}/corpus/{name}?{azurite.server.sas('r')}" for name in data_set.shards]
    with loader_of(urls, {}, num_workers=workers) as loader:
        assert samples_of(loader) == data_set.samples


def test_azurite_refuses_a_shared_access_signature_that_has_expired_or_may_not_read(azurite: Place) -> None:
    late = azurite.server.sas("r", lifetime=-timedelta(minutes=1))
    for query in (late, azurite.server.sas("c")):
        for url, options in (
            (f"{azurite.url}shard-0.tar", sas_options(azurite, query)),
            (f"{azurite.server.endpoint}/corpus/shard-0.tar?{query}", {}),
        ):
            error = refusal([url], options)
            assert error.status == 403
            assert "sig=" not in str(error)


def test_azurite_refuses_a_wrong_key_and_strangers(azurite: Place) -> None:
    stranger = {name: value for name, value in azurite.options.items() if name != "account_key"}
    for options in ({"account_key": "SENTINELSENTINEL"}, {"anonymous": True}):
        error = refusal([f"{azurite.url}shard-0.tar"], {**stranger, **options})
        assert error.status == 403
        assert "SENTINELSENTINEL" not in str(error)


def test_a_query_that_looks_like_a_signature_is_sent_and_not_shown(
    nginx: Place, data_sets: dict[str, DataSet]
) -> None:
    data_set = data_sets["tar"]
    query = "X-Amz-Credential=a%2Fb&X-Amz-Signature=SENTINEL"
    with loader_of([f"{url}?{query}" for url in nginx.urls(data_set)], {}) as loader:
        batches = list(loader)
    assert samples_of(batches) == data_set.samples
    assert {sample["__url__"] for batch in batches for sample in batch} <= set(nginx.urls(data_set))
    error = refusal([f"{nginx.url}none.tar?{query}"], {})
    assert "SENTINEL" not in str(error)


def test_an_nginx_that_compresses_on_the_way_leaves_shards_alone(
    tmp_path: Path, data_sets: dict[str, DataSet]
) -> None:
    data_set = data_sets["jsonl"]
    for name, content in data_set.shards.items():
        (tmp_path / name).write_bytes(content)
    with run_nginx(tmp_path, "gzip on; gzip_types *; gzip_min_length 1; gzip_proxied any;") as url:
        urls = [f"{url}/{name}" for name in data_set.shards]
        assert samples_of(loader_of(urls, {})) == data_set.samples


def test_an_nginx_that_declares_compressed_shards_as_encoded_is_refused(
    tmp_path: Path, data_sets: dict[str, DataSet]
) -> None:
    name = "shard-4.tar.gz"
    (tmp_path / name).write_bytes(data_sets["tar"].shards[name])
    with run_nginx(tmp_path, r"location ~ \.gz$ { add_header Content-Encoding gzip; }") as url:
        error = refusal([f"{url}/{name}"], {})
    assert "the server sent Content-Encoding gzip" in str(error)
    assert error.shard == f"{url}/{name}"
