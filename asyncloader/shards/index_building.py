"""Make the index of shards that exist: read each once, several at a time, and go on where a killed run was.

What a run has found of each shard is kept in a journal beside the index, which is written when all are
known.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ..atomic_file import write_whole
from ..errors import FormatError, StoreError
from ..flow.process import occupy_standard_descriptors
from ..formats import check_delimited, check_format
from ..formats.tar_layout import idx_beside
from ..observe.report import open_bar
from ..stores.expanding import expand_home
from ..stores.store import NetworkPolicy
from ..stores.urls import INDEX_NAME, local_path, redact, scheme_of
from .expectations import Expected
from .index_entries import MAX_INDEX_BYTES, format_index, is_index, parse_index
from .index_lookup import open_local_index
from .index_survey import Journal, Measured, open_measuring
from .names import find_shards, formats_of


@dataclass
class IndexBuild:
    """An index that is being made; see ``open_index``.

    Attributes:
        path: Of the index.
        count: How many shards it is of.
        measured: Each shard, as it becomes known, in order; to be iterated once.
    """

    path: str
    count: int
    measured: Iterator[Measured]
    _names: Sequence[str]
    _journal: Journal

    def write(self, found: Sequence[Expected]) -> None:
        """Write the index, now that all shards are known.

        Args:
            found: Of each shard, in order.

        Raises:
            OSError: It cannot be written.
        """
        update_index(self.path, dict(zip(self._names, found, strict=True)))
        self._journal.remove()


@contextmanager
def open_index(
    urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    output: str | os.PathLike[str] | None = None,
    format: str | None = None,
    delimiter: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    network: NetworkPolicy | None = None,
    concurrency: int | None = None,
    idx: bool = False,
) -> Iterator[IndexBuild]:
    """As ``build_index``, for those who look at each shard.

    The journal is written while they are measured, and the index by ``IndexBuild.write`` alone.
    """
    if format is not None:
        check_format(format)
    options = dict(storage_options or {})
    shards = find_shards(urls, format, options, network).names
    formats = formats_of(shards, format)
    check_delimited(delimiter, formats)
    if idx:
        for shard in shards:
            idx_beside(shard)
    index = _index_beside(shards) if output is None else expand_home(os.fspath(output))
    names = _names_in(index, shards)
    check_index(local_path(index))  # now, rather than when hours of reading are over
    with (
        open_measuring(options, network, concurrency, delimiter=delimiter) as measuring,
        Journal(index) as journal,
    ):
        measured = measuring.each(shards, formats, names, None if idx else journal, idx=idx)
        yield IndexBuild(local_path(index), len(shards), measured, names, journal)


def build_index(
    urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    output: str | os.PathLike[str] | None = None,
    format: str | None = None,
    delimiter: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    network: NetworkPolicy | None = None,
    concurrency: int | None = None,
    idx: bool = False,
    progress: bool = False,
) -> str:
    """Read shards once, and write how many samples they hold and where to begin inside of them.

    By the index lanes are cut to equal length, ``len(loader)`` is exact, and fewer shards than ranks are no
    error. Each shard is checked against it when it is read. If this is killed, call it
    again: shards that were done are not read a second time. ``ShardWriter`` writes the index as it goes.

    Blocks; in a coroutine, call it on a thread.

    Args:
        urls: Shards, as ``from_urls`` takes them.
        output: Path of the index, which is made or added to. By default ``asyncloader-index.json`` beside the
            shards, if they are files of one folder, where it is found by itself. Shards of servers are named
            in it by their URLs; give it as ``from_urls(..., index=output)``, or upload it beside them.
        format: Of shards whose suffix does not tell.
        delimiter: Of CSV and TSV, as of ``from_urls``.
        storage_options: As of ``from_urls``.
        network: Time-outs, retries and hedging.
        concurrency: How many shards are read at a time. By default as many as there are processors, of up to
            8, since decoding and digests take more time than reading does.
        idx: Take counts and offsets from the ``.idx`` beside each tar, which DALI's ``wds2idx`` has written,
            and read no shard: of each a few members are looked at, to see that its index is not of another
            one. What an index says is held against the samples whenever the shard is read. There are no
            digests in the index then.
        progress: Show a bar of the shards that are done.

    Returns:
        The path of the index.

    Raises:
        TypeError: ``urls`` holds something else than strings and paths.
        ValueError: No shard, names that do not fit, no place for the index, ``concurrency`` below 1, or
            ``idx`` for what is no tar.
        StoreError, FormatError: A shard cannot be read or is not sound; the first one, with a note of the
            others. Nothing is written then, and what was found of the others is kept for the next call.
        OSError: The index cannot be written.
    """
    with open_index(
        urls,
        output=output,
        format=format,
        delimiter=delimiter,
        storage_options=storage_options,
        network=network,
        concurrency=concurrency,
        idx=idx,
    ) as index:
        index.write(_sound(_shown(index) if progress else index.measured))
        return index.path


def _shown(index: IndexBuild) -> Iterator[Measured]:
    """What is measured, with a bar of it."""
    with open_bar("index", index.count, " shards") as bar:
        for shard in index.measured:
            bar.update()
            yield shard


def _sound(seen: Iterable[Measured]) -> list[Expected]:
    """What the shards are; raises what is wrong with the first bad one, when all were looked at."""
    found: list[Expected] = []
    bad: list[StoreError | FormatError] = []
    for _, outcome in seen:
        if isinstance(outcome, Expected):
            found.append(outcome)
        else:
            bad.append(outcome)
    if bad:
        bad[0].add_note(f"{len(bad)} of {len(found) + len(bad)} shards are bad; no index was written")
        for error in bad[1:4]:
            bad[0].add_note(f"also: {error}")
        raise bad[0]
    return found


def _index_beside(urls: Sequence[str]) -> str:
    """The path of the index that lies beside shards; raises ValueError if they are not of one folder."""
    folders = {os.path.dirname(local_path(url)) if scheme_of(url).is_local else None for url in urls}
    folder = folders.pop()
    if folders or folder is None:
        raise ValueError(
            "the shards are not files of one folder; say with -o or output= where the index is to be"
        )
    return os.path.join(folder, INDEX_NAME)


def _names_in(index: str, urls: Sequence[str]) -> list[str]:
    """The shards as an index names them: files by their paths from it, others by URL.

    Raises:
        ValueError: It is not local, a file is not below its folder, or two shards have one name.
    """
    if not scheme_of(index).is_local:
        raise ValueError("the index is written to a local path; copy it beside the shards afterwards")
    folder = os.path.abspath(os.path.dirname(local_path(index)))
    names = [_name_in(folder, url) for url in urls]
    if len(set(names)) < len(names):
        raise ValueError("two of the shards have one name; each should be named once")
    return names


def _name_in(folder: str, url: str) -> str:
    if not scheme_of(url).is_local:
        return redact(url)
    path = os.path.abspath(local_path(url))
    if not path.startswith(os.path.join(folder, "")):
        raise ValueError(f"{path} is not below {folder}, the folder of the index")
    return os.path.relpath(path, folder).replace(os.sep, "/")


def check_index(path: str) -> None:
    """Refuse what ``update_index`` could not add to.

    Raises:
        FormatError: There is a file of this name that is no index, or none of this version.
    """
    _read(path)


def update_index(path: str, entries: Mapping[str, Expected]) -> None:
    """Add entries to an index, or make it.

    Entries of the same names are replaced, and those dropped whose files have gone from the folder. A
    killed process leaves the old index or the new one, and at most one hidden ``.tmp`` file.

    Args:
        path: The index.
        entries: By name.

    Raises:
        FormatError: There is a file of this name that is no index, or none of this version; it stays.
        OSError: The file cannot be written.
    """
    folder = os.path.dirname(path) or "."
    occupy_standard_descriptors()
    with _locked(folder):
        present = set(os.listdir(folder))
        kept = {
            name: expected
            for name, expected in _read(path).items()
            if "/" in name or name in present  # URLs and files of other folders are not looked for
        }
        write_whole(path, format_index({**kept, **entries}))


def _read(path: str) -> dict[str, Expected]:
    with open_local_index(path) as file:
        content = None if file is None else file.read(MAX_INDEX_BYTES + 1)
    if content is None and not os.path.lexists(path):
        return {}
    if content is None or not is_index(content):
        raise FormatError("there is a file of this name that is no index of shards", shard=path)
    try:
        return parse_index(content)
    except FormatError as error:
        error.shard = path
        raise


@contextmanager
def _locked(folder: str) -> Iterator[None]:
    """One process at a time. The lock is the folder's own, so that no file is left and none can be stale.

    Some network file systems lock no folders, and Windows none at all. There two writers that close in the
    same moment may lose each other's entries; a shard without an entry is read unchecked.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
