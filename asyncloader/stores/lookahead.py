"""Which part of which shard is requested next; pure, so that the rule can be read and tested alone.

Shards are read in spans of bytes. A shard that is read from front to back has a single span; if it ends with
the shard, its end is unknown before the first answer. For a shard with a plan, the spans that the plan needs
to see come first, then those that it has decided on. Spans are requested in parts: the first part of a shard
is small, and its answer also states the shard's length; later parts are large, and the first parts of the
following shards are requested meanwhile. A budget bounds what is requested and not yet passed on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

from ..flow.budget import MOST_GROWTH, Reservation
from ..types import Buffer, Layout, Planning, Span
from .local import FileSpan
from .store import NO_END, Body

# Small, for a fast first batch.
FIRST_PART_BYTES = 1 << 20

# Later parts: small, since a large one stays in flight for long on a slow connection. 1 GB from a server on
# loopback took a fifth more of the processor's time in parts of 1 MiB than in parts of 2 MiB, and hardly less
# in parts of 4 or 8 MiB. Where more than 32 parts may be in flight, they are larger instead.
SMALL_PART_BYTES = 2 << 20
PART_BYTES = 8 << 20

# A part of a plan counts at least so much in the budget, which bounds the number of requests too.
_LEAST_PART_BYTES = 128 << 10

# Requests for shards whose turn is far away only take connections from those that are needed next.
MOST_SHARDS_AHEAD = 32

# A lane that may have so many first parts in flight asks for the next shard's length before it is needed.
_MANY_FIRST_PARTS = 8

# How many shards may be planned before other parts of them are requested: a plan costs two round trips, and
# reading a shard takes many.
_MOST_PLANS_AHEAD = 4

Wanted: TypeAlias = tuple[str, int | Span | Planning]
"""A shard's URL, and the offset to read it from to its end, the bytes to read, or the plan of what to."""


@dataclass(slots=True, eq=False)
class ShardPart:
    """Bytes ``start`` to ``stop`` of a shard; the shard may end before.

    Attributes:
        reserved: How much of the budget it holds for bytes that were not passed on yet.
        received_to: Offset behind the last byte that has come.
        answered_s: When the answer began, by ``time.perf_counter()``; None before.
        ranged: Whether its server supports ranges. Otherwise it sends everything from the first byte on.
        waiting: What has come before the bytes of earlier parts.
        has_ended: Whether all of it has come, or there was an error.
        error: None if all has come.
    """

    start: int
    stop: int
    reserved: int
    received_to: int = field(init=False)
    answered_s: float | None = None
    ranged: bool = True
    waiting: list[Buffer | FileSpan] = field(default_factory=list)
    has_ended: bool = False
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.received_to = self.start

    def hand_over(self, size: int) -> int:
        """So many bytes are passed on; returns how much of the budget goes with them."""
        size = min(size, self.reserved)
        self.reserved -= size
        return size


@dataclass(slots=True, eq=False)
class ShardRead:
    """A shard that is being read. Its length, version and digests come with the first answer.

    Attributes:
        spans: What is still to be requested, in order.
        plan: Decides what to read; None for a shard that is read from front to back.
        start: The first byte of such a shard to read.
        stop: The end of what to read, if not the end of the shard.
        layout: What the plan has decided on; None before.
        is_planning: Whether the plan is still to decide.
        is_file: Whether it is a file of this machine: one answer may be all that is wanted.
        is_answered: Whether there was an answer, so that further parts may be requested.
        wanted_bytes: How many are read of it; None if that is not known, or not yet.
        total: The end of its parts: its length, or ``NO_END`` if the server does not state it.
        parts: Those under way, and those that wait for the parts before them.
        shown: What has come of what its plan has asked for.
        sent: For each chunk that was sent and not yet received, how much of the budget it holds.
        is_announced: Whether its channel was sent to the consumer.
        has_ended: Whether all of it was sent, or there was an error.
        error: None if all was sent.
    """

    url: str
    spans: deque[Span] = field(default_factory=deque)
    plan: Planning | None = None
    start: int | None = None
    stop: int = NO_END
    layout: Layout | None = None
    is_planning: bool = False
    is_file: bool = False
    is_answered: bool = False
    wanted_bytes: int | None = None
    total: int | None = None
    etag: str | None = None
    digests: Mapping[str, bytes] = field(default_factory=dict)
    parts: deque[ShardPart] = field(default_factory=deque)
    shown: list[Buffer] = field(default_factory=list)
    sent: deque[int] = field(default_factory=deque)
    is_announced: bool = False
    has_ended: bool = False
    error: Exception | None = None

    @property
    def length(self) -> int | None:
        """In bytes; None if it is not known, or not yet."""
        return None if self.total == NO_END else self.total

    @property
    def wants_part(self) -> bool:
        # One request first: its answer states the length, or is all that is wanted.
        return bool(self.spans) and (self.is_answered or not self.parts)


