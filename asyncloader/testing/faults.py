"""Faults of a network or a loaded server: each turns a healthy response plan into a faulty one.

Laws: a fault is a frozen value and keeps no state; ``apply`` is a pure function. ``Scenario`` counts when it
applies (``after``, ``times``, ``probability``). A request counts for a fault only if the fault ``fits``: a
response of 10 bytes does not use up a cut at byte 1000.
"""

from __future__ import annotations

import gzip
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal

from .messages import (
    Close,
    Object,
    Request,
    Response,
    Send,
    Sleep,
    body_length,
    content_range,
    part,
    plain,
    split,
    whole,
    without_body,
)
from .messages import ResetAction as ResetAction


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What all faults share: which requests they hit.

    Args:
        key: Glob over the key (``*`` also matches ``/``).
        method: Glob over the method.
        query: Glob over the query as sent, which is empty if there is none.
        after: Leave the first this many matching requests alone.
        times: Hit at most this many requests; None for no limit.
        probability: Hit a matching request with this probability, drawn from the server's seed, the
            request and its attempt number, so that the order of arrival does not matter.
    """

    key: str = "*"
    method: str = "*"
    query: str = "*"
    after: int = 0
    times: int | None = None
    probability: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise ValueError(f"probability must be between 0 and 1, not {self.probability}")
        if self.after < 0 or (self.times is not None and self.times < 1):
            raise ValueError(f"after must be at least 0 and times at least 1, not {self.after}, {self.times}")

    def matches(self, request: Request) -> bool:
        return (
            fnmatchcase(request.key, self.key)
            and fnmatchcase(request.method, self.method)
            and fnmatchcase(request.query, self.query)
        )

    def fits(self, request: Request, response: Response) -> bool:
        """Whether ``apply`` would make a difference."""
        return True

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        """The faulty response, made from ``response``, which faults before this one may have changed."""
        raise NotImplementedError


@dataclass(frozen=True)
class _BodyFault(Fault):
    """A fault at a byte of an object's body: counted in body bytes, whatever range they are."""

    byte: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.byte < 0:
            raise ValueError(f"byte must be at least 0, not {self.byte}")

    def fits(self, request: Request, response: Response) -> bool:
        return has_body(response) and body_length(response.body) > self.byte


@dataclass(frozen=True)
class CutAt(_BodyFault):
    """Close the connection, in order, after ``byte`` bytes of the body."""

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        return replace(response, body=(*split(response.body, self.byte)[0], Close()))


@dataclass(frozen=True)
class Reset(_BodyFault):
    """Reset the connection (TCP RST) after ``byte`` bytes of the body."""

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        return replace(response, body=(*split(response.body, self.byte)[0], ResetAction()))


@dataclass(frozen=True)
class Stall(_BodyFault):
    """Send ``byte`` bytes of the body, nothing for ``seconds``, then the rest."""

    seconds: float

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        before, after = split(response.body, self.byte)
        return replace(response, body=(*before, Sleep(self.seconds), *after))


@dataclass(frozen=True)
class HangUp(Fault):
    """Close the connection instead of answering, as a server that drops a kept-alive connection."""

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        return replace(response, body=(Close(),), span=None, has_head=False)


@dataclass(frozen=True)
class Drip(Fault):
    """Send the body at ``bytes_per_s``."""

    bytes_per_s: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bytes_per_s <= 0:
            raise ValueError(f"bytes_per_s must be more than 0, not {self.bytes_per_s}")

    def fits(self, request: Request, response: Response) -> bool:
        return has_body(response)

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        rate = min(self.bytes_per_s, response.rate_bytes_s or self.bytes_per_s)
        return replace(response, rate_bytes_s=rate)


@dataclass(frozen=True)
class Delay(Fault):
    """Wait ``seconds`` more before the first byte."""

    seconds: float

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        return replace(response, delay_s=response.delay_s + self.seconds)


@dataclass(frozen=True)
class Status(Fault):
    """Answer with this status. ``retry_after`` is seconds, or an HTTP date as text."""

    code: int
    retry_after: float | str | None = None

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        refused = plain(self.code, headers)
        return replace(without_body(request, refused), delay_s=response.delay_s)


