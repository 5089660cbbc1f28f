"""Which part of which shard is requested next; pure, so that the rule can be read and tested alone.

The first request for a shard asks for a small part, whose answer also tells the shard's length; the rest
is asked for in large parts, and the first parts of the shards behind it go out meanwhile. A budget bounds
what is requested and not yet handed on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice

from ..._flow.budget import Claim
from ..._flow.channel import Channel
from ...types import Buffer
from ..store import NO_END, Body

__all__ = ["FIRST_PART_BYTES", "PART_BYTES", "Lookahead", "Part", "Shard"]

# Small, for a fast first batch; large, since each request costs a round trip: at 50 ms and 40 MB/s a
# connection an 8 MiB part spends four fifths of its time transferring.
FIRST_PART_BYTES = 1 << 20
PART_BYTES = 8 << 20
_LEAST_PART_BYTES = 128 << 10

# Requests for shards whose turn is far off only take connections from those that are needed next.
_MOST_SHARDS_AHEAD = 32


@dataclass(slots=True, eq=False)
class Part:
    """Bytes ``start`` to ``stop`` of a shard; the shard may end before.

    Attributes:
        reserved: How much of the budget it holds.
        chunks: Its bytes, as they come.
        received_to: Offset behind the last byte that was put there.
        ranged: Whether its server keeps to ranges. One that does not sends everything from the first byte on.
    """

    start: int
    stop: int
    reserved: int
    chunks: Channel[Buffer]
    received_to: int = field(init=False)
    ranged: bool = True

    def __post_init__(self) -> None:
        self.received_to = self.start


@dataclass(slots=True, eq=False)
class Shard:
    """A shard, read from ``start`` on; its end, version and digests are told by the first answer.

    Attributes:
        total: Offset to plan its parts up to: its length, or no byte's offset if its server tells none.
    """

    url: str
    start: int
    requested_to: int
    total: int | None = None
    etag: str | None = None
    digests: Mapping[str, bytes] = field(default_factory=dict)
    parts: deque[Part] = field(default_factory=deque)

    @property
    def length(self) -> int | None:
        """In bytes; None if it is not known, or not yet."""
        return None if self.total == NO_END else self.total

    @property
    def wants_part(self) -> bool:
        if self.total is None:
            return self.requested_to == self.start  # one request first: its answer tells the rest
        return self.requested_to < self.total


class Lookahead:
    """Decides which part to request next.

    Args:
        shards: Pairs of a URL and the byte offset to read it from.
        budget: What bounds the bytes that are requested and not yet handed on.
    """

    def __init__(self, shards: Iterable[tuple[str, int]], budget: Claim) -> None:
        self._waiting = iter(shards)
        self._budget = budget
        self.window: deque[Shard] = deque()

    def next_part(self) -> tuple[Shard, Part] | None:
        """The part to request now, if the budget has room for one.

        Parts of the first shard come before those of later ones.
        """
        shard = self._next_shard()
        if shard is None:
            return None
        size = self._part_bytes(shard)
        if not self._budget.take(size, is_needed=shard is self.window[0] and not shard.parts):
            return None
        part = Part(shard.requested_to, shard.requested_to + size, size, Channel(size))
        shard.requested_to = part.stop
        shard.parts.append(part)
        return shard, part

    def opened(self, shard: Shard, part: Part, body: Body) -> None:
        """The first answer for ``shard``, to ``part``, told its length and version."""
        shard.etag = body.etag
        shard.digests = body.digests
        if body.stop is None or body.stop > part.stop:
            # The range was ignored: this answer holds everything, and ends where it ends.
            part.stop = NO_END if body.stop is None else body.stop
            part.ranged = False
        shard.total = part.stop if body.total is None else body.total
        shard.requested_to = min(part.stop, shard.total)

    def release(self, part: Part, size: int) -> None:
        """``size`` bytes of ``part`` were handed on."""
        size = min(size, part.reserved)
        part.reserved -= size
        self._budget.free(size)

    def _next_shard(self) -> Shard | None:
        for shard in self.window:
            if shard.wants_part:
                return shard
        if len(self.window) >= _MOST_SHARDS_AHEAD:
            return None
        for url, start in islice(self._waiting, 1):
            self.window.append(Shard(url, start, start))
            return self.window[-1]
        return None

    def _part_bytes(self, shard: Shard) -> int:
        share = self._budget.share_bytes
        # Where many lanes share little, each has two small ones rather than none.
        first = min(FIRST_PART_BYTES, max(share // 2, _LEAST_PART_BYTES))
        if shard.total is None:
            return first
        # Halves of a small budget still leave one part in transfer while another is decoded.
        largest = max(min(PART_BYTES, share // 4), first)
        return min(largest, shard.total - shard.requested_to)
