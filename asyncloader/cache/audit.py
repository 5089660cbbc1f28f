"""A disk cache verified on demand, whatever else goes on in it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from .folder.checksums import Check
from .folder.layout import ROOT, SHARDS, Found
from .upkeep import open_cache

__all__ = ["Audit", "audit", "verify_cache"]


def verify_cache(cache_dir: str | os.PathLike[str]) -> list[str]:
    """Read every shard of a disk cache and compare it with its digest; move the bad ones aside.

    Nothing has to stop for it, and nothing is made by it. What it moves aside is downloaded again when it is
    needed. ``asyncloader cache verify DIR`` does the same, and tells how much is there.

    Args:
        cache_dir: As given to ``from_urls``.

    Returns:
        The files that were bad, by their new names below ``cache_dir``. Which URLs they had is not known: the
        cache keeps none.

    Raises:
        FileNotFoundError: There is no such folder, or no cache in it.
        ValueError: The cache in it is not private; see ``from_urls``.
    """
    return audit(cache_dir).bad


@dataclass
class Audit:
    """What a cache was found to hold: the sound shards with their length, the new names of the others."""

    sound: int = 0
    sound_bytes: int = 0
    bad: list[str] = field(default_factory=list)


def audit(cache_dir: str | os.PathLike[str]) -> Audit:
    """As ``verify_cache``, and counts what is there."""
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


def _is_right(found: Found | None) -> bool:
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
