"""How many bytes are worth having under way; pure, so that the rule can be played against simulated links.

In flight is what the link needs, not what memory allows: pages that are touched once cost more than what is
done with their bytes. What a link needs, the product of its bandwidth and its delay, is found as congestion
control finds it (Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 14(5), 2016), in
rounds that end when what was under way at their beginning has been handed on:

* Until the first answer there is one request, and nothing competes with it.
* A round in which the consumer had to wait lets the number grow. If that brings no higher rate in three
  rounds, twice, the link is full, and the number goes back to what it was. From then on a little more is
  tried now and again, and a little less, which stays if it does as well.
* Rounds without waits let it sink, after a while, to where the consumer begins to wait again.
* It is never more than so many products of the largest rate of late and the least delay of all.

BBR aims at two such products. Here the last rule only guards against rates that grow by themselves: bytes are
handed on in order, so that a late answer holds up all behind it, and what has to be covered is how late
answers are, not how early one of them can be. That is found by trying.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import fmean

__all__ = ["MOST_GROWTH", "ROUND_S", "ReadAhead", "read_ahead_of"]

# What lanes read ahead at least, the first one and each other: four parts for the one whose turn it is, and
# one for those that wait for theirs. 1 GB of tar from a server on loopback took no less of the processor's
# time with eight times as many bytes, and two fifths more with a hundred times: pages that are touched once.
_LEAST_BYTES = 8 << 20
_LANE_BYTES = 2 << 20

# A consumer that waits for less than this share of its time would gain less than that by more bytes.
_WAITS_SHARE = 0.08

# The least time of a round: over less, a rate tells how threads took turns.
ROUND_S = 0.05

# Growth in a round: as much as the waits explain and a quarter more, but not more than BBR's gain at the
# start.
_SURPLUS = 1.25
MOST_GROWTH = 2.89

# The link is full if twice no round of three has brought so much more than the one before them. BBR asks for
# a quarter, once, of rates that it has smoothed; a jittery store needs the second trial, a machine that is
# getting into its stride the higher mark.
_BROUGHT = 1.6
_TRIAL_ROUNDS = 3
_FULL_TRIALS = 2

# Once it is full: BBR's gains, and its cycle of one trial in eight rounds. More has to bring half of what was
# added, less may cost next to nothing.
_MORE, _MORE_BROUGHT = 1.25, 1.12
_LESS, _LESS_BROUGHT = 0.75, 0.97
_REST_ROUNDS = 8

# By how much it sinks in each round after so many without waits.
_SINK = 7 / 8

# How many products are never exceeded. The delay is the least of any answer: in order, from a store whose
# times are lognormal with a sigma of 1, it takes more than 30 of them to keep the link busy, as simulated in
# tests/flow/test_readahead.py. From one on loopback, 64 of them are some 100 MB.
_MOST_PRODUCTS = 64

# Shorter answers, such as a footer's, count as if they had so many bytes.
_SHORT_BYTES = 1 << 20

# The rates of so many rounds make one to compare with.
_REMEMBERED_RATES = 4


def read_ahead_of(lanes: int, most_bytes: int) -> ReadAhead:
    """What so many lanes of one process read ahead together.

    Args:
        lanes: How many.
        most_bytes: What there is for them.
    """
    return ReadAhead(_LEAST_BYTES + (lanes - 1) * _LANE_BYTES, most_bytes)


@dataclass(slots=True)
class _Trial:
    """Another number, held against what it was before.

    Attributes:
        before_bytes: The number before.
        before_rate: The rate with it.
        brings: By how much the rate has to grow at least.
        at_once: Whether one round that does is enough; else their mean counts.
        rates: So far.
    """

    before_bytes: int
    before_rate: float
    brings: float
    at_once: bool
    rates: list[float] = field(default_factory=list)

    def has_succeeded(self, rate: float) -> bool | None:
        """After one more round; None if that is not yet known."""
        self.rates.append(rate)
        wanted = self.brings * self.before_rate
        if self.at_once and rate >= wanted:
            return True
        if len(self.rates) < _TRIAL_ROUNDS:
            return None
        # In the first one, what was requested before was still under way.
        return not self.at_once and fmean(self.rates[1:]) >= wanted


class ReadAhead:
    """How many bytes the readers of one process may have requested and not yet handed on.

    Args:
        least_bytes: Where it begins, once there is an answer, and the fewest that it sinks to.
        most_bytes: A cap, such as the memory that there is.
    """

    def __init__(self, least_bytes: int, most_bytes: int) -> None:
        self._least_bytes = min(least_bytes, most_bytes)
        self._most_bytes = most_bytes
        #: What is allowed now.
        self.size_bytes = self._least_bytes
        #: Whether there was an answer; before, one request is enough.
        self.is_open = False
        #: The least time that an answer took, by origin.
        self._delays_s: dict[str, float] = {}
        self._rates: deque[float] = deque(maxlen=_REMEMBERED_RATES)
        self._trial: _Trial | None = None
        self._failures = 0
        self._had_more = False
        self._resting_rounds = 0
        self._calm_rounds = 0
        # The present round; it ends when what was under way at its beginning has been handed on.
        self._round_bytes = 0
        self._began_s = 0.0
        self._handed_on_bytes = 0
        self._waited_s = 0.0

    @property
    def wants_more(self) -> bool:
        """Whether the cap is all that keeps it from trying more."""
        return self.size_bytes >= self._most_bytes and not self._calm_rounds

    def open(self, now_s: float) -> None:
        """There was an answer. Idempotent."""
        if not self.is_open:
            self.is_open = True
            self._began_s = now_s

    def received(self, origin: str, size: int, took_s: float) -> None:
        """All bytes of an answer are there.

        Args:
            origin: The server, or what else tells apart what is near and what is far.
            size: How many bytes.
            took_s: From the request to the last of them.
        """
        delay_s = took_s * max(1.0, _SHORT_BYTES / max(size, 1))
        self._delays_s[origin] = min(delay_s, self._delays_s.get(origin, delay_s))

    def waited(self, seconds: float) -> None:
        """The consumer had to wait for bytes."""
        self._waited_s += seconds

    def handed_on(self, size: int, under_way_bytes: int, now_s: float) -> None:
        """The consumer has taken so many bytes, and so many are under way; this may change ``size_bytes``."""
        self._handed_on_bytes += size
        took_s = now_s - self._began_s
        if self._handed_on_bytes < self._round_bytes or took_s < ROUND_S:
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
            succeeded = self._trial.has_succeeded(rate)
            if succeeded is None:
                return
            if not succeeded:
                self._set(self._trial.before_bytes)
                self._failures += 1
            if self._is_full:
                self._resting_rounds = _REST_ROUNDS
            self._trial = None
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
            before_rate = fmean((rate, *self._rates)) if self._is_full else rate
            self._trial = _Trial(before_bytes, before_rate, brings, at_once=not self._is_full)

    def _useful_bytes(self) -> float:
        """Beyond this, more bytes under way bring no more, whatever the rates seem to tell."""
        if not self._delays_s:
            return self._most_bytes
        return _MOST_PRODUCTS * max(self._rates) * max(self._delays_s.values())

    @property
    def _is_full(self) -> bool:
        return self._failures >= _FULL_TRIALS

    def _set(self, size_bytes: float) -> None:
        self.size_bytes = int(min(max(size_bytes, self._least_bytes), self._most_bytes))
