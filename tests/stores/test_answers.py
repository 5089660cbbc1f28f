"""What servers answer, as a table: no server is needed to see that an answer is not the one asked for."""

from __future__ import annotations

import hashlib
from base64 import b64encode

import pytest
from multidict import CIMultiDict

from asyncloader.errors import StoreError
from asyncloader.stores.failures import ThrottledError, TransientError
from asyncloader.stores.http.answers import Asked, body_of, request_headers
from asyncloader.stores.store import Body

URL = "https://me:SENTINEL@h/x?sig=SENTINEL"
OLD, NEW = "Wed, 21 Oct 2015 07:28:00 GMT", "Wed, 21 Oct 2015 07:28:01 GMT"


def answered(
    status: int, headers: dict[str, str], *, start: int = 10, stop: int = 20, etag: str | None = None
) -> Body:
    return body_of(Asked(URL, start, stop, etag), status, CIMultiDict(headers), now_s=0.0)


@pytest.mark.parametrize(
    ("etag", "condition"),
    [
        (None, {}),
        ('"v1"', {"If-Match": '"v1"'}),
        ('W/"v1"', {}),
        (f"last-modified:{OLD}", {"If-Unmodified-Since": OLD}),
    ],
)
def test_a_request_asks_for_a_range_of_a_version(etag: str | None, condition: dict[str, str]) -> None:
    assert request_headers(Asked(URL, 10, 20, etag)) == {"Range": "bytes=10-19", **condition}


@pytest.mark.parametrize(
    ("headers", "span"),
    [
        ({"Content-Range": "bytes 10-19/100", "Content-Length": "10"}, (10, 20, 100)),
        ({"content-range": "bytes 10-19/20"}, (10, 20, 20)),
        ({"Content-Range": "bytes 10-14/15", "Content-Length": "5"}, (10, 15, 15)),
    ],
)
def test_a_part_is_the_range_asked_for_or_what_there_is_of_it(
    headers: dict[str, str], span: tuple[int, int, int]
) -> None:
    body = answered(206, headers)
    assert (body.start, body.stop, body.total) == span


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Range": ""},
        {"Content-Range": "bytes 9-19/100"},
        {"Content-Range": "bytes 11-19/100"},
        {"Content-Range": "bytes 10-20/100"},
        {"Content-Range": "bytes 10-18/100"},
        {"Content-Range": "bytes 10-19/19"},
        {"Content-Range": "bytes 10-9/10"},
        {"Content-Range": "bytes 10-19/*"},
        {"Content-Range": "bytes */100"},
        {"Content-Range": "lines 10-19/100"},
        {"Content-Range": "10-19/100"},
        {"Content-Type": "multipart/byteranges; boundary=x"},
        {"Content-Range": "bytes 10-19/100", "Content-Length": "11"},
        {"Content-Range": "bytes 10-19/100", "Content-Length": "100"},
    ],
)
def test_another_part_than_asked_for_may_be_another_next_time(headers: dict[str, str]) -> None:
    with pytest.raises(TransientError, match="Content-Range") as caught:
        answered(206, headers)
    assert (caught.value.shard, caught.value.offset) == ("https://h/x", 10)


@pytest.mark.parametrize(
    ("headers", "total"),
    [
        ({"Content-Length": "100"}, 100),
        ({"Transfer-Encoding": "chunked"}, None),
        ({"Transfer-Encoding": "Chunked", "Content-Length": "3"}, None),
    ],
)
def test_a_whole_object_is_one_from_byte_0(headers: dict[str, str], total: int | None) -> None:
    body = answered(200, headers)
    assert (body.start, body.stop, body.total) == (0, total, total)


@pytest.mark.parametrize("headers", [{}, {"Content-Length": "many"}, {"Transfer-Encoding": "gzip"}])
def test_a_whole_object_without_a_length_is_refused_for_good(headers: dict[str, str]) -> None:
    with pytest.raises(StoreError, match="Content-Length") as caught:
        answered(200, headers)
    assert not isinstance(caught.value, TransientError)


@pytest.mark.parametrize(
    ("start", "headers", "empty"),
    [
        (0, {"Content-Range": "bytes */0"}, True),
        (0, {}, False),
        (0, {"Content-Range": "bytes */7"}, False),
        (0, {"Content-Range": "bytes */*"}, False),
        (1, {"Content-Range": "bytes */0"}, False),
        (1, {}, False),
    ],
)
def test_a_range_that_cannot_be_had_means_an_empty_object_where_it_says_so(
    start: int, headers: dict[str, str], empty: bool
) -> None:
    if empty:
        body = answered(416, headers, start=start)
        assert (body.start, body.stop, body.total) == (0, 0, 0)
        return
    with pytest.raises(StoreError, match="shorter") as caught:
        answered(416, headers, start=start)
    assert type(caught.value) is StoreError and caught.value.status == 416


