"""Every fault of a server, a network or a disk that is known, and what a user sees of it."""

from __future__ import annotations

import hashlib
import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import replace
from email.utils import formatdate
from typing import Any

import asyncloader as al
from asyncloader import testing
from asyncloader.testing import Fault

from .fault_table import (
    BIG,
    DAMAGED,
    DELIVERED,
    GAVE_UP,
    IMPATIENT,
    IMPATIENT_THRICE,
    QUICK,
    THRICE,
    Faults,
    Row,
)
from .shards import Shards

__all__ = ["SECTIONS", "flipped"]

T = testing


def passing(fault: Callable[..., Fault], *args: Any, **kwargs: Any) -> Faults:
    """It hits the first five requests: less than six in a row for any part."""
    return lambda shards: [fault(*args, times=5, **kwargs)]


def staying(fault: Callable[..., Fault], *args: Any, **kwargs: Any) -> Faults:
    """It hits every request for one of the shards."""
    return lambda shards: [fault(*args, key=BIG, **kwargs)]


def once(fault: Callable[..., Fault], *args: Any, **kwargs: Any) -> Faults:
    """It hits the first request for one of the shards."""
    return lambda shards: [fault(*args, key=BIG, times=1, **kwargs)]


def later(fault: Callable[..., Fault], *args: Any, **kwargs: Any) -> Faults:
    """It hits one of the shards from its second request on."""
    return lambda shards: [fault(*args, key=BIG, after=1, **kwargs)]


def healthy(shards: Shards) -> Sequence[Fault]:
    return []


def rest_as_date(shards: Shards) -> Sequence[Fault]:
    return [T.Status(503, formatdate(time.time() + 2, usegmt=True), key=BIG, times=1)]


def redirects(count: int) -> Faults:
    """A shard is so many redirects away, at ``elsewhere``."""
    return lambda shards: [
        *[T.Redirect(f"/{hop + 1}/big", key=f"{hop}/big" if hop else BIG) for hop in range(count - 1)],
        T.Redirect("/elsewhere", key=f"{count - 1}/big"),
    ]


def changed(shards: Shards) -> Sequence[Fault]:
    return [T.ChangeObject(bytes(len(content_of(shards))), key=BIG, after=1)]


def flipped(shards: Shards) -> Sequence[Fault]:
    """In the last text, where neither format can see it."""
    last = next(text for key, text in reversed(shards.samples) if key.startswith("big"))
    return [T.FlipBit(content_of(shards).index(last) + 100, 0, key=BIG)]


def flipped_under(*names: str) -> Faults:
    """A flipped bit, and headers in which ``{sha256}`` and ``{md5}`` stand for digests of what was stored."""

    def faults(shards: Shards) -> Sequence[Fault]:
        digests = {
            name: b64encode(hashlib.new(name, content_of(shards)).digest()).decode()
            for name in ("sha256", "md5")
        }
        headers = dict(text.format(**digests).split(": ") for text in names)
        return [T.Headers(headers, key=BIG), *flipped(shards)]

    return faults


def whole(faults: Faults) -> Faults:
    """The same, of answers that hold the whole object."""
    return lambda shards: [T.IgnoreRange(key=BIG), *faults(shards)]


def expiring(shards: Shards) -> Sequence[Fault]:
    return [T.RequireQuery("sig="), T.Status(403, key=BIG, query="*sig=old*", after=1)]


def content_of(shards: Shards) -> bytes:
    return shards.contents[f"big.{shards.kind}"]


UNAVAILABLE = "the server answered 503 Service Unavailable"
CHANGED = "the object was changed while it was being read"
NO_PROGRESS = "fewer than 16384 bytes came in 0.3 s" + GAVE_UP
PROMISED = "they were damaged on their way or where they are stored, or replaced"

