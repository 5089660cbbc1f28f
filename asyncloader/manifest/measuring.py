"""Shards measured, several at a time: one bad shard does not hide the next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

from .._flow.engine import Engine
from ..errors import FormatError, StoreError
from ..processors import usable_processors
from ..quantity import as_count
from ..statistics import NetworkCounts
from ..stores.access import Access
from ..stores.policy import NetworkPolicy
from ..stores.router import Stores
from .check import FolderIndex
from .entries import Expected
from .expectations import Expectations
from .journal import Journal
from .survey import Survey

__all__ = ["Measured", "Measuring", "open_measuring"]

Measured: TypeAlias = tuple[str, Expected | StoreError | FormatError]
"""A shard with what it is, or why that cannot be told."""

# Shards that are measured before the one whose turn it is to be told: one that is large holds up nobody.
_MOST_AHEAD = 64


class Measuring:
    """Measures shards on threads; see ``open_measuring``.

    Attributes:
        survey: Reads them.
    """

    def __init__(self, survey: Survey, threads: ThreadPoolExecutor) -> None:
        self.survey = survey
        self._threads = threads

    def each(
        self,
        urls: Sequence[str],
        formats: Sequence[str],
        names: Sequence[str] = (),
        journal: Journal | None = None,
        *,
        idx: bool = False,
        promised: Expectations | None = None,
    ) -> Iterator[Measured]:
        """Each shard with what it is, or why that cannot be told.

        Args:
            urls: In order, which is kept.
            formats: Of each.
            names: Of each in the journal.
            journal: Knows some already, and is told of the others.
            idx: Go by the ``.idx`` beside each, and read none.
            promised: What each should be, so that no other digests are computed; None for those of a
                manifest.
        """

        def measure(number: int) -> Expected | StoreError | FormatError:
            url, name = urls[number], names[number] if journal is not None else ""
            try:
                if idx:
                    return self.survey.measure_by_idx(url)
                version = partial(self.survey.version, url)
                if journal is not None and (known := journal.of(name, version)) is not None:
                    return known
                if promised is None:
                    found, etag = self.survey.measure(url, formats[number])
                else:
                    expected = promised[number]
                    algorithms = () if expected is None else expected.digests
                    found, etag = self.survey.measure(url, formats[number], algorithms)
            except (StoreError, FormatError) as error:
                return error
            if journal is not None:
                journal.add(name, found, etag)
            return found

        return zip(urls, self._in_order(measure, len(urls)), strict=True)

    def _in_order(self, measure: Callable[[int], Any], count: int) -> Iterator[Any]:
        """What ``measure`` gives of each number; some are worked at ahead of what is taken."""
        running: deque[Future[Any]] = deque()
        for number in range(count):
            running.append(self._threads.submit(measure, number))
            if len(running) >= _MOST_AHEAD:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()


@contextmanager
def open_measuring(
    options: Mapping[str, Any],
    network: NetworkPolicy | None,
    concurrency: int | None,
    index: FolderIndex | None = None,
    delimiter: str | None = None,
) -> Iterator[Measuring]:
    """Threads that measure shards, and the engine that they read by.

    Args:
        options: Storage options.
        network: Time-outs, retries and hedging.
        concurrency: How many shards at a time; None for as many as there are processors that this process
            may use, of up to 8.
        index: Of the shards, if another library has written it.
        delimiter: What separates the fields of CSV; None for what is usual.

    Raises:
        ValueError: ``concurrency`` is no whole number, or below 1.
    """
    count = min(usable_processors(), 8) if concurrency is None else as_count("concurrency", concurrency)
    threads = ThreadPoolExecutor(count, thread_name_prefix="asyncloader-index")
    try:
        # Within the threads, so that its end ends what they wait for.
        with Engine() as engine:
            access = Access(options, network or NetworkPolicy())
            stores = Stores(engine.resources, access, NetworkCounts())
            yield Measuring(Survey(engine, stores, index, delimiter), threads)
    finally:
        threads.shutdown(cancel_futures=True)
