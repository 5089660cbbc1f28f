"""Places: the one spelling of a shard's URL in which entries and shards are compared.

What lies below a manifest's folder has its path from there for a place, others their whole URL.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import chain, islice
from operator import lt
from urllib.parse import unquote, urlsplit

import numpy as np

from ..stores.braces import Braces
from ..stores.names import ShardNames
from ..stores.urls import local_path, scheme_of
from .expectations import Rows

__all__ = ["PlaceIndex", "place_from", "place_of", "places_of"]

# Places that are made at once: they stay in the processor's cache.
_RUN = 4096

# What is more than itself in some URL: in a name without any, what is behind the last slash is the same in
# the place. Tabs and breaks are left out of web URLs.
_SPECIAL = "%?#\t\r\n"


def place_of(url: str) -> str:
    """``url`` without query, user info and escapes, and a path as an absolute one."""
    try:
        scheme = scheme_of(url)
    except ValueError:  # a name in a manifest, from a version that knows more schemes
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
    if isinstance(urls, Braces):
        before, slash, pattern = urls.pattern.rpartition("/")
        # What has its braces behind all of its slashes has them in the same way in its place.
        if "{" not in before and not _has_special(urls.pattern):
            place = place_from(folder, _beginning(before + slash) + pattern)
            if place.endswith(pattern) and "{" not in place.removesuffix(pattern):
                return Braces(place)
    return map(_Folders(folder).place_of, urls)


class _Folders:
    """Places, of which what is the same for all shards of a folder is worked out once.

    Args:
        start: The folder that they are told from; it ends with a slash.
    """

    def __init__(self, start: str) -> None:
        self._start = start
        self._known: dict[str, str] = {}

    def place_of(self, url: str) -> str:
        cut = url.rfind("/") + 1
        folder, name = url[:cut], url[cut:]
        if not cut or name in ("", ".", "..") or _has_special(url):
            return place_from(self._start, place_of(url))
        if (beginning := self._known.get(folder)) is None:
            beginning = self._known[folder] = place_from(self._start, _beginning(folder))
        return beginning + name


def place_from(folder: str, place: str) -> str:
    """A place as it is told from a folder: what is below it by its path from there."""
    below = place.removeprefix(folder)
    return place if "://" in below else below


def _has_special(url: str) -> bool:
    return any(map(url.__contains__, _SPECIAL))


def _beginning(folder: str) -> str:
    """What the places of all shards of a folder begin with."""
    return place_of(folder + "x")[:-1]


class PlaceIndex:
    """Finds places among many, by hashes alone: a dictionary of a million texts takes 200 MB.

    Where they are looked for in the order in which they stand, as those of a range are, it does without.

    Args:
        places: Makes those of some rows.
        count: How many rows there are.
    """

    def __init__(self, places: Callable[[Rows], list[str]], count: int) -> None:
        self._places = places
        self._count = count

    @cached_property
    def _hashed(self) -> tuple[Rows, Rows]:
        """The hashes of all places in order, and the row of each."""
        hashes = np.concatenate([np.zeros(0, np.int64), *map(_hashes, self._runs())])
        rows = np.argsort(hashes, kind="stable")
        return hashes[rows], rows

    def _runs(self) -> Iterator[list[str]]:
        """All places."""
        for first in range(0, self._count, _RUN):
            yield self._places(np.arange(first, min(first + _RUN, self._count)))

    def _is_rising(self) -> bool:
        """Whether each place is above the one before it, as those of a manifest mostly are."""
        last = ""
        for run in self._runs():
            if not (last < run[0] and all(map(lt, run, run[1:]))):
                return False
            last = run[-1]
        return True

    def find(self, places: Iterable[str]) -> Rows:
        """The row of each place, -1 for one that is not among them."""
        found = [np.zeros(0, np.int64)]
        rest = iter(places)
        while run := [*islice(rest, _RUN)]:
            # Most are asked for in the order in which they are listed.
            first = int(found[-1][-1]) + 1 if len(found[-1]) else 0
            next_ones = np.arange(first, min(first + len(run), self._count))
            found.append(next_ones if self._places(next_ones) == run else self._look_up(run))
        return np.concatenate(found)

    def repeated(self) -> list[tuple[int, int]]:
        """The first row of each place that is there more than once, with each other one."""
        if self._is_rising():
            return []
        hashes, rows = self._hashed
        same = hashes[1:] == hashes[:-1]
        is_alike = np.zeros(self._count, bool)
        is_alike[1:] |= same
        is_alike[:-1] |= same
        alike = np.sort(rows[is_alike])
        first_of: dict[str, int] = {}
        firsts = [
            first_of.setdefault(*pair) for pair in zip(self._places(alike), alike.tolist(), strict=True)
        ]
        return [(first, row) for first, row in zip(firsts, alike.tolist(), strict=True) if first != row]

    def _look_up(self, places: list[str]) -> Rows:
        hashes, rows = self._hashed
        wanted = _hashes(places)
        at = np.searchsorted(hashes, wanted)
        found = np.append(rows, -1)[at]
        found[np.append(hashes, 0)[at] != wanted] = -1
        told = np.flatnonzero(found >= 0)
        for which, place in zip(told.tolist(), self._places(found[told]), strict=True):
            if place != places[which]:
                found[which] = self._look_further(int(at[which]), places[which])
        return found

    def _look_further(self, at: int, place: str) -> int:
        """The row of a place whose hash is that of another one, at ``at``."""
        hashes, rows = self._hashed
        alike = rows[at : np.searchsorted(hashes, hashes[at], "right")]
        row_of: dict[str, int] = dict(zip(self._places(alike), alike.tolist(), strict=True))
        return row_of.get(place, -1)


def _hashes(places: Iterable[str]) -> Rows:
    return np.array([*map(hash, places)], np.int64)
