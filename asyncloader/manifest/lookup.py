"""Which entry of a manifest is whose: shards are found by place, however their URLs are written."""

from __future__ import annotations

import glob
import io
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from itertools import chain
from typing import Any, BinaryIO

import numpy as np

from ..errors import FormatError, StoreError
from ..stores.braces import Braces
from ..stores.expanding import Match, expand_home
from ..stores.globs import KeyGlob, matcher
from ..stores.listing.asking import look
from ..stores.names import ShardNames
from ..stores.runs import runs_of
from ..stores.urls import MANIFEST_NAME, local_path, redact, scheme_of, split_key
from .entries import MOST_LOOKED_AT_BYTES, is_broken, is_manifest
from .expectations import Expectations, Rows
from .packed import PackedTexts
from .places import Folders, PlaceIndex, place_of, places_of
from .reading import read_manifest

__all__ = [
    "Entries",
    "LocalManifests",
    "check_complete",
    "expectations",
    "find_local_manifests",
    "is_found_manifest",
    "open_local_manifest",
    "read_entries",
]

# Shards that an error names; it says how many there are.
_MOST_NAMED = 3

# Files looked for that a manifest beside them does not list: a few ms of disk at most.
_MOST_LOOKED_FOR = 1000


class Entries:
    """The entries of a manifest, by the places of their shards.

    Args:
        manifest_url: Where the manifest is; its relative names start from that folder.
        manifest: The manifest, or a file of it.

    Raises:
        FormatError: Not a sound manifest, or two of its names mean one shard.
    """

    def __init__(self, manifest_url: str, manifest: bytes | BinaryIO) -> None:
        self.url = manifest_url
        folder, slash, _ = place_of(manifest_url).rpartition("/")
        self._folder = folder + slash
        try:
            file = io.BytesIO(manifest) if isinstance(manifest, bytes) else manifest
            self._names, self._expected = read_manifest(file)
            self._places = self._names
            if self._names.contain("://"):
                places = Folders(self._folder).places_of_listed
                self._places = PackedTexts.of(chain.from_iterable(map(places, runs_of(self._names))))
            self._rows = PlaceIndex(self._places)
            self._check_unique()
        except FormatError as error:
            error.shard = redact(manifest_url)
            raise

    def of(self, urls: Iterable[str]) -> Expectations:
        """The entry of each shard, None for those that have none."""
        return self._expected.take(self._rows.find(places_of(urls, self._folder)))

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
        is_there = np.zeros(len(self._names) + 1, bool)  # the last one stands for all without an entry
        is_there[self._rows.find(places_of(match.urls, self._folder))] = True
        is_meant = _meaning(match.pattern, is_shard)
        listed = self._places.take(np.flatnonzero(~is_there[:-1]))
        places = [place if "://" in place else os.path.join(self._folder, place) for place in listed]
        return [place for place in places if is_meant(place)]

    def _check_unique(self) -> None:
        twice = self._rows.repeated()
        names = [(self._names[first], self._names[second]) for first, second in twice]
        for (_, second), (first_name, name) in zip(twice, names, strict=True):
            if first_name == name:
                raise FormatError(f"manifest: shards[{second}].name: {name!r} is there twice")
        if names:
            raise FormatError(f"manifest: {names[0][1]!r} is a second name of a shard that has one already")


