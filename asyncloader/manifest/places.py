"""Places: the one spelling of a shard's URL in which entries and shards are compared.

What lies below a manifest's folder has its path from there for a place, others their whole URL.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from functools import cached_property, partial
from itertools import chain, islice
from urllib.parse import unquote, urlsplit

import numpy as np

from ..stores.braces import Braces
from ..stores.names import ShardNames
from ..stores.runs import NameRun, runs_of
from ..stores.urls import local_path, scheme_of
from .expectations import Rows
from .packed import PackedTexts

__all__ = ["Folders", "PlaceIndex", "place_of", "places_of"]

# Places that are made at once: they stay in the processor's cache.
_RUN = 4096

# What is more than itself in some URL: in a name without any, what is behind the last slash is the same in
# the place. Tabs and breaks are left out of web URLs.
_has_special = re.compile(r"[%?#\t\r\n]").search


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
        if "{" not in before and _has_special(urls.pattern) is None:
            place = _place_from(folder, _beginning(before + slash) + pattern)
            if place.endswith(pattern) and "{" not in place.removesuffix(pattern):
                return Braces(place)
    return chain.from_iterable(map(Folders(folder).places_of, runs_of(urls)))


class Folders:
    """Places, of which what is the same for all shards of a folder is worked out once.

    Args:
        start: The folder that they are told from; it ends with a slash.
    """

    def __init__(self, start: str) -> None:
        self._start = start
        self._known: dict[str, str] = {}

    def places_of(self, run: NameRun) -> Iterable[str]:
        if not run.is_flat or run.has((*"%?#\t\r", "/\n", "/.\n", "/..\n")):
            return map(self.place_of, run.names)
        beginning, cut = self._beginning_of(run.folder), len(run.folder)
        return [beginning + name[cut:] for name in run.names]

    def places_of_listed(self, run: NameRun) -> Iterable[str]:
        """Of names as a manifest has them: what is no URL is a place already."""
        if "://" in run.folder:
            return self.places_of(run)
        return [self.place_of(name) if "://" in name else name for name in run.names]

    def place_of(self, url: str) -> str:
        cut = url.rfind("/") + 1
        folder, name = url[:cut], url[cut:]
        if not cut or name in ("", ".", "..") or _has_special(url) is not None:
            return _place_from(self._start, place_of(url))
        return self._beginning_of(folder) + name

    def _beginning_of(self, folder: str) -> str:
        if (beginning := self._known.get(folder)) is None:
            beginning = self._known[folder] = _place_from(self._start, _beginning(folder))
        return beginning


def _place_from(folder: str, place: str) -> str:
    """A place as it is told from a folder: what is below it by its path from there."""
    below = place.removeprefix(folder)
    return place if "://" in below else below


def _beginning(folder: str) -> str:
    """What the places of all shards of a folder begin with."""
    return place_of(folder + "x")[:-1]


class PlaceIndex:
    """Finds places among many, by hashes alone: a dictionary of a million texts takes 200 MB.

    Where they are looked for in the order in which they stand, as those of a range are, it does without.

    Args:
        places: Of all rows.
    """

    def __init__(self, places: PackedTexts) -> None:
        self._places = places

    @cached_property
    def _hashed(self) -> tuple[Rows, Rows]:
        """The hashes of all places in order, and the row of each."""
        runs = iter(partial(_run_of, iter(self._places)), [])
        hashes = np.concatenate([np.zeros(0, np.int64), *map(_hashes, runs)])
        rows = np.argsort(hashes, kind="stable")
        return hashes[rows], rows

    def find(self, places: Iterable[str]) -> Rows:
        """The row of each place, -1 for one that is not among them."""
        found = [np.zeros(0, np.int64)]
        rest = iter(places)
        while run := _run_of(rest):
            # Most are asked for in the order in which they are listed.
            first = int(found[-1][-1]) + 1 if len(found[-1]) else 0
            is_next = self._places.stand_at(first, run)
            found.append(np.arange(first, first + len(run)) if is_next else self._look_up(run))
        return np.concatenate(found)

    def repeated(self) -> list[tuple[int, int]]:
        """The first row of each place that is there more than once, with each other one."""
        if self._places.is_rising():
            return []
        hashes, rows = self._hashed
        same = hashes[1:] == hashes[:-1]
        is_alike = np.zeros(len(self._places), bool)
        is_alike[1:] |= same
        is_alike[:-1] |= same
        alike = np.sort(rows[is_alike])
        first_of: dict[str, int] = {}
        firsts = [
            first_of.setdefault(*pair) for pair in zip(self._places.take(alike), alike.tolist(), strict=True)
        ]
        return [(first, row) for first, row in zip(firsts, alike.tolist(), strict=True) if first != row]

    def _look_up(self, places: list[str]) -> Rows:
        hashes, rows = self._hashed
        wanted = _hashes(places)
        at = np.searchsorted(hashes, wanted)
        found = np.append(rows, -1)[at]
        found[np.append(hashes, 0)[at] != wanted] = -1
        told = np.flatnonzero(found >= 0)
        for which, place in zip(told.tolist(), self._places.take(found[told]), strict=True):
            if place != places[which]:
                found[which] = self._look_further(int(at[which]), places[which])
        return found

    def _look_further(self, at: int, place: str) -> int:
        """The row of a place whose hash is that of another one, at ``at``."""
        hashes, rows = self._hashed
        alike = rows[at : np.searchsorted(hashes, hashes[at], "right")]
        row_of: dict[str, int] = dict(zip(self._places.take(alike), alike.tolist(), strict=True))
        return row_of.get(place, -1)


def _run_of(rest: Iterator[str]) -> list[str]:
    return [*islice(rest, _RUN)]


def _hashes(places: Iterable[str]) -> Rows:
    return np.array([*map(hash, places)], np.int64)
