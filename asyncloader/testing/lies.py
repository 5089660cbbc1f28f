"""Faults whose bytes or headers are not the truth: another range, another object, a flipped bit.

Same laws as ``faults``. A lie that replaces the body undoes what earlier faults did to it, so name it
before the faults that cut or stall.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass, field, replace
from typing import Literal

from .faults import Fault, has_body
from .messages import Close, Object, Request, Response, Send, body_length, content_range, part, split, whole

__all__ = [
    "ChangeObject",
    "FlipBit",
    "GzipEncoding",
    "IgnoreRange",
    "WrongETag",
    "WrongLength",
    "WrongRange",
]


@dataclass(frozen=True)
class WrongLength(Fault):
    """A Content-Length that is off by ``delta``.

    Announcing too much, the connection is closed after the body: the body looks cut. Announcing too
    little, it stays open and the surplus lies before the next response, as with a server that has it
    wrong.
    """

    delta: int

    def fits(self, request: Request, response: Response) -> bool:
        length = response.headers.get("Content-Length")
        return has_body(response) and length is not None and int(length) + self.delta >= 0

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        # From the header, not from the body: a cut before this fault does not change what is announced.
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
            range asked for, the body is another. ``"header"``: the body is right, the header is not.
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
    """200 and the whole object for a request that asked for a range."""

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

    The byte is counted in the object, not in the body, so that the damage stays in one place
    whatever ranges a client cuts the object into.
    """

    byte: int
    bit: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.byte < 0 or not 0 <= self.bit < 8:
            raise ValueError(f"byte must be at least 0 and bit 0 to 7, not {self.byte}, {self.bit}")

    def fits(self, request: Request, response: Response) -> bool:
        first, stop = response.span or (0, 0)
        # A cut before this fault may have taken the byte away.
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
    """From the first request it hits, that one included, the object is ``new_bytes``.

    The change is made before the request is answered, so ``If-Match`` with the old ETag gets 412.
    """

    new_bytes: bytes = field(repr=False)

    def apply(self, request: Request, obj: Object | None, response: Response) -> Response:
        return response


def _flip(view: memoryview, bit: int) -> memoryview:
    return memoryview(bytes([view[0] ^ (1 << bit)]))
