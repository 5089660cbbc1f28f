"""Digests of whole objects as servers state them in response headers; pure.

A stated digest that cannot be read raises: were it ignored, a proxy that mangles one header would
switch off the check that the store was set up to have. Digests of another thing than the whole object
(a part of it, a digest of its parts' digests, its compressed form) and unknown algorithms are ignored.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping

__all__ = ["digests_of"]

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
