"""Drawing: axes, areas, lines and bars as SVG that stretches, with their text beside it as HTML. Pure.

A drawing is a thousand wide and high whatever its size on the screen, and is stretched to it; its text is not
part of it, so that it is as large on a phone as anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from .units import ticks

__all__ = ["SIZE", "Plot", "area", "bars", "frame", "legend", "line", "stacked", "table"]

SIZE = 1000


@dataclass(frozen=True)
class Plot:
    """One card of the page.

    Attributes:
        name: Its id.
        title: Stands above it.
        note: One line on what it shows.
        drawing: HTML.
        table: The same numbers, as HTML.
        is_wide: Whether it takes the page's width.
    """

    name: str
    title: str
    note: str
    drawing: str
    table: str = ""
    is_wide: bool = False
    keys: Mapping[str, str] = field(default_factory=dict)

    def html(self) -> str:
        """The card."""
        wide = " wide" if self.is_wide else ""
        rows = f"<details><summary>Numbers</summary>{self.table}</details>" if self.table else ""
        keys = legend(self.keys) if self.keys else ""
        return (
            f'<figure class="card{wide}" id="{self.name}"><figcaption><h2>{escape(self.title)}</h2>'
            f'<p class="note">{escape(self.note)}</p></figcaption>{keys}{self.drawing}{rows}</figure>'
        )


def legend(keys: Mapping[str, str]) -> str:
    """Names with their colours, by name."""
    items = (f'<li><i class="b-{colour}"></i>{escape(name)}</li>' for name, colour in keys.items())
    return f'<ul class="legend">{"".join(items)}</ul>'


def frame(
    shapes: str,
    *,
    label: str,
    highest: float,
    y_text: Callable[[float], str],
    x_ticks: Iterable[tuple[float, str]],
    flags: str = "",
) -> str:
    """Shapes between their axes.

    Args:
        shapes: SVG.
        label: What it shows, for those who do not see it.
        highest: The number at the top, one of ``ticks``.
        y_text: Writes a number beside the axis.
        x_ticks: Parts of the width, from 0 to 1, with what stands below them.
        flags: HTML over it.
    """
    steps = ticks(highest)
    grid = "".join(
        f'<line class="{"grid" if step else "base"}" x1="0" x2="{SIZE}" y1="{y}" y2="{y}"/>'
        for step in steps
        for y in [round(SIZE - SIZE * step / steps[-1], 1)]
    )
    below = "".join(_x_tick(part, text) for part, text in x_ticks)
    beside = "".join(f"<span>{escape(y_text(step))}</span>" for step in steps)
    return (
        f'<div class="frame"><div class="y" aria-hidden="true">{beside}</div><div class="area">'
        f'<svg viewBox="0 0 {SIZE} {SIZE}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}">{grid}{shapes}</svg>{flags}</div>'
        f'<div class="x" aria-hidden="true">{below}</div></div>'
    )


def _x_tick(part: float, text: str) -> str:
    edge = "first" if part < 0.03 else "last" if part > 0.96 else ""
    return f'<span class="{edge}" style="left:{part * 100:.2f}%">{escape(text)}</span>'


def stacked(rows: Sequence[tuple[str, Sequence[float]]], top: float) -> str:
    """Areas on top of each other.

    Args:
        rows: Colours with heights, the lowest first.
        top: The height of the whole.
    """
    if not rows:
        return ""
    floor, shapes = [0.0] * len(rows[0][1]), []
    for colour, heights in rows:
        ceiling = [below + height for below, height in zip(floor, heights, strict=True)]
        shapes.append(f'<path class="f-{colour}" d="{_band(floor, ceiling, top)}"/>')
        floor = ceiling
    return "".join(shapes)


def area(colour: str, heights: Sequence[float], top: float) -> str:
    """An area under a line."""
    band = _band([0.0] * len(heights), heights, top)
    return f'<path class="f-{colour}" opacity=".18" d="{band}"/>{line(colour, heights, top)}'


def line(colour: str, heights: Sequence[float], top: float) -> str:
    """A line through the middles of bins."""
    return f'<path class="line l-{colour}" d="M{" L".join(_points(heights, top))}"/>'


def bars(colour: str, heights: Sequence[float], top: float, titles: Sequence[str]) -> str:
    """Bars beside each other, as wide as there is room."""
    wide = SIZE / max(len(heights), 1)
    shapes = []
    for place, (height, title) in enumerate(zip(heights, titles, strict=True)):
        if height:
            tall = SIZE * height / top
            at = f'x="{place * wide + wide * 0.06:.1f}" y="{SIZE - tall:.1f}"'
            size = f'width="{wide * 0.88:.1f}" height="{tall:.1f}"'
            shapes.append(f'<rect class="f-{colour}" {at} {size}><title>{escape(title)}</title></rect>')
    return "".join(shapes)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts."""
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _points(heights: Sequence[float], top: float) -> list[str]:
    """Through the middles of bins, and on to both edges."""
    wide = SIZE / max(len(heights), 1)
    ys = [f"{SIZE - SIZE * height / top:.1f}" for height in heights]
    middles = [f"{(place + 0.5) * wide:.1f} {y}" for place, y in enumerate(ys)]
    return [f"0 {ys[0]}", *middles, f"{SIZE} {ys[-1]}"] if ys else []


def _band(floor: Sequence[float], ceiling: Sequence[float], top: float) -> str:
    there, back = _points(ceiling, top), _points(floor, top)
    return f"M{' L'.join([*there, *reversed(back)])}Z" if there else ""
