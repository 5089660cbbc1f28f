"""The names of shards: sequences that make each name on demand, and what names have in common.

A pattern of braces is parsed into parts that know how many texts they stand for, and how to make the
``index``-th: a million names take as much memory as two.

Law: the names of a pattern in ``ShardNames`` agree in everything that is asked about them (scheme, server,
bucket, what of it may be shown, whether a server has to be asked what it means). A pattern whose text alone
does not guarantee that is expanded.
"""

from __future__ import annotations

import hashlib
import os
import re
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, groupby, islice, repeat, starmap
from math import prod
from operator import eq
from typing import TypeAlias, overload

from .urls import LOCAL, PLAIN, SCHEMES, WEB, local_path, redact, scheme_of

# The scheme with server or bucket comes before the first brace. Without a scheme there is no colon, so that
# no name can be taken for a URL, and no tilde, which may be a home. What is in and between the braces has no
# special meaning.
_LISTED = "|".join(scheme.name for scheme in SCHEMES.values() if scheme.is_listed)
_EVEN = re.compile(
    rf"(?:(?P<web>(?:{'|'.join(WEB)})://[^/?#{{}}]+/)|(?:{_LISTED})://[A-Z0-9._@:-]+/"
    rf"|(?:{'|'.join(LOCAL)})://(?:localhost)?/|(?![^:]*:|[^~]*~))"
    r"(?P<before>[^{}?#]*)\{(?P<inside>[A-Z0-9_.,={}/+-]*)\}(?P<behind>[^{}]*)",
    re.IGNORECASE | re.ASCII,
)
# A glob, an escape that may be one, or the start of what messages leave out.
_SPECIAL = re.compile(r"[*?\[#%]")

_RUN = 4096  # names, which stay in the processor's cache

# Names that are shown as they are, a line each.
_PLAIN_LINES = re.compile(rf"(?:{PLAIN}\n)*")

#: More shards than any data set has. A mistake such as {0..999999999} should not fill the memory.
MOST_SHARDS = 10_000_000

_RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)")


class _Lazy(Sequence[str]):
    """Texts that are made on demand. It equals a tuple of the same texts, and a slice is a tuple."""

    @abstractmethod
    def at(self, index: int) -> str:
        """The text at ``index``, which is from 0 up to the length."""

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
        if not isinstance(other, _Lazy | tuple):
            return NotImplemented
        return len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment]  # it would have to be that of the tuple


