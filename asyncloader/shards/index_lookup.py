"""Which entry of an index is of which shard: by place, however their URLs are written.

A place is the one spelling of a shard's URL in which entries and shards are compared. A shard below the
index's folder has its path from there for a place, others have their whole URL.
"""

from __future__ import annotations

import glob
import io
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, wraps
from http import HTTPStatus
from itertools import chain
from typing import Any, BinaryIO, TypeVar, cast
from urllib.parse import unquote, urlsplit

import numpy as np

from ..errors import FormatError, StoreError
from ..stores.expanding import Match, expand_home
from ..stores.globs import KeyGlob, matcher
from ..stores.listing import look
from ..stores.names import Braces, ShardNames, in_lines, lie_flat, runs_of, shared_folder
from ..stores.urls import INDEX_NAME, local_path, redact, scheme_of, split_key
from .expectations import Expectations, Rows
from .index_entries import MOST_LOOKED_AT_BYTES, check_unique, is_broken, is_index, read_index

# Shards that an error names; it says how many there are.
_MOST_NAMED = 3

# Files looked for that an index beside them does not list: a few ms of disk at most.
_MOST_LOOKED_FOR = 1000

# What is more than itself in some URL: in a name without any, what is behind the last slash is the same in
# the place. Tabs and breaks are left out of web URLs.
_has_special = re.compile(r"[%?#\t\r\n]").search

_Function = TypeVar("_Function", bound=Callable[..., Any])


def has_index_option(function: _Function) -> _Function:
    """For a function with the option ``index=``: the error for the name that it had before says so."""

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        if "manifest" in options:
            raise TypeError(f"{function.__name__}() has no option manifest=: it is called index=")
        return function(*arguments, **options)

    return cast("_Function", call)


class Entries:
    """The entries of an index, by the places of their shards.

    Args:
        index_url: Where the index is; its relative names start from that folder.
        index: The index, or a file of it.

    Raises:
        FormatError: Not a sound index, or two of its names mean one shard.
    """

    def __init__(self, index_url: str, index: bytes | BinaryIO) -> None:
        self.url = index_url
        folder, slash, _ = place_of(index_url).rpartition("/")
        self._folder = folder + slash
        try:
            file = io.BytesIO(index) if isinstance(index, bytes) else index
            names, self._expected = read_index(file)
            check_unique(names)
            self._places = names
            if any("://" in in_lines(run) for run in runs_of(names)):
                self._places = self._places_listed(names)
        except FormatError as error:
            error.shard = redact(index_url)
            raise

    def of(self, urls: Iterable[str]) -> Expectations:
        """The entry of each shard, None for those that have none."""
        return self._expected.take(self._find(urls))

    def missing(self, match: Match, is_shard: Callable[[str], bool]) -> list[str]:
        """The shards that are listed here and meant by a pattern, but were not found for it.

        Args:
            match: The pattern and what was found. Entries that it does not mean, such as those of other
                folders, are not missed.
            is_shard: Which of the files below a folder or prefix count, by their names.

        Returns:
            Their places, as they may be shown.
        """
        if [*match.urls[:2]] == [match.pattern]:  # an object of that very name, and so a name
            return []
        is_there = np.zeros(len(self._places) + 1, bool)  # the last one stands for all without an entry
        is_there[self._find(match.urls)] = True
        is_meant = _meaning(match.pattern, is_shard)
        listed = map(self._places.__getitem__, np.flatnonzero(~is_there[:-1]).tolist())
        places = [place if "://" in place else os.path.join(self._folder, place) for place in listed]
        return [place for place in places if is_meant(place)]

    def _find(self, urls: Iterable[str]) -> Rows:
        """The row of each shard, -1 for one without an entry."""
        found = [np.zeros(0, np.int64)]
        first = 0
        for run in runs_of(places_of(urls, self._folder)):
            # Most are asked for in the order in which they are listed, which takes no dictionary.
            is_next = self._places[first : first + len(run)] == run
            rows = range(first, first + len(run)) if is_next else [self._rows.get(place, -1) for place in run]
            found.append(np.fromiter(rows, np.int64, len(run)))
            first = rows[-1] + 1
        return np.concatenate(found)

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {place: row for row, place in enumerate(self._places)}

    def _places_listed(self, names: Sequence[str]) -> list[str]:
        """The places of names, of which one that is no URL is a place already."""
        places: list[str] = []
        for run in runs_of(names):
            if "://" in shared_folder(run):
                places += places_of(run, self._folder)
            else:
                for name in run:
                    places += places_of([name], self._folder) if "://" in name else [name]
        if len({*places}) < len(places):
            seen: set[str] = set()
            for name, place in zip(names, places, strict=True):
                if place in seen:
                    raise FormatError(f"index: {name!r} is a second name of a shard that has one already")
                seen.add(place)
        return places


