"""Names, thousands at a time: what holds for all of a run is told by a few searches, not by a step for each.

A million names are looked through several times before the first request, and each time takes half a second
by steps of Python. So what is told here only ever says that a run is plain. Where it may not be, whoever asks
goes through it name by name, and finds whose fault it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice

__all__ = ["NameRun", "runs_of"]

_RUN = 4096  # they stay in the processor's cache


class NameRun:
    """Some names that follow one another.

    Args:
        names: URLs and paths, one at least.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        #: All of them, with a break behind each.
        self.lines = "\n".join([*names, ""])

    def has(self, pieces: Iterable[str]) -> bool:
        """Whether any of the pieces is in any name, or ends it if a break ends the piece."""
        return any(piece in self.lines for piece in pieces)

    def all_end_with(self, ending: str) -> bool:
        """Whether every name ends so."""
        return self._are_lines and self.lines.count(f"{ending}\n") == len(self.names)

    @cached_property
    def folder(self) -> str:
        """The deepest folder that all are below, with its slash, if it settles their scheme and server.

        Empty where there is none.
        """
        # All others are between these two, and so begin with what both begin with.
        common = os.path.commonprefix([min(self.names), max(self.names)])  # noqa: RUF071 - in characters
        folder = common[: common.rfind("/") + 1]
        _, colon, behind = folder.partition(":")
        # Less than a whole server may go on as another one, and a colon that ends no scheme may be a slip.
        return folder if not colon or (behind.startswith("//") and len(behind) > 2) else ""

    @cached_property
    def is_flat(self) -> bool:
        """Whether all are in ``folder`` itself."""
        inside = self.folder.count("/")
        return self._are_lines and inside > 0 and self.lines.count("/") == inside * len(self.names)

    @cached_property
    def _are_lines(self) -> bool:
        return self.lines.count("\n") == len(self.names)


def runs_of(names: Iterable[str]) -> Iterator[NameRun]:
    """The names in runs, in order."""
    rest = iter(names)
    while run := [*islice(rest, _RUN)]:
        yield NameRun(run)
