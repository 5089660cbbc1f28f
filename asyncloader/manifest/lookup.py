"""Which entry of a manifest is whose: shards are found by place, however their URLs are written."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from urllib.parse import unquote, urlsplit

from ..errors import FormatError, StoreError
from ..stores.urls import MANIFEST_NAME, local_path, redact, scheme_of
from .entries import MAX_MANIFEST_BYTES, Expected, is_broken, is_manifest, parse_manifest

__all__ = ["expectations", "find_local_manifests", "is_found_manifest", "look_up", "read_local_manifest"]


def expectations(urls: Sequence[str], manifest_url: str, manifest_bytes: bytes) -> tuple[Expected, ...]:
    """What a manifest that the user has named expects of each shard.

    Args:
        urls: The shards.
        manifest_url: Where the manifest is; its relative names start from that folder.
        manifest_bytes: The manifest.

    Raises:
        ValueError: It does not know one of the shards, and so is of other shards, or older.
        FormatError: It is no sound manifest.
    """
    found = look_up(urls, manifest_url, manifest_bytes)
    known = tuple(expected for expected in found if expected is not None)
    if len(known) < len(urls):
        first = urls[found.index(None)]
        raise ValueError(
            f"the manifest {redact(manifest_url)} has no entry for {len(urls) - len(known)} of {len(urls)} "
            f"shards; the first is {redact(first)}. Add them with python -m asyncloader.manifest, or name "
            "the manifest that is theirs"
        )
    return known


def find_local_manifests(urls: Sequence[str]) -> tuple[Expected | None, ...]:
    """What the manifests beside local shards expect of each; looks once into each folder.

    A manifest that was merely found need not know every file of its folder: None for the others, as for
    shards that are not local.

    Returns:
        An entry for each shard; nothing at all if no shard has any.

    Raises:
        FormatError: A manifest is not sound.
        StoreError: A manifest cannot be read.
    """
    folders: dict[str, list[int]] = {}
    for number, url in enumerate(urls):
        if scheme_of(url) == "file":
            folders.setdefault(os.path.dirname(local_path(url)), []).append(number)
    found: list[Expected | None] = [None] * len(urls)
    for folder, numbers in folders.items():
        path = os.path.join(folder, MANIFEST_NAME)
        content = read_local_manifest(path)
        if content is not None and is_found_manifest(path, content):
            entries = look_up([urls[number] for number in numbers], path, content)
            for number, expected in zip(numbers, entries, strict=True):
                found[number] = expected
    return tuple(found) if any(found) else ()


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


def look_up(urls: Sequence[str], manifest_url: str, manifest_bytes: bytes) -> list[Expected | None]:
    """The entry of each shard, None for those that have none.

    Raises:
        FormatError: Not a sound manifest, or two of its names mean one shard.
    """
    try:
        folder = _place(manifest_url).rpartition("/")[0]
        entries: dict[str, Expected] = {}
        for name, expected in parse_manifest(manifest_bytes).shards.items():
            place = _place(name) if "://" in name else f"{folder}/{name}"
            if place in entries:
                raise FormatError(f"manifest: {name!r} is a second name of a shard that has one already")
            entries[place] = expected
    except FormatError as error:
        error.shard = redact(manifest_url)
        raise
    return [entries.get(_place(url)) for url in urls]


def _place(url: str) -> str:
    """``url`` in the one spelling that places are compared in: no query, user info or escapes."""
    try:
        scheme = scheme_of(url)
    except ValueError:  # a name in a manifest, from a version that knows more schemes
        return url
    if scheme == "file":
        path = os.path.abspath(local_path(url))
        return path.replace(os.sep, "/")
    rest = url.partition("://")[2]
    if scheme in ("http", "https"):
        parts = urlsplit(url)
        rest = parts.netloc.rpartition("@")[2].lower() + unquote(parts.path)
    return f"{scheme}://{rest}"