def place_of(url: str) -> str:
    """``url`` without query, user info and escapes, and a path as an absolute one."""
    try:
        scheme = scheme_of(url)
    except ValueError:  # a name in an index, from a version that knows more schemes
        return url
    if scheme.is_local:
        path = os.path.abspath(local_path(url))
        return path.replace(os.sep, "/")
    rest = url.partition("://")[2]
    if scheme.is_web:
        parts = urlsplit(url)
        rest = parts.netloc.rpartition("@")[2].lower() + unquote(parts.path)
    return f"{scheme.name}://{rest}"


def places_of(urls: Iterable[str], folder: str) -> Iterator[str]:
    """The place of each, from ``folder`` on, which ends with a slash.

    What is the same for all shards of a folder is worked out once.
    """
    parts = urls.parts if isinstance(urls, ShardNames) else (urls,)
    return chain.from_iterable(_places_of_part(part, folder) for part in parts)


def _places_of_part(urls: Iterable[str], folder: str) -> Iterable[str]:
    if isinstance(urls, Braces) and (places := _places_of_braces(urls.pattern, folder)) is not None:
        return places
    beginnings: dict[str, str] = {}
    return chain.from_iterable(_places_of_run(run, folder, beginnings) for run in runs_of(urls))


def _places_of_run(run: Sequence[str], folder: str, beginnings: dict[str, str]) -> Iterable[str]:
    """The places of some names; ``beginnings`` are those of folders, as far as they are known."""

    def beginning_of(start: str) -> str:
        if start not in beginnings:
            beginnings[start] = _place_from(folder, place_of(start + "x")[:-1])
        return beginnings[start]

    def place(url: str) -> str:
        cut = url.rfind("/") + 1
        start, name = url[:cut], url[cut:]
        if not cut or name in ("", ".", "..") or _has_special(url) is not None:
            return _place_from(folder, place_of(url))
        return beginning_of(start) + name

    start, lines = shared_folder(run), in_lines(run)
    if lie_flat(run, start) and not any(odd in lines for odd in (*"%?#\t\r", "/\n", "/.\n", "/..\n")):
        beginning, cut = beginning_of(start), len(start)
        return [beginning + name[cut:] for name in run]
    return map(place, run)


def _places_of_braces(pattern: str, folder: str) -> Braces | None:
    """The places of the names of a pattern, where they are those of another pattern."""
    before, slash, behind = pattern.rpartition("/")
    # What has its braces behind all of its slashes has them in the same way in its place.
    if "{" not in before and _has_special(pattern) is None:
        place = _place_from(folder, place_of(before + slash + "x")[:-1] + behind)
        if place.endswith(behind) and "{" not in place.removesuffix(behind):
            return Braces(place)
    return None


def _place_from(folder: str, place: str) -> str:
    """A place as it is told from a folder: what is below it by its path from there."""
    below = place.removeprefix(folder)
    return place if "://" in below else below