class RunLengths(_Lazy):
    """Texts with many repetitions in a row, each of which is held once.

    Args:
        runs: Each text, and how often it is repeated here.
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

    def __repr__(self) -> str:
        return f"RunLengths({self.runs})"


class Braces(_Lazy):
    """The names that a pattern stands for, in the order in which a shell expands it.

    Ranges (``{000..127}``, padded as written) and lists (``{a,b}``) are expanded, also nested, and other
    braces are kept. It pickles as its pattern.

    Args:
        pattern: A brace without a partner is an ordinary character.

    Raises:
        ValueError: A range that falls, or more than ``MOST_SHARDS`` names.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._meaning = _Pattern(pattern)
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
    """Whether ``text`` has an opening brace without its partner."""
    return text.count("{") > len(_partners(text))


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
        self.count: int = len(self._numbers)

    def at(self, index: int) -> str:
        return f"{self._numbers[index]:0{self._width}}"

    def within(self, before: str, behind: str) -> Iterator[str]:
        # Thousand by thousand: joining two texts takes a quarter of the time of formatting a number.
        low, stop = self._numbers.start, self._numbers.stop
        tails = [f"{number:03}{behind}" for number in range(1000)] if stop > 1000 else []
        below = (f"{before}{number:0{self._width}}{behind}" for number in range(low, min(stop, 1000)))
        return chain(below, chain.from_iterable(self._thousands(before, tails, max(low, 1000), stop)))

    def _thousands(self, before: str, tails: Sequence[str], low: int, stop: int) -> Iterator[list[str]]:
        for begin in range(low // 1000 * 1000, stop, 1000):
            head = f"{before}{begin // 1000:0{max(self._width - 3, 0)}}"
            yield [head + tail for tail in tails[max(low - begin, 0) : stop - begin]]


class _Either:
    """The names of each option, one option after the other."""

    def __init__(self, options: Sequence[_Pattern]) -> None:
        self._options = options
        self._firsts = [0, *accumulate(option.count for option in options)]
        self.count: int = self._firsts.pop()

    def at(self, index: int) -> str:
        option = bisect_right(self._firsts, index) - 1
        return self._options[option].at(index - self._firsts[option])

    def within(self, before: str, behind: str) -> Iterator[str]:
        return chain.from_iterable(option.within(before, behind) for option in self._options)


class _Pattern:
    """Texts with choices between them; the last choice changes fastest.

    Attributes:
        count: The number of names, which may be too large for ``len``.
    """

    def __init__(self, pattern: str) -> None:
        self._parts: list[tuple[str, _Numbers | _Either]] = []
        partners, begin = _partners(pattern), 0
        for first in sorted(partners):
            if first >= begin:  # else it is in a choice, which was parsed on its own
                choice = _choice(pattern[first + 1 : partners[first]])
                if choice is not None:
                    self._parts.append((pattern[begin:first], choice))
                    begin = partners[first] + 1
        self._tail = pattern[begin:]
        self.count: int = prod(choice.count for _, choice in self._parts)

    def at(self, index: int) -> str:
        name = self._tail
        for before, choice in reversed(self._parts):
            index, here = divmod(index, choice.count)
            name = before + choice.at(here) + name
        return name

    def within(self, before: str, behind: str, part: int = 0) -> Iterator[str]:
        """All names in order, with these texts around each. The innermost choice makes each in one step."""
        if not self._parts:
            return iter((before + self._tail + behind,))
        text, choice = self._parts[part]
        if part == len(self._parts) - 1:
            return choice.within(before + text, self._tail + behind)
        slow = choice.within(before + text, "")
        return chain.from_iterable(self.within(name, behind, part + 1) for name in slow)


def _choice(inside: str) -> _Numbers | _Either | None:
    """What a pair of braces stands for, by its contents; None if it is ordinary text."""
    if (bounds := _RANGE.fullmatch(inside)) is not None:
        return _Numbers(bounds[1], bounds[2])
    options = _split_list(inside)
    return _Either([*map(_Pattern, options)]) if len(options) > 1 else None


def _partners(text: str) -> dict[int, int]:
    """The place of each opening brace that has a partner, with that of the partner."""
    opened: list[int] = []
    partners = {}
    for index, character in enumerate(text):
        if character == "{":
            opened.append(index)
        elif character == "}" and opened:
            partners[opened.pop()] = index
    return partners


def _split_list(inside: str) -> list[str]:
    """Split at the commas outside of inner braces."""
    parts, begin, depth = [], 0, 0
    for index, character in enumerate(inside):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append(inside[begin:index])
            begin = index + 1
    return [*parts, inside[begin:]]


Part: TypeAlias = Braces | tuple[str, ...]


class ShardNames(_Lazy):
    """Names in order. Those of even patterns are made on demand.

    It pickles as its parts.

    Args:
        parts: Names, and patterns for which ``is_even`` is true. No part is empty.
    """

    def __init__(self, parts: Iterable[Part]) -> None:
        self.parts = tuple(parts)
        self._firsts = [0, *accumulate(map(len, self.parts))]

    @property
    def examples(self) -> Iterator[str]:
        """Every name, but only one of each pattern: enough where one answer is true of all its names."""
        return chain.from_iterable(part[:1] if isinstance(part, Braces) else part for part in self.parts)

    def __len__(self) -> int:
        return self._firsts[-1]

    def at(self, index: int) -> str:
        part = bisect_right(self._firsts, index) - 1
        return self.parts[part][index - self._firsts[part]]

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self.parts)

    def __reduce__(self) -> tuple[type[ShardNames], tuple[tuple[Part, ...]]]:
        return ShardNames, (self.parts,)

    def __repr__(self) -> str:
        return f"ShardNames({len(self)})"  # names may hold secrets


