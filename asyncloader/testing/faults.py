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
    """The base of all faults, with the options that select requests.

    Every fault takes these options by keyword, besides its own. By default it hits every request for which it
    makes a difference. For a fault of your own, subclass this and define ``apply``, and ``fits`` if the fault
    needs a certain response.

    Args:
        key: Glob over the key (``*`` also matches ``/``).
        method: Glob over the method, such as ``"GET"``.
        query: Glob over the query as sent, which is empty if there is none.
        after: How many matching requests to leave alone first.
        times: The most requests to hit; None for no limit.
        probability: Hit a matching request with this probability, from 0 to 1. It is drawn from the server's
            seed, the request and its attempt number, so the order of arrival does not matter.

    Raises:
        ValueError: ``probability``, ``after`` or ``times`` is out of range.
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
        """Whether the key, the method and the query of a request match the globs.

        Args:
            request: The request.
        """
        return (
            fnmatchcase(request.key, self.key)
            and fnmatchcase(request.method, self.method)
            and fnmatchcase(request.query, self.query)
        )

    def fits(self, request: Request, response: Response) -> bool:
        """Whether ``apply`` would make a difference: only such requests count for ``after`` and ``times``.

        Args:
            request: The request, with ``key``, ``method`` and ``query``.
            response: The response so far.
        """
        return True

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        """Make the faulty response.

        Args:
            request: The request, with ``key``, ``method`` and ``query``.
            obj: The object with that key; None if there is none.
            response: The response so far, which earlier faults may have changed. It is frozen: return a copy
                made with ``dataclasses.replace``.

        Raises:
            NotImplementedError: The fault does not define ``apply``.
        """
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
    """Close the connection in an orderly way (TCP FIN) after ``byte`` bytes of the body.

    Args:
        byte: How many bytes of the body are sent, 0 or more. Only longer bodies are hit.
    """

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        return replace(response, body=(*split(response.body, self.byte)[0], Close()))


@dataclass(frozen=True)
class Reset(_BodyFault):
    """Reset the connection (TCP RST) after ``byte`` bytes of the body.

    Args:
        byte: How many bytes of the body are sent, 0 or more. Only longer bodies are hit.
    """

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        return replace(response, body=(*split(response.body, self.byte)[0], ResetAction()))


@dataclass(frozen=True)
class Stall(_BodyFault):
    """Send ``byte`` bytes of the body, nothing for ``seconds``, then the rest.

    Args:
        byte: How many bytes of the body come before the pause, 0 or more. Only longer bodies are hit.
        seconds: Length of the pause.
    """

    seconds: float

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        before, after = split(response.body, self.byte)
        return replace(response, body=(*before, Sleep(self.seconds), *after))


@dataclass(frozen=True)
class HangUp(Fault):
    """Close the connection without an answer, as a server does that drops a kept-alive connection."""

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        return replace(response, body=(Close(),), span=None, has_head=False)


@dataclass(frozen=True)
class Drip(Fault):
    """Send the body at ``bytes_per_s``.

    Args:
        bytes_per_s: Bytes per second, above 0. A lower ``rate_bytes_s`` of the server still applies.

    Raises:
        ValueError: ``bytes_per_s`` is not positive.
    """

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
    """Wait ``seconds`` longer before the first byte.

    Args:
        seconds: Seconds to add to the server's latency.
    """

    seconds: float

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        return replace(response, delay_s=response.delay_s + self.seconds)


@dataclass(frozen=True)
class Status(Fault):
    """Answer with another status, without the object.

    Args:
        code: The HTTP status, such as 503.
        retry_after: The ``Retry-After`` header: seconds, or an HTTP date as text. None: no such header.
    """

    code: int
    retry_after: float | str | None = None

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        refused = plain(self.code, headers)
        return replace(without_body(request, refused), delay_s=response.delay_s)


@dataclass(frozen=True)
class Capacity(Fault):
    """Answer 503 while ``limit`` other requests are being answered, for any key.

    The answer comes without latency, as from a front end under load: a delayed one would itself count as a
    concurrent request.

    Args:
        limit: The most requests that are answered at a time.
    """

    limit: int

    def fits(self, request: Request, response: Response) -> bool:
        return request.concurrent > self.limit

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        return without_body(request, plain(503))


@dataclass(frozen=True)
class Redirect(Fault):
    """Redirect the client to ``location``.

    Args:
        location: A URL, or a path of this server.
        code: The HTTP status.
    """

    location: str
    code: int = 302

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        moved = plain(self.code, {"Location": self.location})
        return replace(without_body(request, moved), delay_s=response.delay_s)


@dataclass(frozen=True)
class RequireQuery(Fault):
    """Refuse requests whose query does not contain ``text``, as a store refuses a wrong signature.

    For a signature that expires, add ``Status(403, query="*" + text + "*", after=...)``.

    Args:
        text: What the query must contain.
        code: The HTTP status of the refusal.
    """

    text: str = field(repr=False)
    code: int = 403

    def fits(self, request: Request, response: Response) -> bool:
        return self.text not in request.query

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        return replace(without_body(request, plain(self.code)), delay_s=response.delay_s)


@dataclass(frozen=True)
class Headers(Fault):
    """Set, replace or remove headers of the response.

    Args:
        headers: Values by name, in any case. None removes the header.
    """

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
    """Send no Content-Length, so that the end of the connection ends the body.

    Args:
        cut: End the connection after this many bytes of the body. The client cannot see such a cut in the
            protocol. None: send the whole body.
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
    """Send a Content-Length that is off by ``delta``.

    If it is too large, the connection is closed after the body, which looks cut. If it is too small, the
    connection stays open, and the surplus comes before the next response.

    Args:
        delta: Bytes to add to the right length; negative for too small a length.
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
    """Answer a request for a range with another range, ``shift`` bytes away.

    Args:
        shift: How many bytes away; negative for earlier ones. A range that would leave the object is
            answered without the fault.
        lies: What is wrong. ``"both"``: header and body agree on the wrong range. ``"body"``: the header
            claims the requested range, but the body is another. ``"header"``: only the header is wrong.
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
    """Answer a request for a range with 200 and the whole object."""

    def fits(self, request: Request, response: Response) -> bool:
        return response.status == 206

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        assert obj is not None, "a 206 has an object"
        return replace(whole(obj), delay_s=response.delay_s, rate_bytes_s=response.rate_bytes_s)


