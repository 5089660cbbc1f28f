"""What a notebook shows of a loader and of its report: small, and in the page's look. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Protocol

from ..stopwatch import name_of
from .look import STYLE_OF_SMALL, colour_of
from .makers import share_bar
from .units import percent

__all__ = ["loader_html", "report_html"]


class Verdict(Protocol):
    """A ``Report``, as far as it is shown."""

    @property
    def lines(self) -> Sequence[str]: ...

    @property
    def shares(self) -> Mapping[str, float]: ...


def report_html(report: Verdict) -> str:
    """A verdict: its lines, and where the time of those goes who make batches."""
    return _box(_verdict(report))


def loader_html(shown: str, report: Verdict | None) -> str:
    """A loader, with the verdict on its latest pass if there is one.

    Args:
        shown: Its repr.
        report: The verdict.
    """
    told = '<p class="soft">No batch has come yet.</p>' if report is None else _verdict(report)
    return _box(f"<p><code>{escape(shown)}</code></p>{told}")


def _verdict(report: Verdict) -> str:
    own: dict[str, int] = {}
    lines, shares = report.lines, report.shares
    head = lines[1].partition("; ")[0]
    told = {stage: share for stage, share in shares.items() if share >= 0.01}
    keys = "".join(
        f'<span class="key"><i class="b-{colour_of(stage, own)}"></i>{escape(name_of(stage))} '
        f"{percent(share)}</span>"
        for stage, share in told.items()
    )
    return (
        f'<p class="head">{escape(head)}</p><p>{escape(lines[0])}</p>'
        f"{share_bar(told, own) if told else ''}<p>{keys}</p>"
        f"<p><b>What to change:</b> {escape(lines[2])}</p>"
    )


def _box(content: str) -> str:
    return f'<style>{STYLE_OF_SMALL}</style><div class="asyncloader">{content}</div>'
