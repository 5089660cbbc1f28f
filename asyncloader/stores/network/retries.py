"""When to ask again, and when to give up; pure.

The pauses are decorrelated jitter (Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015):
each is drawn between a base and three times the one before, so that clients which failed together do not
come back together. The budget is that of Finagle's retry filters: retries are a share of the requests, with
a reserve and a trickle for those who make few.
"""

from __future__ import annotations

import random

from ...errors import StoreError
from ..failures import TransientError
from ..policy import NetworkPolicy

__all__ = ["Attempts", "RetryBudget"]

# A lone cut is most often gone at once, so the first pause only spreads those who were cut together.
_FIRST_PAUSE_SHARE = 0.2
_LONGEST_PAUSE_S = 15.0

# Attempts are counted anew after so many good bytes: a body without parts may be of any length.
_FRESH_AFTER_BYTES = 8 << 20


class RetryBudget:
    """Keeps the retries of a process below a tenth of its requests, whatever fails.

    Without it every client multiplies its requests by ``attempts`` just when a store is down. An empty
    budget delays a retry and never forbids it: what comes in drops is enough to see a store come back.
    """

    share = 0.1
    most = 100.0
    trickle_per_s = 2.0

    def __init__(self) -> None:
        self._tokens = self.most
        self._seen_s: float | None = None

    def request(self) -> None:
        """A request was made, which is no retry."""
        self._tokens = min(self._tokens + self.share, self.most)

    def take(self, now_s: float) -> float:
        """Take leave for one retry; gives the seconds to wait until it is granted."""
        if self._seen_s is not None:
            self._tokens = min(self._tokens + (now_s - self._seen_s) * self.trickle_per_s, self.most)
        self._seen_s = now_s
        self._tokens -= 1
        return max(0.0, -self._tokens / self.trickle_per_s)

    def give_back(self) -> None:
        """The retry will not be made."""
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
        """So many bytes came."""
        self._good_bytes += size

    def pause_s(self, error: TransientError, now_s: float) -> float:
        """The seconds to wait before the next attempt.

        Raises:
            StoreError: There is none: as ``error``, and that it was given up.
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
            reason = f", as the server asks for {error.retry_after_s:g} s of rest" if asked else ""
            raise self._given_up(error, now_s, reason) from None  # whose message it repeats
        return wait_s

    def outlook(self, wait_s: float, now_s: float) -> str:
        """What comes after the failure that was told last, in words.

        Args:
            wait_s: As ``pause_s`` gave it.
            now_s: As it was given.
        """
        left_s = self._failed_first_s + self._policy.deadline_s - now_s
        return (
            f"asking again in {wait_s:.1f} s, attempt {self._failed + 1} of {self._policy.attempts}, "
            f"none later than {left_s:.0f} s from now"
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