@dataclass(frozen=True)
class Capacity(Fault):
    """503 for every request that arrives while ``limit`` others are being answered, on any key.

    It is refused without latency, as a front end under load does: a delayed refusal would itself count as a
    concurrent request.
    """

    limit: int

    def fits(self, request: Request, response: Response) -> bool:
        return request.concurrent > self.limit

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        return without_body(request, plain(503))


@dataclass(frozen=True)
class Redirect(Fault):
    """Send the client to ``location``: a URL, or a path of this server."""

    location: str
    code: int = 302

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        moved = plain(self.code, {"Location": self.location})
        return replace(without_body(request, moved), delay_s=response.delay_s)


@dataclass(frozen=True)
class RequireQuery(Fault):
    """Refuse requests whose query does not contain ``text``, as a store does without the right signature.

    A signature that expires is ``Status(403, query="*" + text + "*", after=...)`` beside it.
    """

    text: str = field(repr=False)
    code: int = 403

    def fits(self, request: Request, response: Response) -> bool:
        return self.text not in request.query

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        return replace(without_body(request, plain(self.code)), delay_s=response.delay_s)


@dataclass(frozen=True)
class Headers(Fault):
    """Response headers set to other values, or left out where the value is None; names in any case."""

    headers: Mapping[str, str | None]

    def fits(self, request: Request, response: Response) -> bool:
        return response.has_head

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        named = {name.lower() for name in self.headers}
        kept = {name: value for name, value in response.headers.items() if name.lower() not in named}
        new = {name: value for name, value in self.headers.items() if value is not None}
        return replace(response, headers={**kept, **new})


@dataclass(frozen=True)
class NoLength(Fault):
    """No Content-Length: the body ends where the connection does, cut at byte ``cut`` if given.

    The client cannot detect such a cut by the framing.
    """

    cut: int | None = None

    def fits(self, request: Request, response: Response) -> bool:
        return has_body(response) and (self.cut is None or self.cut < body_length(response.body))

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        headers = {name: value for name, value in response.headers.items() if name != "Content-Length"}
        body = response.body if self.cut is None else split(response.body, self.cut)[0]
        return replace(response, headers={**headers, "Connection": "close"}, body=(*body, Close()))


def has_body(response: Response) -> bool:
    """Whether the response contains the object, and not an error or nothing."""
    return response.has_head and 200 <= response.status < 300 and body_length(response.body) > 0


# Faults with wrong bytes or headers: another range, another object, a flipped bit. A fault that replaces the
# body undoes what earlier faults did to it, so name it before the faults that cut or stall.


@dataclass(frozen=True)
class WrongLength(Fault):
    """A Content-Length that is off by ``delta``.

    If it is too large, the connection is closed after the body, which looks cut. If it is too small, the
    connection stays open, and the surplus comes before the next response.
    """

    delta: int

    def fits(self, request: Request, response: Response) -> bool:
        length = response.headers.get("Content-Length")
        return has_body(response) and length is not None and int(length) + self.delta >= 0

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        # From the header, not from the body: an earlier cut does not change what is announced.
        length = int(response.headers["Content-Length"]) + self.delta
        headers = {**response.headers, "Content-Length": str(length)}
        ending = (Close(),) if self.delta > 0 else ()
        return replace(response, headers=headers, body=(*response.body, *ending))


@dataclass(frozen=True)
class WrongRange(Fault):
    """206 with another range than the one asked for, off by ``shift`` bytes.

    Args:
        shift: By how much; a range that would leave the object is answered without the fault.
        lies: ``"both"``: header and body agree on the wrong range. ``"body"``: the header claims the
            requested range, the body is another. ``"header"``: the body is right, the header is wrong.
    """

    shift: int
    lies: Literal["both", "header", "body"] = "both"

    def fits(self, request: Request, response: Response) -> bool:
        if response.status != 206 or response.span is None or self.shift == 0:
            return False
        size = int(response.headers["Content-Range"].rpartition("/")[2])
        return response.span[0] + self.shift >= 0 and response.span[1] + self.shift <= size

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        assert obj is not None and response.span is not None, "fits() only lets a 206 of an object through"
        asked = response.span
        shifted = asked[0] + self.shift, asked[1] + self.shift
        sent = part(obj, *(asked if self.lies == "header" else shifted))
        claimed = asked if self.lies == "body" else shifted
        headers = {**response.headers, "Content-Range": content_range(*claimed, len(obj.content))}
        return replace(response, headers=headers, body=sent.body, span=sent.span)


