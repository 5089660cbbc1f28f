"""What the page draws: numbers and shapes, over time and of the whole pass. Pure.

Their look is in ``templates``. A drawing is a thousand wide and high, whatever its size on the screen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..quantity import amount, bytes_text, percent, seconds_text, ticks
from . import stopwatch as at
from .stopwatch import IDLE, STARTING, STORE, name_of, shares_of, summed

#: A number for each bin.
_Bins: TypeAlias = npt.NDArray[np.float64]

# Distinct for people who do not see red or green, also by their lightness (after Okabe and Ito, 2008), and
# each of at least 3:1 against the card that it lies on, except for the two of threads that do nothing.
COLOURS = {
    STORE: ("#0f6cab", "#58aee8"),
    at.DECODE: ("#b36b00", "#f0b04a"),
    "own-1": ("#a63d82", "#e68ac4"),
    "own-2": ("#6a51b8", "#ab98ee"),
    "own-3": ("#7d6a1d", "#cdbd5f"),
    at.COLLATE: ("#00805c", "#3fc79c"),
    at.SENDING: ("#8a4b1f", "#d59a6c"),
    at.SAMPLER: ("#2b7a8c", "#7cc4d4"),
    at.RECEIVING: ("#8c4a4a", "#e09a9a"),
    at.PINNING: ("#4f6b2a", "#a9c47c"),
    at.PROCESSOR: ("#8f2d56", "#d983a6"),
    at.BATCHING: ("#56606e", "#98a3b3"),
    IDLE: ("#c6cad1", "#3f4653"),
    STARTING: ("#e6e7ea", "#272c35"),
}

# Stages of a thread that nothing waits for.
_NO_WORK = (IDLE, STARTING)

# Stages with colours that can be distinguished.
_MOST_STAGES = 6

# As many as the width of a card shows, and as few batches in each as make a rate.
_MOST_BINS = 96
_BATCHES_OF_BIN = 3
_FEWEST_BINS = 8

_STAGE = "stage/"

_SIZE = 1000


@dataclass(frozen=True)
class Frame:
    """Paths between their axes.

    Attributes:
        paths: The attributes of each, in SVG; the lowest first.
        label: What it shows, for screen readers.
        steps: Of the upright axis, up to the top.
        y_text: Formats a number beside that axis.
        x_ticks: Parts of the width, from 0 to 1, with the text below them.
        flags: Names of upright lines over it, with their parts of the width, each in a row of its own.
    """

    paths: Iterable[Mapping[str, str]]
    label: str
    steps: Sequence[float]
    y_text: Callable[[float], str]
    x_ticks: Sequence[tuple[float, str]]
    flags: Sequence[tuple[str, float]] = ()


@dataclass(frozen=True)
class Plot:
    """One card of the page; it has a frame, bars, or incidents.

    Attributes:
        name: Its id.
        title: The heading.
        note: One line on what it shows.
        heads: Of the table with its numbers.
        rows: Of that table.
        is_wide: Whether it takes the page's width.
        keys: Names with their colours.
        frame: A drawing.
        bars: Names, parts as of ``bar_of``, and the text after them.
        incidents: Names, marks (left in percent, height, title), and counts.
        x_ticks: The texts below incidents.
    """

    name: str
    title: str
    note: str
    heads: Sequence[str]
    rows: Iterable[Sequence[str]]
    is_wide: bool = False
    keys: Mapping[str, str] = field(default_factory=dict)
    frame: Frame | None = None
    bars: Sequence[tuple[str, Sequence[Any], str]] = ()
    incidents: Sequence[tuple[str, Sequence[tuple[str, str, str]], str]] = ()
    x_ticks: Sequence[tuple[float, str]] = ()


def plots_of(run: Mapping[str, Any]) -> list[Plot]:
    """All there are of a pass; see ``render``."""
    statistics, own = run["statistics"], dict[str, int]()
    over = OverTime(run["series"], statistics["elapsed_s"], statistics["batches"])
    plots = [
        _throughput(over),
        _waits(over, own),
        _balance(statistics, own),
        _latency(run["latency"]),
        _flight(over),
        _padding(over),
        _incidents(over, statistics),
    ]
    return [plot for plot in plots if plot is not None]


def colour_of(stage: str, own: dict[str, int]) -> str:
    """The name of a stage's colour.

    Args:
        stage: Its key.
        own: The numbers of the user's stages; new ones get the next number.
    """
    if stage in COLOURS:
        return stage
    return f"own-{own.setdefault(stage, len(own)) % 3 + 1}"


def bar_of(shares: Mapping[str, float], own: dict[str, int]) -> list[tuple[str, float, str]]:
    """Parts of one time side by side: colour, share, title."""
    by_size = sorted(shares.items(), key=lambda item: (item[0] == IDLE, -item[1]))
    return [
        (colour_of(stage, own), share, f"{name_of(stage)}: {percent(share)}")
        for stage, share in by_size
        if share >= 0.002
    ]


class OverTime:
    """The rows of ``series``, in fewer bins.

    Args:
        series: Those of a pass.
        elapsed_s: How long it took.
        batches: How many it had.
    """

    def __init__(self, series: Mapping[str, Any], elapsed_s: float, batches: int) -> None:
        self._rows: Mapping[str, Sequence[float]] = series["rows"]
        self.elapsed_s = max(elapsed_s, 1e-9)
        there = max(1, math.ceil(self.elapsed_s / series["bin_s"] - 1e-9))
        wanted = max(_FEWEST_BINS, min(_MOST_BINS, batches // _BATCHES_OF_BIN))
        self._factor = math.ceil(there / wanted)
        self.bin_s = series["bin_s"] * self._factor
        # A last bin of less than half the time has no reliable rate: it is part of the one before.
        self.count = max(1, math.ceil(self.elapsed_s / self.bin_s - 0.5))
        self.seconds = np.full(self.count, self.bin_s)
        self.seconds[-1] = self.elapsed_s - (self.count - 1) * self.bin_s

    def __contains__(self, name: str) -> bool:
        return name in self._rows

    def row(self, name: str) -> _Bins:
        """The sums of a name."""
        row = self._rows.get(name, ())
        places = np.minimum(np.arange(len(row)) // self._factor, self.count - 1)
        sums = np.zeros(self.count)
        np.add.at(sums, places, row)
        return sums

    def rate(self, name: str) -> _Bins:
        """The sums per second."""
        return self.row(name) / self.seconds

    @property
    def stages(self) -> list[str]:
        """The stages of the threads that make batches, the one with the most time first."""
        named = [name for name in self._rows if name.startswith(_STAGE)]
        return [name.removeprefix(_STAGE) for name in sorted(named, key=lambda name: -sum(self._rows[name]))]

    @property
    def x_ticks(self) -> list[tuple[float, str]]:
        """Round times below the axis."""
        steps = [step for step in ticks(self.elapsed_s, 5) if step <= self.elapsed_s]
        return [(step / self.elapsed_s, seconds_text(step)) for step in steps]

    def times(self) -> list[str]:
        """When each bin begins."""
        return [seconds_text(place * self.bin_s) for place in range(self.count)]


# --- over time ---


def _throughput(over: OverTime) -> Plot:
    """Samples per second, as the consumer received them."""
    rates, sizes = over.rate("samples"), over.rate("size_bytes")
    return Plot(
        "throughput",
        "Throughput",
        "Samples per second, as the training loop received them.",
        ("from", "samples/s", "bytes/s"),
        zip(over.times(), map(amount, rates), map(bytes_text, sizes), strict=True),
        is_wide=True,
        frame=_curve(STORE, rates, "Samples per second over time", amount, over.x_ticks),
    )


def _waits(over: OverTime, own: dict[str, int]) -> Plot:
    """The part of the time the consumer has waited, by stage."""
    named = [*[stage for stage in over.stages if stage not in _NO_WORK][:_MOST_STAGES], *_NO_WORK]
    shares = _wait_shares(over, named)
    waited = percent(over.row("waited_s").sum() / over.elapsed_s)
    paths, floor = [], np.zeros(over.count)
    for stage in named:
        ceiling = floor + shares[stage]
        paths.append({"class": f"f-{colour_of(stage, own)}", "d": _band(floor, ceiling, 1.0)})
        floor = ceiling
    label = "Share of time that the training loop waited, by stage, over time"
    return Plot(
        "waits",
        "What the training loop waits for",
        f"It waited {waited} of the time. Colours: what the loader did meanwhile.",
        ("from", *map(name_of, named)),
        zip(over.times(), *(map(percent, shares[stage]) for stage in named), strict=True),
        is_wide=True,
        keys={name_of(stage): colour_of(stage, own) for stage in named if shares[stage].any()},
        frame=Frame(paths, label, ticks(1.0), _whole_percent, over.x_ticks),
    )


def _wait_shares(over: OverTime, named: list[str]) -> dict[str, _Bins]:
    """The share of each bin that the consumer waited, divided like the work on batches.

    Where there was no such work, the consumer waited for something later, which is shown as idle; before the
    first report, for the start.
    """
    spent_s = {stage: over.row(_STAGE + stage) for stage in named if stage not in _NO_WORK}
    busy_s = sum(spent_s.values(), np.zeros(over.count))
    is_busy, is_known = busy_s > 0, np.cumsum(busy_s + over.row(_STAGE + IDLE)) > 0
    waited = np.minimum(over.rate("waited_s"), 1.0)
    return {
        **{stage: waited * row / np.where(is_busy, busy_s, 1.0) for stage, row in spent_s.items()},
        IDLE: waited * (is_known & ~is_busy),
        STARTING: waited * ~is_known,
    }


def _flight(over: OverTime) -> Plot | None:
    """Bytes requested and not yet received; None where there were no requests."""
    if "in_flight_byte_s" not in over:
        return None
    held, came = over.rate("in_flight_byte_s"), over.rate("received_bytes")
    total = over.row("received_bytes").sum()
    rate = bytes_text(total / over.elapsed_s)
    note = f"Requested and not yet received, on average. In all, {bytes_text(total)} came, at {rate}/s."
    heads = ("from", "in flight", "received/s")
    rows = zip(over.times(), map(bytes_text, held), map(bytes_text, came), strict=True)
    frame = _curve(at.COLLATE, held, "Bytes in flight over time", bytes_text, over.x_ticks)
    return Plot("flight", "Bytes in flight", note, heads, rows, frame=frame)


def _padding(over: OverTime) -> Plot | None:
    """The part of padded fields that holds no data; None where no batch was padded."""
    cells, real = over.row("cells"), over.row("real_cells")
    if not cells.any():
        return None
    # A bin without a batch has the value of the one before; at the beginning, of the first.
    padded = np.flatnonzero(cells)
    latest = np.searchsorted(padded, np.arange(over.count), "right") - 1
    shares = (1 - real[padded] / cells[padded])[np.maximum(latest, 0)]
    note = f"{percent(1 - real.sum() / cells.sum())} of the cells in padded fields are padding."
    rows = zip(over.times(), map(percent, shares), map(amount, cells), strict=True)
    frame = _curve("own-2", shares, "Share of padding over time", _whole_percent, over.x_ticks)
    return Plot("padding", "Padding", note, ("from", "padding", "cells"), rows, frame=frame)


def _incidents(over: OverTime, statistics: Mapping[str, Any]) -> Plot:
    """Retries, refusals, hedges and other incidents, when they happened."""
    network = statistics["network"]
    counted = [
        ("retry", "Retries", max(network["retries"] - network["throttled"], 0)),
        ("throttled", "Refusals (429, 503)", network["throttled"]),
        ("hedge", "Hedged requests", network["hedges"]),
        ("skipped", "Skipped samples", statistics["skipped"]),
        ("worker restarted", "Worker restarts", statistics["worker_restarts"]),
    ]
    total = sum(count for *_, count in counted)
    note = f"{amount(network['requests'])} requests. " if network["requests"] else ""
    note += f"{total:,} incidents." if total else "Nothing went wrong."
    return Plot(
        "incidents",
        "Errors and retries",
        note,
        ("kind", "count"),
        [(name, f"{count:,}") for _, name, count in counted],
        is_wide=True,
        incidents=[(name, _marks(over, kind), f"{count:,}") for kind, name, count in counted],
        x_ticks=over.x_ticks,
    )


def _marks(over: OverTime, kind: str) -> list[tuple[str, str, str]]:
    row = over.row(f"mark/{kind}")
    most = row.max() or 1.0
    return [
        (
            f"{(place + 0.5) / len(row) * 100:.2f}",
            f"{4 + 18 * value / most:.1f}",
            f"{value:.0f} after {seconds_text(place * over.bin_s)}",
        )
        for place, value in enumerate(row)
        if value
    ]


# --- of the whole pass ---


def _latency(latency: Mapping[str, Any]) -> Plot | None:
    """How long the store takes until it answers; None where there were no requests."""
    if not latency["count"]:
        return None
    per_decade = latency["bins_per_decade"]
    counts = {int(number): count for number, count in latency["bins"].items()}
    first, last = min(counts) - 2, max(counts) + 3
    heights = np.array([counts.get(number, 0) for number in range(first, last)], float)
    edges = [seconds_text(10 ** (number / per_decade)) for number in range(first, last + 1)]
    rows = [(*edges[place : place + 2], f"{height:,.0f}") for place, height in enumerate(heights) if height]
    marks = {f"p{part}": latency[f"p{part}_s"] for part in (50, 95, 99)}
    flags = [
        (name, (math.log10(seconds) * per_decade - first) / (last - first)) for name, seconds in marks.items()
    ]
    texts = ", ".join(f"{name} {seconds_text(seconds)}" for name, seconds in marks.items())
    note = f"Time from a request to its first byte, of {amount(latency['count'])} parts: {texts}."
    x_ticks = _decades(first, last, per_decade)
    frame = _curve(STORE, heights, "Number of answers by their latency", amount, x_ticks, flags)
    return Plot("latency", "Latency of the store", note, ("from", "to", "parts"), rows, frame=frame)


def _decades(first: int, last: int, per_decade: int) -> list[tuple[float, str]]:
    """Round times on a logarithmic axis: 1, 2 and 5 of each power, or fewer where those are too many."""
    few = (last - first) / per_decade > 1.6
    steps = []
    for power in range(math.floor(first / per_decade), math.ceil(last / per_decade) + 1):
        for digit in (1, 3) if few else (1, 2, 5):
            part = (math.log10(digit * 10**power) * per_decade - first) / (last - first)
            if 0 <= part <= 1:
                steps.append((part, seconds_text(digit * 10.0**power)))
    return steps


def _balance(statistics: Mapping[str, Any], own: dict[str, int]) -> Plot | None:
    """Each worker's time by stage; None where there is no report yet."""
    makers = [(maker["worker"], shares_of([maker["stages_s"]])) for maker in statistics["makers"]]
    makers = [(worker, shares) for worker, shares in makers if shares]
    if not makers:
        return None
    several = len(makers) > 1
    named = [(f"worker {worker}" if several else "all", shares) for worker, shares in makers]
    note = "The time of each worker, by stage." if several else "The time of making batches, by stage."
    total = summed(shares for _, shares in named)
    stages = sorted(total, key=lambda stage: (stage == IDLE, -total[stage]))
    return Plot(
        "balance",
        "Balance of workers" if several else "Making batches",
        note,
        ("", *map(name_of, stages)),
        [(name, *(percent(shares.get(stage, 0.0)) for stage in stages)) for name, shares in named],
        keys={
            name_of(stage): colour_of(stage, own)
            for stage in stages
            if any(shares.get(stage, 0.0) >= 0.01 for _, shares in named)
        },
        bars=[
            (name, bar_of(shares, own), f"{percent(1 - shares.get(IDLE, 0.0))} busy")
            for name, shares in named
        ],
    )


