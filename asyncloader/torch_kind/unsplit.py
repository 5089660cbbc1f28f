"""Telling whoever reads an iterable dataset with several workers and did not split it.

Only the worker sees whether the dataset asked for its number, and only the consumer's process can warn
so that a person, or a filter, takes note: so the mark travels with the first batch of worker 0.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..torch_private import pin_memory
from ..tracebacks import Line
from .worker_info import is_first_worker, was_asked

__all__ = ["Unsplit", "UnsplitNotice", "WatchedCollate"]


@dataclass(frozen=True)
class Unsplit:
    """A batch of a dataset that did not ask which worker it is."""

    batch: Any

    def pin_memory(self) -> Unsplit:
        """As torch asks of types that it does not know."""
        return Unsplit(pin_memory(self.batch))


class WatchedCollate:
    """The ``collate_fn`` of an iterable dataset in workers: marks the first batch of worker 0."""

    def __init__(self, collate_fn: Callable[[Any], Any]) -> None:
        self._collate_fn = collate_fn
        self._looked = False

    def __call__(self, samples: Any) -> Any:
        batch = self._collate_fn(samples)
        if self._looked or not is_first_worker():
            return batch
        self._looked = True
        return batch if was_asked() else Unsplit(batch)


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
