"""A chart of bars as SVG, readable on a light and on a dark page: one panel a workload, one bar a row."""

from __future__ import annotations

from html import escape
from typing import Any

from .rounds import median_of
from .workloads import WORKLOADS

__all__ = ["draw"]

#: In pixels: of names, of the longest bar, of figures; of a bar with its gap, and of a panel's title.
_NAMES, _BARS, _FIGURES, _STEP, _TITLE = 300, 330, 110, 19, 40

#: Text takes its colour from the reader's scheme; the bars' have contrast enough on both grounds.
_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2328; }
.title { font-size: 14px; font-weight: 600; }
.quiet { fill: #59636e; }
.ours { fill: #1a7fd4; }
.theirs { fill: #9198a1; }
.limit { fill: none; stroke: #9198a1; stroke-dasharray: 3 2; }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc; }
  .quiet { fill: #9198a1; }
  .ours { fill: #4aa3f0; }
  .theirs { fill: #656c76; }
}
"""
_UNITS = {
    "samples_s": "samples/s",
    "first_s": "seconds to the first batch: less is better",
    "peak_mb": "MB at most: less is better",
}
_KINDS = {"over_asyncloader": "ours", "limits": "limit"}


def draw(results: dict[str, Any]) -> str:
    """A panel for each workload that has results, with a scale of its own."""
    parts: list[str] = []
    top = 0
    for name, workload in WORKLOADS.items():
        rows = results.get(name, {}).get("rows", [])
        values = [(row, value) for row in rows if (value := median_of(row, workload.figure)) is not None]
        if values:
            parts += _panel(workload.title, _UNITS[workload.figure], values, top)
            top += _TITLE + _STEP * len(values) + 10
    width = _NAMES + _BARS + _FIGURES
    size = f'width="{width}" height="{top}" viewBox="0 0 {width} {top}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    title = "<title>asyncloader beside other loaders</title>"
    return "\n".join([head, title, f"<style>{_STYLE}</style>", *parts, "</svg>", ""])


def _panel(title: str, unit: str, values: list[tuple[dict[str, Any], float]], top: int) -> list[str]:
    """A title, and below it a bar for each row; that of a limit far above the loaders is cut off."""
    longest = max(value for row, value in values if row["module"] != "limits")
    parts = [
        f'<text class="title" x="0" y="{top + 26}">{escape(title)}'
        f'<tspan class="quiet" font-weight="400">, {escape(unit)}</tspan></text>'
    ]
    for nth, (row, value) in enumerate(values):
        y = top + _TITLE + _STEP * nth
        length = max(1.0, _BARS * min(1.0, value / longest))
        name = f"{row['name'].replace('`', '')}, {row['setting']}"
        kind = _KINDS.get(row["module"], "theirs")
        shown = f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
        parts += [
            f'<text x="{_NAMES - 8}" y="{y + 11}" text-anchor="end">{escape(name)}</text>',
            f'<rect class="{kind}" x="{_NAMES}" y="{y + 0.5}" width="{length:.1f}" height="{_STEP - 6}"/>',
            f'<text class="quiet" x="{_NAMES + length + 6:.1f}" y="{y + 11}">{shown}</text>',
        ]
    return parts
