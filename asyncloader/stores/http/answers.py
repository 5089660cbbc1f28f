"""What an HTTP answer promises, held against what was asked; pure.

An answer that does not keep to what was asked is a ``TransientError``: it was made by some proxy or cache
on the way, and the next one may come another way.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from ...errors import StoreError
from ..failures import LAST_MODIFIED, TransientError, changed, http_time_s, refused, wait_asked
from ..store import NO_END, Body, no_chunks
from ..urls import redact

# Digests of whole objects as servers state them in response headers; pure.
#
# A stated digest that cannot be read raises: were it ignored, a proxy that mangles one header would switch
# off the check that the store was set up to have. Digests of another thing than the whole object (a part of
# it, a digest of its parts' digests, its compressed form) and unknown algorithms are ignored.

_LENGTHS = {"crc32": 4, "crc32c": 4, "md5": 16, "sha1": 20, "sha256": 32, "sha512": 64}

_AMAZON = {f"x-amz-checksum-{name}": name for name in ("crc32", "crc32c", "sha1", "sha256")}

# S3's digest of the digests of an object uploaded in N parts.
_COMPOSITE = re.compile(r"-\d+$")

# RFC 9530's names of the algorithms known here.
_REPRESENTATION = {"sha-256": "sha256", "sha-512": "sha512"}


_READ = _AMAZON.keys() | {
    "content-encoding",
    "content-md5",
    "repr-digest",
    "warning",
    "x-amz-checksum-type",
    "x-goog-hash",
    "x-goog-stored-content-encoding",
    "x-ms-blob-content-md5",
}


def digests_of(headers: Mapping[str, str], *, whole: bool) -> dict[str, bytes]:
    """The digests of the whole object, by algorithm as ``Body.digests`` names them.

    Args:
        headers: All headers of the response; a multidict, since some come more than once.
        whole: Whether the response's body is the whole object.

    Raises:
        ValueError: A digest that is neither base64 nor hexadecimal of the right length, or two that
            contradict each other.
    """
    pairs = [(key, value.strip()) for name, value in headers.items() if (key := name.lower()) in _READ]
    if not pairs or _transformed(pairs):
        return {}
    # S3 states the digest of the object with each of its parts, and then says so.
    of_object = whole or ("x-amz-checksum-type", "FULL_OBJECT") in pairs
    if ("x-amz-checksum-type", "COMPOSITE") in pairs:
        of_object = False
    found: dict[str, bytes] = {}
    for name, value in pairs:
        for algorithm, text in _stated(name, value, whole, of_object):
            digest = _decoded(name, algorithm, text)
            if found.setdefault(algorithm, digest) != digest:
                raise ValueError(f"two response headers state different {algorithm} digests of one object")
    return found


def _transformed(pairs: list[tuple[str, str]]) -> bool:
    """Whether the body is another form of the object than the one whose digests are stated."""
    return any(
        # Google's store unpacks an object stored as gzip, and states the digests of the gzip; 214 is how
        # any proxy tells that it has transformed a body (RFC 7234, 5.5.6).
        (name in ("content-encoding", "x-goog-stored-content-encoding") and value.lower() != "identity")
        or (name == "warning" and value.startswith("214"))
        for name, value in pairs
    )


def _stated(name: str, value: str, whole: bool, of_object: bool) -> Iterator[tuple[str, str]]:
    """Algorithms and digests that a header states of the whole object."""
    if name == "x-goog-hash":
        for item in value.split(","):
            algorithm, _, text = item.strip().partition("=")
            if algorithm in ("crc32c", "md5"):
                yield algorithm, text
    elif name == "x-ms-blob-content-md5" or (name == "content-md5" and whole):
        yield "md5", value
    elif name in _AMAZON and of_object and not _COMPOSITE.search(value):
        yield _AMAZON[name], value
    elif name == "repr-digest":
        for item in value.split(","):
            key, _, text = item.strip().partition("=")
            if key in _REPRESENTATION:
                # A structured field (RFC 8941) has its bytes between colons; parameters may follow.
                yield _REPRESENTATION[key], text.partition(";")[0].strip().removeprefix(":").removesuffix(":")


def _decoded(name: str, algorithm: str, text: str) -> bytes:
    # Some servers write hexadecimal, which as base64 would be half as many bytes again.
    for decode in (_from_base64, bytes.fromhex):
        try:
            digest = decode(text)
        except ValueError:
            continue
        if len(digest) == _LENGTHS[algorithm]:
            return digest
    expected = f"{_LENGTHS[algorithm]} bytes of {algorithm} in base64"
    raise ValueError(f"the server's {name} header should hold {expected}, and does not")


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_EMPTY_RANGE = re.compile(r"bytes \*/0")


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: bytes ``start`` up to ``stop`` of ``url``, in the version ``etag`` if there is one."""

    url: str
    start: int
    stop: int
    etag: str | None


def request_headers(asked: Asked) -> dict[str, str]:
    """The headers that ask for it."""
    headers = {"Range": f"bytes={asked.start}-{'' if asked.stop == NO_END else asked.stop - 1}"}
    if asked.etag is None:
        return headers
    if asked.etag.startswith(LAST_MODIFIED):
        headers["If-Unmodified-Since"] = asked.etag.removeprefix(LAST_MODIFIED)
    # A weak ETag never satisfies If-Match (RFC 9110, 13.1.1); for it the response's own is compared.
    elif not asked.etag.startswith("W/"):
        headers["If-Match"] = asked.etag
    return headers


