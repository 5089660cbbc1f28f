"""A validator of the Trace Event Format, as far as its viewers depend on it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["check_events", "slices_of"]

#: What an event of each phase must have, beside ``ph``, ``pid`` and ``name``.
REQUIRED = {
    "X": {"ts", "dur", "tid"},
    "b": {"ts", "cat", "id"},
    "n": {"ts", "cat", "id"},
    "e": {"ts", "cat", "id"},
    "i": {"ts", "s"},
    "C": {"ts", "args"},
    "M": {"args"},
}

#: Of what a process or a thread may be told.
META = {
    "process_name": "name",
    "thread_name": "name",
    "process_sort_index": "sort_index",
    "thread_sort_index": "sort_index",
}

# Times are told to the nanosecond.
_CLOSE_US = 0.002


def check_events(run: Mapping[str, Any]) -> None:
    """Assert that the file's events are what the format says."""
    assert isinstance(run["traceEvents"], list)
    for event in run["traceEvents"]:
        check_event(event)
    check_order(run["traceEvents"])
    check_nesting(run["traceEvents"])
    check_pairs(run["traceEvents"])
    check_names(run["traceEvents"])


def check_event(event: Mapping[str, Any]) -> None:
    assert event.keys() >= {"ph", "pid", "name"} | REQUIRED[event["ph"]], event
    assert isinstance(event["pid"], int) and isinstance(event["name"], str) and event["name"], event
    for key in ("ts", "dur"):
        assert event.get(key, 0) >= 0 and math.isfinite(event.get(key, 0)), event
    if event["ph"] == "i":
        assert event["s"] in ("g", "p", "t"), event
    if event["ph"] == "C":
        assert all(isinstance(value, int | float) for value in event["args"].values()), event
        assert min(event["args"].values()) >= 0, event
    if event["ph"] == "M":
        assert META[event["name"]] in event["args"], event


def check_order(events: Sequence[Mapping[str, Any]]) -> None:
    """Times never go back within a track: a thread, a counter."""
    last: dict[Any, float] = {}
    for event in events:
        if event["ph"] != "M":
            track = event["pid"], event.get("tid"), event["ph"] == "C"
            assert event["ts"] >= last.get(track, 0.0), event
            last[track] = event["ts"]


def slices_of(events: Sequence[Mapping[str, Any]]) -> dict[tuple[int, int], list[Mapping[str, Any]]]:
    """The slices of each thread."""
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    return tracks


def check_nesting(events: Sequence[Mapping[str, Any]]) -> None:
    """A slice lies inside of the one that it begins in, as a viewer draws them."""
    for slices in slices_of(events).values():
        open_until: list[float] = []
        for each in slices:
            end = each["ts"] + each["dur"]
            while open_until and each["ts"] >= open_until[-1] - _CLOSE_US:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + _CLOSE_US, each
            open_until.append(end)


def check_pairs(events: Sequence[Mapping[str, Any]]) -> None:
    """What begins ends once, and what happens to it happens between."""
    running: dict[Any, Mapping[str, Any]] = {}
    seen = set()
    for event in events:
        key = event["pid"], event.get("cat"), event.get("id")
        if event["ph"] == "b":
            assert key not in running and key not in seen, event
            running[key] = event
            seen.add(key)
        elif event["ph"] in "ne":
            assert running[key]["name"] == event["name"], event
            assert event["ts"] >= running[key]["ts"], event
            if event["ph"] == "e":
                del running[key]
    assert not running


def check_names(events: Sequence[Mapping[str, Any]]) -> None:
    """Every track that has slices has a name."""
    named = {(each["pid"], each["tid"]) for each in events if each["name"] == "thread_name"}
    assert slices_of(events).keys() <= named
