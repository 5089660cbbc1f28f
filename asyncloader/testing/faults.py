"""Faults of a network or a loaded server: each turns a healthy response plan into a faulty one.

Laws: a fault is a frozen value and keeps no state; ``apply`` is a pure function. Whether its turn has
come (``after``, ``times``, ``probability``) is counted by ``scenario``. A request counts for a fault
only if the fault ``fits``: a cut at byte 1000 is not used up by a response of 10 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from .messages import Close, Object, Request, Response, Sleep, body_length, plain, split, without_body
from .messages import Reset as ResetAction

__all__ = [
    "Capacity",
    "CutAt",
    "Delay",
    "Drip",
    "Fault",
    "HangUp",
    "Headers",
    "NoLength",
    "Redirect",
    "RequireQuery",
    "Reset",
    "Stall",
    "Status",
    "has_body",
]


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
    """Close the connection instead of answering, as a server does that drops a kept-alive one."""

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
    """503 for every request that finds ``limit`` others being answered, on any key.

    It is refused without latency, as a front end does that sheds load: a refusal that lingered would
    itself count as a concurrent request.
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
    """Refuse whoever's query does not hold ``text``, as a store does without the right signature.

    One that expires is ``Status(403, query="*" + text + "*", after=...)`` beside it.
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

    The client cannot tell the cut from the end by the framing.
    """

    cut: int | None = None

    def fits(self, request: Request, response: Response) -> bool:
        return has_body(response) and (self.cut is None or self.cut < body_length(response.body))

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        headers = {name: value for name, value in response.headers.items() if name != "Content-Length"}
        body = response.body if self.cut is None else split(response.body, self.cut)[0]
        return replace(response, headers={**headers, "Connection": "close"}, body=(*body, Close()))


def has_body(response: Response) -> bool:
    """Whether the response carries what was asked for, as against an error or nothing."""
    return response.has_head and 200 <= response.status < 300 and body_length(response.body) > 0
