"""What a notebook shows of a loader and of its report: small, and in the page's look. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from .look import STYLE_OF_SMALL, colour_of
from .makers import share_bar
from .plots import name_of
from .units import percent

__all__ = ["loader_html", "report_html"]


def report_html(lines: Sequence[str], shares: Mapping[str, float]) -> str:
    """A verdict.

    Args:
        lines: Its three.
        shares: Of the time of those who make batches, by stage.
    """
    return _box(_verdict(lines, shares))


def loader_html(shown: str, lines: Sequence[str] = (), shares: Mapping[str, float] | None = None) -> str:
    """A loader, with the verdict on its latest pass if there is one.

    Args:
        shown: Its repr.
        lines: Of the verdict.
        shares: Likewise.
    """
    verdict = _verdict(lines, shares or {}) if lines else '<p class="soft">No pass has begun.</p>'
    return _box(f"<p><code>{escape(shown)}</code></p>{verdict}")


def _verdict(lines: Sequence[str], shares: Mapping[str, float]) -> str:
    own: dict[str, int] = {}
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
