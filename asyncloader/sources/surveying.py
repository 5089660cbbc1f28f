"""Shards looked at before any is read for its samples: how many are in each, and where to begin inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

from .._flow.engine import Engine
from ..index.expectations import Expectations, Expected
from ..index.survey import Survey
from ..statistics import NetworkCounts
from ..stores.router import Stores
from .shards import Shards


@contextmanager
def open_survey(shards: Shards, at_once: int) -> Iterator[tuple[Survey, ThreadPoolExecutor]]:
    """What looks at shards, and as many threads as it is to look at at a time."""
    # The threads first, so that the engine's end ends what they wait for.
    threads = ThreadPoolExecutor(at_once, thread_name_prefix="asyncloader-survey")
    try:
        with Engine() as engine:
            stores = Stores(engine.resources, shards.access, NetworkCounts())
            yield Survey(engine, stores, shards.index, shards.delimiter), threads
    finally:
        threads.shutdown(cancel_futures=True)


def count_shards(
    shards: Shards,
    known: Mapping[int, Expected],
    told: Callable[[int, Expected], object],
    *,
    at_once: int = 2,
) -> Expectations:
    """How many samples are in each shard, and where to begin inside of it.

    Args:
        shards: Those of which an index tells it are not read, but for those that it calls
            empty, which nobody would read later and see that they are not.
        known: What was found of some before, by number.
        told: Called with what is found of each other one, in any order, on one thread at a time.
        at_once: How many are read at a time. Two: what is counted has to be decoded, with the interpreter's
            lock for the most part; but not what says itself how many it holds.

    Raises:
        StoreError, FormatError: One cannot be read, or is not sound.
    """
    entries = [*shards.checks] if shards.checks else [None] * len(shards.urls)
    for number, expected in known.items():
        entries[number] = _counted(entries[number], expected)
    missing = [
        number
        for number, entry in enumerate(entries)
        if number not in known and (entry is None or not entry.is_indexed or not entry.samples)
    ]
    with open_survey(shards, at_once) as (survey, threads):

        def count(number: int) -> Expected:
            return survey.count(shards.urls[number], shards.formats[number], entries[number])

        for number, expected in zip(missing, threads.map(count, missing), strict=True):
            entries[number] = _counted(entries[number], expected)
            told(number, expected)
    return Expectations.of(entries)


def _counted(entry: Expected | None, found: Expected) -> Expected:
    """What is known of a shard by its index, and by counting it."""
    return found if entry is None else replace(entry, samples=found.samples, offsets=found.offsets)
