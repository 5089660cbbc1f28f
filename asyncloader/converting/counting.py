"""Counting the samples of sources, noted as it goes, so that a run that was killed does not begin it anew."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from time import monotonic

from ..index.expectations import Expectations, Expected
from ..sources.shards import Shards
from ..sources.surveying import count_shards
from .job import COUNTED
from .outlets import Outlet

__all__ = ["count_noted"]

# What is counted in so many seconds may be lost, and a twentieth of the time goes into keeping it.
_NOTED_EVERY_S = 10.0
_MOST_OF_THE_TIME = 0.05


def count_noted(shards: Shards, outlet: Outlet) -> Expectations:
    """What is in each shard; see ``count_shards``.

    Args:
        shards: The sources.
        outlet: Keeps what was counted, and knows what a run of the same job has.
    """
    known = _parsed(outlet.read(COUNTED) or b"")
    noted, next_s = len(known), monotonic() + _NOTED_EVERY_S

    def note() -> None:
        nonlocal noted, next_s
        began_s = monotonic()
        outlet.write(COUNTED, _lines(known.items()))
        noted, took_s = len(known), monotonic() - began_s
        next_s = monotonic() + max(_NOTED_EVERY_S, took_s / _MOST_OF_THE_TIME)

    def told(number: int, expected: Expected) -> None:
        known[number] = expected
        if monotonic() > next_s:
            note()

    try:
        return count_shards(shards, dict(known), told)
    finally:
        if len(known) > noted:
            note()


def _lines(entries: Iterable[tuple[int, Expected]]) -> bytes:
    """What was counted of shards, by number, a line each: no entries of an index, which have digests."""
    return b"".join(
        json.dumps([number, entry.size_bytes, entry.samples, entry.offsets]).encode() + b"\n"
        for number, entry in entries
    )


def _parsed(lines: bytes) -> dict[int, Expected]:
    """The same, back; what is cut is left out."""
    found = {}
    for line in lines.splitlines():
        with suppress(ValueError, TypeError):
            number, size_bytes, samples, offsets = json.loads(line)
            found[number] = Expected(size_bytes, samples, offsets=tuple(map(tuple, offsets)))
    return found
