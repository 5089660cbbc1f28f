"""Patterns of braces, and the names that they stand for, each made when it is asked for; pure.

A pattern is parsed into parts of which each knows how many texts it stands for and which the ``index``-th is:
a million names take no more room than two.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import accumulate, chain
from typing import Protocol

from ..texts import Texts

__all__ = ["MOST_SHARDS", "Braces", "has_unclosed_brace", "range_meant"]

#: More shards than any data set has; a slip such as {0..999999999} should not eat the memory.
MOST_SHARDS = 10_000_000

_RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)")

# Such as {000-015}, {000...015} and {0 .. 15}; {:03d} and %03d, which are Python's.
_OTHER_RANGE = re.compile(r"\{\s*([0-9]+)\s*(?:-|\.{2,}|\u2026)\s*([0-9]+)\s*\}")
_OTHER_FORMAT = re.compile(r"\{\w*:0?[0-9]*d?\}|%0?[0-9]*d")


class Braces(Texts):
    """The names that a pattern stands for, in the order in which a shell expands it.

    Ranges (``{000..127}``, padded as written) and lists (``{a,b}``) are expanded, also in one another, and
    other braces left alone. It pickles as its pattern.

    Args:
        pattern: A brace without a partner is a character like others.

    Raises:
        ValueError: A range that falls, or more than ``MOST_SHARDS`` names.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._meaning = _parse(pattern)
        if self._meaning.count > MOST_SHARDS:
            raise ValueError(f"its braces name more than {MOST_SHARDS} shards")

    def __len__(self) -> int:
        return self._meaning.count

    def at(self, index: int) -> str:
        return self._meaning.at(index)

    def __iter__(self) -> Iterator[str]:
        return self._meaning.within("", "")

    def __reduce__(self) -> tuple[type[Braces], tuple[str]]:
        return Braces, (self.pattern,)


def has_unclosed_brace(text: str) -> bool:
    """Whether a brace is opened in ``text`` and not closed."""
    return text.count("{") > len(_partners(text))


def range_meant(text: str) -> tuple[str, str] | None:
    """What in ``text`` is a range to other tools and none here, and what to write; None if there is none."""
    if (slip := _OTHER_RANGE.search(text)) is not None:
        return slip[0], f"{{{slip[1]}..{slip[2]}}}"
    slip = _OTHER_FORMAT.search(text)
    return None if slip is None else (slip[0], "a range such as {000..127}")


class _Meaning(Protocol):
    """What a part of a pattern stands for. Its number may be too large for ``len``."""

    count: int

    def at(self, index: int) -> str: ...

    def within(self, before: str, behind: str) -> Iterator[str]:
        """All texts in order, with these around each: the innermost part makes them, in one step each."""
        ...


class _Literal:
    def __init__(self, text: str) -> None:
        self._text = text
        self.count = 1

    def at(self, index: int) -> str:
        return self._text

    def within(self, before: str, behind: str) -> Iterator[str]:
        yield before + self._text + behind


class _Numbers:
    def __init__(self, first: str, last: str) -> None:
        low, high = int(first), int(last)
        if low > high or high - low >= MOST_SHARDS:
            raise ValueError(
                f"a brace range should rise and name at most {MOST_SHARDS} shards, but got "
                f"{{{first}..{last}}}"
            )
        padded = any(bound.startswith("0") and len(bound) > 1 for bound in (first, last))
        self._width = max(len(first), len(last)) if padded else 0
        self._numbers = range(low, high + 1)
        self.count = len(self._numbers)

    def at(self, index: int) -> str:
        return f"{self._numbers[index]:0{self._width}}"

    def within(self, before: str, behind: str) -> Iterator[str]:
        # Thousand by thousand: to put two texts together takes a quarter of the time of formatting a number.
        low, stop = self._numbers.start, self._numbers.stop
        tails = [f"{number:03}{behind}" for number in range(1000)] if stop > 1000 else []
        below = (f"{before}{number:0{self._width}}{behind}" for number in range(low, min(stop, 1000)))
        return chain(below, chain.from_iterable(self._thousands(before, tails, max(low, 1000), stop)))

    def _thousands(self, before: str, tails: Sequence[str], low: int, stop: int) -> Iterator[list[str]]:
        for begin in range(low // 1000 * 1000, stop, 1000):
            head = f"{before}{begin // 1000:0{max(self._width - 3, 0)}}"
            yield [head + tail for tail in tails[max(low - begin, 0) : stop - begin]]


class _Around:
    """Texts with others before and behind each."""

    def __init__(self, before: str, inner: _Meaning, behind: str) -> None:
        self._before, self._inner, self._behind = before, inner, behind
        self.count = inner.count

    def at(self, index: int) -> str:
        return self._before + self._inner.at(index) + self._behind

    def within(self, before: str, behind: str) -> Iterator[str]:
        return self._inner.within(before + self._before, self._behind + behind)


class _Either:
    """Those of each option, one option after the other."""

    def __init__(self, options: Sequence[_Meaning]) -> None:
        self._options = options
        self._firsts = [0, *accumulate(option.count for option in options)]
        self.count = self._firsts.pop()

    def at(self, index: int) -> str:
        option = bisect_right(self._firsts, index) - 1
        return self._options[option].at(index - self._firsts[option])

    def within(self, before: str, behind: str) -> Iterator[str]:
        return chain.from_iterable(option.within(before, behind) for option in self._options)


class _Each:
    """Each of the first with each of the second, the second running faster."""

    def __init__(self, first: _Meaning, second: _Meaning) -> None:
        self._first, self._second = first, second
        self.count = first.count * second.count

    def at(self, index: int) -> str:
        slow, fast = divmod(index, self._second.count)
        return self._first.at(slow) + self._second.at(fast)

    def within(self, before: str, behind: str) -> Iterator[str]:
        slow = self._first.within(before, "")
        return chain.from_iterable(self._second.within(text, behind) for text in slow)


def _parse(pattern: str) -> _Meaning:
    partners = _partners(pattern)
    groups = []
    done = 0
    for first in sorted(partners):
        if first >= done:  # else it is in a group, which is parsed on its own
            groups.append((pattern[done:first], _choices(pattern[first + 1 : partners[first]])))
            done = partners[first] + 1
    tail = pattern[done:]
    if not groups:
        return _Literal(tail)
    texts: list[_Meaning] = [_Around(before, choices, "") for before, choices in groups[:-1]]
    before, choices = groups[-1]
    return reduce(_Each, [*texts, _Around(before, choices, tail)])


def _choices(inside: str) -> _Meaning:
    """What may stand in place of a brace, its contents and its partner."""
    if (bounds := _RANGE.fullmatch(inside)) is not None:
        return _Numbers(bounds[1], bounds[2])
    parts = _split_list(inside)
    if len(parts) > 1:
        return _Either([_parse(part) for part in parts])
    return _Around("{", _parse(inside), "}")


def _partners(text: str) -> dict[int, int]:
    """Where each brace that is closed is closed."""
    opened: list[int] = []
    partners = {}
    for index, character in enumerate(text):
        if character == "{":
            opened.append(index)
        elif character == "}" and opened:
            partners[opened.pop()] = index
    return partners


def _split_list(inside: str) -> list[str]:
    """Split at the commas that are in no brace of their own."""
    parts, begin, depth = [], 0, 0
    for index, character in enumerate(inside):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append(inside[begin:index])
            begin = index + 1
    return [*parts, inside[begin:]]
