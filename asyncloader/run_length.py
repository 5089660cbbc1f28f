"""A sequence that holds each value once for all places in a row that have it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, groupby, repeat, starmap
from typing import overload

__all__ = ["RunLengths"]


class RunLengths(Sequence[str]):
    """Texts, of which the same one often follows itself; it is equal to a tuple of the same.

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

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return tuple(map(self.__getitem__, range(len(self))[index]))
        return self.runs[bisect_right(self._ends, range(len(self))[index])][0]

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(starmap(repeat, self.runs))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RunLengths | tuple):
            return NotImplemented
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # it would have to be that of the tuple

    def __reduce__(self) -> tuple[type[RunLengths], tuple[tuple[tuple[str, int], ...]]]:
        return RunLengths, (self.runs,)

    def __repr__(self) -> str:
        return f"RunLengths({self.runs})"
