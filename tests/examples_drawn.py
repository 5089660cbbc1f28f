"""How many examples hypothesis draws: a third of a test's number by default, five times it in slow runs."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

__all__ = ["draw_afresh", "examples"]

#: The default run draws the same examples each time, so that it says of a change whether it holds.
_SHARE, _TIMES = 3, 5

_afresh = False


def draw_afresh(afresh: bool) -> None:
    """Say, before any module of tests is imported, whether this is the slow run."""
    global _afresh
    _afresh = afresh
    # How long an example takes says more of the machine than of the code.
    settings.register_profile(
        "asyncloader", deadline=None, derandomize=not afresh, max_examples=_examples(100)
    )
    settings.load_profile("asyncloader")


def examples(count: int, **options: Any) -> settings:
    """The settings of a test that is to draw about so many examples."""
    return settings(max_examples=_examples(count), **options)


def _examples(count: int) -> int:
    return _TIMES * count if _afresh else max(1, count // _SHARE)