def read_entries(place: str, options: Mapping[str, Any]) -> Entries:
    """The index at a path or URL that the user has named.

    Args:
        place: Path or URL.
        options: Storage options.

    Raises:
        ValueError: There is none, or the options are wrong.
        StoreError: It cannot be read.
        FormatError: It is not sound.
    """
    place = expand_home(place)
    if scheme_of(place).is_local:
        with open_local_index(local_path(place)) as file:
            if file is not None:
                return Entries(place, file)
    else:
        try:
            return Entries(place, look((), options, fetch=(place,)).fetched[0])
        except StoreError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
    raise ValueError(f"there is no index {redact(place)}; asyncloader index makes one")


class LocalIndexes:
    """The indexes beside local shards, each read once."""

    def __init__(self) -> None:
        self._known: dict[str, Entries | None] = {}

    def at(self, path: str) -> Entries | None:
        """The index that is there; None if there is none of ours.

        Raises:
            FormatError: It is not sound.
            StoreError: It cannot be read.
        """
        if path not in self._known:
            with open_local_index(path) as file:
                ours = file is not None and is_found_index(path, file)
                self._known[path] = Entries(path, file) if file is not None and ours else None
        return self._known[path]


def expectations(urls: Sequence[str], entries: Entries) -> Expectations:
    """What an index that the user has named expects of each shard.

    Raises:
        ValueError: It does not know one of the shards, and so is of other shards, or older.
    """
    found = entries.of(urls)
    if missing := len(urls) - found.count_of():
        first = urls[int(np.flatnonzero(found.known == 0)[0])]
        raise ValueError(
            f"the index {redact(entries.url)} has no entry for {missing} of {len(urls)} "
            f"shards; the first is {redact(first)}. Add them with asyncloader index, or name "
            "the index that is theirs"
        )
    return found


def check_complete(entries: Entries, match: Match, is_shard: Callable[[str], bool]) -> None:
    """Refuse a folder, prefix or glob that lacks shards which an index lists.

    Raises:
        StoreError: It does; see ``Entries.missing``.
    """
    missing = entries.missing(match, is_shard)
    if not missing:
        return
    named = ", ".join(missing[:_MOST_NAMED]) + (", ..." if len(missing) > _MOST_NAMED else "")
    raise StoreError(
        f"{redact(match.pattern)} lacks {len(missing)} of the shards that the index {redact(entries.url)} "
        f"lists: {named}. Restore them, or, if they were removed on purpose, delete the index and make it "
        "anew with asyncloader index; to read a part of them, name it by braces or in a list",
        shard=missing[0],
    )


def find_local_indexes(urls: Sequence[str], indexes: LocalIndexes | None = None) -> Expectations:
    """What the indexes beside local shards expect of each; looks once into each folder.

    An index that was merely found need not know every file of its folder: None for the others, as for
    shards that are not local.

    Args:
        urls: The shards.
        indexes: Those that were read already.

    Returns:
        An entry for each shard; nothing at all if no shard has any.

    Raises:
        FormatError: An index is not sound.
        StoreError: An index cannot be read, or a shard of a range is neither listed beside it nor there.
    """
    indexes = LocalIndexes() if indexes is None else indexes
    found: list[tuple[Rows, Expectations]] = []
    first = 0
    for part in urls.parts if isinstance(urls, ShardNames) else (urls,):
        for folder, numbers in _by_folder(part):
            entries = indexes.at(os.path.join(folder, INDEX_NAME))
            if entries is not None:
                names = part if len(numbers) == len(part) else [part[number] for number in numbers]
                expected = entries.of(names)
                if isinstance(part, Braces):
                    _check_there(names, expected, entries)
                found.append((_rows_of(numbers) + first, expected))
        first += len(part)
    return Expectations.placed(len(urls), found)


