"""The byte budget of a process, which its lanes share: how much they may have under way.

Laws:

* Together the lanes never take more than is useful, nor more than the total. The one exception is the part
  that the lane whose turn it is needs next: without it nothing could be freed.
* No lane takes more than its share, so that the first one leaves something for the others. A part that is
  larger than a share is admitted if its lane has no other and there is room; lanes whose turn is near come
  first.
* Readers that are parts of one lane divide its share. In the lane's turn, the reader that the lane waits for
  may go on.
* A refused reader is called when that may have changed; no reader polls.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from time import monotonic

# How many bytes should be under way; pure, so that the rule can be tested with simulated links.
#
# In flight is what the link needs, not what memory allows: touching a page once costs more than the work on
# its bytes. A link needs the product of its bandwidth and its delay. It is found as congestion control finds
# it (Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 14(5), 2016), in rounds that end
# when what was under way at their beginning has been passed on:
#
# * Until the first answer there is one request without competition. With it, the time that the link takes
#   to its first byte is known. What one connection brings in that time is added to the least.
#   At most a quarter of the cap, since first parts of many shards would take the room of those needed first.
# * The number grows after a round in which the consumer had to wait. If the rate does not rise within three
#   rounds, the number returns to its earlier value; if the rate does not fall then, twice, the link is full.
#   From then on a little more and a little less are tried in turn; the lower number stays if it is as fast.
# * Rounds without waits let it fall, after a while, to where the consumer begins to wait again.
# * It never exceeds a fixed number of products of the largest recent rate and the least delay.
#
# BBR aims at two such products. Here the last rule only guards against rates that grow for other reasons:
# bytes are passed on in order, so a late answer delays all behind it. The number has to cover how late
# answers are, not how early one can be, and that is found by trying.

# The minimum that is read ahead: 8 MiB, four parts, for the lane whose turn it is, and 2 MiB, one part, for
# each lane that waits for its turn. 1 GB of tar from a server on loopback took no less of the processor's
# time with eight times as many bytes, and two fifths more with a hundred times: pages that are touched once.
_LEAST_BYTES = 8 << 20
_LANE_BYTES = 2 << 20

# What one connection to an object store brings at least: to request as much for the time that a far store
# takes to answer saves a round of growth, and is little beside what a slow link gets in one.
# (Amazon S3's guide on performance counts on 85 to 90 MB/s for each concurrent request.)
FIRST_RATE_BYTES_S = 80e6

# A consumer that waits for less than this share of its time would gain less than that from more bytes.
_WAITS_SHARE = 0.08

# The least time of a round, beside that to a first byte: in less, the rate depends on how threads took turns.
ROUND_S = 0.05

# Growth in a round: as much as the waits explain and a quarter more, but at most BBR's gain at the start.
_SURPLUS = 1.25
MOST_GROWTH = 2.89

# The link is full if twice none of three rounds was so much faster than the one before them. BBR asks for a
# quarter, once, of smoothed rates. A jittery store needs the second trial, a machine that is warming up the
# higher threshold.
_BROUGHT = 1.4
_TRIAL_ROUNDS = 3
_FULL_TRIALS = 2

# A number that returns to its earlier value keeps so much of the rate; one that loses more was not too large.
_KEPT = 0.8

# Once it is full: BBR's gains, and its cycle of one trial in eight rounds. A larger number has to gain half
# of what was added; a smaller one may cost almost nothing.
_MORE, _MORE_BROUGHT = 1.25, 1.12
_LESS, _LESS_BROUGHT = 0.75, 0.97
_REST_ROUNDS = 8

# The factor by which it falls in each round after so many without waits.
_SINK = 7 / 8

# The most products. The delay is the least of any answer: for reading in order from a store with lognormal
# times of sigma 1, more than 30 of them are needed to keep the link busy, as simulated in
# tests/flow/test_readahead.py. For a store on loopback, 64 of them are some 100 MB.
_MOST_PRODUCTS = 64

# Shorter answers, such as a footer's, count as if they had so many bytes.
_SHORT_BYTES = 1 << 20

# The rates of so many rounds make one to compare with.
_REMEMBERED_RATES = 4


def read_ahead_of(lanes: int, most_bytes: int) -> ReadAhead:
    """What the lanes of one process read ahead together.

    Args:
        lanes: How many.
        most_bytes: Their budget.
    """
    return ReadAhead(_LEAST_BYTES + (lanes - 1) * _LANE_BYTES, most_bytes)


@dataclass(slots=True)
class _Trial:
    """A new number, compared with the earlier one.

    Attributes:
        before_bytes: The earlier number.
        before_rate: The rate with it.
        brings: The factor by which the rate has to grow at least.
        at_once: Whether one such round is enough; otherwise the mean counts.
        rates: So far.
    """

    before_bytes: int
    before_rate: float
    brings: float
    at_once: bool
    rates: list[float] = field(default_factory=list)

    def has_succeeded(self, rate: float) -> bool | None:
        """The result after one more round; None while it is open."""
        self.rates.append(rate)
        wanted = self.brings * self.before_rate
        if self.at_once and rate >= wanted:
            return True
        if len(self.rates) < _TRIAL_ROUNDS:
            return None
        # In the first one, what was requested before was still under way.
        return not self.at_once and fmean(self.rates[1:]) >= wanted


class ReadAhead:
    """How many bytes the readers of one process may have requested and not yet passed on.

    Args:
        least_bytes: The number after the first answer of a near store, and the least it falls to.
        most_bytes: A cap, such as the memory.
    """

    def __init__(self, least_bytes: int, most_bytes: int) -> None:
        self._least_bytes = min(least_bytes, most_bytes)
        self._most_bytes = most_bytes
        #: What is allowed now.
        self.size_bytes = self._least_bytes
        #: Whether there was an answer; before that, one request is enough.
        self.is_open = False
        #: The least time that an answer took, to its first byte and to its last, by origin.
        self._round_trips_s: dict[str, float] = {}
        self._delays_s: dict[str, float] = {}
        self._rates: deque[float] = deque(maxlen=_REMEMBERED_RATES)
        self._trial: _Trial | None = None
        self._failures = 0
        self._had_more = False
        self._resting_rounds = 0
        self._calm_rounds = 0
        # The current round; it ends when what was under way at its beginning has been passed on.
        self._round_bytes = 0
        self._began_s = 0.0
        self._handed_on_bytes = 0
        self._waited_s = 0.0

    @property
    def wants_more(self) -> bool:
        """Whether only the cap prevents it from trying more."""
        return self.size_bytes >= self._most_bytes and not self._calm_rounds

    def answered(self, origin: str, took_s: float, now_s: float) -> None:
        """An answer has begun.

        Args:
            origin: The server.
            took_s: From the request until now.
            now_s: The time.
        """
        self._round_trips_s[origin] = min(took_s, self._round_trips_s.get(origin, took_s))
        if not self.is_open:
            self.is_open = True
            early_bytes = self._least_bytes + FIRST_RATE_BYTES_S * took_s
            self._set(min(early_bytes, self._most_bytes / 4))
            self._began_s = now_s

    def received(self, origin: str, size: int, took_s: float) -> None:
        """All bytes of an answer are there.

        Args:
            origin: The server, whose distance decides the delay.
            size: How many bytes.
            took_s: From the request to the last of them.
        """
        delay_s = took_s * max(1.0, _SHORT_BYTES / max(size, 1))
        self._delays_s[origin] = min(delay_s, self._delays_s.get(origin, delay_s))

    def waited(self, seconds: float) -> None:
        """The consumer had to wait for bytes."""
        self._waited_s += seconds

    def handed_on(self, size: int, under_way_bytes: int, now_s: float) -> None:
        """The consumer has received bytes, and others are under way; this may change ``size_bytes``."""
        self._handed_on_bytes += size
        took_s = now_s - self._began_s
        if self._handed_on_bytes < self._round_bytes or took_s < max(
            (ROUND_S, *self._round_trips_s.values())
        ):
            return
        rate = self._handed_on_bytes / took_s
        busy_share = max(1 - self._waited_s / took_s, 0.0)
        if busy_share < 1 - _WAITS_SHARE:
            self._end_round_with_waits(rate, busy_share)
        else:
            self._end_calm_round()
        self._rates.append(rate)
        self._set(min(self.size_bytes, self._useful_bytes()))
        self._began_s, self._handed_on_bytes, self._waited_s = now_s, 0, 0.0
        self._round_bytes = under_way_bytes

    def _end_calm_round(self) -> None:
        self._trial = None
        self._resting_rounds = 0
        self._calm_rounds += 1
        if self._calm_rounds > _REST_ROUNDS:
            self._set(self.size_bytes * _SINK)

    def _end_round_with_waits(self, rate: float, busy_share: float) -> None:
        self._calm_rounds = 0
        if self._trial is not None:
            trial, tried_bytes = self._trial, self.size_bytes
            succeeded = trial.has_succeeded(rate)
            if succeeded is None:
                return
            self._trial = None
            if not succeeded:
                self._set(trial.before_bytes)
            if not self._is_full and trial.at_once and not succeeded:
                # The rate before may have been that of a burst: only a return that costs nothing is right.
                self._trial = _Trial(tried_bytes, fmean(trial.rates[1:]), _KEPT, at_once=False)
                return
            if not self._is_full and not trial.at_once:
                self._failures += succeeded
            if self._is_full:
                self._resting_rounds = _REST_ROUNDS
        if self._resting_rounds:
            self._resting_rounds -= 1
        elif not self._is_full:
            self._try(min(_SURPLUS / max(busy_share, 1e-3), MOST_GROWTH), _BROUGHT, rate)
        else:
            self._had_more = not self._had_more
            self._try(*((_MORE, _MORE_BROUGHT) if self._had_more else (_LESS, _LESS_BROUGHT)), rate)

    def _try(self, gain: float, brings: float, rate: float) -> None:
        before_bytes = self.size_bytes
        self._set(before_bytes * gain)
        if self.size_bytes != before_bytes:  # else it is at a bound
            if not self._is_full and self.size_bytes < int(before_bytes * gain):
                # A bound has cut the gain, so the rate cannot rise by more than this.
                brings = min(brings, 1 + (self.size_bytes / before_bytes - 1) / 2)
            before_rate = fmean((rate, *self._rates)) if self._is_full else rate
            self._trial = _Trial(before_bytes, before_rate, brings, at_once=not self._is_full)

    def _useful_bytes(self) -> float:
        """Beyond this, bytes under way add no speed, whatever the rates seem to show."""
        if not self._delays_s:
            return self._most_bytes
        return _MOST_PRODUCTS * max(self._rates) * max(self._delays_s.values())

    @property
    def _is_full(self) -> bool:
        return self._failures >= _FULL_TRIALS

    def _set(self, size_bytes: float) -> None:
        self.size_bytes = int(min(max(size_bytes, self._least_bytes), self._most_bytes))


class Budget:
    """Bytes for the lanes of one process.

    Args:
        total_bytes: For all together.
        lanes: In the order of their turns, which begins with the first.
        read_ahead: Decides how much of the total is useful; None, the default, uses all of it.
    """

    def __init__(self, total_bytes: int, lanes: Sequence[int], read_ahead: ReadAhead | None = None) -> None:
        self._total_bytes, self._read_ahead = total_bytes, read_ahead
        self._places = {lane: place for place, lane in enumerate(lanes)}
        self._turn = lanes[0]
        #: The part of a lane that it waits for; a lane that has no parts is not in here.
        self._due: dict[int, tuple[int, ...]] = {}
        self._taken_bytes = self._aside_bytes = 0
        # Reservations are used on a loop, and turns are passed on by the thread that reads.
        self._lock = threading.Lock()
        self._refused: dict[Reservation, int] = {}
        self._was_short = False

    def claim(self, lane: int) -> Reservation:
        """The reservation of the only reader of ``lane``."""
        return self.of(lane).claim()

    def of(self, lane: int) -> Portion:
        """The budget as ``lane`` sees it."""
        return Portion(self, lane, 1.0, ())

    @property
    def allowed_bytes(self) -> int:
        """The bytes that all lanes together may have now."""
        left_bytes = self.left_bytes
        return left_bytes if self._read_ahead is None else min(self._read_ahead.size_bytes, left_bytes)

    @property
    def is_exhausted(self) -> bool:
        """Whether more than the total would be useful, and a reader was refused."""
        return self._was_short and self._read_ahead is not None and self._read_ahead.wants_more

    def pass_turn(self, lane: int) -> None:
        """It is the turn of ``lane`` now: it may go on, whatever the others hold."""
        with self._lock:
            self._turn = lane
            woken = self._take_out_due()
        _wake(woken)

    def wait_for(self, lane: int, part: tuple[int, ...]) -> None:
        """``lane`` waits for this part of it now."""
        with self._lock:
            if self._due.get(lane) == part:
                return
            self._due[lane] = part
            woken = self._take_out_due() if lane == self._turn and self._refused else []
        _wake(woken)

    @property
    def left_bytes(self) -> int:
        """What is not set aside for something else than reading."""
        return self._total_bytes - self._aside_bytes

    def set_aside(self, size: int) -> None:
        """Take ``size`` bytes for something else than reading, which the link does not decide on."""
        with self._lock:
            self._aside_bytes += size

    def put_back(self, size: int) -> None:
        """Return bytes that were set aside."""
        with self._lock:
            self._aside_bytes -= size
            woken = self._those_that_fit()
        _wake(woken)

    def _room_bytes(self) -> int:
        """How many bytes the lanes may take in all."""
        if self._read_ahead is not None and not self._read_ahead.is_open and self._taken_bytes:
            return 0  # nothing competes with the first request
        return self.allowed_bytes

    def _is_due(self, claim: Reservation) -> bool:
        """Whether the lane whose turn it is waits for this reader, as far as is known."""
        due = self._due.get(claim.lane, ())
        return claim.lane == self._turn and claim.part[: len(due)] == due[: len(claim.part)]

    def _take_out_due(self) -> list[Reservation]:
        woken = [claim for claim in self._refused if self._is_due(claim)]
        for claim in woken:
            del self._refused[claim]
        return woken

    def _those_that_fit(self) -> list[Reservation]:
        if not self._refused:
            return []
        room = self._room_bytes() - self._taken_bytes
        if min(self._refused.values()) > room:
            return []
        turn, count = self._places[self._turn], len(self._places)
        woken = []
        for claim in sorted(self._refused, key=lambda claim: (self._places[claim.lane] - turn) % count):
            room -= self._refused[claim]
            if room < 0:
                break  # smaller ones behind it would keep it out forever
            woken.append(claim)
        for claim in woken:
            del self._refused[claim]
        return woken


@dataclass(frozen=True, slots=True)
class Portion:
    """The budget as a lane sees it, or a part of a lane, such as a component of a mixture.

    Attributes:
        budget: Whole.
        lane: Of the budget.
        share: The share of the lane's bytes that the reader of the part may count on.
        part: Its number in the lane, after the numbers of the parts that contain it; empty for the lane.
    """

    budget: Budget
    lane: int
    share: float
    part: tuple[int, ...]

    def claim(self) -> Reservation:
        """The reservation of the only reader of this part."""
        return Reservation(self.budget, self.lane, self.share, self.part)

    def portion(self, number: int, share: float) -> Portion:
        """The portion of a part of this part."""
        return Portion(self.budget, self.lane, self.share * share, (*self.part, number))

    def wait(self) -> None:
        """The lane waits for this part of it now."""
        self.budget.wait_for(self.lane, self.part)


class Reservation:
    """The bytes of a budget that one reader has taken.

    Attributes:
        share: The share of its lane's bytes that it may count on.
        part: Which part of its lane it reads; empty if it is the lane's only reader.
        taken_bytes: Taken and not freed.
        aside_bytes: Set aside for something else than reading, and not returned.
        on_room: Called in any thread when a refused reader should retry.
    """

    def __init__(self, budget: Budget, lane: int, share: float, part: tuple[int, ...]) -> None:
        self._budget = budget
        self.lane = lane
        self.share = share
        self.part = part
        self.taken_bytes = self.aside_bytes = 0
        self.on_room: Callable[[], object] = bool  # does nothing until there is a reader

    @property
    def most_bytes(self) -> int:
        """The most that it could have."""
        return int(self._budget._total_bytes // len(self._budget._places) * self.share)

    @property
    def share_bytes(self) -> int:
        """What it may count on now."""
        return int(self._budget.allowed_bytes // len(self._budget._places) * self.share)

    def take(self, size: int, is_needed: bool = False) -> bool:
        """Take ``size`` bytes; says whether they are available.

        Args:
            size: In bytes.
            is_needed: The lane cannot go on without them.
        """
        budget = self._budget
        with budget._lock:
            fits = budget._taken_bytes + size <= budget._room_bytes() and (
                not self.taken_bytes or self.taken_bytes + size <= self.share_bytes
            )
            if not fits and budget._read_ahead is not None and budget._read_ahead.wants_more:
                budget._was_short = True
            if not fits and not (is_needed and budget._is_due(self)):
                # A reader with bytes of its own under way retries when these are freed.
                if is_needed or not self.taken_bytes:
                    budget._refused[self] = size
                return False
            budget._refused.pop(self, None)
            self.taken_bytes += size
            budget._taken_bytes += size
            return True

    def free(self, size: int, is_handed_on: bool = True) -> None:
        """Give ``size`` bytes back.

        Args:
            size: In bytes.
            is_handed_on: Whether the consumer has received them.
        """
        budget = self._budget
        with budget._lock:
            self.taken_bytes -= size
            budget._taken_bytes -= size
            if is_handed_on and budget._read_ahead is not None:
                budget._read_ahead.handed_on(size, budget._taken_bytes, monotonic())
            woken = budget._those_that_fit()
        _wake(woken)

    def set_aside(self, size: int, most_share: float) -> bool:
        """Take ``size`` bytes for something else than reading, if there is room; see ``Budget.set_aside``.

        Args:
            size: In bytes.
            most_share: More than this share of ``most_bytes`` is refused.
        """
        budget = self._budget
        with budget._lock:
            held_bytes = min(budget._taken_bytes, budget.allowed_bytes)
            if size > most_share * self.most_bytes or held_bytes + size > budget.left_bytes:
                return False
            self.aside_bytes += size
            budget._aside_bytes += size
            return True

    def answered(self, origin: str, took_s: float) -> None:
        """A request to ``origin`` was answered, so that there may be more than one."""
        budget = self._budget
        if budget._read_ahead is None:
            return
        with budget._lock:
            was_open = budget._read_ahead.is_open
            budget._read_ahead.answered(origin, took_s, monotonic())
            woken = [] if was_open else budget._those_that_fit()
        _wake(woken)

    def received(self, origin: str, size: int, took_s: float) -> None:
        """All bytes of an answer of ``origin`` are there, so long after the request."""
        if self._budget._read_ahead is not None:
            with self._budget._lock:
                self._budget._read_ahead.received(origin, size, took_s)

    def waited(self, seconds: float) -> None:
        """The consumer had to wait for this reader; called in the consumer's thread."""
        if self._budget._read_ahead is not None:
            with self._budget._lock:
                self._budget._read_ahead.waited(seconds)

    def close(self) -> None:
        """Return everything. Idempotent."""
        self.on_room = bool
        with self._budget._lock:
            self._budget._refused.pop(self, None)
        aside_bytes, self.aside_bytes = self.aside_bytes, 0
        self._budget.put_back(aside_bytes)
        self.free(self.taken_bytes, is_handed_on=False)


def _wake(refused: Iterable[Reservation]) -> None:
    for each in refused:
        each.on_room()


def claim_alone(total_bytes: int) -> Reservation:
    """A budget for one reader, which may always have all of it."""
    return Budget(total_bytes, [0]).claim(0)
