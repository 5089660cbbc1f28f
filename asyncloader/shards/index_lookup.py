"""Find the entry of a shard in an index by its place, however its URL is written.

A place is the normalized form of a shard's URL, in which entries and shards are compared: its path from the
index's folder if it is below that, otherwise the whole URL.
"""

from __future__ import annotations

import glob
import io
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from http import HTTPStatus
from itertools import chain
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

import numpy as np

from ..errors import FormatError, StoreError
from ..stores.expanding import Match, expand_home
from ..stores.globs import key_matcher, matcher
from ..stores.listing import look
from ..stores.names import Braces, ShardNames, in_lines, lie_flat, runs_of, shared_folder
from ..stores.urls import INDEX_NAME, local_path, redact, scheme_of, split_key
from .expectations import Expectations, Rows
from .index_entries import MOST_LOOKED_AT_BYTES, check_unique, is_index, read_index

# Shards that an error lists, beside their number.
_MOST_NAMED = 3

# Characters with a meaning in some URLs. In a name without them, the part behind the last slash is the same
# as in the place. Tabs and line breaks are removed from web URLs.
_has_special = re.compile(r"[%?#\t\r\n]").search


class Entries:
    """The entries of an index, by the places of their shards.

    Args:
        index_url: Where the index is; its relative names start from that folder.
        index: Its content, or a file of it.

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
            self._places = names
            if any("://" in in_lines(run) for run in runs_of(names)):
                self._places = self._places_listed(names)
            check_unique(self._places)
        except FormatError as error:
            error.shard = redact(index_url)
            raise

    def of(self, urls: Iterable[str]) -> Expectations:
        """The entry of each shard, None for those without one."""
        return self._expected.take(self._find(urls))

    def missing(self, match: Match, is_shard: Callable[[str], bool]) -> list[str]:
        """The shards that are listed here and match a pattern, but were not found for it.

        Args:
            match: The pattern and what was found. Entries that do not match it, such as those of other
                folders, do not count as missing.
            is_shard: Which of the files below a folder or prefix count, by their names.

        Returns:
            Their places, redacted.
        """
        if [*match.urls[:2]] == [match.pattern]:  # an object has this name, so it is not a pattern
            return []
        is_there = np.zeros(len(self._places) + 1, bool)  # the last one is for all without an entry
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
            # Most come in the order in which they are listed, for which no dictionary is needed.
            is_next = self._places[first : first + len(run)] == run
            rows = range(first, first + len(run)) if is_next else [self._rows.get(place, -1) for place in run]
            found.append(np.arange(rows.start, rows.stop) if isinstance(rows, range) else np.array(rows))
            first = rows[-1] + 1
        return np.concatenate(found)

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {place: row for row, place in enumerate(self._places)}

    def _places_listed(self, names: Sequence[str]) -> list[str]:
        """The places of names. A name that is not a URL is a place already."""
        places: list[str] = []
        for run in runs_of(names):
            if "://" in shared_folder(run):
                places += places_of(run, self._folder)
            else:
                for name in run:
                    places += places_of([name], self._folder) if "://" in name else [name]
        return places


def place_of(url: str) -> str:
    """``url`` without query, user info and escapes, with an absolute path if it is local."""
    try:
        scheme = scheme_of(url)
    except ValueError:  # a name in an index by a later version, which knows more schemes
        return url
    if scheme.is_local:
        return os.path.abspath(local_path(url)).replace(os.sep, "/")
    rest = url.partition("://")[2]
    if scheme.is_web:
        parts = urlsplit(url)
        rest = parts.netloc.rpartition("@")[2].lower() + unquote(parts.path)
    return f"{scheme.name}://{rest}"


def places_of(urls: Iterable[str], folder: str) -> Iterator[str]:
    """The place of each, relative to ``folder``, which ends with a slash."""
    parts = urls.parts if isinstance(urls, ShardNames) else (urls,)
    return chain.from_iterable(_places_of_part(part, folder) for part in parts)


def _places_of_part(urls: Iterable[str], folder: str) -> Iterable[str]:
    if isinstance(urls, Braces) and (places := _places_of_braces(urls.pattern, folder)) is not None:
        return places
    beginnings: dict[str, str] = {}
    return chain.from_iterable(_places_of_run(run, folder, beginnings) for run in runs_of(urls))


def _places_of_run(run: Sequence[str], folder: str, beginnings: dict[str, str]) -> Iterable[str]:
    """The places of some names; ``beginnings`` caches the places of folders."""

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
    """The places of a pattern's names as another pattern; None if each must be computed alone."""
    before, slash, behind = pattern.rpartition("/")
    # If all braces are behind the last slash, the place has the same ones.
    if "{" not in before and _has_special(pattern) is None:
        place = _place_from(folder, place_of(before + slash + "x")[:-1] + behind)
        if place.endswith(behind) and "{" not in place.removesuffix(behind):
            return Braces(place)
    return None


def _place_from(folder: str, place: str) -> str:
    """A place relative to a folder, if it is below it."""
    below = place.removeprefix(folder)
    return place if "://" in below else below


