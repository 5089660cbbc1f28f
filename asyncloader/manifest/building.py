"""Make the index of shards that exist: read each once, several at a time, and go on where a killed run was.

What a run has found of each shard is a line of a file beside the manifest, from the moment on that it is
known; the manifest itself is written when all are. A line is used again only for the shard that it is of: a
file must not have been written to since.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from threading import Lock
from typing import Any, TypeAlias

from .._flow.engine import Engine
from ..counting import NetworkCounts
from ..errors import FormatError, StoreError
from ..formats import check_format
from ..progress import open_bar
from ..quantity import as_count
from ..shard_names import formats_of
from ..shard_search import find_shards
from ..stores.access import Access
from ..stores.expanding import expand_home
from ..stores.policy import NetworkPolicy
from ..stores.router import Stores
from ..stores.urls import MANIFEST_NAME, local_path, redact, scheme_of
from .entries import Expected, entry_of, parse_entry
from .folder import check_manifest, update_manifest
from .survey import Survey

__all__ = ["Journal", "build_index", "manifest_beside", "measured", "names_in", "open_threads"]

Measured: TypeAlias = tuple[str, Expected | StoreError | FormatError]
"""A shard with what it is, or why that cannot be told."""

# Shards that are measured before the one whose turn it is to be told: one that is large holds up nobody.
_MOST_AHEAD = 64


def build_index(
    urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    output: str | os.PathLike[str] | None = None,
    format: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    network: NetworkPolicy | None = None,
    concurrency: int | None = None,
    progress: bool = False,
) -> str:
    """Read shards once, and write how many samples they hold and where to begin inside of them.

    By the index lanes are cut to equal length, ``len(loader)`` is exact, and fewer shards than ranks are no
    error. It is the manifest of the shards as well, against which each is checked. If it is killed, call it
    again: shards that were done are not read a second time. ``ShardWriter`` writes the index as it goes.

    Blocks; in a coroutine, call it on a thread.

    Args:
        urls: Shards, as ``from_urls`` takes them.
        output: Path of the manifest, which is made or added to. By default ``manifest.json`` beside the
            shards, if they are files of one folder, where it is found by itself. Shards of servers are named
            in it by their URLs; give it as ``from_urls(..., manifest=output)``, or upload it beside them.
        format: Of shards whose suffix does not tell.
        storage_options: As of ``from_urls``.
        network: Time-outs, retries and hedging.
        concurrency: How many shards are read at a time. By default as many as there are processors, of up to
            8, since decoding and digests take more time than reading does.
        progress: Show a bar of the shards that are done.

    Returns:
        The path of the manifest.

    Raises:
        TypeError: ``urls`` holds something else than strings and paths.
        ValueError: No shard, names that do not fit, no place for the manifest, or ``concurrency`` below 1.
        StoreError, FormatError: A shard cannot be read or is not sound; the first one, with a note of the
            others. Nothing is written then, and what was found of the others is kept for the next call.
        OSError: The manifest cannot be written.
    """
    if format is not None:
        check_format(format)
    options = dict(storage_options or {})
    found = find_shards(urls, format, options, network)
    shards = found.names
    manifest = manifest_beside(shards) if output is None else expand_home(os.fspath(output))
    names = names_in(manifest, shards)
    check_manifest(local_path(manifest))  # now, rather than when hours of reading are over
    with ExitStack() as stack:
        threads = stack.enter_context(open_threads(concurrency))
        engine = stack.enter_context(Engine())
        access = Access(options, network or NetworkPolicy())
        survey = Survey(engine, Stores(engine.resources, access, NetworkCounts()))
        journal = stack.enter_context(Journal(manifest))
        seen = measured(survey, shards, formats_of(shards, format), threads, names, journal)
        if progress:
            seen = stack.enter_context(_shown(seen, len(shards)))
        entries = _entries_of(names, seen)
        update_manifest(local_path(manifest), entries)
        journal.remove()
    return local_path(manifest)


@contextmanager
def _shown(seen: Iterator[Measured], count: int) -> Iterator[Iterator[Measured]]:
    """What is measured, with a bar of it."""
    with open_bar("index", count, " shards") as bar:

        def shown() -> Iterator[Measured]:
            for shard in seen:
                bar.update()
                yield shard

        yield shown()


def _entries_of(names: Iterable[str], seen: Iterable[Measured]) -> dict[str, Expected]:
    """The entries by name; raises what is wrong with the first bad shard, when all were looked at."""
    entries: dict[str, Expected] = {}
    bad: list[StoreError | FormatError] = []
    for name, (_, outcome) in zip(names, seen, strict=True):
        if isinstance(outcome, Expected):
            entries[name] = outcome
        else:
            bad.append(outcome)
    if bad:
        bad[0].add_note(f"{len(bad)} of {len(entries) + len(bad)} shards are bad; no index was written")
        for error in bad[1:4]:
            bad[0].add_note(f"also: {error}")
        raise bad[0]
    return entries


@contextmanager
def open_threads(concurrency: int | None) -> Iterator[ThreadPoolExecutor]:
    """Threads to measure shards on; open them before the engine, so that its end ends what they wait for.

    Args:
        concurrency: How many; None for as many as there are processors, of up to 8.

    Raises:
        ValueError: No whole number, or below 1.
    """
    count = min(os.cpu_count() or 1, 8) if concurrency is None else as_count("concurrency", concurrency)
    threads = ThreadPoolExecutor(count, thread_name_prefix="asyncloader-index")
    try:
        yield threads
    finally:
        threads.shutdown(cancel_futures=True)


class Journal:
    """What was found of shards, a line each, beside the manifest; used with ``with``.

    Args:
        manifest: Path of the manifest.
    """

    def __init__(self, manifest: str) -> None:
        folder, name = os.path.split(local_path(manifest))
        self.path = os.path.join(folder, f".{name}.partial")
        self._lock = Lock()
        self._known: dict[str, tuple[Expected, int | None]] = {}
        self._file: Any = None

    def __enter__(self) -> Journal:
        with suppress(FileNotFoundError), open(self.path, "rb") as file:
            for line in file:
                with suppress(ValueError, FormatError):  # a killed run may have left a part of its last line
                    entry = json.loads(line)
                    if line.endswith(b"\n") and isinstance(entry, dict):
                        name, expected = parse_entry("", entry)
                        self._known[name] = expected, entry.get("modified_ns")
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def of(self, name: str, url: str) -> Expected | None:
        """What a run before has found of a shard; None if nothing, or if the file was written to since."""
        found, modified_ns = self._known.get(name, (None, None))
        return found if modified_ns == _modified_ns(url) else None

    def add(self, name: str, url: str, found: Expected, modified_ns: int | None) -> None:
        """Keep what was found of a shard, which was last written to at ``modified_ns``.

        Where no file can be written nothing is kept: it is the manifest that the user has to hear of.
        """
        line = json.dumps({**entry_of(name, found), "modified_ns": modified_ns}) + "\n"
        with self._lock, suppress(OSError):
            if self._file is None:
                # Appended to: of two runs at once each keeps what it has found.
                self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - closed on leaving
                if self._file.tell():
                    self._file.write(b"\n")  # behind a line that was cut
            self._file.write(line.encode())

    def remove(self) -> None:
        """All of it is in the manifest."""
        with suppress(FileNotFoundError):
            os.unlink(self.path)


def measured(
    survey: Survey,
    urls: Sequence[str],
    formats: Sequence[str],
    threads: ThreadPoolExecutor,
    names: Sequence[str] | None = None,
    journal: Journal | None = None,
) -> Iterator[Measured]:
    """Each shard with what it is, or why that cannot be told: one bad shard does not hide the next.

    Args:
        survey: Reads them.
        urls: In order, which is kept.
        formats: Of each.
        threads: What they are measured on.
        names: Of each in the journal.
        journal: Knows some already, and is told of the others.
    """

    def measure(number: int) -> Expected | StoreError | FormatError:
        url, name = urls[number], names[number] if names is not None else ""
        if journal is not None and (known := journal.of(name, url)) is not None:
            return known
        try:
            modified_ns = _modified_ns(url)
            found = survey.measure(url, formats[number])
        except (StoreError, FormatError) as error:
            return error
        if journal is not None:
            journal.add(name, url, found, modified_ns)
        return found

    return zip(urls, _in_order(threads, measure, len(urls)), strict=True)


def _in_order(threads: ThreadPoolExecutor, measure: Callable[[int], Any], count: int) -> Iterator[Any]:
    """What ``measure`` gives of each number; some are worked at ahead of what is taken."""
    running: deque[Future[Any]] = deque()
    for number in range(count):
        running.append(threads.submit(measure, number))
        if len(running) >= _MOST_AHEAD:
            yield running.popleft().result()
    while running:
        yield running.popleft().result()


def _modified_ns(url: str) -> int | None:
    """When a file was last written to; None for what is not here."""
    if not scheme_of(url).is_local:
        return None
    try:
        return os.stat(local_path(url)).st_mtime_ns
    except OSError:
        return None


def manifest_beside(urls: Sequence[str]) -> str:
    """The path of the manifest that lies beside shards; raises ValueError if they are not of one folder."""
    folders = {os.path.dirname(local_path(url)) if scheme_of(url).is_local else None for url in urls}
    folder = folders.pop()
    if folders or folder is None:
        raise ValueError(
            "the shards are not files of one folder; say with -o or output= where the manifest is to be"
        )
    return os.path.join(folder, MANIFEST_NAME)


def names_in(manifest: str, urls: Sequence[str]) -> list[str]:
    """The shards as a manifest names them: files by their paths from it, others by URL.

    Raises:
        ValueError: It is not local, a file is not below its folder, or two shards have one name.
    """
    if not scheme_of(manifest).is_local:
        raise ValueError("the manifest is written to a local path; copy it beside the shards afterwards")
    folder = os.path.abspath(os.path.dirname(local_path(manifest)))
    names = [_name_in(folder, url) for url in urls]
    if len(set(names)) < len(names):
        raise ValueError("two of the shards have one name; each should be named once")
    return names


def _name_in(folder: str, url: str) -> str:
    if not scheme_of(url).is_local:
        return redact(url)
    path = os.path.abspath(local_path(url))
    if not path.startswith(os.path.join(folder, "")):
        raise ValueError(f"{path} is not below {folder}, the folder of the manifest")
    return os.path.relpath(path, folder).replace(os.sep, "/")
