"""Which faults hit which request, and the response plan that comes of it; seeded, no I/O on sockets."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from .faults import Fault
from .lies import ChangeObject
from .messages import Object, Request, Response, answer
from .objects import Objects

__all__ = ["LatencyLike", "Scenario"]

LatencyLike: TypeAlias = float | Callable[[random.Random], float]


class Scenario:
    """The server's mind: asked once per request, in order of arrival.

    Args:
        objects: What is served.
        faults: Applied in this order, each to what the one before made.
        latency_s: Seconds before the first byte, or a function that draws them.
        seed: Of all draws. A draw depends on the seed, the request and its attempt number only, not
            on which other requests came before: concurrent clients see the same faults every run.
    """

    def __init__(self, objects: Objects, faults: Sequence[Fault], latency_s: LatencyLike, seed: int) -> None:
        self._objects = objects
        self._faults = tuple(faults)
        self._latency_s = latency_s
        self._seed = seed
        self._matched: Counter[int] = Counter()
        self._hits: Counter[int] = Counter()
        self._attempts: Counter[tuple[str, str, str | None]] = Counter()

    def decide(self, request: Request) -> tuple[Response, tuple[str, ...]]:
        """The plan for this request, and the names of the faults that made it."""
        asked = (request.method, request.key, request.range)
        request = replace(request, attempt=self._attempts[asked])
        self._attempts[asked] += 1
        hits = [self._change(index, request) for index in range(len(self._faults))]
        obj = self._objects.find(request.key)
        response = replace(answer(request, obj), delay_s=self._delay_s(request))
        for index in range(len(self._faults)):
            if not hits[index]:
                response, hits[index] = self._apply(index, request, obj, response)
        names = [type(fault).__name__ for fault, hit in zip(self._faults, hits, strict=True) if hit]
        return response, tuple(names)

    def _change(self, index: int, request: Request) -> bool:
        """Change the object if this fault does that now: before it is looked up to be answered."""
        fault = self._faults[index]
        if not isinstance(fault, ChangeObject) or not fault.matches(request) or not self._hit(index, request):
            return False
        self._objects.change(request.key, fault.new_bytes)
        return True

    def _apply(
        self, index: int, request: Request, obj: Object | None, response: Response
    ) -> tuple[Response, bool]:
        fault = self._faults[index]
        if isinstance(fault, ChangeObject) or not fault.matches(request) or not fault.fits(request, response):
            return response, False
        if not self._hit(index, request):
            return response, False
        return fault.apply(request, obj, response), True

    def _hit(self, index: int, request: Request) -> bool:
        """Count a matching request, and say whether it is this fault's turn."""
        fault = self._faults[index]
        self._matched[index] += 1
        if self._matched[index] <= fault.after:
            return False
        if fault.times is not None and self._hits[index] >= fault.times:
            return False
        if fault.probability < 1 and self._rng(f"fault {index}", request).random() >= fault.probability:
            return False
        self._hits[index] += 1
        return True

    def _delay_s(self, request: Request) -> float:
        if callable(self._latency_s):
            return self._latency_s(self._rng("latency", request))
        return self._latency_s

    def _rng(self, purpose: str, request: Request) -> random.Random:
        # Seeded by text: Random hashes that with SHA-512, the same in every process.
        asked = f"{request.method} {request.key} {request.range} {request.attempt}"
        return random.Random(f"{self._seed} {purpose} {asked}")