@dataclass(frozen=True)
class WrongETag(Fault):
    """Send an ETag that is not the object's, with this response only."""

    def fits(self, request: Request, response: Response) -> bool:
        return "ETag" in response.headers

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        etag = '"wrong-' + response.headers["ETag"].lstrip('"')
        return replace(response, headers={**response.headers, "ETag": etag})


@dataclass(frozen=True)
class FlipBit(Fault):
    """Flip one bit of the object.

    The byte is counted in the object, not in the body, so the damage stays in one place whatever ranges a
    client requests.

    Args:
        byte: Index of the byte in the object, from 0.
        bit: Which bit of it, from 0, the lowest, to 7.

    Raises:
        ValueError: ``byte`` or ``bit`` is out of range.
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
    """Compress the body with gzip and ``Content-Encoding: gzip``, whether or not the client accepts that."""

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
    """Replace the object, from the first request that is hit.

    The change comes before that request is answered, so ``If-Match`` with the old ETag gets 412.

    Args:
        new_bytes: The new content.
    """

    new_bytes: bytes = field(repr=False)

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        return response


def _flip(view: memoryview, bit: int) -> memoryview:
    return memoryview(bytes([view[0] ^ (1 << bit)]))


@dataclass(frozen=True, slots=True)
class Latency:
    """Draw the seconds before the first byte: lognormal, with an occasional stall; for ``serve(latency_s=)``.

    Object stores answer most requests near the median and a few much later. A lognormal distribution with a
    rare stall is the smallest model that has both; constant latency does not test hedging.

    Args:
        median_s: Median of the latency, in seconds.
        sigma: Standard deviation of its natural logarithm. 0, the default: every request takes ``median_s``.
            0.5 puts the 95th percentile at 2.3 times the median.
        stall_probability: Share of the requests that take ``stall_s`` instead, from 0 to 1.
        stall_s: How many seconds these take.

    Raises:
        ValueError: A value is negative, or ``stall_probability`` is above 1.
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
