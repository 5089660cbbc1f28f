"""Which entry of a manifest is whose: shards are found by place, however their URLs are written."""

from __future__ import annotations

import glob
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from urllib.parse import unquote, urlsplit

from ..errors import FormatError, StoreError
from ..stores.braces import Braces
from ..stores.expanding import Match
from ..stores.globs import KeyGlob, matcher
from ..stores.names import ShardNames
from ..stores.urls import MANIFEST_NAME, local_path, redact, scheme_of, split_key
from .entries import MAX_MANIFEST_BYTES, Expected, is_broken, is_manifest, parse_manifest

__all__ = [
    "Entries",
    "LocalManifests",
    "check_complete",
    "expectations",
    "find_local_manifests",
    "is_found_manifest",
    "read_local_manifest",
]

# Shards that an error names; it says how many there are.
_MOST_NAMED = 3

# Files looked for that a manifest beside them does not list: a few ms of disk at most.
_MOST_LOOKED_FOR = 1000


class Entries:
    """The entries of a manifest, by the places of their shards.

    Args:
        manifest_url: Where the manifest is; its relative names start from that folder.
        manifest_bytes: The manifest.

    Raises:
        FormatError: Not a sound manifest, or two of its names mean one shard.
    """

    def __init__(self, manifest_url: str, manifest_bytes: bytes) -> None:
        self.url = manifest_url
        self._by_place: dict[str, Expected] = {}
        try:
            folder = _place(manifest_url).rpartition("/")[0]
            for name, expected in parse_manifest(manifest_bytes).shards.items():
                place = _place(name) if "://" in name else f"{folder}/{name}"
                if place in self._by_place:
                    raise FormatError(f"manifest: {name!r} is a second name of a shard that has one already")
                self._by_place[place] = expected
        except FormatError as error:
            error.shard = redact(manifest_url)
            raise

    def of(self, urls: Iterable[str]) -> list[Expected | None]:
        """The entry of each shard, None for those that have none."""
        return [self._by_place.get(_place(url)) for url in urls]

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
        is_meant = _meaning(match.pattern, is_shard)
        there = set(map(_place, match.urls))
        return [place for place in self._by_place if place not in there and is_meant(place)]


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
            content = read_local_manifest(path)
            ours = content is not None and is_found_manifest(path, content)
            self._known[path] = Entries(path, content) if content is not None and ours else None
        return self._known[path]


def expectations(urls: Sequence[str], entries: Entries) -> tuple[Expected, ...]:
    """What a manifest that the user has named expects of each shard.

    Raises:
        ValueError: It does not know one of the shards, and so is of other shards, or older.
    """
    found = entries.of(urls)
    known = tuple(expected for expected in found if expected is not None)
    if len(known) < len(urls):
        first = urls[found.index(None)]
        raise ValueError(
            f"the manifest {redact(entries.url)} has no entry for {len(urls) - len(known)} of {len(urls)} "
            f"shards; the first is {redact(first)}. Add them with python -m asyncloader.manifest, or name "
            "the manifest that is theirs"
        )
    return known


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
        "anew with python -m asyncloader.manifest; to read a part of them, name it by braces or in a list",
        shard=missing[0],
    )


def find_local_manifests(
    urls: Sequence[str], manifests: LocalManifests | None = None
) -> tuple[Expected | None, ...]:
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
    found: dict[int, Expected] = {}
    first = 0
    for part in urls.parts if isinstance(urls, ShardNames) else (urls,):
        for folder, numbers in _by_folder(part):
            entries = manifests.at(os.path.join(folder, MANIFEST_NAME))
            if entries is not None:
                expected = entries.of(part[number] for number in numbers)
                if isinstance(part, Braces):
                    _check_there([part[number] for number in numbers], expected, entries)
                found |= {
                    first + number: entry
                    for number, entry in zip(numbers, expected, strict=True)
                    if entry is not None
                }
        first += len(part)
    return tuple(map(found.get, range(len(urls)))) if found else ()


def _check_there(urls: Sequence[str], expected: Sequence[Expected | None], entries: Entries) -> None:
    """Refuse names that their manifest does not list, and that no file has: a range that goes too far."""
    if all(expected) or not any(expected):
        return
    unlisted = (url for url, entry in zip(urls, expected, strict=True) if entry is None)
    for url in islice(unlisted, _MOST_LOOKED_FOR):
        if not os.path.exists(local_path(url)):
            raise StoreError(
                f"there is no such file, and the manifest {entries.url} lists "
                f"{sum(entry is not None for entry in expected)} of the {len(urls)} shards that are named "
                "beside it: name those that are there, or restore the others",
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
    for number, url in enumerate(names):
        # With an escape it may be a slash that is behind the last slash.
        beginning = url if "%" in url else url[: url.rfind("/") + 1]
        beginnings.setdefault(beginning, []).append(number)
    return [
        (os.path.dirname(local_path(names[numbers[0]])), numbers)
        for numbers in beginnings.values()
        if scheme_of(names[numbers[0]]).is_local
    ]


def is_found_manifest(place: str, content: bytes) -> bool:
    """Whether a ``manifest.json`` that nobody has named is ours; warns of one that can be nobody's.

    Args:
        place: Its URL or path.
        content: The file, or at least its beginning.
    """
    if is_manifest(content):
        return True
    if is_broken(content):
        warnings.warn(
            f"{redact(place)} is {'no JSON' if content else 'empty'}, so the shards beside it are read "
            "unchecked; delete it, and python -m asyncloader.manifest makes it anew",
            RuntimeWarning,
            stacklevel=2,
        )
    return False


def read_local_manifest(path: str) -> bytes | None:
    """The file, no more of it than a manifest may have; None if there is no such file.

    Raises:
        StoreError: It is there and cannot be read.
    """
    if not os.path.isfile(path):
        return None
    try:
        with open(path, "rb") as file:
            return file.read(MAX_MANIFEST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"cannot read the manifest: {error.strerror}", shard=path) from error


def _meaning(pattern: str, is_shard: Callable[[str], bool]) -> Callable[[str], bool]:
    """Whether the shard at a place is meant by a folder, prefix or glob."""
    if scheme_of(pattern).is_local:
        path = local_path(pattern)
        if not path.endswith("/"):
            # Where it is looked from is no pattern, whatever its name.
            return KeyGlob(os.path.normpath(os.path.join(glob.escape(os.getcwd()), path))).matches
        start = os.path.join(os.path.abspath(path), "")
        return lambda place: place.startswith(start) and is_shard(place)
    root, key = split_key(_place(pattern))
    is_meant = matcher(key)
    prefix = not key or key.endswith("/")
    return lambda place: (
        place.startswith(root) and is_meant(place[len(root) :]) and (not prefix or is_shard(place))
    )


def _place(url: str) -> str:
    """``url`` in the one spelling that places are compared in: no query, user info or escapes."""
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
