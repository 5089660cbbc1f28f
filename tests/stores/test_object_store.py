"""Object stores: against moto's S3."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from moto_s3 import KEYS, S3, serve_s3

from asyncloader import testing
from asyncloader.errors import StoreError
from asyncloader.stores.objects.store import ObjectStore
from asyncloader.stores.store import Body

Fetch = Callable[..., Awaitable[tuple[Body, bytes]]]
Shown = Callable[[BaseException], str]
Serve = Callable[..., testing.Server]

MiB = 1 << 20
CONTENT = random.Random(0).randbytes(3 * MiB)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with serve_s3() as s3:
        s3.put("train.tar", CONTENT)
        s3.put("empty", b"")
        yield s3


pytestmark = pytest.mark.usefixtures("no_environment")


@pytest.mark.parametrize(("start", "stop"), [(0, 10), (0, MiB), (MiB - 1, 2 * MiB), (3 * MiB - 1, 9 * MiB)])
async def test_a_range_is_asked_for_and_told(s3: S3, fetch: Fetch, start: int, stop: int) -> None:
    store = ObjectStore("s3", "corpus", s3.options)
    body, content = await fetch(store, "s3://corpus/train.tar", start, stop)
    assert content == CONTENT[start:stop]
    assert (body.start, body.stop, body.total) == (start, min(stop, 3 * MiB), 3 * MiB)
    assert body.etag


async def test_an_empty_object_is_an_empty_body(s3: S3, fetch: Fetch) -> None:
    body, content = await fetch(ObjectStore("s3", "corpus", s3.options), "s3://corpus/empty")
    assert (body.start, body.stop, body.total, content) == (0, 0, 0, b"")


async def test_a_range_behind_the_end_is_an_error(s3: S3, fetch: Fetch) -> None:
    with pytest.raises(StoreError, match="shorter") as caught:
        await fetch(ObjectStore("s3", "corpus", s3.options), "s3://corpus/train.tar", 5 * MiB, 6 * MiB)
    assert (caught.value.status, caught.value.offset) == (416, 5 * MiB)


async def test_a_missing_key_and_a_missing_bucket_are_told_apart(s3: S3, fetch: Fetch, shown: Shown) -> None:
    for bucket, code in (("corpus", "NoSuchKey"), ("nowhere", "NoSuchBucket")):
        with pytest.raises(StoreError, match=code) as caught:
            await fetch(ObjectStore("s3", bucket, s3.options), f"s3://{bucket}/none?sig=SENTINEL", 5)
        assert (caught.value.status, caught.value.offset) == (404, 5)
        assert caught.value.shard == f"s3://{bucket}/none"
        assert "SENTINEL" not in shown(caught.value)


async def test_a_changed_object_is_an_error(s3: S3, fetch: Fetch) -> None:
    s3.put("changing", b"first version")
    store = ObjectStore("s3", "corpus", s3.options)
    body, _ = await fetch(store, "s3://corpus/changing", 0, 5)
    await fetch(store, "s3://corpus/changing", 5, 10, etag=body.etag)
    s3.put("changing", b"second version")
    with pytest.raises(StoreError, match="was changed") as caught:
        await fetch(store, "s3://corpus/changing", 5, 10, etag=body.etag)
    assert (caught.value.status, caught.value.offset) == (412, 5)
    assert str(body.etag) in str(caught.value)


async def test_wrong_credentials_are_an_error_that_does_not_show_them(
    s3: S3, fetch: Fetch, shown: Shown
) -> None:
    s3.check_signatures("0")
    try:
        with pytest.raises(StoreError, match="InvalidAccessKeyId; check credentials") as caught:
            await fetch(ObjectStore("s3", "corpus", s3.options), "s3://corpus/train.tar")
    finally:
        s3.check_signatures("inf")
    assert caught.value.status == 403
    assert "SENTINEL" not in shown(caught.value)


async def test_public_objects_are_read_anonymously(s3: S3, fetch: Fetch) -> None:
    s3.put("public", b"for all", ACL="public-read")
    store = ObjectStore("s3", "corpus", {"endpoint": s3.url, "anonymous": True})
    _, content = await fetch(store, "s3://corpus/public")
    assert content == b"for all"
    with pytest.raises(StoreError, match="403"):
        await fetch(store, "s3://corpus/train.tar")


@pytest.mark.parametrize("key", ["a b/ü+%20&=.tar", "#1?x.tar", "deep/er/x"])
async def test_keys_are_taken_as_written(s3: S3, fetch: Fetch, key: str) -> None:
    s3.put(key, key.encode())
    _, content = await fetch(ObjectStore("s3", "corpus", s3.options), f"s3://corpus/{key}")
    assert content == key.encode()


@pytest.mark.parametrize("key", ["", "/x", "x/", "a//b", "a/../b", "."])
async def test_keys_that_the_client_would_rewrite_are_refused(s3: S3, fetch: Fetch, key: str) -> None:
    with pytest.raises(ValueError, match="segment"):
        await fetch(ObjectStore("s3", "corpus", s3.options), f"s3://corpus/{key}")


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
async def test_endpoint_and_keys_are_found_in_the_environment(
    s3: S3, fetch: Fetch, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, s3.url)
    for name, value in KEYS.items():
        monkeypatch.setenv(f"AWS_{name.upper()}", value)
    _, content = await fetch(ObjectStore("s3", "corpus", {}), "s3://corpus/train.tar", 0, 10)
    assert content == CONTENT[:10]


async def test_what_is_given_wins_over_the_environment(
    s3: S3, fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    _, content = await fetch(ObjectStore("s3", "corpus", s3.options), "s3://corpus/train.tar", 0, 10)
    assert content == CONTENT[:10]


@pytest.mark.parametrize("bucket", ["", "me:SENTINEL@corpus"])
def test_a_name_that_is_no_bucket_is_refused(bucket: str) -> None:
    with pytest.raises(ValueError, match="s3://bucket/key") as caught:
        ObjectStore("s3", bucket, {})
    assert "SENTINEL" not in str(caught.value)


async def test_options_that_the_client_refuses_are_told_without_secrets(fetch: Fetch, shown: Shown) -> None:
    store = ObjectStore("s3", "corpus", {"proxy_url": "http://[SENTINEL"})
    with pytest.raises(ValueError, match=r"s3://corpus with the options given \(proxy_url\)") as caught:
        await fetch(store, "s3://corpus/x")
    assert "SENTINEL" not in shown(caught.value)
    with pytest.raises(ValueError, match=r"az://corpus with the options given \(none\): .*[Aa]ccount"):
        await fetch(ObjectStore("az", "corpus", {}), "az://corpus/x")


@pytest.mark.parametrize("scheme", ["gs", "az"])
async def test_other_clouds_are_read_alike(serve: Serve, fetch: Fetch, scheme: str) -> None:
    server = serve(
        {"corpus/x": CONTENT, "corpus/empty": b""}, [testing.ChangeObject(b"other", key="corpus/x", after=2)]
    )
    options = {"endpoint": server.url, "anonymous": True}
    store = ObjectStore(scheme, "corpus", options | ({"account_name": "me"} if scheme == "az" else {}))
    body, content = await fetch(store, f"{scheme}://corpus/x", 10, 20)
    assert (body.start, body.stop, body.total, content) == (10, 20, 3 * MiB, CONTENT[10:20])
    await fetch(store, f"{scheme}://corpus/x", 20, 30, etag=body.etag)
    with pytest.raises(StoreError, match="was changed"):
        await fetch(store, f"{scheme}://corpus/x", 30, 40, etag=body.etag)
    _, content = await fetch(store, f"{scheme}://corpus/empty")
    assert content == b""
    with pytest.raises(StoreError, match="404"):
        await fetch(store, f"{scheme}://corpus/none")


async def test_a_shared_access_signature_is_sent_and_never_shown(
    serve: Serve, fetch: Fetch, shown: Shown
) -> None:
    server = serve({}, [testing.Status(500)])
    options = {"endpoint": server.url, "account_name": "me", "sas_key": "sv=1&sig=SENTINEL"}
    with pytest.raises(StoreError, match="500") as caught:
        await fetch(ObjectStore("az", "corpus", options), "az://corpus/x")
    assert "SENTINEL" not in shown(caught.value)


def test_shards_are_read_through_the_router(s3: S3, reading: Any) -> None:
    contents = {f"shard-{size}": CONTENT[:size] for size in (0, 1, MiB - 1, MiB, MiB + 1, 3 * MiB)}
    for key, content in contents.items():
        s3.put(key, content)
    urls = [f"s3://corpus/{key}" for key in contents]
    with reading([*urls, (urls[-1], 2 * MiB), (urls[-1], 3 * MiB)], 8 * MiB, s3.options) as run:
        assert run.all_shards() == [*contents.values(), CONTENT[2 * MiB :], b""]


async def test_a_packed_object_is_given_as_it_is_stored(s3: S3, fetch: Fetch) -> None:
    s3.put("packed", CONTENT[:1000], ContentEncoding="gzip")
    body, content = await fetch(ObjectStore("s3", "corpus", s3.options), "s3://corpus/packed", 10, 20)
    assert (body.total, content) == (1000, CONTENT[10:20])


async def test_a_session_token_of_the_environment_is_not_joined_to_keys_that_are_given(
    s3: S3, fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of others")
    s3.put("mine", b"x")
    s3.check_signatures("0")
    try:
        with pytest.raises(StoreError, match="InvalidAccessKeyId"):  # with a token: InvalidToken
            await fetch(ObjectStore("s3", "corpus", s3.options), "s3://corpus/mine")
    finally:
        s3.check_signatures("inf")
