"""What the page draws of the whole pass: how long the store takes, and how work is divided. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from html import escape
from typing import Any

from ..stopwatch import RESTING, STORE, name_of, shares_of
from .chart import Plot, bars, frame, table
from .look import colour_of
from .units import amount, percent, seconds_text, ticks

__all__ = ["balance_plot", "latency_plot", "share_bar"]

# Of workers, each with a bar of its own: those that rest least and most are told apart from the others.
_MOST_BARS = 16


def latency_plot(latency: Mapping[str, Any]) -> Plot | None:
    """How long the store takes until it answers; None where it was not asked."""
    if not latency["count"]:
        return None
    per_decade = latency["bins_per_decade"]
    counts = {int(number): count for number, count in latency["bins"].items()}
    first, last = min(counts) - 2, max(counts) + 3
    heights = [float(counts.get(number, 0)) for number in range(first, last)]
    edges = [10 ** (number / per_decade) for number in range(first, last + 1)]
    titles = [
        f"{seconds_text(edges[place])} to {seconds_text(edges[place + 1])}: {height:,.0f}"
        for place, height in enumerate(heights)
    ]
    highest = ticks(max(heights) * 1.25)[-1]  # with room for the names of the rules
    marks = {f"p{part}": latency[f"p{part}_s"] for part in (50, 95, 99)}
    places = {
        name: (math.log10(seconds) * per_decade - first) / (last - first) for name, seconds in marks.items()
    }
    rules = "".join(
        f'<line class="rule" x1="{part * 1000:.1f}" x2="{part * 1000:.1f}" y1="0" y2="1000"/>'
        for part in places.values()
    )
    flags = "".join(
        f'<span class="flag{" left" if part > 0.7 else ""}" '
        f'style="left:{part * 100:.2f}%;margin-top:{16 * row}px">{name}</span>'
        for row, (name, part) in enumerate(places.items())
    )
    drawing = frame(
        bars(STORE, heights, highest, titles) + rules,
        label="How many answers took how long to begin",
        highest=highest,
        y_text=amount,
        x_ticks=_decades(first, last, per_decade),
        flags=flags,
    )
    note = ", ".join(f"{name} {seconds_text(seconds)}" for name, seconds in marks.items())
    rows = [
        (seconds_text(edges[place]), seconds_text(edges[place + 1]), f"{height:,.0f}")
        for place, height in enumerate(heights)
        if height
    ]
    note = f"From the request to the first byte of {amount(latency['count'])} parts: {note}."
    return Plot("latency", "Latency of the store", note, drawing, table(("from", "to", "parts"), rows))


def _decades(first: int, last: int, per_decade: int) -> list[tuple[float, str]]:
    """Round times on a logarithmic axis: 1, 2 and 5 of each power, or less where that is too much."""
    few = (last - first) / per_decade > 1.6
    steps = []
    for power in range(math.floor(first / per_decade), math.ceil(last / per_decade) + 1):
        for digit in (1, 3) if few else (1, 2, 5):
            part = (math.log10(digit * 10**power) * per_decade - first) / (last - first)
            if 0 <= part <= 1:
                steps.append((part, seconds_text(digit * 10.0**power)))
    return steps


def balance_plot(statistics: Mapping[str, Any], own: dict[str, int]) -> Plot | None:
    """What each of those who make batches did; None where none has told."""
    makers = [(maker["worker"], shares_of([maker["stages_s"]])) for maker in statistics["makers"]]
    makers = [(worker, shares) for worker, shares in makers if shares]
    if not makers:
        return None
    shown = sorted(makers, key=lambda maker: maker[1].get(RESTING, 0.0))
    if left_out := max(0, len(shown) - _MOST_BARS):
        half = _MOST_BARS // 2
        shown = shown[:half] + shown[-half:]
    shown.sort()
    rows = "".join(
        f'<span class="who">{_who(worker, len(makers))}</span>{share_bar(shares, own)}'
        f'<span class="much">{percent(1 - shares.get(RESTING, 0.0))} busy</span>'
        for worker, shares in shown
    )
    note = "Each one's time, by stage." if len(makers) > 1 else "Where the time goes that batches take."
    if left_out:
        note += f" The busiest and the idlest; {left_out} others lie between."
    total = Counter[str]()
    for _, shares in makers:
        total.update(shares)
    stages = sorted(total, key=lambda stage: (stage == RESTING, -total[stage]))
    lines = [
        (_who(worker, len(makers)), *(percent(shares.get(stage, 0.0)) for stage in stages))
        for worker, shares in makers
    ]
    keys = {
        name_of(stage): colour_of(stage, own)
        for stage in stages
        if any(shares.get(stage, 0.0) >= 0.01 for _, shares in makers)
    }
    title = "Balance of workers" if len(makers) > 1 else "Making batches"
    numbers = table(("", *map(name_of, stages)), lines)
    return Plot("balance", title, note, f'<div class="bars">{rows}</div>', numbers, keys=keys)


def share_bar(shares: Mapping[str, float], own: dict[str, int]) -> str:
    """Parts of one time beside each other."""
    parts = "".join(
        f'<i class="b-{colour_of(stage, own)}" style="flex:{share:.4f}" '
        f'title="{escape(name_of(stage))}: {percent(share)}"></i>'
        for stage, share in sorted(shares.items(), key=lambda item: (item[0] == RESTING, -item[1]))
        if share >= 0.002
    )
    return f'<div class="bar">{parts}</div>'


def _who(worker: int, many: int) -> str:
    return f"worker {worker}" if many > 1 else "all"