CONNECTIONS = (
    Row("connection closed in the middle of a body", passing(T.CutAt, 700), DELIVERED),
    Row(
        "closed in the middle of every body",
        staying(T.CutAt, 700),
        "the connection was cut before the promised length" + GAVE_UP,
        network=THRICE,
    ),
    Row("connection reset (RST) in a body", passing(T.Reset, 700), DELIVERED),
    Row("reset in every body", staying(T.Reset, 700), GAVE_UP, network=THRICE),
    Row("a body that stalls", passing(T.Stall, 700, seconds=60), DELIVERED, network=IMPATIENT),
    Row("every body stalls", staying(T.Stall, 700, seconds=60), NO_PROGRESS, network=IMPATIENT_THRICE),
    Row("a body that drips", passing(T.Drip, bytes_per_s=1000), DELIVERED, network=IMPATIENT),
    Row("every body drips", staying(T.Drip, bytes_per_s=1000), NO_PROGRESS, network=IMPATIENT_THRICE),
    Row("no first byte", passing(T.Delay, 60), DELIVERED, network=IMPATIENT),
    Row(
        "never a first byte",
        staying(T.Delay, 60),
        "the server did not answer within 0.4 s" + GAVE_UP,
        network=IMPATIENT_THRICE,
    ),
    Row(
        "one answer in twenty never comes",
        healthy,
        DELIVERED,
        network=IMPATIENT,
        server={"latency_s": T.Latency(0.01, 0.5, stall_probability=0.05, stall_s=60)},
    ),
    Row("connections of 8 MB/s", healthy, DELIVERED, server={"rate_bytes_s": 8e6}),
    Row("hung up instead of an answer", passing(T.HangUp), DELIVERED),
    Row("always hung up", staying(T.HangUp), "the connection failed", network=THRICE),
    Row(
        "connections refused for a second",
        healthy,
        DELIVERED,
        server={"opens_after_s": 1.0},
        network=replace(QUICK, backoff_s=0.3),
    ),
    Row(
        "connections always refused",
        healthy,
        "the connection failed",
        server={"opens_after_s": 1e9},
        network=THRICE,
        shard="small",
    ),
)

REFUSALS = (
    Row("429", passing(T.Status, 429), DELIVERED),
    Row(
        "always 429",
        staying(T.Status, 429),
        "the server answered 429 Too Many Requests" + GAVE_UP,
        network=THRICE,
    ),
    Row("503", passing(T.Status, 503), DELIVERED),
    Row("always 503", staying(T.Status, 503), UNAVAILABLE + GAVE_UP, network=THRICE),
    Row(
        "503 for all requests beyond two at a time",
        lambda shards: [T.Capacity(2)],
        DELIVERED,
        server={"latency_s": 0.02},
    ),
    Row("503 with `Retry-After` in seconds", once(T.Status, 503, 1), DELIVERED),
    Row("503 with `Retry-After` as a date", rest_as_date, DELIVERED),
    Row(
        "503 with a `Retry-After` of an hour",
        once(T.Status, 503, 3600),
        "gave up after 1 attempt, since the server asks to wait 3600 s",
    ),
    Row("500", passing(T.Status, 500), DELIVERED),
    Row(
        "always 500",
        staying(T.Status, 500),
        "the server answered 500 Internal Server Error" + GAVE_UP,
        network=THRICE,
    ),
    Row("502", passing(T.Status, 502), DELIVERED),
    Row(
        "always 502",
        staying(T.Status, 502),
        "the server answered 502 Bad Gateway" + GAVE_UP,
        network=THRICE,
    ),
    Row("no such object (404)", staying(T.Status, 404), "the server answered 404 Not Found"),
    Row(
        "the object is deleted while it is read (404)",
        later(T.Status, 404),
        "the server answered 404 Not Found",
    ),
    Row("a presigned URL expires, with `renew`", expiring, DELIVERED, query="?sig=old", renewed="?sig=new"),
    Row(
        "a presigned URL expires, without `renew`",
        expiring,
        "the server answered 403 Forbidden; check credentials",
        query="?sig=old",
    ),
    Row(
        "a presigned URL expires, and `renew` gives no better one",
        expiring,
        "the server refused the URL, and answered 403 to the one that renew gave for it too",
        query="?sig=old",
        renewed="?sig=old",
    ),
)

