"""When requests are sent, sent again and sent twice: policies, without a clock or a network."""

from __future__ import annotations

import logging
import math
import random
from collections import deque
from urllib.parse import urlsplit

from ..errors import StoreError
from ..observe.statistics import NetworkCounts
from .failures import TransientError
from .store import NetworkPolicy

# How many concurrent requests an origin gets: additive increase, multiplicative decrease.
#
# A store reports overload by 429 or 503, but never how much it can take. Such an answer halves the limit,
# which then grows quickly to nearly what was too much, and slowly from there, as TCP's CUBIC does (RFC 9438)
# and for the same reason: plain AIMD is far below what is possible for half of the time.


class Pace:
    """How many requests of this process are at one origin, and how many may be.

    Args:
        longest_rest_s: A longer pause that a server asks for is ignored here. The refused request gives up
            because of it, and the waiting ones would wait forever for a pass that has failed.

    Attributes:
        limit: The most; its whole part counts.
        in_use: How many there are.
        halvings: How often the limit was halved.
        rests_until_s: When the pause that the origin has asked for is over; None if there is none.
    """

    #: Doubled with each round of answers until the first refusal, so a rough guess is enough.
    start = 8.0
    most = 256.0
    #: Above this share of the number that was too much, one request more in ``patience`` rounds of answers.
    near = 0.9
    patience = 10.0

    def __init__(self, longest_rest_s: float = NetworkPolicy().deadline_s) -> None:
        self.limit = self.start
        self.in_use = 0
        self.halvings = 0
        self.rests_until_s: float | None = None
        self._longest_rest_s = longest_rest_s
        self._too_many: float | None = None

    @property
    def has_room(self) -> bool:
        """Whether another request may be sent now."""
        return self.in_use < int(self.limit) and self.rests_until_s is None

    def answered(self) -> None:
        """A request succeeded."""
        if self.in_use < int(self.limit):
            return  # the limit was not reached
        quick_to = self.most if self._too_many is None else self.near * self._too_many
        if self.limit < quick_to:
            self.limit = min(self.limit + 1.0, quick_to)
        else:
            self.limit = min(self.limit + 1.0 / (self.patience * self.limit), self.most)

    def throttled(self, halvings: int, retry_after_s: float | None = None, now_s: float = 0.0) -> None:
        """A request was refused.

        Args:
            halvings: How many there had been when it was sent.
            retry_after_s: For how long the server asks to be left alone.
            now_s: Of the clock that ``rests_until_s`` is of.
        """
        if halvings == self.halvings:  # else it was sent before the limit was last halved
            self.halvings += 1
            self._too_many = min(float(self.in_use), self.limit)
            self.limit = max(1.0, self._too_many / 2)
        if retry_after_s and retry_after_s <= self._longest_rest_s:
            self.rests_until_s = max(self.rests_until_s or 0.0, now_s + retry_after_s)

    def rested(self, until_s: float) -> None:
        """A pause is over that was to last until then; a longer one may have been asked for meanwhile."""
        if until_s == self.rests_until_s:  # not compared with the clock: timers may be early
            self.rests_until_s = None


# When to send a second request for late bytes.
#
# After Dean and Barroso, "The Tail at Scale" (2013): a second request after the 95th percentile of the times
# of requests cuts the tail for a few percent more load.

# Enough for a 95th percentile, few enough to follow a network that changes.
_REMEMBERED = 100
_FEWEST = 20

# Below this a second request costs more than the wait: a busy machine alone delays bytes by as much.
_SHORTEST_S = 0.02

_MOST_SHARE = 0.05