class Lookahead:
    """Decides which part to request next.

    Args:
        shards: What is wanted of which, in order.
        budget: Bounds the bytes that are requested and not yet passed on.
    """

    def __init__(self, shards: Iterable[Wanted], budget: Reservation) -> None:
        self._waiting = iter(shards)
        self._budget = budget
        self.window: deque[ShardRead] = deque()
        #: Shards that have come into the window; the reader takes them from here.
        self.begun: deque[ShardRead] = deque()

    def next_part(self) -> tuple[ShardRead, ShardPart] | None:
        """The part to request now, if the budget has room for one.

        Parts of the first shard come before those of later ones, but for the first part of the next one.
        """
        shard = self._next_shard()
        if shard is None:
            return None
        span = shard.spans[0]
        first, later = part_sizes(self._budget.share_bytes)
        size = min(first if shard.total is None else later, span.stop - span.start)
        reserved = size if shard.plan is None else max(size, _LEAST_PART_BYTES)
        is_needed = shard is self.window[0] and not shard.parts and not shard.sent
        if not self._budget.take(reserved, is_needed=is_needed):
            return None
        part = ShardPart(span.start, span.start + size, reserved)
        shard.spans.popleft()
        if part.stop < span.stop:
            shard.spans.appendleft(Span(part.stop, span.stop))
        shard.parts.append(part)
        return shard, part

    def opened(self, shard: ShardRead, part: ShardPart, body: Body, is_whole: bool = False) -> None:
        """The first answer for ``shard``, to ``part``, has stated its length and version.

        Args:
            shard: Which one.
            part: Grows to what its answer contains.
            body: The answer.
            is_whole: It contains all that is wanted of the shard, without taking memory for it.
        """
        shard.is_answered = True
        if is_whole:
            shard.spans.clear()
        if shard.total is not None:
            return
        shard.is_file = body.span_of is not None
        shard.etag = body.etag
        shard.digests = body.digests
        stop = part.stop
        if body.stop is None or body.stop > part.stop:
            # The range was ignored: this answer holds everything, and ends where it ends.
            stop = NO_END if body.stop is None else body.stop
            part.ranged = False
        shard.total = stop if body.total is None else body.total
        if shard.start is not None and shard.length is not None:
            shard.wanted_bytes = min(shard.stop, shard.length) - shard.start
        if shard.plan is None and not is_whole:
            part.stop = min(stop, shard.stop)
            self.ask(shard, [Span(min(stop, shard.total), min(shard.stop, shard.total))])
        else:
            self.ask(shard, shard.spans)

    def planned(self, shard: ShardRead, layout: Layout) -> None:
        """The plan of ``shard`` has decided what to read."""
        shard.layout = layout
        shard.is_planning = False
        shard.is_answered = not shard.is_file
        self.ask(shard, layout.spans)
        shard.wanted_bytes = sum(stop - start for start, stop in shard.spans)

    def ask(self, shard: ShardRead, spans: Iterable[Span]) -> None:
        """These bytes of ``shard`` are to be requested next, as far as it has them."""
        total = NO_END if shard.total is None else shard.total
        shard.spans = deque(
            Span(start, min(stop, total)) for start, stop in spans if start < min(stop, total)
        )

    def _next_shard(self) -> ShardRead | None:
        """The shard whose part is next: the first that wants one, or the one behind it to know its length."""
        shard = next((shard for shard in self._shards_in_turn() if shard.wants_part), None)
        if shard is None or shard.plan is not None or not shard.parts:
            return shard
        if not asks_early(self._budget.share_bytes):
            return shard
        following = next(islice(self._shards_in_turn(), self.window.index(shard) + 1, None), None)
        if following is None or following.plan is not None or following.parts or following.is_answered:
            return shard
        return following

    def _shards_in_turn(self) -> Iterator[ShardRead]:
        """Those in the window, then others that come into it."""
        yield from self.window
        while len(self.window) < MOST_SHARDS_AHEAD and not self._reaches_far:
            if sum(shard.is_planning for shard in self.window) >= _MOST_PLANS_AHEAD:
                return
            if (following := next(self._waiting, None)) is None:
                return
            url, wanted = following
            if isinstance(wanted, int):
                wanted = Span(wanted, NO_END)
            if isinstance(wanted, Span):
                shard = ShardRead(url, deque([wanted]), start=wanted.start, stop=wanted.stop)
            else:
                shard = ShardRead(url, plan=wanted, is_planning=True)
            self.window.append(shard)
            self.begun.append(shard)
            yield shard

    @property
    def _reaches_far(self) -> bool:
        """Whether the shards in the window will last until more than now may be in flight."""
        lengths = [shard.wanted_bytes for shard in self.window]
        last = next((length for length in reversed(lengths) if length is not None), 0)
        behind = sum(last if length is None else length for length in lengths[1:])
        return behind > MOST_GROWTH * self._budget.share_bytes


def asks_early(share_bytes: int) -> bool:
    """Whether a lane with such a share of the budget asks for the length of a shard before its turn."""
    return share_bytes >= _MANY_FIRST_PARTS * FIRST_PART_BYTES


def part_sizes(share_bytes: int) -> tuple[int, int]:
    """The sizes of the first part of a shard and of later ones, for a lane with a share of the budget."""
    # Where many lanes share little, each has two small ones rather than none.
    first = min(FIRST_PART_BYTES, max(share_bytes // 2, _LEAST_PART_BYTES))
    # Quarters of a small budget still leave one part in transfer while another is decoded.
    later = min(max(share_bytes // 32, SMALL_PART_BYTES), PART_BYTES, share_bytes // 4)
    return first, max(later, first)
