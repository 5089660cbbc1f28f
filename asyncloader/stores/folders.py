"""The files that local folders and globs mean.

Law: a folder that cannot be looked into is an error, for the shards in it would be lost without a word.
"""

from __future__ import annotations

import errno
import glob
import os
import re
from collections.abc import Iterator
from typing import NoReturn

from ..errors import StoreError

__all__ = ["files_below", "find_matches", "index_hint"]

# What file systems keep for themselves at their root, and show to nobody.
_NOT_THE_USERS = "lost+found"


def files_below(folder: str) -> list[str]:
    """Paths of all files in a folder, at any depth.

    Links to folders are followed, but not to one that is met anyway: its files are there under their own
    names, and would come twice.

    Raises:
        StoreError: A folder that cannot be looked into.
    """
    seen: set[tuple[int, int]] = set()
    files: list[str] = []
    tops = [folder]
    for top in tops:  # grows: links are followed when all that is no link was seen
        for where, links, names in _walk(top, seen):
            files += [os.path.join(where, name) for name in names]
            tops += links
    return files


def _walk(top: str, seen: set[tuple[int, int]]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Of each folder that was not seen: its path, its links to folders, and the names of its files."""
    for where, folders, names in os.walk(top, onerror=_refuse):
        found = os.stat(where)
        if (found.st_dev, found.st_ino) in seen:
            folders.clear()
            continue
        seen.add((found.st_dev, found.st_ino))
        folders[:] = sorted(name for name in folders if name != _NOT_THE_USERS)
        paths = [os.path.join(where, name) for name in folders]
        yield where, [path for path in paths if os.path.islink(path)], names


def find_matches(pattern: str) -> list[str]:
    """Paths that a glob matches, sorted.

    Raises:
        StoreError: A folder that cannot be looked into, and may have some.
    """
    # glob passes over such folders without a word.
    for separator in re.finditer("^|(?<=/)(?=[^/])", pattern):
        before, part = pattern[: separator.start()], pattern[separator.start() :].partition("/")[0]
        if glob.has_magic(before) or glob.has_magic(part):
            for folder in glob.glob(before, recursive=True) if glob.has_magic(before) else [before or "."]:
                _check_seen(folder, part)
    return sorted(glob.glob(pattern, recursive=True))


def _check_seen(folder: str, part: str) -> None:
    """That what is in a folder and matches a part of a pattern can be seen."""
    if os.path.basename(folder.rstrip("/")) == _NOT_THE_USERS:
        return
    try:
        if part == "**":
            _check_all_seen(folder)
        elif glob.has_magic(part):
            os.scandir(folder).close()
        else:
            os.stat(os.path.join(folder, part))
    except (FileNotFoundError, NotADirectoryError):
        return
    except StoreError:
        raise
    except OSError as error:
        if error.errno != errno.ELOOP:  # of links that lead in a circle, and so to nothing
            error.filename = folder
            _refuse(error)


def _check_all_seen(folder: str) -> None:
    for _, folders, _ in os.walk(folder, onerror=_refuse):
        folders[:] = [name for name in folders if name[0] != "." and name != _NOT_THE_USERS]  # as "**" does


def _refuse(error: OSError) -> NoReturn:
    raise StoreError(
        f"cannot look into the folder {error.filename!r}, and there may be shards in it: {error.strerror}; "
        "make it readable, or leave it out by a list of names: sorted(glob.glob(pattern, recursive=True)) of "
        "Python's glob passes over it. on_error=SkipErrors(...) does not: it is for shards that are named",
        shard=error.filename,
    ) from None


def index_hint(folder: str) -> str:
    """A clause on who reads the index of a local folder; empty where it has none."""
    if not os.path.isfile(os.path.join(folder, "index.json")):
        return ""
    return "; its index.json is for al.from_mds or al.from_litdata (--format mds, --format litdata)"
