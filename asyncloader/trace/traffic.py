"""What stores tell of the parts they ask for; nobody listens unless a pass is traced."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

from .events import Flight
from .recorder import Recorder

__all__ = ["Flying", "TracedTraffic", "Traffic"]


class Flying:
    """A part on its way, of which nobody wants to know."""

    def answered(self) -> None:
        """Its answer begins."""

    def ended(self, size_bytes: int, *, is_whole: bool) -> None:
        """So many bytes of it came, and no more will."""


class Traffic:
    """Told of what goes over the network, or to a disk; says it to nobody."""

    def began(self, url: str, offset: int, asked_bytes: int) -> Flying:
        """A part is asked for."""
        return _UNHEARD

    def mark(self, kind: str, url: str, **about: Any) -> None:
        """Something happened to a request."""


_UNHEARD = Flying()


class TracedTraffic(Traffic):
    """Records what it is told.

    Args:
        recorder: Of the process.
        redact: Makes of a URL what may be shown.
    """

    def __init__(self, recorder: Recorder, redact: Callable[[str], str]) -> None:
        self._recorder = recorder
        self._redact = redact

    def began(self, url: str, offset: int, asked_bytes: int) -> Flying:
        return _TracedFlying(self._recorder, self._redact(url), offset, asked_bytes)

    def mark(self, kind: str, url: str, **about: Any) -> None:
        self._recorder.mark(kind, {"shard": self._redact(url), **about})


class _TracedFlying(Flying):
    def __init__(self, recorder: Recorder, shard: str, offset: int, asked_bytes: int) -> None:
        self._recorder = recorder
        self._asked = shard, offset, asked_bytes
        self._start_s = perf_counter()
        self._answered_s: float | None = None

    def answered(self) -> None:
        if self._answered_s is None:  # a hedge may be answered as well
            self._answered_s = perf_counter()

    def ended(self, size_bytes: int, *, is_whole: bool) -> None:
        times = self._start_s, self._answered_s, perf_counter()
        self._recorder.flight(Flight(*self._asked, size_bytes, *times, is_whole))