# --- shapes ---


def _curve(
    colour: str,
    heights: _Bins,
    label: str,
    y_text: Callable[[float], str],
    x_ticks: Sequence[tuple[float, str]],
    flags: Sequence[tuple[str, float]] = (),
) -> Frame:
    """An area under a line through the middles of bins, with room above it for the names of flags."""
    steps = ticks(ticks(max(heights, default=0.0) * (1.25 if flags else 1.0))[-1])
    band = _band(np.zeros(len(heights)), heights, steps[-1])
    line = f"M{' L'.join(_points(heights, steps[-1]))}"
    paths = [
        {"class": f"f-{colour}", "opacity": ".18", "d": band},
        {"class": f"line l-{colour}", "d": line},
    ]
    return Frame(paths, label, steps, y_text, x_ticks, flags)


def _points(heights: _Bins, top: float) -> list[str]:
    """Through the middles of bins, and to both edges."""
    wide = _SIZE / max(len(heights), 1)
    ys = [f"{_SIZE - _SIZE * height / top:.1f}" for height in heights]
    middles = [f"{(place + 0.5) * wide:.1f} {y}" for place, y in enumerate(ys)]
    return [f"0 {ys[0]}", *middles, f"{_SIZE} {ys[-1]}"] if ys else []


def _band(floor: _Bins, ceiling: _Bins, top: float) -> str:
    there, back = _points(ceiling, top), _points(floor, top)
    return f"M{' L'.join([*there, *reversed(back)])}Z" if there else ""


def _whole_percent(share: float) -> str:
    return f"{share * 100:g} %"
