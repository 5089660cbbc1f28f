"""Sequences of texts that take less room than their texts would."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, groupby, repeat, starmap
from operator import eq
from typing import overload

__all__ = ["RunLengths", "Texts"]


class Texts(Sequence[str]):
    """Texts, each made when it is asked for; equal to a tuple of the same, and a slice is one."""

    @abstractmethod
    def at(self, index: int) -> str:
        """The text at ``index``, from 0 on, which is below the length."""

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...

    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        places = range(len(self))
        if isinstance(index, slice):
            return tuple(map(self.at, places[index]))
        return self.at(places[index])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Texts | tuple):
            return NotImplemented
        return len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment]  # it would have to be that of the tuple


class RunLengths(Texts):
    """Texts of which the same one often follows itself, held once for all places in a row.

    Args:
        runs: Each text, and how often it comes here.
    """

    def __init__(self, runs: Iterable[tuple[str, int]]) -> None:
        self.runs = tuple(runs)
        self._ends = list(accumulate(count for _, count in self.runs))

    @classmethod
    def of(cls, texts: Iterable[str]) -> RunLengths:
        """The runs of ``texts``."""
        return cls((text, sum(1 for _ in same)) for text, same in groupby(texts))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def at(self, index: int) -> str:
        return self.runs[bisect_right(self._ends, index)][0]

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(starmap(repeat, self.runs))

    def __reduce__(self) -> tuple[type[RunLengths], tuple[tuple[tuple[str, int], ...]]]:
        return RunLengths, (self.runs,)

    def __repr__(self) -> str:
        return f"RunLengths({self.runs})"