def read_entries(place: str, options: Mapping[str, Any]) -> Entries:
    """The index at a path or URL that the caller has named.

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


def local_entries(path: str) -> Entries | None:
    """The index beside local shards; None if there is none of ours.

    Raises:
        FormatError: It is not sound.
        StoreError: It cannot be read.
    """
    with open_local_index(path) as file:
        return None if file is None else found_entries(path, file)


def expectations(urls: Sequence[str], entries: Entries) -> Expectations:
    """What an index that the user has named expects of each shard.

    Raises:
        ValueError: It does not list one of the shards: it is of other shards, or older.
    """
    found = entries.of(urls)
    if missing := len(urls) - found.count_of():
        first = urls[int(np.flatnonzero(found.known == 0)[0])]
        raise ValueError(
            f"the index {redact(entries.url)} has no entry for {missing} of {len(urls)} shards; the first is "
            f"{redact(first)}. Add them with asyncloader index, or name another index"
        )
    return found


def check_complete(entries: Entries, match: Match, is_shard: Callable[[str], bool]) -> None:
    """Check that a folder, prefix or glob has all matching shards that an index lists.

    Raises:
        StoreError: One is missing; see ``Entries.missing``.
    """
    missing = entries.missing(match, is_shard)
    if not missing:
        return
    named = ", ".join(missing[:_MOST_NAMED]) + (", ..." if len(missing) > _MOST_NAMED else "")
    raise StoreError(
        f"{redact(match.pattern)} lacks {len(missing)} of the shards that the index {redact(entries.url)} "
        f"lists: {named}. Restore them, or, if they were removed on purpose, delete the index and make a new "
        "one with asyncloader index; to read only some shards, name them by braces or in a list",
        shard=missing[0],
    )


def find_local_indexes(
    urls: Sequence[str], read: Callable[[str], Entries | None] = local_entries
) -> Expectations:
    """What the indexes beside local shards expect of each; each folder is read once.

    An index that was found rather than named may lack some files of its folder: None for these, as for
    shards that are not local.

    Args:
        urls: The shards.
        read: ``local_entries``, which a caller may cache.

    Returns:
        An entry for each shard; empty if no shard has one.

    Raises:
        FormatError: An index is not sound.
        StoreError: An index cannot be read.
    """
    found: list[tuple[Rows, Expectations]] = []
    first = 0
    for part in urls.parts if isinstance(urls, ShardNames) else (urls,):
        for folder, numbers in _by_folder(part):
            entries = read(os.path.join(folder, INDEX_NAME))
            if entries is not None:
                names = part if len(numbers) == len(part) else [part[number] for number in numbers]
                found.append((_rows_of(numbers) + first, entries.of(names)))
        first += len(part)
    return Expectations.placed(len(urls), found)


def _rows_of(numbers: Sequence[int]) -> Rows:
    # NumPy converts a range number by number.
    return np.arange(len(numbers)) + numbers[0] if isinstance(numbers, range) else np.array(numbers, np.int64)


def _by_folder(names: Sequence[str]) -> Iterable[tuple[str, Sequence[int]]]:
    """The folders of local names, each with the numbers of the names in it."""
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
                # An escape behind the last slash may be another slash.
                beginning = url if "%" in url else url[: url.rfind("/") + 1]
                beginnings.setdefault(beginning, []).append(number)
        first += len(run)
    return [
        (os.path.dirname(local_path(names[numbers[0]])), numbers)
        for numbers in beginnings.values()
        if scheme_of(names[numbers[0]]).is_local
    ]


def found_entries(place: str, file: BinaryIO) -> Entries | None:
    """The ``asyncloader-index.json`` that was found there; None, with a warning, if it is no index.

    Args:
        place: Its URL or path.
        file: At its beginning.

    Raises:
        FormatError: It is not sound.
    """
    beginning = file.read(MOST_LOOKED_AT_BYTES)
    if is_index(beginning):
        file.seek(0)
        return Entries(place, file)
    found = f"begins with {beginning[:20]!r}" if beginning else "is empty"
    warnings.warn(
        f"{redact(place)} is no index of shards: it {found}, so the shards beside it are read unchecked; "
        "delete it and make a new one with asyncloader index, or pass index=None",
        RuntimeWarning,
        stacklevel=2,
    )
    return None


@contextmanager
def open_local_index(path: str) -> Iterator[BinaryIO | None]:
    """The file, or None if there is no such file.

    Raises:
        StoreError: It exists and cannot be read.
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
    """A function that says whether a place matches a folder, prefix or glob."""
    if scheme_of(pattern).is_local:
        path = local_path(pattern)
        if not path.endswith("/"):
            # The current folder is not a pattern, whatever its name.
            return key_matcher(os.path.normpath(os.path.join(glob.escape(os.getcwd()), path)))
        start = os.path.join(os.path.abspath(path), "")
        return lambda place: place.startswith(start) and is_shard(place)
    root, key = split_key(place_of(pattern))
    is_meant = matcher(key, lambda name: is_shard(root + name))
    return lambda place: place.startswith(root) and is_meant(place[len(root) :])
