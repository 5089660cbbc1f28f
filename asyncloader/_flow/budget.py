"""The byte budget of a process: what its lanes may have under way, shared by them.

Laws:

* Together the lanes never take more than is of use, nor more than there is, but for the one part that the
  lane whose turn it is needs next: nothing could be freed without it.
* No lane takes more than its share, so that the first one leaves something for the others. A part that is
  larger than a share is let in where a lane has none and there is room; those whose turn is near first.
* Readers that are parts of one lane divide its share. Of them the one that the lane waits for is the one that
  may go on in the lane's turn.
* Who was refused is called when that may have changed; nobody has to ask again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

from .readahead import ReadAhead

__all__ = ["Budget", "Claim", "Portion", "claim_alone"]


class Budget:
    """Bytes for the lanes of one process.

    Args:
        total_bytes: For all together.
        lanes: In the order of their turns, which begins with the first.
        read_ahead: Decides how much of the total is of use; None, the default, takes all of it to be.
    """

    def __init__(self, total_bytes: int, lanes: Sequence[int], read_ahead: ReadAhead | None = None) -> None:
        self._total_bytes, self._read_ahead = total_bytes, read_ahead
        self._places = {lane: place for place, lane in enumerate(lanes)}
        self._turn = lanes[0]
        #: The part of a lane that it waits for; a lane that has no parts is not in here.
        self._due: dict[int, tuple[int, ...]] = {}
        self._taken_bytes = self._aside_bytes = 0
        # Claims belong to a loop, and turns are passed on by the thread that reads.
        self._lock = threading.Lock()
        self._refused: dict[Claim, int] = {}
        self._was_short = False

    def claim(self, lane: int) -> Claim:
        """What the one reader of ``lane`` takes."""
        return Claim(self, lane, 1.0)

    def portion(self, lane: int, number: int, share: float) -> Portion:
        """What part ``number`` of a lane has of it; see ``Portion``."""
        return Portion(self, lane, share, (number,))

    @property
    def allowed_bytes(self) -> int:
        """What all lanes together may have now."""
        left_bytes = self._total_bytes - self._aside_bytes
        return left_bytes if self._read_ahead is None else min(self._read_ahead.size_bytes, left_bytes)

    @property
    def is_exhausted(self) -> bool:
        """Whether more would be of use than there is, and a reader has asked for more."""
        return self._was_short and self._read_ahead is not None and self._read_ahead.wants_more

    def most_bytes(self, share: float) -> int:
        """What a reader could have at most that has such a share of a lane's."""
        return int(self._total_bytes // len(self._places) * share)

    def share_bytes(self, share: float) -> int:
        """What a reader may count on now that has such a share of a lane's."""
        return int(self.allowed_bytes // len(self._places) * share)

    def pass_turn(self, lane: int) -> None:
        """It is the turn of ``lane`` now: it may go on, whoever holds what."""
        with self._lock:
            self._turn = lane
            woken = self._take_out_due()
        for claim in woken:
            claim.on_room()

    def wait_for(self, lane: int, part: tuple[int, ...]) -> None:
        """``lane`` waits for this part of it now."""
        with self._lock:
            if self._due.get(lane) == part:
                return
            self._due[lane] = part
            woken = self._take_out_due() if lane == self._turn and self._refused else []
        for claim in woken:
            claim.on_room()

    def take(self, claim: Claim, size: int, is_needed: bool) -> bool:
        """Take ``size`` bytes, if they may be had; see ``Claim.take``."""
        with self._lock:
            fits = self._taken_bytes + size <= self._room_bytes() and (
                not claim.taken_bytes or claim.taken_bytes + size <= claim.share_bytes
            )
            if not fits and self._read_ahead is not None and self._read_ahead.wants_more:
                self._was_short = True
            if not fits and not (is_needed and self._is_due(claim)):
                # With something of its own under way, it will ask again when that is freed.
                if is_needed or not claim.taken_bytes:
                    self._refused[claim] = size
                return False
            self._refused.pop(claim, None)
            claim.taken_bytes += size
            self._taken_bytes += size
            return True

    def free(self, claim: Claim, size: int, is_handed_on: bool) -> None:
        """Give back; see ``Claim.free``."""
        with self._lock:
            claim.taken_bytes -= size
            self._taken_bytes -= size
            if is_handed_on and self._read_ahead is not None:
                self._read_ahead.handed_on(size, self._taken_bytes, monotonic())
            woken = self._those_that_fit() if self._refused else ()
        for each in woken:
            each.on_room()

    def set_aside(self, claim: Claim, size: int, most_share: float) -> bool:
        """Take ``size`` bytes for something else than reading; see ``Claim.set_aside``."""
        with self._lock:
            held_bytes = self._aside_bytes + min(self._taken_bytes, self.allowed_bytes)
            if size > most_share * self.most_bytes(claim.share) or held_bytes + size > self._total_bytes:
                return False
            claim.aside_bytes += size
            self._aside_bytes += size
            return True

    def give_back(self, claim: Claim) -> None:
        """Give back all that is set aside."""
        with self._lock:
            self._aside_bytes -= claim.aside_bytes
            claim.aside_bytes = 0

    def answered(self) -> None:
        """See ``Claim.answered``."""
        if self._read_ahead is None or self._read_ahead.is_open:
            return
        with self._lock:
            self._read_ahead.open(monotonic())
            woken = self._those_that_fit() if self._refused else ()
        for each in woken:
            each.on_room()

    def received(self, origin: str, size: int, took_s: float) -> None:
        """See ``Claim.received``."""
        if self._read_ahead is not None:
            with self._lock:
                self._read_ahead.received(origin, size, took_s)

    def waited(self, seconds: float) -> None:
        """See ``Claim.waited``."""
        if self._read_ahead is not None:
            with self._lock:
                self._read_ahead.waited(seconds)

    def forget(self, claim: Claim) -> None:
        """Call it no more."""
        with self._lock:
            self._refused.pop(claim, None)

    def _room_bytes(self) -> int:
        """Up to where lanes may take."""
        if self._read_ahead is not None and not self._read_ahead.is_open and self._taken_bytes:
            return 0  # nothing competes with the first request
        return self.allowed_bytes

    def _is_due(self, claim: Claim) -> bool:
        """Whether the lane whose turn it is waits for this one, as far as it has said."""
        due = self._due.get(claim.lane, ())
        return claim.lane == self._turn and claim.part[: len(due)] == due[: len(claim.part)]

    def _take_out_due(self) -> list[Claim]:
        woken = [claim for claim in self._refused if self._is_due(claim)]
        for claim in woken:
            del self._refused[claim]
        return woken

    def _those_that_fit(self) -> list[Claim]:
        room = self._room_bytes() - self._taken_bytes
        if min(self._refused.values()) > room:
            return []
        turn, count = self._places[self._turn], len(self._places)
        woken = []
        for claim in sorted(self._refused, key=lambda claim: (self._places[claim.lane] - turn) % count):
            room -= self._refused[claim]
            if room < 0:
                break  # smaller ones behind it would keep it out for ever
            woken.append(claim)
        for claim in woken:
            del self._refused[claim]
        return woken


@dataclass(frozen=True, slots=True)
class Portion:
    """The budget as one part of a lane sees it, such as a component of a mixture.

    Attributes:
        budget: Whole.
        lane: Of the budget.
        share: What the reader of the part may count on, of the lane's.
        part: Its number in the lane, behind those of the parts that it is a part of.
    """

    budget: Budget
    lane: int
    share: float
    part: tuple[int, ...]

    def claim(self, lane: int) -> Claim:
        """What the one reader of this part takes.

        Args:
            lane: What the part takes itself for, which says nothing here.
        """
        return Claim(self.budget, self.lane, self.share, self.part)

    def portion(self, lane: int, number: int, share: float) -> Portion:
        """What a part of this part has of it."""
        return Portion(self.budget, self.lane, self.share * share, (*self.part, number))

    def wait(self) -> None:
        """The lane waits for this part of it now, and goes on with what it brings."""
        self.budget.wait_for(self.lane, self.part)


class Claim:
    """The part of a budget that one reader has taken.

    Attributes:
        share: What it may count on, of what its lane may have.
        part: Which part of its lane it reads; none if it is the lane's one reader.
        taken_bytes: Taken and not given back.
        aside_bytes: Set aside, likewise.
        on_room: Called in any thread when a refused reader should ask again.
    """

    def __init__(self, budget: Budget, lane: int, share: float, part: tuple[int, ...] = ()) -> None:
        self._budget = budget
        self.lane = lane
        self.share = share
        self.part = part
        self.taken_bytes = self.aside_bytes = 0
        self.on_room: Callable[[], object] = bool  # nobody is there yet

    @property
    def most_bytes(self) -> int:
        """What it could have at most."""
        return self._budget.most_bytes(self.share)

    @property
    def share_bytes(self) -> int:
        """What it may count on now."""
        return self._budget.share_bytes(self.share)

    def take(self, size: int, is_needed: bool = False) -> bool:
        """Take ``size`` bytes; says whether they may be had.

        Args:
            size: In bytes.
            is_needed: The lane cannot go on without them.
        """
        return self._budget.take(self, size, is_needed)

    def free(self, size: int) -> None:
        """Give ``size`` bytes back, which were handed on."""
        self._budget.free(self, size, is_handed_on=True)

    def set_aside(self, size: int, most_share: float) -> bool:
        """Take ``size`` bytes for something else than reading, which is not for the link to decide on.

        Args:
            size: In bytes.
            most_share: More than this part of what the reader could have at most is refused.
        """
        return self._budget.set_aside(self, size, most_share)

    def answered(self) -> None:
        """A request was answered, so that there may be more than one."""
        self._budget.answered()

    def received(self, origin: str, size: int, took_s: float) -> None:
        """All bytes of an answer of ``origin`` are there, so long after the request."""
        self._budget.received(origin, size, took_s)

    def waited(self, seconds: float) -> None:
        """The consumer had to wait for what this reader brings; called in its thread."""
        self._budget.waited(seconds)

    def close(self) -> None:
        """Give everything back. Idempotent."""
        self.on_room = bool
        self._budget.forget(self)
        self._budget.give_back(self)
        self._budget.free(self, self.taken_bytes, is_handed_on=False)


def claim_alone(total_bytes: int) -> Claim:
    """A budget for one reader, which shares it with nobody and may always have all of it."""
    return Budget(total_bytes, [0]).claim(0)
