"""What a loader may be given to load."""

from __future__ import annotations

import reprlib
from collections.abc import AsyncIterable, Iterable
from typing import Any, Protocol, TypeAlias

from ..dataset import Dataset
from .stream import Streamed

__all__ = ["AnyDataset", "MapStyle", "shown_dataset"]


class MapStyle(Protocol):
    """Gives a sample by index."""

    def __getitem__(self, index: Any, /) -> Any: ...


AnyDataset: TypeAlias = Streamed | MapStyle | Iterable[Any] | AsyncIterable[Any]


def shown_dataset(dataset: Any) -> str:
    """A dataset on one line: a recipe in full, all else cut short, since it may be a list of a million."""
    if isinstance(dataset, Dataset):
        return repr(dataset)
    short = reprlib.Repr()
    short.maxother = short.maxstring = 120
    return " ".join(short.repr(dataset).split())
