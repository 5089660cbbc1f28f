"""Telling whoever reads an iterable dataset with several workers and did not split it.

Only the worker sees whether the dataset asked for its number, and only the consumer's process can warn
so that a person, or a filter, takes note: so the mark travels with the first batch of worker 0.
"""

from __future__ import annotations

import warnings
from typing import Any

from ..tracebacks import Line

__all__ = ["UnsplitNotice"]


class UnsplitNotice:
    """Warns once in a loader's life."""

    def __init__(self) -> None:
        self._told = False

    def tell(self, dataset: Any, line: Line) -> None:
        """Warn at ``line`` of the user's, unless that was done before."""
        if self._told:
            return
        self._told = True
        warnings.warn_explicit(
            f"{type(dataset).__name__} is read by several workers but never asked get_worker_info(): "
            "each worker yields all of it, so that every sample comes once for each worker. Wrap it in "
            "asyncloader.split(dataset), or divide it in its __iter__",
            UserWarning,
            *line,
        )
