"""What an audit's files hold: JSON Lines of passes, and of what their lanes delivered. Pure.

A file is one rank's, and is only ever appended to. A pass begins with a row that says of each of its lanes
how many batches were delivered before, then come rows of lanes, then a row of its end if it came to that:

    {"pass": {"id": "9f2c", "began": 1766500000.0, "epoch": 0, "rank": 0, "world_size": 2,
              "workers": 4, "lanes": {"0": 0, "2": 0}, "all_lanes": [0, 2]}}
    {"pass": "9f2c", "lane": 2, "batches": [0, 12], "samples": [[[], 5, 0, [0, 96]], ...],
     "left_out": [["filter(is_long)", [], 5, 0, [96, 98]], ...]}
    {"pass": "9f2c", "end": {"stopped": false}}

``"samples"`` names a component, a shard by its number, a repetition, and the samples as starts and stops in
turn. They are in order, and one that was delivered twice is there twice. ``"left_out"`` is there if operators
have left any out meanwhile, each behind who did; one that was left out again after a restart is there again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..blocks import Indices, Origin

__all__ = [
    "AuditRow",
    "Begin",
    "End",
    "LaneRow",
    "LeftOut",
    "LeftSamples",
    "format_row",
    "parse_row",
    "runs_of",
]


LeftSamples: TypeAlias = tuple[str, Origin, Indices]
"""An operator, and samples of a shard that it has left out."""


@dataclass(frozen=True)
class Begin:
    """The beginning of a pass.

    Attributes:
        id: Of the pass, another for each.
        began: When, in seconds since 1970: passes come in this order.
        epoch: Its number.
        rank: Whose it is.
        world_size: Of how many ranks.
        workers: How many it has.
        lanes: Those that are read, with how many batches of each were delivered before.
        all_lanes: Those of the rank, with those that had ended before.
        leaves_out: What in the recipe may be why a sample does not come.
        tells: Which of these say of each sample that they leave it out.
    """

    id: str
    began: float
    epoch: int
    rank: int
    world_size: int
    workers: int
    lanes: Mapping[int, int]
    all_lanes: Sequence[int]
    leaves_out: Sequence[str] = ()
    tells: Sequence[str] = ()


class LeftOut(NamedTuple):
    """Samples that an operator has left out.

    Attributes:
        by: The operator.
        origin: Their shard.
        runs: Starts and stops in turn.
    """

    by: str
    origin: Origin
    runs: Sequence[int]


class LaneRow(NamedTuple):
    """What a lane delivered.

    Attributes:
        id: Of the pass.
        lane: The lane.
        first: How many of its batches came before.
        stop: How many there were then.
        samples: By shard, as starts and stops in turn.
        left_out: What operators have left out before the last of these batches was made, or, in a row of no
            batches, before the lane's end.
    """

    id: str
    lane: int
    first: int
    stop: int
    samples: Sequence[tuple[Origin, Sequence[int]]]
    left_out: Sequence[LeftOut] = ()


class End(NamedTuple):
    """A pass was read to its end.

    Attributes:
        id: Of the pass.
        stopped: Whether lanes had more, and the rank was stopped with others that had not.
    """

    id: str
    stopped: bool


AuditRow: TypeAlias = Begin | LaneRow | End


def format_row(row: AuditRow) -> str:
    """A line, with its end."""
    written: dict[str, Any]
    if isinstance(row, Begin):
        lanes = {str(lane): batches for lane, batches in row.lanes.items()}
        written = {"pass": {**row.__dict__, "lanes": lanes}}
    elif isinstance(row, LaneRow):
        samples = [[origin.component, origin.number, origin.repetition, runs] for origin, runs in row.samples]
        written = {"pass": row.id, "lane": row.lane, "batches": [row.first, row.stop], "samples": samples}
        if row.left_out:
            written["left_out"] = [[by, *origin, runs] for by, origin, runs in row.left_out]
    else:
        written = {"pass": row.id, "end": {"stopped": row.stopped}}
    return json.dumps(written, separators=(",", ":")) + "\n"


def parse_row(line: str) -> AuditRow | None:
    """What ``format_row`` wrote; None for a line that a killed process left in its middle.

    Raises:
        ValueError: It is JSON, and no row.
    """
    try:
        written = json.loads(line)
    except ValueError:
        return None
    try:
        if isinstance(written["pass"], dict):
            lanes = {int(lane): batches for lane, batches in written["pass"]["lanes"].items()}
            return Begin(**{**written["pass"], "lanes": lanes})
        if "end" in written:
            return End(written["pass"], written["end"]["stopped"])
        samples = [
            (Origin(tuple(component), number, repetition), runs)
            for component, number, repetition, runs in written["samples"]
        ]
        left_out = [
            LeftOut(by, Origin(tuple(component), number, repetition), runs)
            for by, component, number, repetition, runs in written.get("left_out", ())
        ]
        first, stop = written["batches"]
        return LaneRow(written["pass"], written["lane"], first, stop, samples, left_out)
    except (AttributeError, LookupError, TypeError, ValueError):
        raise ValueError(f"expected a row of an audit, found {line.strip()[:80]!r}") from None


def runs_of(parts: Sequence[Indices]) -> list[int]:
    """Samples as starts and stops in turn: sorted, and each as often as it is there."""
    ranges = sorted((part.start, part.stop) for part in parts if isinstance(part, range))
    arrays = [part for part in parts if not isinstance(part, range)]
    if not arrays:
        merged: list[int] = []
        for start, stop in ranges:
            if merged and merged[-1] == start:
                merged[-1] = stop
            else:
                merged += start, stop
        return merged
    samples = np.concatenate([*arrays, *(np.arange(start, stop) for start, stop in ranges)])
    samples.sort()
    cuts = np.flatnonzero(np.diff(samples) != 1) + 1
    runs: NDArray[np.int64] = np.empty(2 * (len(cuts) + 1), np.int64)
    runs[0], runs[-1] = samples[0], samples[-1] + 1
    runs[2::2], runs[1:-1:2] = samples[cuts], samples[cuts - 1] + 1
    bounds: list[int] = runs.tolist()
    return bounds
