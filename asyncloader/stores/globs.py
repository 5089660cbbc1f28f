"""Patterns over the keys of object stores, which have no folders to walk; pure.

They mean what ``glob`` means for files: ``*``, ``?`` and ``[...]`` stay within a segment, a segment ``**``
stands for any number of them, none of these matches a leading dot, and ``[*]`` is a literal star.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import translate
from typing import TypeAlias

__all__ = ["KeyGlob", "folder_before", "has_special", "matcher"]

_SPECIAL = re.compile(r"[*?\[]")

_Matches: TypeAlias = Callable[[str], object]


def has_special(pattern: str) -> bool:
    """Whether any character of ``pattern`` is more than itself."""
    return _SPECIAL.search(pattern) is not None


def folder_before(pattern: str) -> str:
    """What every key that matches begins with, up to and with a ``/``; empty if nothing is common."""
    special = _SPECIAL.search(pattern)
    literal = pattern if special is None else pattern[: special.start()]
    return literal[: literal.rfind("/") + 1]


class KeyGlob:
    """Matches keys segment by segment, in time linear in both lengths.

    Args:
        pattern: Of a whole key.
    """

    def __init__(self, pattern: str) -> None:
        self._segments = [None if segment == "**" else _segment(segment) for segment in pattern.split("/")]

    def matches(self, key: str) -> bool:
        """Whether the whole of ``key`` matches."""
        # All numbers of segments that may be behind us, as in any automaton: trying one after the other
        # would take exponential time for some patterns.
        open_at = self._skip_any({0})
        for part in key.split("/"):
            after = set()
            for index in open_at:
                if index == len(self._segments):
                    continue
                segment = self._segments[index]
                if segment is None:
                    if not part.startswith("."):
                        after.add(index)
                        if index == len(self._segments) - 1:
                            after.add(index + 1)  # a key below, rather than the folder itself
                elif segment(part):
                    after.add(index + 1)
            open_at = self._skip_any(after)
        return len(self._segments) in open_at

    def _skip_any(self, indices: set[int]) -> set[int]:
        """``indices``, and those behind each ``**`` that stands for no segment."""
        reached = set(indices)
        for index in indices:
            while index < len(self._segments) - 1 and self._segments[index] is None:
                index += 1
                reached.add(index)
        return reached


def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a key is meant by a glob or prefix; which objects below a prefix count is another question."""
    if pattern and not pattern.endswith("/"):
        return KeyGlob(pattern).matches
    # A prefix means everything below it; below a glob of folders, the rules of globs hold.
    return KeyGlob(f"{pattern}**").matches if has_special(pattern) else lambda key: key.startswith(pattern)


def _segment(pattern: str) -> _Matches:
    if not has_special(pattern):
        return pattern.__eq__
    matches = re.compile(translate(pattern)).match
    if pattern.startswith("."):
        return matches
    return lambda part: not part.startswith(".") and matches(part)
