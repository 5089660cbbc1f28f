"""Lists, prunes and verifies a disk cache, also while it is in use.

Law: only files that are whole, or known to be bad, are removed. A file that is being downloaded stays, and a
process that has a removed file open can still read it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from .copy import check_steps
from .folder import ROOT, SHARDS, CachedFile, CacheFolder, Header
from .locks import CacheFile, being_filled, choose_oldest, kept_files


@dataclass(frozen=True)
class CacheContents:
    """What a cache contains.

    Attributes:
        files: The shards, and damaged files; those unused for longest come first.
        size_bytes: Of all files.
        downloads: How many shards are being downloaded now.
        announced_bytes: Their full lengths, as far as they are known.
    """

    files: tuple[CacheFile, ...]
    size_bytes: int
    downloads: int
    announced_bytes: int


@dataclass(frozen=True)
class Pruned:
    """What was removed, and what is left."""

    removed: tuple[CacheFile, ...]
    removed_bytes: int
    left: int
    left_bytes: int


def list_cache(cache_dir: str | os.PathLike[str]) -> CacheContents:
    """The contents of a disk cache. Files of killed downloads are removed, as by any download.

    Raises:
        FileNotFoundError: There is no such folder, or no cache in it.
        ValueError: The cache in it is not private; see ``from_urls``.
    """
    with open_cache(cache_dir) as folder:
        filling = [length if header is None else header.file_bytes for header, length in being_filled(folder)]
        files = _listed(folder)
    return CacheContents(files, sum(file.size_bytes for file in files), len(filling), sum(filling))


def prune_cache(
    cache_dir: str | os.PathLike[str],
    *,
    to_bytes: int | None = None,
    older_than_s: float | None = None,
    dry_run: bool = False,
) -> Pruned:
    """Remove files, those unused for longest first. Processes can go on using the cache.

    Args:
        cache_dir: As given to ``from_urls``.
        to_bytes: Until the files have at most so many bytes, without those being downloaded.
        older_than_s: Files that were unused for so long, however much room there is.
        dry_run: Only list them.

    Raises:
        FileNotFoundError: There is no such folder, or no cache in it.
        ValueError: The cache in it is not private; neither limit was given, or one below 0.
    """
    if to_bytes is None and older_than_s is None:
        raise ValueError("prune needs a limit: the bytes to keep, or the longest time without use")
    if min(to_bytes or 0, older_than_s or 0) < 0:
        raise ValueError(f"limits should be 0 or more, but got {to_bytes} bytes, {older_than_s} s")
    with open_cache(cache_dir) as folder:
        files = _listed(folder)
        removed = choose_old(files, to_bytes, older_than_s)
        if not dry_run:
            for file in removed:
                folder.remove(os.path.relpath(file.path, ROOT))
    removed_bytes = sum(file.size_bytes for file in removed)
    left_bytes = sum(file.size_bytes for file in files) - removed_bytes
    return Pruned(tuple(removed), removed_bytes, len(files) - len(removed), left_bytes)


def choose_old(
    files: Sequence[CacheFile], to_bytes: int | None, older_than_s: float | None
) -> list[CacheFile]:
    """Which files to remove; pure.

    Args:
        files: Those unused for longest come first.
        to_bytes: See ``prune_cache``.
        older_than_s: Likewise.
    """
    old = {file for file in files if older_than_s is not None and file.unused_s >= older_than_s}
    young = [file for file in files if file not in old]
    if to_bytes is not None:
        old.update(choose_oldest(young, sum(file.size_bytes for file in young) - to_bytes) or ())
    return [file for file in files if file in old]


@contextmanager
def open_cache(cache_dir: str | os.PathLike[str]) -> Iterator[CacheFolder]:
    """The private folder of an existing cache; makes none.

    Raises:
        FileNotFoundError: There is no such folder, or no cache in it.
        ValueError: The cache in it is not private; see ``from_urls``.
    """
    parent = Path(cache_dir).absolute()
    if not parent.is_dir():
        raise FileNotFoundError(f"there is no folder {str(parent)!r}")
    if not os.path.lexists(parent / ROOT):
        raise FileNotFoundError(
            f"there is no cache in {str(parent)!r}: a cache_dir, once it is used, has a folder {ROOT!r} in it"
        )
    with closing(CacheFolder(str(parent))) as folder:
        yield folder


def _listed(folder: CacheFolder) -> tuple[CacheFile, ...]:
    return tuple(sorted(kept_files(folder), key=lambda file: (-file.unused_s, file.path)))


def verify_cache(cache_dir: str | os.PathLike[str]) -> list[str]:
    """Compare every shard in a disk cache with its digest, and move the bad ones to quarantine.

    Other processes can use the cache meanwhile. A shard that was moved is downloaded again when it is needed.
    ``asyncloader cache verify DIR`` does the same, and prints how much there is.

    Args:
        cache_dir: The folder, as for ``from_urls``.

    Returns:
        The new paths of the bad files, relative to ``cache_dir``. The cache does not know their URLs.

    Raises:
        FileNotFoundError: There is no such folder, or no cache in it.
        ValueError: Other users could have written to the cache.
    """
    return audit(cache_dir).bad


@dataclass
class Audit:
    """The result: the number of sound shards, their bytes, and the new names of the bad files."""

    sound: int = 0
    sound_bytes: int = 0
    bad: list[str] = field(default_factory=list)


def audit(cache_dir: str | os.PathLike[str]) -> Audit:
    """As ``verify_cache``, and counts the sound shards."""
    verified, bad = Audit(), list[str]()
    with open_cache(cache_dir) as folder:
        for below in sorted(folder.names(SHARDS)):
            for name in sorted(folder.names(f"{SHARDS}/{below}")):
                found = folder.open_sound(f"{SHARDS}/{below}/{name}", bad, _is_right)
                if found is not None and found.header is not None:
                    found.close()
                    verified.sound += 1
                    verified.sound_bytes += found.header.size
    verified.bad = [f"{ROOT}/{name}" for name in bad]
    return verified


def _is_right(found: CachedFile, header: Header) -> bool:
    try:
        *_, verdict = check_steps(found.number, header)
    except OSError:
        return False
    return bool(verdict)
