"""The page of a traced pass, and what a notebook shows: templates, and what stands in them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..quantity import amount, bytes_text, percent, seconds_text
from .plots import COLOURS, bar_of, colour_of, plots_of
from .stopwatch import name_of, steady_rate

if TYPE_CHECKING:
    from jinja2 import Environment


class Judged(Protocol):
    """A ``Report``, as far as it is shown."""

    @property
    def lines(self) -> Sequence[str]: ...

    @property
    def shares(self) -> Mapping[str, float]: ...


def render(run: Mapping[str, Any]) -> str:
    """The page of a pass, as one HTML file.

    Args:
        run: What stands beside the events in the file of a traced pass; see ``trace.files.read_run``.

    Returns:
        The file's text, which asks for nothing from anywhere and runs no script.
    """
    lines = run["report"]["lines"]
    head, _, rest = lines[1].partition("; ")
    return _html(
        "page.html",
        run=run,
        head=head if "(" in head else _sentence(head),
        named=_named(run),
        began=datetime.fromtimestamp(run["began_unix_s"], UTC).strftime("%Y-%m-%d %H:%M UTC"),
        lasted=seconds_text(run["statistics"]["elapsed_s"]),
        verdict=_sentence(lines[0]),
        middle=_sentence(rest or head),
        advice=lines[2],
        tiles=[(name, *_split_unit(text)) for name, text in _tiles(run).items()],
        plots=plots_of(run),
    )


def report_html(report: Judged) -> str:
    """A verdict: its lines, and where the time of those goes who make batches."""
    return _small(None, report)


def loader_html(shown: str, report: Judged | None) -> str:
    """A loader, with the verdict on its latest pass if there is one.

    Args:
        shown: Its repr.
        report: The verdict.
    """
    return _small(shown, report)


def _small(shown: str | None, report: Judged | None) -> str:
    own: dict[str, int] = {}
    shares = {} if report is None else {name: part for name, part in report.shares.items() if part >= 0.01}
    keys = [(colour_of(stage, own), part, name_of(stage), percent(part)) for stage, part in shares.items()]
    return _html("small.html", shown=shown, report=report, shares=bar_of(shares, own), keys=keys).strip()


def _html(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(colours=list(COLOURS.items()), **values)


@cache
def _environment() -> Environment:
    # All that comes from a user's names is escaped; what a template lacks is an error.
    from jinja2 import (  # a fifth of a second, for who looks at a page
        Environment,
        FileSystemLoader,
        StrictUndefined,
    )

    templates = FileSystemLoader(Path(__file__).parent / "templates")
    return Environment(loader=templates, autoescape=True, undefined=StrictUndefined, trim_blocks=True)


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
    return " · ".join(named)


def _tiles(run: Mapping[str, Any]) -> dict[str, str]:
    """The numbers to remember."""
    told, latency = run["statistics"], run["latency"]
    pass_ = told["batches"], told["elapsed_s"], told["first_batch_s"]
    tiles = {
        "of the time waiting": percent(run["report"]["wait_share"]),
        "samples/s": amount(steady_rate(told["samples"], *pass_)),
        "delivered": f"{bytes_text(steady_rate(told['size_bytes'], *pass_))}/s",
        "batches": f"{told['batches']:,}",
    }
    if told["first_batch_s"] is not None:
        tiles["to the first batch"] = seconds_text(told["first_batch_s"])
    if latency["p95_s"] is not None:
        tiles["store, 95 of 100 faster"] = seconds_text(latency["p95_s"])
    more = {
        "in all": seconds_text(max(told["elapsed_s"], 1e-9)),
        "retries": f"{told['network']['retries']:,}",
    }
    return tiles | dict(list(more.items())[: 6 - len(tiles)])


def _split_unit(text: str) -> tuple[str, str]:
    number, _, unit = text.partition(" ")
    return number, unit
