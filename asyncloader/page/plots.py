"""What the page draws over time: throughput, waits, bytes in flight, padding, and what went wrong. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import Any

from ..stopwatch import COLLATE, RESTING, STARTING, STORE, name_of
from .chart import Plot, area, frame, stacked, table
from .look import colour_of
from .overtime import OverTime
from .units import amount, bytes_text, percent, seconds_text, ticks

__all__ = ["flight_plot", "incidents_plot", "padding_plot", "throughput_plot", "waits_plot"]

# What whoever makes batches does while nothing of theirs is waited for.
_IDLE = (RESTING, STARTING)

# Colours that can be told apart: what is beyond is put together.
_MOST_STAGES = 6

_KINDS = {
    "retry": "Retries",
    "throttled": "Refusals (429, 503)",
    "hedge": "Hedges",
    "skipped": "Skipped",
    "worker restarted": "Worker restarts",
}


def throughput_plot(over: OverTime) -> Plot:
    """Samples a second, as they came to the consumer."""
    rates, sizes = over.rate("samples"), over.rate("size_bytes")
    mean = sum(over.row("samples")) / over.elapsed_s
    drawing = _curve(STORE, rates, over, "Samples per second over time", amount)
    rows = zip(over.times(), map(amount, rates), map(bytes_text, sizes), strict=True)
    note = f"Samples a second, as the consumer got them: {amount(mean)} on average."
    heads = ("from", "samples/s", "bytes/s")
    return Plot("throughput", "Throughput", note, drawing, table(heads, rows), is_wide=True)


def waits_plot(over: OverTime, own: dict[str, int]) -> Plot:
    """The part of the time the consumer has waited, by what was being done meanwhile."""
    named = _main_stages(over)
    shares = _waits(over, named)
    top = 1.0
    rows = [(colour_of(stage, own), shares[stage]) for stage in named]
    shapes = stacked(rows, top)
    label = "Share of time the consumer waited, by stage, over time"
    drawing = frame(shapes, label=label, highest=top, y_text=_whole_percent, x_ticks=over.x_ticks)
    waited = sum(over.row("waited_s"))
    note = f"{percent(waited / over.elapsed_s)} of all the time, by what was done meanwhile to make batches."
    cells = zip(over.times(), *([percent(share) for share in shares[stage]] for stage in named), strict=True)
    heads = ("from", *map(name_of, named))
    keys = {name_of(stage): colour_of(stage, own) for stage in named if max(shares[stage]) > 0}
    return Plot("waits", "What the consumer waits for", note, drawing, table(heads, cells), True, keys)


def _main_stages(over: OverTime) -> list[str]:
    busy = [stage for stage in over.stages if stage not in _IDLE]
    return [*busy[:_MOST_STAGES], *_IDLE]


def _waits(over: OverTime, named: list[str]) -> dict[str, list[float]]:
    """The share of each bin that the consumer waited, divided as those who make batches were busy.

    Where nobody was busy, something behind them was waited for, which is told as their rest; and before they
    told of anything, their start.
    """
    spent = {stage: over.stage(stage) for stage in named if stage not in _IDLE}
    shares: dict[str, list[float]] = {stage: [] for stage in named}
    rested, known_s = over.stage(RESTING), 0.0
    for place, (waited_s, seconds) in enumerate(zip(over.row("waited_s"), over.seconds, strict=True)):
        waited = min(waited_s / seconds, 1.0)
        busy_s = sum(row[place] for row in spent.values())
        for stage, row in spent.items():
            shares[stage].append(waited * row[place] / busy_s if busy_s else 0.0)
        known_s += busy_s + rested[place]
        shares[RESTING].append(waited if known_s and not busy_s else 0.0)
        shares[STARTING].append(0.0 if known_s else waited)
    return shares


def flight_plot(over: OverTime) -> Plot | None:
    """Bytes asked for and not yet received; None where nothing was asked for."""
    if "in_flight_byte_s" not in over.names:
        return None
    held, came = over.rate("in_flight_byte_s"), over.rate("received_bytes")
    drawing = _curve(COLLATE, held, over, "Bytes in flight over time", bytes_text)
    total = sum(over.row("received_bytes"))
    note = f"Asked for and not yet received, on average. {bytes_text(total)} came in all, at "
    note += f"{bytes_text(total / over.elapsed_s)}/s."
    rows = zip(over.times(), map(bytes_text, held), map(bytes_text, came), strict=True)
    return Plot("flight", "Bytes in flight", note, drawing, table(("from", "in flight", "received/s"), rows))


def padding_plot(over: OverTime) -> Plot | None:
    """The part of padded fields that holds no data; None where no batch was padded."""
    cells, real = over.row("cells"), over.row("real_cells")
    if not sum(cells):
        return None
    shares = _carried([1 - some / all_ if all_ else None for some, all_ in zip(real, cells, strict=True)])
    drawing = _curve("own-2", shares, over, "Share of padding over time", _whole_percent)
    note = f"{percent(1 - sum(real) / sum(cells))} of the cells in padded fields hold no data."
    rows = zip(over.times(), map(percent, shares), map(amount, cells), strict=True)
    return Plot("padding", "Padding", note, drawing, table(("from", "padding", "cells"), rows))


def _carried(values: list[float | None]) -> list[float]:
    """Where there is no value, the one before holds; at the beginning the first."""
    last, carried = next((value for value in values if value is not None), 0.0), []
    for value in values:
        last = last if value is None else value
        carried.append(last)
    return carried


def incidents_plot(over: OverTime, statistics: Mapping[str, Any]) -> Plot:
    """Retries, refusals, hedges and whatever else went wrong, when it did."""
    network = statistics["network"]
    counted = {
        "retry": max(network["retries"] - network["throttled"], 0),
        "throttled": network["throttled"],
        "hedge": network["hedges"],
        "skipped": statistics["skipped"],
        "worker restarted": statistics["worker_restarts"],
    }
    rows = "".join(_incident_row(over, kind, count) for kind, count in counted.items())
    below = '<span></span><div class="x">' + "".join(
        f'<span class="{"first" if part < 0.03 else "last" if part > 0.96 else ""}" '
        f'style="left:{part * 100:.2f}%">{escape(text)}</span>'
        for part, text in over.x_ticks
    )
    drawing = f'<div class="events">{rows}{below}</div></div>'
    total = sum(counted.values())
    note = f"{amount(network['requests'])} requests. " if network["requests"] else ""
    note += f"{total:,} incidents, when they were." if total else "Nothing went wrong."
    lines = [(_KINDS[kind], f"{count:,}") for kind, count in counted.items()]
    return Plot("incidents", "Errors and retries", note, drawing, table(("kind", "count"), lines), True)


def _incident_row(over: OverTime, kind: str, count: int) -> str:
    row = over.row(f"mark/{kind}")
    most = max(row, default=0.0) or 1.0
    marks = "".join(
        f'<i style="left:{(place + 0.5) / len(row) * 100:.2f}%;height:{4 + 18 * value / most:.1f}px" '
        f'title="{value:.0f} from {seconds_text(place * over.bin_s)} on"></i>'
        for place, value in enumerate(row)
        if value
    )
    return f'<span>{_KINDS[kind]}</span><div class="row">{marks}</div><span class="much">{count:,}</span>'


def _curve(
    colour: str, heights: list[float], over: OverTime, label: str, y_text: Callable[[float], str]
) -> str:
    highest = ticks(max(heights, default=0.0))[-1]
    shapes = area(colour, heights, highest)
    return frame(shapes, label=label, highest=highest, y_text=y_text, x_ticks=over.x_ticks)


def _whole_percent(share: float) -> str:
    return f"{share * 100:g} %"
