"""Says that requests are being repeated, so that a loop that waits for a server does not seem to hang."""

from __future__ import annotations

import logging
from urllib.parse import urlsplit

from ..failures import TransientError
from .retries import Attempts

__all__ = ["Notices"]

# Where a program configures no logging, Python prints warnings on standard error; so no handler is added.
_log = logging.getLogger("asyncloader.network")


class Notices:
    """Logs the retries at one endpoint: the first at once, and from then on one of them in a while.

    A server that is down fails all parts under way, each several times; a line for each would hide what
    else is logged.
    """

    #: Long enough for no flood from a hundred processes, and short enough to see whether it still goes on.
    every_s = 30.0

    def __init__(self) -> None:
        self._told_s: float | None = None

    def pause_s(self, attempts: Attempts, error: TransientError, now_s: float) -> float:
        """The seconds to wait before the next attempt, which is logged if nothing was for a while.

        Args:
            attempts: Those at the range that failed.
            error: How it failed. Neither its text nor its shard holds a secret.
            now_s: Of a clock that does not go back.

        Raises:
            StoreError: There is none; that is for whoever catches it to tell.
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
