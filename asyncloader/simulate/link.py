"""The link of a machine, whose answers share it evenly, and the requests of a process over it."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable

from ..stores.network.pacing import ConcurrencyLimit
from .setting import Link
from .timeline import Timeline

__all__ = ["Answer", "Requests", "Wire"]

# Less is no more than rounding, of times that are sums of thousands.
_ROUNDING = 1e-6


class Answer:
    """Bytes that are on their way, told in pieces as they come.

    Args:
        size_bytes: All of it.
        piece_bytes: Of each piece but the last.
        on_first: Called when it begins.
        on_piece: Called with the size of each piece that has come, and whether it is the last.
    """

    __slots__ = ("left_bytes", "on_first", "on_piece", "piece_bytes")

    def __init__(
        self,
        size_bytes: int,
        piece_bytes: int,
        on_first: Callable[[], object],
        on_piece: Callable[[int, bool], object],
    ) -> None:
        self.left_bytes = size_bytes
        self.piece_bytes = piece_bytes
        self.on_first = on_first
        self.on_piece = on_piece


class Wire:
    """The link of a machine: all answers under way get the same rate, none more than a connection has.

    So one number tells how far all of them are: what an answer would have got that was there from the
    beginning. It grows by the rate, and a piece is there when it has grown by the piece's size.

    Args:
        timeline: Of the simulation.
        link: Its rates.
    """

    def __init__(self, timeline: Timeline, link: Link) -> None:
        self._timeline = timeline
        self._link = link
        #: By what the number is when their next pieces are there.
        self._answers: list[tuple[float, int, int, Answer]] = []
        self._served_bytes = 0.0
        self._since_s = 0.0
        self._sent = 0
        self._plans = 0

    def send(self, answer: Answer) -> None:
        """Its first byte leaves now."""
        self._catch_up()
        self._push(answer)
        self._plan()

    def _push(self, answer: Answer) -> None:
        piece = min(answer.piece_bytes, answer.left_bytes)
        self._sent += 1
        heapq.heappush(self._answers, (self._served_bytes + piece, self._sent, piece, answer))

    @property
    def _rate(self) -> float:
        return min(self._link.connection_bytes_s, self._link.machine_bytes_s / max(len(self._answers), 1))

    def _catch_up(self) -> None:
        now_s = self._timeline.now_s
        if self._answers:
            self._served_bytes += (now_s - self._since_s) * self._rate
        self._since_s = now_s

    def _plan(self) -> None:
        self._plans += 1
        if self._answers:
            seconds = max(self._answers[0][0] - self._served_bytes, 0.0) / self._rate
            self._timeline.after(seconds, self._arrive, self._plans)

    def _arrive(self, plan: int) -> None:
        if plan != self._plans:
            return  # others have come meanwhile, and it was planned anew
        self._catch_up()
        self._served_bytes = max(self._served_bytes, self._answers[0][0])  # rounding
        while self._answers and self._answers[0][0] <= self._served_bytes + _ROUNDING:
            _, _, piece, answer = heapq.heappop(self._answers)
            answer.left_bytes -= piece
            if answer.left_bytes:
                self._push(answer)
            answer.on_piece(piece, not answer.left_bytes)
        self._plan()


class Requests:
    """What one process asks of a server: no more at a time than its pace allows.

    Args:
        timeline: Of the simulation.
        wire: Of its machine.
        first_byte_s: From a request to its answer.
    """

    def __init__(self, timeline: Timeline, wire: Wire, first_byte_s: float) -> None:
        self._timeline = timeline
        self._wire = wire
        self._first_byte_s = first_byte_s
        self._limit = ConcurrencyLimit()
        self._in_use = 0
        self._waiting: deque[Answer] = deque()
        #: How many were sent.
        self.count = 0

    def ask(self, answer: Answer) -> None:
        """Ask for it as soon as there is room for a request."""
        self._waiting.append(answer)
        self._admit()

    def ended(self) -> None:
        """An answer was had to its end."""
        self._in_use -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._in_use < int(self._limit.limit):
            self._in_use += 1
            self.count += 1
            self._timeline.after(self._first_byte_s, self._answered, self._waiting.popleft())

    def _answered(self, answer: Answer) -> None:
        self._limit.answered(self._in_use)
        answer.on_first()
        self._wire.send(answer)
        self._admit()