def is_even(pattern: str) -> bool:
    """Whether one name of a pattern of braces stands for all of them; see the law above.

    A pattern that may be a glob, a folder or a prefix is not even: what it means has to be looked up.
    """
    match = _EVEN.fullmatch(pattern)
    if match is None:
        return False
    before, inside, behind = match["before"], match["inside"], match["behind"]
    if match["web"] is not None:
        return True
    if _SPECIAL.search(before) or _SPECIAL.search(behind):
        return False
    return not behind.endswith("/") if behind else not {",", "/"} & {*inside}


def runs_of(names: Iterable[str]) -> Iterator[list[str]]:
    """The names in order, some thousands at a time.

    A million names are checked several times before the first request, and each check takes half a second as
    a Python loop. So a few searches find what is true of all names of a run, and only a run that is not plain
    is checked name by name.
    """
    rest = iter(names)
    while run := [*islice(rest, _RUN)]:
        yield run


def in_lines(names: Iterable[str]) -> str:
    """The names, each followed by a line break, to be searched all at once."""
    return "\n".join([*names, ""])


def shared_folder(names: Sequence[str]) -> str:
    """The deepest folder that contains all names, with its slash, if it determines their scheme and server.

    Empty if there is none.
    """
    # All others sort between these two, and so begin with their common prefix.
    common = os.path.commonprefix([min(names), max(names)])  # noqa: RUF071 - in characters
    folder = common[: common.rfind("/") + 1]
    _, colon, behind = folder.partition(":")
    # A part of a server's name may continue as another one, and a colon that ends no scheme may be a mistake.
    return folder if not colon or (behind.startswith("//") and len(behind) > 2) else ""


def lie_flat(names: Sequence[str], folder: str) -> bool:
    """Whether all names below ``folder`` are directly in it, and none has a line break."""
    lines, inside = in_lines(names), folder.count("/")
    return inside > 0 and lines.count("\n") == len(names) and lines.count("/") == inside * len(names)


def names_digest(names: Sequence[str]) -> str:
    """SHA-256 of the names as they may be shown, a line each; patterns and lists of names give the same."""
    digest = hashlib.sha256()
    for part in names.parts if isinstance(names, ShardNames) else (names,):
        # Braces are never in what is left out, so the pattern can be redacted in place of the names.
        is_shown = isinstance(part, Braces)
        for run in runs_of(Braces(redact(part.pattern)) if isinstance(part, Braces) else part):
            lines = in_lines(run)
            shown = lines if is_shown or _PLAIN_LINES.fullmatch(lines) else in_lines(map(redact, run))
            digest.update(shown.encode(errors="surrogatepass"))
    return digest.hexdigest()


def places_digest(names: Sequence[str]) -> str | None:
    """The digest of the names with local paths made absolute; None if they are absolute already."""
    parts = names.parts if isinstance(names, ShardNames) else (tuple(names),)
    in_full = [*map(_in_full, parts)]
    if all(map(eq, map(_text_of, parts), map(_text_of, in_full))):
        return None
    return names_digest(ShardNames(filter(len, in_full)))


def _text_of(part: Part) -> str | tuple[str, ...]:
    return part.pattern if isinstance(part, Braces) else part


def _in_full(part: Part) -> Part:
    if isinstance(part, Braces):
        end = part.pattern.rfind("/", 0, part.pattern.find("{")) + 1
        folder, rest = part.pattern[:end], part.pattern[end:]
        if not any(odd in f"/{rest}" for odd in ("//", "/./", "/../")):
            return Braces(_folder_in_full(folder) + rest)
    found: list[str] = []
    for run in runs_of(part):
        if lie_flat(run, folder := shared_folder(run)):
            full, cut = _folder_in_full(folder), len(folder)
            found += run if full == folder else [full + name[cut:] for name in run]
        else:
            folders = {name[: name.rfind("/") + 1] for name in run}
            fulls = {folder: _folder_in_full(folder) for folder in folders}
            found += [fulls[name[: (cut := name.rfind("/") + 1)]] + name[cut:] for name in run]
    return tuple(found)


def _folder_in_full(folder: str) -> str:
    """A folder with its slash; empty is the working directory."""
    if not scheme_of(folder).is_local:
        return folder
    return os.path.join(os.path.abspath(local_path(folder)), "")