def test_a_refused_version_is_a_change_for_good() -> None:
    with pytest.raises(StoreError, match='was "a", now "b"') as caught:
        answered(412, {"ETag": '"b"'}, etag='"a"')
    assert type(caught.value) is StoreError and caught.value.status == 412
    with pytest.raises(StoreError, match="answered 412"):
        answered(412, {})


@pytest.mark.parametrize(
    ("etag", "headers"),
    [
        ('"a"', {"ETag": '"b"'}),
        ('"a"', {"ETag": 'W/"a"'}),
        ('W/"a"', {"ETag": 'W/"b"'}),
        ('"a"', {"Last-Modified": OLD}),
        ('"a"', {}),
        (f"last-modified:{OLD}", {"Last-Modified": NEW, "ETag": '"a"'}),
        (f"last-modified:{OLD}", {"ETag": '"a"'}),
    ],
)
@pytest.mark.parametrize("status", [200, 206])
def test_another_version_unasked_may_be_another_next_time(
    status: int, etag: str, headers: dict[str, str]
) -> None:
    whole = {"Content-Length": "10", "Content-Range": "bytes 10-19/100"}
    with pytest.raises(TransientError, match="was changed"):
        answered(status, whole | headers, etag=etag)


@pytest.mark.parametrize(
    ("headers", "version"),
    [
        ({}, None),
        ({"ETag": '"a"', "Last-Modified": OLD, "Date": NEW}, '"a"'),
        ({"Last-Modified": OLD, "Date": NEW}, f"last-modified:{OLD}"),
        ({"Last-Modified": OLD, "Date": OLD}, None),
        ({"Last-Modified": NEW, "Date": OLD}, None),
        ({"Last-Modified": OLD}, None),
        ({"Last-Modified": "never", "Date": NEW}, None),
    ],
)
def test_the_version_is_the_etag_or_a_time_that_is_over(headers: dict[str, str], version: str | None) -> None:
    body = answered(200, {"Content-Length": "3", **headers})
    assert body.etag == version
    if version is not None:
        again = answered(200, {"Content-Length": "3", **headers}, etag=version)
        assert again.etag == version


def test_an_encoding_is_refused_and_identity_is_none() -> None:
    with pytest.raises(StoreError, match="Content-Encoding br") as caught:
        answered(200, {"Content-Length": "3", "Content-Encoding": "br"})
    assert type(caught.value) is StoreError
    assert answered(200, {"Content-Length": "3", "Content-Encoding": "Identity"}).total == 3


def test_a_refusal_carries_what_the_server_asks_for() -> None:
    with pytest.raises(ThrottledError) as caught:
        answered(503, {"Retry-After": NEW, "Date": OLD})
    assert caught.value.retry_after_s == 1.0


MD5 = hashlib.md5(b"abc").digest()


@pytest.mark.parametrize(
    ("status", "span", "stated"),
    [
        (200, {"Content-Length": "3"}, True),
        (206, {"Content-Range": "bytes 0-2/3"}, True),
        (206, {"Content-Range": "bytes 0-2/4"}, False),
    ],
)
def test_the_digest_of_a_body_is_one_of_the_object_if_the_body_is_all_of_it(
    status: int, span: dict[str, str], stated: bool
) -> None:
    body = answered(status, {**span, "Content-MD5": b64encode(MD5).decode()}, start=0, stop=3)
    assert body.digests == ({"md5": MD5} if stated else {})


def test_a_digest_that_cannot_be_read_may_be_readable_next_time() -> None:
    with pytest.raises(TransientError, match="content-md5"):
        answered(200, {"Content-Length": "3", "Content-MD5": "?"})


@pytest.mark.parametrize("status", [400, 401, 403])
def test_a_refused_url_that_may_have_been_signed_is_told_to_be_signed_anew(status: int) -> None:
    with pytest.raises(StoreError, match=r"signature may have expired.*renew=") as caught:
        answered(status, {})
    assert "SENTINEL" not in str(caught.value)
    with pytest.raises(StoreError) as caught:
        body_of(Asked("https://h/x", 0, 10, None), status, CIMultiDict(), now_s=0.0)
    assert "renew" not in str(caught.value)


def test_a_missing_object_is_told_in_words_that_fit_a_url_without_braces() -> None:
    with pytest.raises(StoreError, match=r"404 Not Found; check the URL, and .* braces if it has any"):
        answered(404, {})