class Hedges:
    """Decides on the hedges of one origin.

    Args:
        counts: Counts each hedge.
        enabled: False never hedges.
    """

    def __init__(self, counts: NetworkCounts, enabled: bool) -> None:
        self._counts = counts
        self._enabled = enabled
        self._times_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._late_s: float | None = None
        self._answers = 0
        self._hedges = 0

    def answered(self, first_byte_s: float) -> None:
        """Record how long a first byte took."""
        self._answers += 1
        self._times_s.append(first_byte_s)
        self._late_s = None

    def throttled(self) -> None:
        """The origin is overloaded: the times measured so far are not valid any more."""
        self._times_s.clear()
        self._late_s = None

    @property
    def late_s(self) -> float | None:
        """How long a consumer waits before its request counts as late; None while that is not known."""
        if not self._enabled or len(self._times_s) < _FEWEST:
            return None
        if self._late_s is None:
            ordered = sorted(self._times_s)
            self._late_s = max(ordered[len(ordered) * 95 // 100], _SHORTEST_S)
        return self._late_s

    def take(self) -> bool:
        """Whether one more hedge may be sent; if so, it is counted."""
        if self._hedges + 1 > self._answers * _MOST_SHARE:
            return False
        self._hedges += 1
        self._counts.hedges += 1
        return True


# When to retry, and when to give up.
#
# The pauses are decorrelated jitter (Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog,
# 2015): each is drawn between a base and three times the one before, so that clients which failed together
# do not retry together. The budget is that of Finagle's retry filters: retries are a share of the requests,
# with a reserve and a trickle for clients with few requests.

# A single cut is usually over at once, so the first pause only spreads clients that were cut together.
_FIRST_PAUSE_SHARE = 0.2
_LONGEST_PAUSE_S = 15.0

# Attempts are counted from zero again if one has brought so many bytes: a proxy may cut every answer, and a
# request for so many is worth its while.
_FRESH_AFTER_BYTES = 128 << 10


class RetryBudget:
    """Keeps the retries of a process below a tenth of its requests, whatever fails.

    Without it every client would multiply its requests by ``attempts`` when a store is down. An empty budget
    delays a retry but never forbids it: the trickle is enough to notice that a store is back.
    """

    share = 0.1
    most = 100.0
    trickle_per_s = 2.0

    def __init__(self) -> None:
        self._tokens = self.most
        self._seen_s: float | None = None

    def request(self) -> None:
        """Count a request that is no retry."""
        self._tokens = min(self._tokens + self.share, self.most)

    def take(self, now_s: float) -> float:
        """Reserve one retry; returns the delay in seconds."""
        if self._seen_s is not None:
            self._tokens = min(self._tokens + (now_s - self._seen_s) * self.trickle_per_s, self.most)
        self._seen_s = now_s
        self._tokens -= 1
        return max(0.0, -self._tokens / self.trickle_per_s)

    def give_back(self) -> None:
        """Return a reservation: the retry will not be made."""
        self._tokens += 1


class Attempts:
    """The attempts at one range.

    Args:
        policy: How many, and for how long.
        budget: Shared by all ranges of the process.
        draw: Draws the jitter.
    """

    def __init__(self, policy: NetworkPolicy, budget: RetryBudget, draw: random.Random) -> None:
        self._policy = policy
        self._budget = budget
        self._draw = draw
        self._failed = 0
        self._failed_first_s = 0.0
        self._pause_s = policy.backoff_s
        self._good_bytes = 0

    def received(self, size: int) -> None:
        """Count received bytes."""
        self._good_bytes += size

    def pause_s(self, error: TransientError, now_s: float) -> float:
        """The seconds to wait before the next attempt.

        Raises:
            StoreError: There is none. It says what ``error`` says, and that the reading gave up.
        """
        if self._good_bytes >= _FRESH_AFTER_BYTES:
            self._failed = 0
        self._good_bytes = 0
        self._failed += 1
        if self._failed == 1:
            self._failed_first_s = now_s
        if self._failed >= self._policy.attempts:
            raise self._given_up(error, now_s, "") from None  # whose message it repeats
        wait_s = max(self._jitter_s(), self._budget.take(now_s), error.retry_after_s or 0.0)
        if now_s + wait_s > self._failed_first_s + self._policy.deadline_s:
            self._budget.give_back()
            asked = error.retry_after_s is not None and error.retry_after_s >= wait_s
            reason = f", since the server asks to wait {error.retry_after_s:g} s" if asked else ""
            raise self._given_up(error, now_s, reason) from None  # whose message it repeats
        return wait_s

    def outlook(self, wait_s: float, now_s: float) -> str:
        """What follows the last failure, for the log.

        Args:
            wait_s: From ``pause_s``.
            now_s: As passed to ``pause_s``.
        """
        left_s = self._failed_first_s + self._policy.deadline_s - now_s
        return (
            f"retrying in {wait_s:.1f} s, attempt {self._failed + 1} of at most {self._policy.attempts} for "
            f"these bytes, all of them to begin within {math.ceil(left_s)} s"
        )

    def _jitter_s(self) -> float:
        base = self._policy.backoff_s
        if self._failed == 1:
            self._pause_s = base
            return self._draw.uniform(0.0, base * _FIRST_PAUSE_SHARE)
        longest = max(base, min(3 * self._pause_s, _LONGEST_PAUSE_S))
        self._pause_s = self._draw.uniform(base, longest)
        return self._pause_s

    def _given_up(self, error: TransientError, now_s: float, reason: str) -> StoreError:
        tried = "1 attempt" if self._failed == 1 else f"{self._failed} attempts"
        within = f" in {now_s - self._failed_first_s:.1f} s" if self._failed > 1 else ""
        return StoreError(
            f"{error.args[0]}; gave up after {tried}{within}{reason}",
            shard=error.shard,
            status=error.status,
            offset=error.offset,
        )


# If a program does not configure logging, Python prints warnings to standard error, so no handler is added.
_log = logging.getLogger("asyncloader.network")


class Notices:
    """Logs the retries at one endpoint, so that a program that waits for a server does not seem to hang.

    The first is logged at once, and later ones at most every ``every_s``: a server that is down fails all
    parts under way, several times each, and a line for each would hide everything else in the log.
    """

    #: Long enough for no flood of lines from a hundred processes, short enough to see whether it goes on.
    every_s = 30.0

    def __init__(self) -> None:
        self._told_s: float | None = None

    def pause_s(self, attempts: Attempts, error: TransientError, now_s: float) -> float:
        """The seconds to wait before the next attempt, which is logged if nothing was for a while.

        Args:
            attempts: At the range that failed.
            error: How it failed. Neither its text nor its shard contains a secret.
            now_s: Of a monotonic clock.

        Raises:
            StoreError: There is none.
        """
        wait_s = attempts.pause_s(error, now_s)
        if self._told_s is None or now_s >= self._told_s + self.every_s:
            self._told_s = now_s
            outlook = attempts.outlook(wait_s, now_s)
            _log.warning("%s: %s; %s", _endpoint_of(error.shard), error.args[0], outlook)
        return wait_s


def _endpoint_of(shard: str | None) -> str:
    """Scheme and host, or bucket, of a URL that was redacted."""
    parts = urlsplit(shard or "")
    return f"{parts.scheme}://{parts.netloc}" if parts.netloc else "a server"
