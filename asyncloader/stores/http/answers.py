"""What an HTTP answer promises, checked against the request; pure.

An answer that does not fit the request is a ``TransientError``: some proxy or cache on the way made it, and
the next one may take another way.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

from ...errors import StoreError
from ..failures import LAST_MODIFIED, TransientError, changed, http_time_s, refused, wait_asked
from ..store import NO_END, Body, no_chunks
from ..urls import redact

# Digests of whole objects as servers state them in response headers; pure.
#
# A stated digest that cannot be parsed raises. If it was ignored, a proxy that damages one header would
# switch off a check that the store was set up to have. Digests of anything but the whole object (of a part,
# of its parts' digests, of its compressed form) and unknown algorithms are ignored.

_LENGTHS = {"crc32": 4, "crc32c": 4, "md5": 16, "sha1": 20, "sha256": 32, "sha512": 64}

_AMAZON = {f"x-amz-checksum-{name}": name for name in ("crc32", "crc32c", "sha1", "sha256")}

# S3's digest of the digests of an object uploaded in N parts.
_COMPOSITE = re.compile(r"-\d+$")

# RFC 9530's names of the algorithms known here.
_REPRESENTATION = {"sha-256": "sha256", "sha-512": "sha512"}


_READ = (
    _AMAZON.keys()
    | {"content-encoding", "content-md5", "repr-digest", "warning"}
    | {"x-amz-checksum-type", "x-goog-hash", "x-goog-stored-content-encoding", "x-ms-blob-content-md5"}
)


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
    """Whether the stated digests are of the object in another encoding than the body."""
    return any(
        # Google's store unpacks an object stored as gzip, and states the digests of the gzip; 214 is how
        # proxies mark a body that they have transformed (RFC 7234, 5.5.6).
        (name in ("content-encoding", "x-goog-stored-content-encoding") and value.lower() != "identity")
        or (name == "warning" and value.startswith("214"))
        for name, value in pairs
    )


def _stated(name: str, value: str, whole: bool, of_object: bool) -> Iterator[tuple[str, str]]:
    """The algorithms and digests of the whole object in one header."""
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
    for decode in (partial(base64.b64decode, validate=True), bytes.fromhex):
        try:
            digest = decode(text)
        except ValueError:
            continue
        if len(digest) == _LENGTHS[algorithm]:
            return digest
    expected = f"{_LENGTHS[algorithm]} bytes of {algorithm} in base64"
    raise ValueError(f"the server's {name} header should hold {expected}, and does not")


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
    """The headers of the request."""
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
    """The body that the answer promises, still without its chunks.

    Args:
        asked: The request.
        status: Of the answer.
        headers: Of the answer, found by their names in any case.
        now_s: Seconds since the epoch.

    Raises:
        TransientError: An answer that does not fit the request, or a refusal that may pass.
        StoreError: Another refusal, or bytes that are not those of the object.
    """
    version = _version(asked, headers)
    # A refused range of length 0 means an empty object; a refusal without a length may have any reason.
    is_empty = _EMPTY_RANGE.fullmatch(headers.get("Content-Range", "")) is not None
    if status == 416 and asked.start == 0 and is_empty:
        if version is not None:  # few refusals name one
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
    """What else to do about a refusal. A ``renew`` is used before this is shown."""
    if status not in (400, 401, 403) or not urlsplit(url).query:
        return ""
    return ". If the URL was signed, the signature may have expired: sign it again; renew= does so for shards"


def _whole_span(asked: Asked, headers: Mapping[str, str]) -> tuple[int, int | None, int | None]:
    chunked = headers.get("Transfer-Encoding", "").lower() == "chunked"
    length = headers.get("Content-Length")
    if chunked:
        return 0, None, None
    if length is None or not length.isdecimal():
        raise StoreError(
            "the server sent a body without a length, so a cut would not be seen; serve shards with "
            "Content-Length",
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


def _check_encoding(asked: Asked, headers: Mapping[str, str]) -> None:
    encoding = headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise StoreError(
            f"the server sent Content-Encoding {encoding} although identity was requested, so byte offsets "
            "would not be those of the object; switch the encoding off for shards",
            shard=redact(asked.url),
            offset=asked.start,
        )


def _version(asked: Asked, headers: Mapping[str, str]) -> str | None:
    """The version that the answer names, of the kind that is pinned, if one is."""
    etag, modified = headers.get("ETag"), headers.get("Last-Modified")
    if asked.etag is not None and asked.etag.startswith(LAST_MODIFIED):
        return None if modified is None else LAST_MODIFIED + modified
    if etag is not None or asked.etag is not None:
        return etag
    modified_s, date_s = http_time_s(modified), http_time_s(headers.get("Date"))
    # An object changed in the second of the answer may change again with the same time; and servers that
    # generate their answers name the time of generation (RFC 9110, 8.8.2.2).
    if modified_s is None or date_s is None or date_s - modified_s < 1:
        return None
    return f"{LAST_MODIFIED}{modified}"


def _check_version(asked: Asked, version: str | None) -> None:
    if asked.etag is not None and version != asked.etag:
        # Not final as a 412 is: the server did not refuse, its answer only names another version or none.
        raise changed(asked.url, asked.start, asked.etag, version or "none", kind=TransientError)


def _broken(asked: Asked, what: str) -> TransientError:
    return TransientError(what, shard=redact(asked.url), offset=asked.start)