ANSWERS = (
    Row("another range than asked for", passing(T.WrongRange, 512), DELIVERED),
    Row(
        "always another range",
        staying(T.WrongRange, 512),
        "asked for bytes 0-1048575, but the server sent Content-Range 'bytes 512-1049087/",
        parquet="asked for bytes 0-4095, but the server sent Content-Range 'bytes 512-4607/",
        network=THRICE,
    ),
    Row(
        "a `Content-Range` that is not the body's",
        passing(T.WrongRange, 512, lies="header"),
        DELIVERED,
    ),
    Row("a `Content-Length` too large", passing(T.WrongLength, 1000), DELIVERED),
    Row("a `Content-Length` too small", passing(T.WrongLength, -100), DELIVERED),
    Row(
        "always a wrong `Content-Length`",
        staying(T.WrongLength, 1000),
        "but Content-Length '1049576'" + GAVE_UP,
        parquet="but Content-Length '5096'" + GAVE_UP,
        network=THRICE,
    ),
    Row("no `Content-Length`, and a cut (206)", passing(T.NoLength, 500), DELIVERED),
    Row(
        "no length at all (200)",
        lambda shards: [T.IgnoreRange(key=BIG), T.NoLength(key=BIG)],
        "the server sent a body without a length",
    ),
    Row("ranges are ignored: 200 and the whole object", lambda shards: [T.IgnoreRange()], DELIVERED),
    Row("ranges are ignored, but for a shard's first", later(T.IgnoreRange), DELIVERED),
    Row("416 for a range that is there, once", once(T.Status, 416), DELIVERED),
    Row("416 for a range that is there, in the middle", later(T.Status, 416), "the server answered 416"),
    Row("always 416", staying(T.Status, 416), "the server answered 416"),
    Row(
        "`Content-Encoding: gzip`",
        staying(T.GzipEncoding),
        "the server sent Content-Encoding gzip although identity was requested",
    ),
    Row("five redirects", redirects(5), DELIVERED),
    Row("six redirects", redirects(6), "the server redirects more than 5 times"),
    Row(
        "redirected in a circle",
        lambda shards: [T.Redirect(f"/big.{shards.kind}", key=BIG)],
        "the server redirects more than 5 times",
    ),
)

CONTENTS = (
    Row("the object is replaced while it is read (412)", changed, CHANGED),
    Row("another ETag on some answers", later(T.WrongETag, times=2), DELIVERED),
    Row("another ETag from then on", later(T.WrongETag), CHANGED, network=THRICE),
    Row("a wrong ETag on the first answer", once(T.WrongETag), CHANGED),
    # Parquet is read in parts, of which no digest of the whole can tell; the cache has all of it.
    Row("a flipped bit, with an index", flipped, PROMISED, parquet=DAMAGED, index=True),
    Row(
        "a flipped bit, with `x-amz-checksum-sha256`",
        flipped_under("x-amz-checksum-sha256: {sha256}", "x-amz-checksum-type: FULL_OBJECT"),
        PROMISED,
        parquet=DAMAGED,
    ),
    Row(
        "a flipped bit, with `x-goog-hash`",
        flipped_under("x-goog-hash: md5={md5}"),
        PROMISED,
        parquet=DAMAGED,
    ),
    Row(
        "a flipped bit, with `Content-MD5` (200)",
        whole(flipped_under("Content-MD5: {md5}")),
        PROMISED,
        parquet=DAMAGED,
    ),
    Row(
        "a checksum header that cannot be read",
        passing(T.Headers, {"x-goog-hash": "md5=?"}),
        DELIVERED,
    ),
    Row("a flipped bit in a sample, without a digest", flipped, DAMAGED),
    Row(
        "a flipped bit in a header or in JSON's syntax, without a digest",
        staying(T.FlipBit, 0, 1),
        "tar header checksum: expected",
        "jsonl: Expecting value at byte 0",
        "parquet: expected the magic b'PAR1'",
        error=al.FormatError,
    ),
    Row(
        "another range under the right `Content-Range`, with an index",
        later(T.WrongRange, 1, "body", times=1),
        "tar header checksum: expected",
        PROMISED,
        "damaged: the page at byte 4 has no header",
        error=al.FormatError,
        jsonl_error=al.StoreError,
        index=True,
    ),
)

CACHE = (
    Row("a damaged file in the cache", healthy, DELIVERED, cache="damaged"),
    Row("a cache too small for a shard", healthy, DELIVERED, cache="small"),
)

SECTIONS = {
    "Connections": CONNECTIONS,
    "Refusals": REFUSALS,
    "Answers that are not what was asked for": ANSWERS,
    "Contents": CONTENTS,
    "The disk cache": CACHE,
}