@dataclass(frozen=True)
class IgnoreRange(Fault):
    """200 and the whole object for a request with a range."""

    def fits(self, request: Request, response: Response) -> bool:
        return response.status == 206

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        assert obj is not None, "a 206 has an object"
        return replace(whole(obj), delay_s=response.delay_s, rate_bytes_s=response.rate_bytes_s)


@dataclass(frozen=True)
class WrongETag(Fault):
    """An ETag that is not the object's, on this response only."""

    def fits(self, request: Request, response: Response) -> bool:
        return "ETag" in response.headers

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        etag = '"wrong-' + response.headers["ETag"].lstrip('"')
        return replace(response, headers={**response.headers, "ETag": etag})


@dataclass(frozen=True)
class FlipBit(Fault):
    """Flip bit ``bit`` (0 is the lowest) of byte ``byte`` of the object.

    The byte is counted in the object, not in the body, so that the damage stays in one place whatever ranges
    a client requests.
    """

    byte: int
    bit: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.byte < 0 or not 0 <= self.bit < 8:
            raise ValueError(f"byte must be at least 0 and bit 0 to 7, not {self.byte}, {self.bit}")

    def fits(self, request: Request, response: Response) -> bool:
        first, stop = response.span or (0, 0)
        # An earlier cut may have removed the byte.
        stop = min(stop, first + body_length(response.body))
        return has_body(response) and first <= self.byte < stop

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        assert response.span is not None, "fits() only lets a body of object bytes through"
        before, rest = split(response.body, self.byte - response.span[0])
        hit, after = split(rest, 1)
        flipped = [Send(_flip(act.view, self.bit)) if isinstance(act, Send) else act for act in hit]
        return replace(response, body=(*before, *flipped, *after))


@dataclass(frozen=True)
class GzipEncoding(Fault):
    """The body gzipped, with ``Content-Encoding: gzip``, whether or not the client accepts that."""

    def fits(self, request: Request, response: Response) -> bool:
        return has_body(response)

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        plain_body = b"".join(action.view for action in response.body if isinstance(action, Send))
        # mtime=0, or the bytes would depend on the clock.
        packed = memoryview(gzip.compress(plain_body, compresslevel=1, mtime=0))
        headers = {**response.headers, "Content-Encoding": "gzip", "Content-Length": str(len(packed))}
        return replace(response, headers=headers, body=(Send(packed),), span=None)


@dataclass(frozen=True)
class ChangeObject(Fault):
    """From the first request that it hits, which is included, the object is ``new_bytes``.

    The change is made before the request is answered, so ``If-Match`` with the old ETag gets 412.
    """

    new_bytes: bytes = field(repr=False)

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        return response


def _flip(view: memoryview, bit: int) -> memoryview:
    return memoryview(bytes([view[0] ^ (1 << bit)]))


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds before the first byte: lognormal, with an occasional stall.

    Object stores answer most requests near the median and a few much later. A lognormal distribution with a
    rare stall is the smallest model that has both; constant latency does not test hedging.

    Args:
        median_s: Half of the requests are faster than this.
        sigma: Spread of the logarithm; 0 makes every request take ``median_s``, 0.5 puts the 95th
            percentile at 2.3 times the median.
        stall_probability: Share of the requests that take ``stall_s`` instead.
        stall_s: How long those take.
    """

    median_s: float
    sigma: float = 0.0
    stall_probability: float = 0.0
    stall_s: float = 10.0

    def __post_init__(self) -> None:
        if self.median_s < 0 or self.sigma < 0 or self.stall_s < 0:
            raise ValueError(f"latency cannot be negative: {self}")
        if not 0 <= self.stall_probability <= 1:
            raise ValueError(f"stall_probability must be between 0 and 1, not {self.stall_probability}")

    def __call__(self, rng: random.Random) -> float:
        """Draw the seconds of one request."""
        if rng.random() < self.stall_probability:
            return self.stall_s
        return self.median_s * math.exp(rng.gauss(0.0, self.sigma))