def read_entries(place: str, options: Mapping[str, Any]) -> Entries:
    """The manifest at a path or URL that the user has named.

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
        with open_local_manifest(local_path(place)) as file:
            if file is not None:
                return Entries(place, file)
    else:
        try:
            return Entries(place, look((), options, fetch=(place,)).fetched[0])
        except StoreError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
    raise ValueError(f"there is no manifest {redact(place)}; asyncloader index makes one")


class LocalManifests:
    """The manifests beside local shards, each read once."""

    def __init__(self) -> None:
        self._known: dict[str, Entries | None] = {}

    def at(self, path: str) -> Entries | None:
        """The manifest that is there; None if there is none of ours.

        Raises:
            FormatError: It is not sound.
            StoreError: It cannot be read.
        """
        if path not in self._known:
            with open_local_manifest(path) as file:
                ours = file is not None and is_found_manifest(path, file)
                self._known[path] = Entries(path, file) if file is not None and ours else None
        return self._known[path]


def expectations(urls: Sequence[str], entries: Entries) -> Expectations:
    """What a manifest that the user has named expects of each shard.

    Raises:
        ValueError: It does not know one of the shards, and so is of other shards, or older.
    """
    found = entries.of(urls)
    if missing := len(urls) - found.count_of():
        first = urls[int(np.flatnonzero(found.known == 0)[0])]
        raise ValueError(
            f"the manifest {redact(entries.url)} has no entry for {missing} of {len(urls)} "
            f"shards; the first is {redact(first)}. Add them with asyncloader index, or name "
            "the manifest that is theirs"
        )
    return found


def check_complete(entries: Entries, match: Match, is_shard: Callable[[str], bool]) -> None:
    """Refuse a folder, prefix or glob that lacks shards which a manifest lists.

    Raises:
        StoreError: It does; see ``Entries.missing``.
    """
    missing = entries.missing(match, is_shard)
    if not missing:
        return
    named = ", ".join(missing[:_MOST_NAMED]) + (", ..." if len(missing) > _MOST_NAMED else "")
    raise StoreError(
        f"{redact(match.pattern)} lacks {len(missing)} of the shards that the manifest {redact(entries.url)} "
        f"lists: {named}. Restore them, or, if they were removed on purpose, delete the manifest and make it "
        "anew with asyncloader index; to read a part of them, name it by braces or in a list",
        shard=missing[0],
    )


def find_local_manifests(urls: Sequence[str], manifests: LocalManifests | None = None) -> Expectations:
    """What the manifests beside local shards expect of each; looks once into each folder.

    A manifest that was merely found need not know every file of its folder: None for the others, as for
    shards that are not local.

    Args:
        urls: The shards.
        manifests: Those that were read already.

    Returns:
        An entry for each shard; nothing at all if no shard has any.

    Raises:
        FormatError: A manifest is not sound.
        StoreError: A manifest cannot be read, or a shard of a range is neither listed beside it nor there.
    """
    manifests = LocalManifests() if manifests is None else manifests
    found: list[tuple[Rows, Expectations]] = []
    first = 0
    for part in urls.parts if isinstance(urls, ShardNames) else (urls,):
        for folder, numbers in _by_folder(part):
            entries = manifests.at(os.path.join(folder, MANIFEST_NAME))
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
    """Refuse names that their manifest does not list, and that no file has: a range that goes too far."""
    if expected.count_of() in (0, len(urls)):
        return
    for number in np.flatnonzero(expected.known == 0)[:_MOST_LOOKED_FOR].tolist():
        if not os.path.exists(local_path(url := urls[number])):
            raise StoreError(
                f"there is no such file, and the manifest {entries.url} lists {expected.count_of()} of the "
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
        if run.is_flat and not run.has("%"):
            beginnings.setdefault(run.folder, []).extend(range(first, first + len(run.names)))
        else:
            for number, url in enumerate(run.names, first):
                # With an escape it may be a slash that is behind the last slash.
                beginning = url if "%" in url else url[: url.rfind("/") + 1]
                beginnings.setdefault(beginning, []).append(number)
        first += len(run.names)
    return [
        (os.path.dirname(local_path(names[numbers[0]])), numbers)
        for numbers in beginnings.values()
        if scheme_of(names[numbers[0]]).is_local
    ]


def is_found_manifest(place: str, file: BinaryIO) -> bool:
    """Whether a ``manifest.json`` that nobody has named is ours; warns of one that can be nobody's.

    Args:
        place: Its URL or path.
        file: At its beginning, where it is left.
    """
    beginning = file.read(MOST_LOOKED_AT_BYTES)
    file.seek(0)
    if is_manifest(beginning):
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
def open_local_manifest(path: str) -> Iterator[BinaryIO | None]:
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
        raise StoreError(f"cannot read the manifest: {error.strerror}", shard=path) from error
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
