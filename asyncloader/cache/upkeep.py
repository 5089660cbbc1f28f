"""Lists, prunes and verifies a disk cache, also while it is in use.

Law: only files that are whole, or known to be bad, are removed. A file that is being downloaded stays, and a
process that has a removed file open can still read it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from .copy import Check
from .folder import ROOT, SHARDS, CachedFile, CacheFolder
from .locks import Kept, being_filled, kept_files


@dataclass(frozen=True)
class CacheFile:
    """A file of a cache.

    Attributes:
        path: Below the ``cache_dir``. It consists of digests: its URL is not known.
        size_bytes: Its length on disk: that of the shard, a header and checksums.
        unused_s: How long ago it was last used.
        is_bad: Whether it is damaged, and only kept to be examined.
    """

    path: str
    size_bytes: int
    unused_s: float
    is_bad: bool


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
        raise ValueError("say how far to prune: to how many bytes, or files unused for how long")
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
    old = {file.path for file in files if older_than_s is not None and file.unused_s >= older_than_s}
    left_bytes = sum(file.size_bytes for file in files if file.path not in old)
    for file in sorted(files, key=lambda file: not file.is_bad):  # bad ones first, else as they come
        if to_bytes is None or left_bytes <= to_bytes:
            break
        if file.path not in old:
            old.add(file.path)
            left_bytes -= file.size_bytes
    return [file for file in files if file.path in old]


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
    folder = CacheFolder(str(parent))
    try:
        yield folder
    finally:
        folder.close()


def _listed(folder: CacheFolder) -> tuple[CacheFile, ...]:
    now_ns = time.time_ns()

    def told(kept: Kept) -> CacheFile:
        unused_s = max(now_ns - kept.used_ns, 0) / 1e9
        return CacheFile(f"{ROOT}/{kept.name}", kept.size_bytes, unused_s, kept.quarantined)

    return tuple(
        told(kept) for kept in sorted(kept_files(folder), key=lambda kept: (kept.used_ns, kept.name))
    )


def verify_cache(cache_dir: str | os.PathLike[str]) -> list[str]:
    """Read every shard of a disk cache and compare it with its digest; move the bad ones to quarantine.

    Processes can go on using the cache. A shard whose file was moved is downloaded again when it is needed.
    ``asyncloader cache verify DIR`` does the same, and prints how much is there.

    Args:
        cache_dir: As given to ``from_urls``.

    Returns:
        The new names of the bad files, below ``cache_dir``. Their URLs are not known: the cache stores none.

    Raises:
        FileNotFoundError: There is no such folder, or no cache in it.
        ValueError: The cache in it is not private; see ``from_urls``.
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
    verified = Audit()
    with open_cache(cache_dir) as folder:
        for below in sorted(folder.names(SHARDS)):
            for name in sorted(folder.names(f"{SHARDS}/{below}")):
                path = f"{SHARDS}/{below}/{name}"
                found = folder.open_kept(path)
                size = found.header.size if found is not None and found.header is not None else 0
                if _is_right(found):
                    verified.sound += 1
                    verified.sound_bytes += size
                elif (bad := folder.quarantine(path)) is not None:
                    verified.bad.append(f"{ROOT}/{bad}")
    return verified


def _is_right(found: CachedFile | None) -> bool:
    if found is None or found.header is None:
        return False
    check = Check(found.header)
    try:
        while (verdict := check.step(found.number)) is None:
            pass
    except OSError:
        return False
    finally:
        found.close()
    return verdict
