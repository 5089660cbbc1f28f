"""The reader of a lane: what it requests, by the rules that a pass has, and how bytes come to its decoder.

It is ``stores.reading.reader`` in the time of a simulation. Which part is requested next and what may be
under way is decided by ``Lookahead`` and ``Budget`` themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from functools import partial

from .._flow.budget import Claim
from ..stores.buffers import BUFFER_BYTES
from ..stores.reading.chunks import HANDOVER_BYTES
from ..stores.reading.lookahead import Lookahead, Part, Shard
from ..stores.store import NO_END, Body, no_chunks
from ..types import Span
from .held import Held
from .link import Answer, Requests
from .setting import Link
from .shares import Share
from .timeline import Process, Signal, Timeline

__all__ = ["Chunks", "Reader"]

# Bytes of a slow answer are decoded as they come: what comes in so long is told together.
_PIECE_S = 0.02
_LEAST_PIECE_BYTES = 4 << 10


class Chunks:
    """The bytes of a share of a shard, on their way to the decoder.

    Attributes:
        share: Which samples they are.
        sizes: Of the pieces that wait here.
        ended: Whether no more will come.
        moved: Given whenever something was put or taken.
    """

    def __init__(self, share: Share, timeline: Timeline) -> None:
        self.share = share
        self.sizes: deque[int] = deque()
        self.ended = False
        self.moved = Signal(timeline)
        self._held_bytes = 0

    def has_room(self, size: int) -> bool:
        """Whether so many bytes may be put; one piece always may, where there is none."""
        return not self.sizes or self._held_bytes + size <= HANDOVER_BYTES

    def put(self, size: int) -> None:
        """They have come."""
        self.sizes.append(size)
        self._held_bytes += size
        self.moved.give()

    def take(self) -> int:
        """The decoder takes the next piece."""
        size = self.sizes.popleft()
        self._held_bytes -= size
        self.moved.give()
        return size

    def finish(self) -> None:
        """No more will come."""
        self.ended = True
        self.moved.give()


class _Arrived:
    """What has come of a part: pieces, and whether that is all."""

    __slots__ = ("ended", "more", "pieces")

    def __init__(self, timeline: Timeline) -> None:
        self.pieces: deque[int] = deque()
        self.ended = False
        self.more = Signal(timeline)


class Reader:
    """Reads the shards of a lane, in order.

    Args:
        timeline: Of the simulation.
        shares: What the lane reads of them.
        claim: On the budget of its process.
        requests: Of its process.
        link: How fast answers come.
        held: Told how many bytes it holds.

    Attributes:
        came: Given when ``next`` is there, or when there are no more.
        next: The shard that the decoder may begin; None if it has to wait.
        ended: Whether there are no more.
        received_bytes: All that has come so far.
    """

    def __init__(
        self,
        timeline: Timeline,
        shares: Iterable[Share],
        claim: Claim,
        requests: Requests,
        link: Link,
        held: Held,
    ) -> None:
        self._timeline = timeline
        self._shares = deque(shares)
        wanted = ((str(share.shard), Span(share.start_byte, _stop(share))) for share in self._shares)
        self._totals = {str(share.shard): share.shard_bytes for share in self._shares}
        self._claim = claim
        self._lookahead = Lookahead([*wanted], claim)
        self._requests = requests
        self._piece_bytes = min(
            BUFFER_BYTES, max(int(link.connection_bytes_s * _PIECE_S), _LEAST_PIECE_BYTES)
        )
        self._held = held
        self._arrived: dict[Part, _Arrived] = {}
        self._room = Signal(timeline)
        self._taken = Signal(timeline)
        self.came = Signal(timeline)
        self.next: Chunks | None = None
        self.ended = False
        self.received_bytes = 0
        claim.on_room = partial(timeline.after, 0.0, self._on_room)

    def take(self) -> Chunks:
        """The decoder takes the next shard."""
        chunks, self.next = self.next, None
        assert chunks is not None
        self._taken.give()
        return chunks

    def run(self) -> Process:
        """Read all of it."""
        self._top_up()
        while self._lookahead.window:
            shard = self._lookahead.window[0]
            chunks = Chunks(self._shares.popleft(), self._timeline)
            while self.next is not None:
                yield self._taken
            self.next = chunks
            self.came.give()
            yield from self._hand_on(shard, chunks)
            chunks.finish()
            self._lookahead.window.popleft()
            self._top_up()
        self.ended = True
        self.came.give()
        self._claim.close()

    # --- what is requested ---

    def _top_up(self) -> None:
        while (request := self._lookahead.next_part()) is not None:
            shard, part = request
            self._arrived[part] = _Arrived(self._timeline)
            self._requests.ask(self._answer(shard, part))
            self._room.give()
        self._held.now(self._claim.taken_bytes)

    def _on_room(self) -> None:
        self._room.give()
        self._top_up()

    def _answer(self, shard: Shard, part: Part) -> Answer:
        size = min(part.stop, self._totals[shard.url]) - part.start
        asked_s = self._timeline.now_s
        return Answer(
            max(size, 0),
            self._piece_bytes,
            partial(self._opened, shard, part),
            partial(self._piece, part, size, asked_s),
        )

    def _opened(self, shard: Shard, part: Part) -> None:
        self._claim.answered()
        if shard.total is None:
            total = self._totals[shard.url]
            self._lookahead.opened(
                shard, part, Body(part.start, min(part.stop, total), total, None, no_chunks())
            )
            self._top_up()

    def _piece(self, part: Part, of_bytes: int, asked_s: float, size: int, is_last: bool) -> None:
        arrived = self._arrived[part]
        self.received_bytes += size
        if size:
            arrived.pieces.append(size)
        if is_last:
            arrived.ended = True
            self._requests.ended()
            self._claim.received("", of_bytes, self._timeline.now_s - asked_s)
        arrived.more.give()

    # --- what the decoder gets ---

    def _hand_on(self, shard: Shard, chunks: Chunks) -> Process:
        sent: deque[tuple[Part, int]] = deque()
        while (part := (yield from self._next_part(shard))) is not None:
            arrived = self._arrived[part]
            while True:
                while not (arrived.pieces or arrived.ended):
                    yield arrived.more
                if not arrived.pieces:
                    break
                # All that has come meanwhile, as far as it goes into a buffer.
                size = arrived.pieces.popleft()
                while arrived.pieces and size + arrived.pieces[0] <= BUFFER_BYTES:
                    size += arrived.pieces.popleft()
                while not chunks.has_room(size):
                    yield chunks.moved
                chunks.put(size)
                sent.append((part, size))
                while len(sent) > len(chunks.sizes):
                    self._lookahead.release(*sent.popleft())
                self._top_up()
            waiting = sum(size for of, size in sent if of is part)
            self._lookahead.release(part, max(part.reserved - waiting, 0))
            shard.parts.popleft()
            del self._arrived[part]
            self._top_up()
        for of, size in sent:
            self._lookahead.release(of, size)

    def _next_part(self, shard: Shard) -> Generator[float | Signal, None, Part | None]:
        while not shard.parts:
            if not shard.wants_part:
                return None
            yield self._room
            self._top_up()
        return shard.parts[0]


def _stop(share: Share) -> int:
    """Up to where to read: nobody knows where a shard ends before the first answer."""
    return NO_END if share.stop_byte == share.shard_bytes else share.stop_byte
