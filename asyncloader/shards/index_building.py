"""Make the index of existing shards: read each once, several at a time.

The results are kept in a journal beside the index, so that the next run continues where a killed one stopped.
The index is written when all shards are known.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeAlias

from ..atomic_file import write_whole
from ..errors import FormatError, StoreError
from ..flow.process import occupy_standard_descriptors
from ..formats.tar_layout import idx_beside
from ..observe.report import open_bar
from ..stores.expanding import expand_home
from ..stores.store import NetworkPolicy
from ..stores.urls import local_path, redact, scheme_of
from .expectations import Expected
from .index_entries import MAX_INDEX_BYTES, decode_note, encode_note, format_index, parse_own
from .index_lookup import open_local_index
from .index_survey import in_order, index_beside, open_survey, readers
from .names import NamedShards

Measured: TypeAlias = tuple[str, Expected | StoreError | FormatError]
"""A shard, and what it is or why that is unknown."""


@dataclass(frozen=True)
class _Line:
    """A line of a journal."""

    name: str
    etag: str | None
    found: Expected


class Journal:
    """The results of shards, a line each, in a file beside the index; a context manager.

    Args:
        index: Path of the index.
    """

    def __init__(self, index: str) -> None:
        folder, name = os.path.split(local_path(index))
        self.path = os.path.join(folder, f".{name}.partial")
        self._lock = Lock()
        self._known: dict[str, _Line] = {}
        self._file: Any = None

    def __enter__(self) -> Journal:
        with suppress(FileNotFoundError), open(self.path, "rb") as file:
            for line in file:
                # A killed run may have left a part of its last line.
                with suppress(ValueError):
                    if line.endswith(b"\n"):
                        known = decode_note(line, _Line)
                        self._known[known.name] = known
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def of(self, name: str, version: Callable[[], tuple[int | None, str | None]]) -> Expected | None:
        """What an earlier run has found of a shard; None if nothing, or if it may be of another version.

        Args:
            name: In the index.
            version: Requests what the shard is now, as ``Survey.version``; called if something was found.
        """
        known = self._known.get(name)
        if known is None or known.etag is None:
            return None
        return known.found if version() == (known.found.size_bytes, known.etag) else None

    def add(self, name: str, found: Expected, etag: str | None) -> None:
        """Keep what was found of a shard, in the version that its store calls ``etag``.

        Where no file can be written nothing is kept: the error of writing the index is the one to raise.
        """
        line = encode_note(_Line(name, etag, found)) + b"\n"
        with self._lock, suppress(OSError):
            if self._file is None:
                # Appended to: of two runs at once each keeps what it has found.
                self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - closed on leaving
                if self._file.tell():
                    self._file.write(b"\n")  # behind a line that was cut
            self._file.write(line)

    def remove(self) -> None:
        """Remove the file; all of it is in the index."""
        with suppress(FileNotFoundError):
            os.unlink(self.path)


@dataclass
class IndexBuild:
    """An index that is being made; see ``open_index``.

    Attributes:
        path: Path of the index.
        count: How many shards it is of.
        measured: Each shard, in order; can be iterated once.
    """

    path: str
    count: int
    measured: Iterator[Measured]
    _names: Sequence[str]
    _journal: Journal

    def write(self, found: Sequence[Expected]) -> None:
        """Write the index, when all shards are known.

        Args:
            found: What each shard is, in order.

        Raises:
            OSError: It cannot be written.
        """
        update_index(self.path, dict(zip(self._names, found, strict=True)))
        self._journal.remove()


@contextmanager
def open_index(
    named: NamedShards,
    output: str | os.PathLike[str] | None = None,
    concurrency: int | None = None,
    *,
    idx: bool = False,
) -> Iterator[IndexBuild]:
    """Measure shards for an index. Arguments and errors are those of ``build_index``.

    The journal is written while they are measured, and the index by ``IndexBuild.write`` alone.
    """
    found, formats = named.find_with_formats()
    shards = found.names
    if idx:
        for shard in shards:
            idx_beside(shard)
    index = index_beside(shards, "-o or output=") if output is None else expand_home(os.fspath(output))
    names = _names_in(index, shards)
    _read(local_path(index))  # refuses what cannot be added to now, rather than after hours of reading
    with (
        open_survey(named.access, readers(concurrency), delimiter=named.delimiter) as (survey, threads),
        Journal(index) as journal,
    ):

        def measure(number: int) -> Measured:
            url, name = shards[number], names[number]
            try:
                if idx:
                    return url, survey.measure_by_idx(url)
                known = journal.of(name, lambda: survey.version(url))
                if known is None:
                    known, etag = survey.measure(url, formats[number])
                    journal.add(name, known, etag)
                return url, known
            except (StoreError, FormatError) as error:
                return url, error

        measured = in_order(threads, measure, range(len(shards)))
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
    """Read shards once, and write an index: how many samples each has, and where a reader may begin in it.

    With an index, lanes have equal lengths, ``len(loader)`` is exact, and there may be fewer shards than
    ranks. Each shard is compared with the index when it is read. If this call is killed, repeat it: finished
    shards are not read again. ``ShardWriter`` writes an index itself.

    It blocks; in a coroutine, call it on a thread.

    Args:
        urls: Shards, as for ``from_urls``.
        output: Path of the index; an existing index is extended. None, the default:
            ``asyncloader-index.json`` beside the shards, if they are files of one folder; ``from_urls`` finds
            it there. For shards on servers, pass the index as ``from_urls(..., index=output)``, or upload it
            beside them.
        format: Format of the shards, as for ``from_urls``.
        delimiter: The character that separates the fields of CSV and TSV, as for ``from_urls``.
        storage_options: Endpoint, credentials and headers, as for ``from_urls``.
        network: Time-outs, retries and hedging, as for ``from_urls``.
        concurrency: The most shards that are read at a time. None, the default: one for each processor, up to
            8, since decoding and digests take more time than reading.
        idx: Take counts and offsets from the ``.idx`` beside each tar, as written by DALI's ``wds2idx``. Only
            a few members of each shard are read, to check that the ``.idx`` belongs to it. The index then has
            no digests; its offsets are compared with the samples whenever a shard is read.
        progress: Show a progress bar.

    Returns:
        The path of the index.

    Raises:
        TypeError: ``urls`` has something other than strings and paths.
        ValueError: There is no shard or no place for the index, names do not fit, ``concurrency`` is below 1,
            or ``idx`` is given for shards that are not tar.
        StoreError, FormatError: A shard cannot be read or is damaged. The first such error is raised, with
            the others as notes. No index is written; the next call keeps the results of the other shards.
        OSError: The index cannot be written.
    """
    with (
        open_index(
            NamedShards(urls, format, delimiter, storage_options, network), output, concurrency, idx=idx
        ) as index,
        open_bar("index", index.count, " shards", shown=progress) as bar,
    ):
        found: list[Expected] = []
        bad: list[StoreError | FormatError] = []
        for _, outcome in index.measured:
            if isinstance(outcome, Expected):
                found.append(outcome)
            else:
                bad.append(outcome)
            bar.update()
        if bad:
            bad[0].add_note(f"{len(bad)} of {index.count} shards are bad; no index was written")
            for error in bad[1:4]:
                bad[0].add_note(f"also: {error}")
            raise bad[0]
        index.write(found)
        return index.path


def _names_in(index: str, urls: Sequence[str]) -> list[str]:
    """The names of shards in an index: paths relative to it for files, URLs for others.

    Raises:
        ValueError: The index is not local, a file is not below its folder, or two shards have the same name.
    """
    if not scheme_of(index).is_local:
        raise ValueError(
            "the index is written to a local path: pass it as -o or output=, and copy the index to the shards"
        )
    folder = os.path.abspath(os.path.dirname(local_path(index)))
    names = [_name_in(folder, url) for url in urls]
    if len(set(names)) < len(names):
        raise ValueError("two of the shards have one name; name each once")
    return names


def _name_in(folder: str, url: str) -> str:
    if not scheme_of(url).is_local:
        return redact(url)
    path = os.path.abspath(local_path(url))
    if not path.startswith(os.path.join(folder, "")):
        raise ValueError(f"{path} is not below {folder}, the folder of the index")
    return os.path.relpath(path, folder).replace(os.sep, "/")


def update_index(path: str, entries: Mapping[str, Expected]) -> None:
    """Add entries to an index, or make it.

    Entries with the same names are replaced. Entries whose files are missing in the folder are dropped. A
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
            if "/" in name or name in present  # URLs and files of other folders are kept
        }
        write_whole(path, format_index({**kept, **entries}))


def _read(path: str) -> Mapping[str, Expected]:
    with open_local_index(path) as file:
        if file is None and not os.path.lexists(path):
            return {}
        return parse_own(b"" if file is None else file.read(MAX_INDEX_BYTES + 1), path)


@contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Let one process at a time in. The lock is on the folder, so that no lock file is left or can be stale.

    Windows and some network file systems cannot lock folders. There, two writers that close in the same
    moment may lose each other's entries; a shard without an entry is read unchecked.
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
