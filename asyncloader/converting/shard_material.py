"""Shards that exist as material: told from other versions of them, counted, and read from any sample on."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from .._flow.budget import Budget
from .._flow.engine import Engine
from ..catalog import Catalog
from ..counting import NetworkCounts
from ..errors import StoreError
from ..formats import formats
from ..formats.columnar.selection import EVERYTHING, Selection
from ..manifest.entries import Expected
from ..manifest.expectations import Expectations
from ..manifest.survey import Survey
from ..ops.op import Lane
from ..plan.pieces import Pieces
from ..plan.topology import Topology
from ..sources.shards import Shards
from ..stores.access import Access
from ..stores.router import Stores
from ..stores.urls import redact
from .material import Version

__all__ = ["ShardMaterial", "count_shards", "versions_of"]

# Of shards, in flight in one process: some parts at once.
_READ_BYTES = 64 << 20
# Requests for a byte of a shard at a time, which wait for servers alone.
_MOST_ASKED = 32


def versions_of(urls: Sequence[str], access: Access) -> list[Version]:
    """What each shard is now; asks its store.

    Raises:
        StoreError: One cannot be read.
    """
    with _surveying(access, _MOST_ASKED) as (survey, threads):
        found = threads.map(survey.version, urls)
        return [Version(redact(url), *version) for url, version in zip(urls, found, strict=True)]


def count_shards(
    catalog: Catalog,
    access: Access,
    known: Mapping[int, Expected],
    told: Callable[[int, Expected], object],
    *,
    at_once: int = 2,
) -> Expectations:
    """How many samples are in each shard, and where to begin inside of it.

    Args:
        catalog: The shards; those of which a manifest tells it are not read, but for those that it calls
            empty, which nobody would read later and see that they are not.
        access: How they are reached.
        known: What was found of some before, by number.
        told: Called with what is found of each other one, in any order, on one thread at a time.
        at_once: How many are read at a time. Two: what is counted has to be decoded, with the interpreter's
            lock for the most part; but not what says itself how many it holds.

    Raises:
        StoreError, FormatError: One cannot be read, or is not sound.
    """
    entries = [*catalog.checks] if catalog.checks else [None] * len(catalog.urls)
    for number, expected in known.items():
        entries[number] = _counted(entries[number], expected)
    missing = [
        number
        for number, entry in enumerate(entries)
        if number not in known and (entry is None or not entry.is_indexed or not entry.samples)
    ]
    with _surveying(access, at_once) as (survey, threads):

        def count(number: int) -> Expected:
            return survey.count(catalog.urls[number], catalog.formats[number], entries[number])

        for number, expected in zip(missing, threads.map(count, missing), strict=True):
            entries[number] = _counted(entries[number], expected)
            told(number, expected)
    return Expectations.of(entries)


def _counted(entry: Expected | None, found: Expected) -> Expected:
    """What is known of a shard by its manifest, and by counting it."""
    return found if entry is None else replace(entry, samples=found.samples, offsets=found.offsets)


@contextmanager
def _surveying(access: Access, most: int) -> Iterator[tuple[Survey, ThreadPoolExecutor]]:
    # The threads first, so that the engine's end ends what they wait for.
    threads = ThreadPoolExecutor(most, thread_name_prefix="asyncloader-convert")
    try:
        with Engine() as engine:
            yield Survey(engine, Stores(engine.resources, access, NetworkCounts())), threads
    finally:
        threads.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class ShardMaterial:
    """The samples of shards.

    Args:
        urls: In order.
        formats: Of each.
        access: How they are reached.
        counted: How many samples each has, and where to begin.
        versions: What they were when they were asked for.
        selection: Which columns are read, of formats that have columns.
        skip: Samples of the first one that are not wanted.
        count: How many are wanted; None for all.
    """

    urls: Sequence[str]
    formats: Sequence[str]
    access: Access
    counted: Expectations
    versions: Sequence[Version] = ()
    selection: Selection = EVERYTHING
    skip: int = 0
    count: int | None = None

    @property
    def size_bytes(self) -> int:
        return int(self.counted.size_bytes.sum())

    @cached_property
    def stops(self) -> list[int]:
        """Number behind the last sample of each shard."""
        return [*accumulate(self.counted.samples.tolist())]

    def part(self, first: int, stop: int) -> ShardMaterial:
        begin, end = self._shard_of(first), self._shard_of(stop - 1) + 1
        return replace(
            self,
            urls=[*self.urls[begin:end]],
            formats=[*self.formats[begin:end]],
            counted=self.counted.take(np.arange(begin, end)),
            versions=(),
            skip=first - (self.stops[begin - 1] if begin else 0),
            count=stop - first,
        )

    def in_vain(self, first: int) -> int:
        shard = self._shard_of(first)
        inside = first - (self.stops[shard - 1] if shard else 0)
        if formats[self.formats[shard]].reopens:
            return 0  # a part of a row group at most
        expected = self.counted[shard]
        assert expected is not None, "all are counted"
        offsets = expected.offsets or ()
        place = bisect_right(offsets, inside, key=lambda offset: offset[0])
        return inside - (offsets[place - 1][0] if place else 0)

    def prove(self, read: Iterable[tuple[int, int]]) -> None:
        # What is read in one go, from the first byte to the last, was held against its digest by who read it.
        # Of formats with a plan alone nothing is.
        starts = [0, *self.stops[:-1]]
        proved = {
            number
            for first, stop in read
            for number in range(bisect_left(starts, first), bisect_right(self.stops, stop))
            if formats[self.formats[number]].decoder is not None
        }
        owed = {
            url: entry
            for number, (url, entry) in enumerate(zip(self.urls, self.counted, strict=True))
            if number not in proved and entry is not None and entry.digests
        }
        with _surveying(self.access, 2) as (survey, threads):
            for _ in threads.map(survey.prove, owed.keys(), owed.values()):
                pass  # it raises what one of them raised
        if versions_of(self.urls, self.access) != [*self.versions]:
            raise StoreError(
                "a source was changed while it was being converted: call convert again with overwrite"
            )

    def describe(self) -> Mapping[str, Any]:
        return {"made_by": "convert"}

    def samples(self) -> Generator[tuple[dict[str, Any], object], None, None]:
        # Whether shards may have changed since they were counted is for their lengths and digests to say,
        # which are in ``counted`` as far as a manifest told them.
        shards = Shards(self.urls, self.formats, self.access, self.counted, self.selection)
        left = self.stops[-1] - self.skip if self.count is None else self.count
        with Engine() as engine:
            budget = Budget(_READ_BYTES, [0])
            lane = Lane(Topology(), engine, budget, _READ_BYTES)
            last = self.stops[-2] if len(self.stops) > 1 else 0
            pieces = Pieces(
                np.arange(len(self.urls)), self.counted.samples, self.skip, self.skip + left - last
            )
            with closing(shards.read(pieces, lane)) as blocks:
                for block in blocks:
                    wanted = min(left, len(block))
                    numbered = self.formats[block.trail.place(0).number] == "text"
                    for index, sample in enumerate(block.rows()[:wanted]):
                        if numbered:  # its key is the number of its line, which says nothing elsewhere
                            sample = {"text": sample["text"]}
                        yield sample, _Place(block, index)
                    left -= wanted

    def look_from(self) -> Iterator[ShardMaterial]:
        """Parts to look at the first samples of: some shards, from all over the recipe."""
        full = np.flatnonzero(self.counted.samples)
        for shard in full[:: max(-(-len(full) // 8), 1)].tolist():
            stop = self.stops[shard]
            yield self.part(stop - int(self.counted.samples[shard]), stop)

    def _shard_of(self, sample: int) -> int:
        return bisect_right(self.stops, sample)


class _Place:
    """Where a sample is from, worked out if somebody asks."""

    __slots__ = ("_block", "_index")

    def __init__(self, block: Any, index: int) -> None:
        self._block = block
        self._index = index

    def __str__(self) -> str:
        return str(self._block.trail.place(self._index))