def body_of(asked: Asked, status: int, headers: Mapping[str, str], now_s: float) -> Body:
    """The body that the answer promises; its chunks are still to be set.

    Args:
        asked: What was.
        status: Of the answer.
        headers: Of the answer, found by their names in any case.
        now_s: Seconds since the epoch.

    Raises:
        TransientError: An answer to something else than what was asked, or a refusal that may pass.
        StoreError: Another refusal, or bytes that would not be the object's.
    """
    version = _version(asked, headers)
    if status == 416 and asked.start == 0 and _says_empty(headers):
        if version is not None:  # a refusal seldom names one
            _check_version(asked, version)
        return Body(0, 0, 0, version, no_chunks())
    if status == 412 and asked.etag is not None:
        raise changed(asked.url, asked.start, asked.etag, version, status=412)
    if status not in (200, 206):
        raise refusal_of(asked.url, asked.start, status, headers, now_s, _advice(asked.url, status))
    _check_encoding(asked, headers)
    _check_version(asked, version)
    start, stop, total = _whole_span(asked, headers) if status == 200 else _part_span(asked, headers)
    try:
        digests = digests_of(headers, whole=start == 0 and stop == total)
    except ValueError as error:
        raise _broken(asked, str(error)) from None
    return Body(start, stop, total, version, no_chunks(), digests)


def refusal_of(
    url: str, offset: int, status: int, headers: Mapping[str, str], now_s: float, advice: str = ""
) -> StoreError:
    """The error for a status other than success, with the wait that the server asks for."""
    wait_s = wait_asked(headers.get("Retry-After"), headers.get("Date"), now_s)
    return refused(url, offset, status, retry_after_s=wait_s, advice=advice)


def _advice(url: str, status: int) -> str:
    """What else to do about a refusal; where there is a ``renew``, it is used instead."""
    if status not in (400, 401, 403) or not urlsplit(url).query:
        return ""
    return ". If the URL was signed for a time, that may be over: sign it anew; renew= does so for shards"


def _whole_span(asked: Asked, headers: Mapping[str, str]) -> tuple[int, int | None, int | None]:
    chunked = headers.get("Transfer-Encoding", "").lower() == "chunked"
    length = headers.get("Content-Length")
    if chunked:
        return 0, None, None
    if length is None or not length.isdecimal():
        raise StoreError(
            "the server sent a body without a length, so that a cut could not be told from its end; "
            "serve shards with Content-Length",
            shard=redact(asked.url),
            offset=asked.start,
        )
    return 0, int(length), int(length)


def _part_span(asked: Asked, headers: Mapping[str, str]) -> tuple[int, int, int]:
    stated = headers.get("Content-Range")
    match = _CONTENT_RANGE.fullmatch(stated or "")
    start, last, total = map(int, match.groups()) if match else (-1, -1, -1)
    if not asked.start == start <= last == min(asked.stop, total) - 1:
        what = f"asked for bytes {asked.start}-{asked.stop - 1}, but the server sent Content-Range {stated!r}"
        raise _broken(asked, what)
    length = headers.get("Content-Length")
    if length is not None and length != str(last + 1 - start):
        what = f"the server sent Content-Range {stated!r}, but Content-Length {length!r}"
        raise _broken(asked, what)
    return start, last + 1, total


def _says_empty(headers: Mapping[str, str]) -> bool:
    """Whether a refused range means an empty object. One that is refused without a word may be anything."""
    return _EMPTY_RANGE.fullmatch(headers.get("Content-Range", "")) is not None


def _check_encoding(asked: Asked, headers: Mapping[str, str]) -> None:
    encoding = headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise StoreError(
            f"the server sent Content-Encoding {encoding}, though identity was asked for; "
            "byte offsets would not be the object's. Switch the encoding off for shards",
            shard=redact(asked.url),
            offset=asked.start,
        )


def _version(asked: Asked, headers: Mapping[str, str]) -> str | None:
    """The version that the answer names, of the kind that is pinned if one is."""
    etag, modified = headers.get("ETag"), headers.get("Last-Modified")
    if asked.etag is not None and asked.etag.startswith(LAST_MODIFIED):
        return None if modified is None else LAST_MODIFIED + modified
    if etag is not None or asked.etag is not None:
        return etag
    modified_s, date_s = http_time_s(modified), http_time_s(headers.get("Date"))
    # Of an object changed in the very second of the answer, the next change may have the same time; and
    # servers that make their answers up give the time at which they did (RFC 9110, 8.8.2.2).
    if modified_s is None or date_s is None or date_s - modified_s < 1:
        return None
    return f"{LAST_MODIFIED}{modified}"


def _check_version(asked: Asked, version: str | None) -> None:
    if asked.etag is not None and version != asked.etag:
        # Not final as a 412 is: no server said so, only an answer came that has another name or none.
        raise changed(asked.url, asked.start, asked.etag, version or "none", kind=TransientError)


def _broken(asked: Asked, what: str) -> TransientError:
    return TransientError(what, shard=redact(asked.url), offset=asked.start)
