"""From the user's names to shards: expands braces, local folders and globs."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeAlias, cast

from .globs import files_below, find_matches, has_special, index_hint
from .names import MOST_SHARDS, Braces, Part, in_lines, is_even, runs_of, shared_folder
from .urls import INDEX_NAME, Scheme, check_web_url, is_remote_pattern, local_path, redact, scheme_of

IsShard: TypeAlias = Callable[[str], bool]


@dataclass(frozen=True)
class RemotePattern:
    """A prefix or glob that a server has to expand."""

    pattern: str = field(repr=False)


@dataclass(frozen=True)
class Match:
    """What was found for a folder, prefix or glob.

    Attributes:
        pattern: A folder or prefix, which ends in ``/``, or a glob.
        urls: Its shards; of a server in the order of their keys.
        indexes: Paths of the indexes in all local folders that may contain its shards.
        sizes: Length in bytes of each shard; None if no server has listed them.
        index: The ``asyncloader-index.json`` that lies directly in the folder that a server has listed (that
            of a prefix, or the one before the first special character of a glob); None if there is none, or
            it was not asked for.
    """

    pattern: str = field(repr=False)
    urls: Sequence[str] = field(repr=False)
    indexes: Sequence[str] = ()
    sizes: Sequence[int] | None = field(default=None, repr=False)
    index: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Expanded:
    """The user's names, expanded as far as possible without a server.

    Attributes:
        parts: In order.
        schemes: Of all names.
        matches: Of each local folder and glob.
    """

    parts: tuple[Part | RemotePattern, ...]
    schemes: frozenset[Scheme]
    matches: tuple[Match, ...]


def read_urls(urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    """The user's names as written, except that ``~`` is expanded.

    Raises:
        TypeError: Something else than strings or paths.
        ValueError: An empty list.
    """
    if isinstance(urls, str | os.PathLike):
        urls = [urls]
    if isinstance(urls, bytes) or not isinstance(urls, Iterable):
        raise TypeError(f"urls should be strings or paths, but got {type(urls).__name__}")
    given = [*urls]
    if not given:
        raise ValueError("urls should name at least one shard, but got an empty list; did a glob find none?")
    # Nearly all are lists of strings, which are checked at once.
    named = given if {*map(type, given)} == {str} else [*map(_as_text, given)]
    return [expand_home(name) if name[:1] == "~" else name for name in cast("list[str]", named)]


def _as_text(url: object) -> str:
    text = url if isinstance(url, str) or not isinstance(url, os.PathLike) else os.fspath(url)
    if not isinstance(text, str):
        # Its value is not shown: it may be a URL as bytes, with a signature.
        raise TypeError(f"urls should be strings or paths, but got {type(url).__name__}")
    return text


def expand_home(path: str) -> str:
    """Expand ``~`` and ``~user`` at the beginning of a path as a shell does; other names stay."""
    if not path.startswith("~") or "{" in path.partition("/")[0]:
        return path
    return os.path.expanduser(path)


def expand_urls(patterns: Iterable[str], is_shard: IsShard = lambda name: True) -> Expanded:
    """Every shard that ``patterns`` name, in order.

    Braces are expanded as a shell does, or kept where they are even; then local globs (``*``, ``?``,
    ``[...]``, and ``**`` for folders of any depth) and folders (a path that ends in ``/``), whose matches
    are sorted. All names are checked before the disk is read.

    Args:
        patterns: As given by the user.
        is_shard: Whether a file below a folder counts, by its name.

    Raises:
        ValueError: An unknown scheme, a bad range, a web URL without a host or with an invalid port, a glob
            or folder without a match, or too many shards.
        StoreError: A folder that cannot be read.
    """
    sorter = _Sorter()
    for run in runs_of(patterns):
        sorter.add_run(run)
    parts: list[Part | RemotePattern] = []
    matches: list[Match] = []
    for part in sorter.parts():
        if not isinstance(part, _LocalPattern):
            parts.append(part)
            continue
        match = _look_up(part.pattern, is_shard)
        parts.append(tuple(match.urls))
        if match.urls != [part.pattern]:
            matches.append(match)
    return Expanded(tuple(parts), frozenset(sorter.schemes), tuple(matches))


@dataclass(frozen=True)
class _LocalPattern:
    """A folder or a glob."""

    pattern: str


class _Sorter:
    """Separates names of shards from patterns that have to be looked up."""

    def __init__(self) -> None:
        self.schemes: set[Scheme] = set()
        self._parts: list[Part | RemotePattern | _LocalPattern] = []
        self._names: list[str] = []  # since the last part
        self._count = 0
        # The schemes of folders that were checked: long lists repeat a few folders.
        self._known: dict[str, Scheme] = {}

    def add_run(self, run: Sequence[str]) -> None:
        if self._is_plain(run):
            self._count += len(run)
            self._names += run
        else:
            for pattern in run:
                self.add(pattern)

    def _is_plain(self, run: Sequence[str]) -> bool:
        """Whether all names are of shards on one server, so that checking the first one is enough."""
        lines = in_lines(run)
        if not shared_folder(run) or "{" in lines or self._count + len(run) > MOST_SHARDS:
            return False
        scheme = self._scheme_of(run[0])
        if scheme.is_local:
            local_path(run[0])  # refuses a host
        return scheme.is_web or not any(piece in lines for piece in (*"*?[%", "/\n"))

    def add(self, pattern: str) -> None:
        names = _expand_braces(pattern) if "{" in pattern else (pattern,)
        self._count += len(names)
        if self._count > MOST_SHARDS:
            raise ValueError(f"{redact(pattern)} names more than {MOST_SHARDS} shards")
        if isinstance(names, Braces):
            self._scheme_of(names[0])
            self._append(names)
            return
        for name in names:
            scheme = self._scheme_of(name)
            if scheme.is_local:
                name = expand_home(name)  # of a brace such as {~/a,~/b}
                if name.endswith("/") or glob.has_magic(local_path(name) if "://" in name else name):
                    self._append(_LocalPattern(name))
                    continue
            elif (name.endswith("/") or has_special(name)) and is_remote_pattern(name):
                self._append(RemotePattern(name))
                continue
            self._names.append(name)

    def parts(self) -> list[Part | RemotePattern | _LocalPattern]:
        self._end_run()
        return self._parts

    def _append(self, part: Braces | RemotePattern | _LocalPattern) -> None:
        self._end_run()
        self._parts.append(part)

    def _end_run(self) -> None:
        if self._names:
            self._parts.append(tuple(self._names))
            self._names = []

    def _scheme_of(self, name: str) -> Scheme:
        """The scheme of a name; its server is checked."""
        folder = name[: name.rfind("/") + 1]
        scheme = self._known.get(folder)
        if scheme is None:
            scheme = scheme_of(name)
            self.schemes.add(scheme)
            if scheme.is_web:
                check_web_url(name)
            if folder and not folder.endswith("://") and "?" not in folder:
                self._known[folder] = scheme
        return scheme


def _expand_braces(pattern: str) -> Part:
    try:
        names = Braces(pattern)
    except ValueError as error:
        raise ValueError(f"{redact(pattern)!r}: {error}") from None
    return names if is_even(pattern) else tuple(names)


def _look_up(name: str, is_shard: IsShard) -> Match:
    path = local_path(name)
    if path.endswith("/") and os.path.isdir(path):
        return _below(name, path, is_shard)
    if path.endswith("/") and not glob.has_magic(path):
        raise ValueError(f"there is no folder {name!r}{_looked_from(path)}; check the path")
    if not glob.has_magic(path) or os.path.exists(path):
        return Match(name, [name])
    matches = find_matches(path)
    if not matches:
        raise ValueError(f"no file matches {name!r}{_why_none(path)}; check the pattern")
    indexes = glob.glob(os.path.join(os.path.dirname(path), INDEX_NAME), recursive=True)
    return Match(name, matches, indexes)


def _why_none(pattern: str) -> str:
    """The likely reason why a glob has no match."""
    where = _looked_from(pattern)
    folder = os.path.dirname(next(part for part in accumulate(pattern) if glob.has_magic(part)))
    return where if os.path.isdir(folder or ".") else f": there is no folder {folder!r}{where}"


def _looked_from(path: str) -> str:
    return "" if os.path.isabs(path) else f" (looked from {os.getcwd()})"


def _below(name: str, folder: str, is_shard: IsShard) -> Match:
    files = files_below(folder)
    index = os.path.join(folder, INDEX_NAME)
    shards = sorted(path for path in files if is_shard(path) and path != index)
    if not files:
        raise ValueError(f"expected shards below {folder!r}, but the folder is empty; check the path")
    if not shards:
        raise ValueError(
            f"none of the {len(files)} files below {folder!r} is a shard by its suffix{index_hint(folder)}"
        )
    return Match(name, shards, [path for path in files if os.path.basename(path) == INDEX_NAME])
