"""What folders and globs mean, of local files and of keys of object stores.

Keys of object stores are matched as ``glob`` matches files: ``*``, ``?`` and ``[...]`` stay within a
segment, a segment ``**`` stands for any number of them, none of these matches a leading dot, and ``[*]`` is
a literal star.

Law: a local folder that cannot be read is an error, since shards in it would be lost silently.
"""

from __future__ import annotations

import errno
import glob
import os
import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import translate
from typing import NoReturn, TypeAlias

from ..errors import StoreError

_SPECIAL = re.compile(r"[*?\[]")

# A folder at the root of file systems, which only the superuser can read.
_NOT_THE_USERS = "lost+found"

_Matches: TypeAlias = Callable[[str], object]


def has_special(pattern: str) -> bool:
    """Whether any character of ``pattern`` is special in a glob."""
    return _SPECIAL.search(pattern) is not None


def folder_before(pattern: str) -> str:
    """The prefix of every key that matches, up to and including a ``/``; empty if they share none."""
    special = _SPECIAL.search(pattern)
    literal = pattern if special is None else pattern[: special.start()]
    return literal[: literal.rfind("/") + 1]


def key_matcher(pattern: str) -> Callable[[str], bool]:
    """Whether the whole of a key matches a pattern; see above."""
    segments = [_is_visible if segment == "**" else _segment(segment) for segment in pattern.split("/")]
    if segments[-1] is _is_visible:
        segments.append(_segment("*"))  # a key below, rather than the folder itself
    return lambda key: _matches(segments, key.split("/"))


def _matches(segments: Sequence[_Matches], parts: Sequence[str]) -> bool:
    # Only the last ``**`` (``_is_visible``) is ever extended: what precedes it matched as early as it could,
    # and what an earlier one could stand for instead, the last one can too. So time is quadratic at most.
    at = done = 0  # segments and parts that have matched
    behind, end = 0, 0  # the segments up to the last ``**``, 0 without one, and the parts up to its end
    while done < len(parts):
        if at < len(segments) and segments[at] is _is_visible:
            at += 1
            behind, end = at, done
        elif at < len(segments) and segments[at](parts[done]):
            at += 1
            done += 1
        elif behind and _is_visible(parts[end]):
            end += 1
            at, done = behind, end
        else:
            return False
    return at == len(segments)


def matcher(pattern: str, is_shard: Callable[[str], bool]) -> Callable[[str], bool]:
    """Whether a key matches a glob, or is below a prefix and a shard."""
    if pattern and not pattern.endswith("/"):
        return key_matcher(pattern)
    # A prefix means everything below it; below a glob of folders, the rules of globs apply.
    below = key_matcher(f"{pattern}**") if has_special(pattern) else None
    return lambda key: (below(key) if below is not None else key.startswith(pattern)) and is_shard(key)


def _segment(pattern: str) -> _Matches:
    if not has_special(pattern):
        return pattern.__eq__
    matches = re.compile(translate(pattern)).match
    if pattern.startswith("."):
        return matches
    return lambda part: _is_visible(part) and matches(part)


def _is_visible(part: str) -> bool:
    return not part.startswith(".")


def files_below(folder: str) -> list[str]:
    """Paths of all files in a folder, at any depth.

    Links to folders are followed, but not to a folder that is visited anyway: its files would come twice.

    Raises:
        StoreError: A folder that cannot be read.
    """
    seen: set[tuple[int, int]] = set()
    files: list[str] = []
    tops = [folder]
    for top in tops:  # grows: links are followed after all other folders
        for where, links, names in _walk(top, seen):
            files += [os.path.join(where, name) for name in names]
            tops += links
    return files


def _walk(top: str, seen: set[tuple[int, int]]) -> Iterator[tuple[str, list[str], list[str]]]:
    """For each folder that was not seen before: its path, its links to folders, the names of its files."""
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
        StoreError: A folder that cannot be read, and may have some.
    """
    # glob skips such folders silently.
    for separator in re.finditer("^|(?<=/)(?=[^/])", pattern):
        before, part = pattern[: separator.start()], pattern[separator.start() :].partition("/")[0]
        if glob.has_magic(before) or glob.has_magic(part):
            for folder in glob.glob(before, recursive=True) if glob.has_magic(before) else [before or "."]:
                _check_seen(folder, part)
    return sorted(glob.glob(pattern, recursive=True))


def _check_seen(folder: str, part: str) -> None:
    """Check that the entries of a folder that match a part of a pattern can be read."""
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
        if error.errno != errno.ELOOP:  # links in a circle lead to no file
            error.filename = folder
            _refuse(error)


def _check_all_seen(folder: str) -> None:
    for _, folders, _ in os.walk(folder, onerror=_refuse):
        folders[:] = [name for name in folders if name[0] != "." and name != _NOT_THE_USERS]  # as "**" does


def _refuse(error: OSError) -> NoReturn:
    raise StoreError(
        f"cannot read the folder {error.filename!r}, and there may be shards in it: {error.strerror}. Make "
        "it readable, or pass a list of names: sorted(glob.glob(pattern, recursive=True)) of Python's glob "
        "skips such folders",
        shard=error.filename,
    ) from None


def index_hint(folder: str) -> str:
    """A clause on who reads the index of a local folder; empty where it has none."""
    if not os.path.isfile(os.path.join(folder, "index.json")):
        return ""
    return "; its index.json is for al.from_mds or al.from_litdata (--format mds, --format litdata)"
