"""The page, from its head to its foot. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from html import escape
from typing import Any

from .look import STYLE
from .makers import balance_plot, latency_plot
from .overtime import OverTime
from .plots import flight_plot, incidents_plot, padding_plot, throughput_plot, waits_plot
from .units import amount, bytes_text, percent, seconds_text

__all__ = ["render"]

# Neither a network nor a script, whatever stands in names of fields and shards.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def render(run: Mapping[str, Any]) -> str:
    """The page of a pass, as one HTML file.

    Args:
        run: What stands beside the events in the file of a traced pass; see ``trace.files.read_run``.

    Returns:
        The file's text, which asks for nothing from anywhere and runs no script.
    """
    report, own = run["report"], dict[str, int]()
    head, middle = _headline(report["lines"])
    title = f"{escape(head)} · {_named(run)}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{title}</title><style>{STYLE}</style></head><body><main>"
        f"<header><p>{_named(run)} · {_began(run)}, {_lasted(run)}</p><h1>{escape(head)}</h1>"
        f'<p class="verdict">{escape(_sentence(report["lines"][0]))}. {escape(_sentence(middle))}.</p>'
        f'<p class="advice"><b>What to change:</b> {escape(report["lines"][2])}.</p></header>'
        f"{_tiles(run)}"
        f'<div class="cards">{_plots(run, own)}</div>'
        f"{_foot(run)}</main></body></html>\n"
    )


def _headline(lines: list[str]) -> tuple[str, str]:
    """What limits, and the rest of the line that says it."""
    head, _, rest = lines[1].partition("; ")
    return head if "(" in head else _sentence(head), rest or head


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _named(run: Mapping[str, Any]) -> str:
    named = [f"Epoch {run['epoch']}" if run["epoch"] is not None else f"Pass {run['passes']}"]
    if run["world_size"] > 1:
        named.append(f"rank {run['rank']} of {run['world_size']}")
    if run.get("replicas", 1) > 1:
        named.append(f"replica {run['replica']} of {run['replicas']}")
    workers = run["num_workers"]
    named.append("without workers" if not workers else f"{workers} worker{'s' * (workers > 1)}")
    return escape(" · ".join(named))


def _began(run: Mapping[str, Any]) -> str:
    return datetime.fromtimestamp(run["began_unix_s"], UTC).strftime("%Y-%m-%d %H:%M UTC")


def _lasted(run: Mapping[str, Any]) -> str:
    return seconds_text(run["statistics"]["elapsed_s"])


def _tiles(run: Mapping[str, Any]) -> str:
    """The numbers to remember."""
    statistics, latency = run["statistics"], run["latency"]
    elapsed_s = max(statistics["elapsed_s"], 1e-9)
    tiles = {
        "of the time waiting": percent(run["report"]["wait_share"]),
        "samples/s": amount(statistics["samples"] / elapsed_s),
        "delivered": f"{bytes_text(statistics['size_bytes'] / elapsed_s)}/s",
        "batches": f"{statistics['batches']:,}",
    }
    if statistics["first_batch_s"] is not None:
        tiles["to the first batch"] = seconds_text(statistics["first_batch_s"])
    if latency["p95_s"] is not None:
        tiles["store, 95 of 100 faster"] = seconds_text(latency["p95_s"])
    while len(tiles) < 6:
        tiles["retries" if "in all" in tiles else "in all"] = (
            f"{statistics['network']['retries']:,}" if "in all" in tiles else seconds_text(elapsed_s)
        )
    cells = "".join(f"<div><dt>{name}</dt><dd>{_with_unit(text)}</dd></div>" for name, text in tiles.items())
    return f'<dl class="tiles">{cells}</dl>'


def _with_unit(text: str) -> str:
    number, _, unit = text.partition(" ")
    return f"{number} <small>{unit}</small>" if unit else number


def _plots(run: Mapping[str, Any], own: dict[str, int]) -> str:
    statistics = run["statistics"]
    over = OverTime(run["series"], statistics["elapsed_s"], statistics["batches"])
    plots = [
        throughput_plot(over),
        waits_plot(over, own),
        balance_plot(statistics, own),
        latency_plot(run["latency"]),
        flight_plot(over),
        padding_plot(over),
        incidents_plot(over, statistics),
    ]
    return "".join(plot.html() for plot in plots if plot is not None)


def _foot(run: Mapping[str, Any]) -> str:
    dropped = run["dropped"]
    left_out = ""
    if dropped["slices"] or dropped["flights"]:
        left_out = (
            f" The timeline lacks its {dropped['slices']:,} shortest stretches ({dropped['seconds']:.1f} s "
            f"in all) and {dropped['flights']:,} parts; this page counts all."
        )
    return (
        f'<footer><code class="loader">{escape(run["loader"])}</code><br>'
        f"The same file opens as a timeline in Perfetto.{left_out}</footer>"
    )