def _rows_of(numbers: Sequence[int]) -> Rows:
    # Numpy asks a range for each of its numbers.
    return np.arange(len(numbers)) + numbers[0] if isinstance(numbers, range) else np.array(numbers, np.int64)


def _check_there(urls: Sequence[str], expected: Expectations, entries: Entries) -> None:
    """Refuse names that their index does not list, and that no file has: a range that goes too far."""
    if expected.count_of() in (0, len(urls)):
        return
    for number in np.flatnonzero(expected.known == 0)[:_MOST_LOOKED_FOR].tolist():
        if not os.path.exists(local_path(url := urls[number])):
            raise StoreError(
                f"there is no such file, and the index {entries.url} lists {expected.count_of()} of the "
                f"{len(urls)} shards that are named beside it: name those that are there, or restore the "
                "others",
                shard=url,
            )


def _by_folder(names: Sequence[str]) -> Iterable[tuple[str, Sequence[int]]]:
    """The local ones of the names, by their numbers, with the folders that they lie in."""
    if isinstance(names, Braces):
        if not scheme_of(names[0]).is_local:
            return []
        if "/" not in names.pattern.partition("{")[2]:
            return [(os.path.dirname(local_path(names[0])), range(len(names)))]
    beginnings: dict[str, list[int]] = {}
    first = 0
    for run in runs_of(names):
        if lie_flat(run, folder := shared_folder(run)) and "%" not in in_lines(run):
            beginnings.setdefault(folder, []).extend(range(first, first + len(run)))
        else:
            for number, url in enumerate(run, first):
                # With an escape it may be a slash that is behind the last slash.
                beginning = url if "%" in url else url[: url.rfind("/") + 1]
                beginnings.setdefault(beginning, []).append(number)
        first += len(run)
    return [
        (os.path.dirname(local_path(names[numbers[0]])), numbers)
        for numbers in beginnings.values()
        if scheme_of(names[numbers[0]]).is_local
    ]


def is_found_index(place: str, file: BinaryIO) -> bool:
    """Whether an ``asyncloader-index.json`` that nobody has named is ours; warns of one that can be nobody's.

    Args:
        place: Its URL or path.
        file: At its beginning, where it is left.
    """
    beginning = file.read(MOST_LOOKED_AT_BYTES)
    file.seek(0)
    if is_index(beginning):
        return True
    if is_broken(beginning):
        warnings.warn(
            f"{redact(place)} is {'no JSON' if beginning else 'empty'}, so the shards beside it are read "
            "unchecked; delete it, and asyncloader index makes it anew",
            RuntimeWarning,
            stacklevel=2,
        )
    return False


@contextmanager
def open_local_index(path: str) -> Iterator[BinaryIO | None]:
    """The file, or None if there is no such file.

    Raises:
        StoreError: It is there and cannot be read.
    """
    file = None
    try:
        if os.path.isfile(path):
            with suppress(FileNotFoundError):
                file = open(path, "rb")  # noqa: SIM115 - closed below
        yield file
    except OSError as error:
        raise StoreError(f"cannot read the index: {error.strerror}", shard=path) from error
    finally:
        if file is not None:
            file.close()


def _meaning(pattern: str, is_shard: Callable[[str], bool]) -> Callable[[str], bool]:
    """Whether the shard at a place is meant by a folder, prefix or glob."""
    if scheme_of(pattern).is_local:
        path = local_path(pattern)
        if not path.endswith("/"):
            # Where it is looked from is no pattern, whatever its name.
            return KeyGlob(os.path.normpath(os.path.join(glob.escape(os.getcwd()), path))).matches
        start = os.path.join(os.path.abspath(path), "")
        return lambda place: place.startswith(start) and is_shard(place)
    root, key = split_key(place_of(pattern))
    is_meant = matcher(key)
    prefix = not key or key.endswith("/")
    return lambda place: (
        place.startswith(root) and is_meant(place[len(root) :]) and (not prefix or is_shard(place))
    )
