"""The page of a traced pass, and what a notebook shows: templates, and the values in them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..quantity import amount, bytes_text, percent, seconds_text
from .plots import COLOURS, bar_of, colour_of, plots_of
from .stopwatch import name_of, steady_rate

if TYPE_CHECKING:
    from jinja2 import Environment

    from .report import Report


def render(run: Mapping[str, Any]) -> str:
    """The page of a pass, as one HTML file.

    Args:
        run: What is beside the events in the file of a traced pass; see ``read_run``.

    Returns:
        The file's text, which loads nothing and runs no script.
    """
    lines = run["report"]["lines"]
    head, _, rest = lines[1].partition(". ")
    return _html(
        "page.html",
        run=run,
        head=head,
        named=_named(run),
        began=datetime.fromtimestamp(run["began_unix_s"], UTC).strftime("%Y-%m-%d %H:%M UTC"),
        lasted=seconds_text(run["statistics"]["elapsed_s"]),
        rest=rest,
        tiles=[(name, *text.partition(" ")[::2]) for name, text in _tiles(run).items()],
        plots=plots_of(run),
    )


def report_html(report: Report | None, shown: str | None = None) -> str:
    """A verdict: its lines, and where the time of those that make batches goes.

    Args:
        report: The verdict, if there is one.
        shown: What is shown above it, such as the repr of its loader.
    """
    own: dict[str, int] = {}
    shares = {} if report is None else {name: part for name, part in report.shares.items() if part >= 0.01}
    keys = [(colour_of(stage, own), part, name_of(stage), percent(part)) for stage, part in shares.items()]
    return _html("small.html", shown=shown, report=report, shares=bar_of(shares, own), keys=keys).strip()


def _html(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(colours=list(COLOURS.items()), **values)


@cache
def _environment() -> Environment:
    # All that comes from a user's names is escaped; a value that a template misses is an error.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # takes a fifth of a second

    templates = FileSystemLoader(Path(__file__).parent / "templates")
    return Environment(loader=templates, autoescape=True, undefined=StrictUndefined, trim_blocks=True)


def _named(run: Mapping[str, Any]) -> str:
    named = [f"Epoch {run['epoch']}" if run["epoch"] is not None else f"Pass {run['passes']}"]
    if run["world_size"] > 1:
        named.append(f"rank {run['rank']} of {run['world_size']}")
    if run.get("replicas", 1) > 1:
        named.append(f"replica {run['replica']} of {run['replicas']}")
    workers = run["num_workers"]
    named.append("without workers" if not workers else f"{workers} worker{'s' * (workers > 1)}")
    return " · ".join(named)


def _tiles(run: Mapping[str, Any]) -> dict[str, str]:
    """The numbers to remember."""
    counts, latency = run["statistics"], run["latency"]
    times = counts["batches"], counts["elapsed_s"], counts["first_batch_s"]
    tiles = {
        "of the time spent waiting": percent(run["report"]["wait_share"]),
        "samples/s": amount(steady_rate(counts["samples"], *times)),
        "delivered": f"{bytes_text(steady_rate(counts['size_bytes'], *times))}/s",
        "batches": f"{counts['batches']:,}",
    }
    if counts["first_batch_s"] is not None:
        tiles["to the first batch"] = seconds_text(counts["first_batch_s"])
    if latency["p95_s"] is not None:
        tiles["p95 latency of the store"] = seconds_text(latency["p95_s"])
    return tiles
