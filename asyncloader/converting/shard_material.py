"""Shards that exist as material: told from other versions of them, counted, and read from any sample on."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from .._flow.budget import Budget
from .._flow.engine import Engine
from ..errors import StoreError
from ..formats import formats
from ..ops.op import Lane
from ..plan.pieces import Pieces
from ..plan.topology import Topology
from ..sources.shards import Shards
from ..sources.surveying import open_survey
from ..stores.urls import redact
from .material import Version

__all__ = ["ShardMaterial", "versions_of"]

# Of shards, in flight in one process: some parts at once.
_READ_BYTES = 64 << 20
# Requests for a byte of a shard at a time, which wait for servers alone.
_MOST_ASKED = 32
# Shards that are read at a time to be held against a digest.
_MOST_PROVED = 2


def versions_of(shards: Shards) -> list[Version]:
    """What each shard is now, and behind them the index of their folder, if there is one; asks their store.

    Raises:
        StoreError: One cannot be read.
    """
    urls = [*shards.urls] if shards.index is None else [*shards.urls, shards.index.url]
    with open_survey(shards, _MOST_ASKED) as (survey, threads):
        found = threads.map(survey.version, urls)
        return [Version(redact(url), *version) for url, version in zip(urls, found, strict=True)]


@dataclass(frozen=True)
class ShardMaterial:
    """The samples of shards.

    Args:
        shards: Which, how they are reached, what is read of them, and how many samples each has.
        versions: What they were when they were asked for.
        skip: Samples of the first one that are not wanted.
        count: How many are wanted; None for all.
    """

    shards: Shards
    versions: Sequence[Version] = ()
    skip: int = 0
    count: int | None = None

    @property
    def size_bytes(self) -> int:
        # Of what is compressed some indexes do not say it; some servers do not. Behind them is the index.
        told = zip(self.shards.checks.size_bytes.tolist(), self.versions, strict=False)
        return sum(size or version.size_bytes or 0 for size, version in told)

    @cached_property
    def stops(self) -> list[int]:
        """Number behind the last sample of each shard."""
        return [*accumulate(self.shards.checks.samples.tolist())]

    def part(self, first: int, stop: int) -> ShardMaterial:
        begin, end = self._shard_of(first), self._shard_of(stop - 1) + 1
        shards = replace(
            self.shards,
            urls=[*self.shards.urls[begin:end]],
            formats=[*self.shards.formats[begin:end]],
            checks=self.shards.checks.take(np.arange(begin, end)),
        )
        skip = first - (self.stops[begin - 1] if begin else 0)
        return ShardMaterial(shards, skip=skip, count=stop - first)

    def in_vain(self, first: int) -> int:
        shard = self._shard_of(first)
        inside = first - (self.stops[shard - 1] if shard else 0)
        if formats[self.shards.formats[shard]].reopens:
            return 0  # a part of a row group at most
        expected = self.shards.checks[shard]
        assert expected is not None, "all are counted"
        offsets = expected.offsets or ()
        place = bisect_right(offsets, inside, key=lambda offset: offset[0])
        return inside - (offsets[place - 1][0] if place else 0)

    def prove(self, read: Iterable[tuple[int, int]]) -> None:
        shards = self.shards
        # What is read in one go, from the first byte to the last, was held against its digest by who read it.
        # Of formats with a plan alone nothing is.
        starts = [0, *self.stops[:-1]]
        proved = {
            number
            for first, stop in read
            for number in range(bisect_left(starts, first), bisect_right(self.stops, stop))
            if formats[shards.formats[number]].decoder is not None
        }
        owed = {
            url: entry
            for number, (url, entry) in enumerate(zip(shards.urls, shards.checks, strict=True))
            if number not in proved and entry is not None and entry.digests
        }
        with open_survey(shards, _MOST_PROVED) as (survey, threads):
            for _ in threads.map(survey.prove, owed.keys(), owed.values()):
                pass  # it raises what one of them raised
        if versions_of(shards) != [*self.versions]:
            raise StoreError(
                "a source was changed while it was being converted: call convert again with overwrite"
            )

    def describe(self) -> Mapping[str, Any]:
        schema, delimiter = self.shards.schema, self.shards.delimiter
        described = {"made_by": "convert", **({} if schema is None else schema.describe())}
        return described if delimiter is None else {**described, "delimiter": delimiter}

    def samples(self) -> Generator[tuple[dict[str, Any], object], None, None]:
        # Whether shards may have changed since they were counted is for their lengths and digests to say,
        # which are among the checks as far as an index told them.
        shards = self.shards
        left = self.stops[-1] - self.skip if self.count is None else self.count
        with Engine() as engine:
            budget = Budget(_READ_BYTES, [0])
            lane = Lane(Topology(), engine, budget, _READ_BYTES)
            last = self.stops[-2] if len(self.stops) > 1 else 0
            numbers = np.arange(len(shards.urls))
            pieces = Pieces(numbers, shards.checks.samples, self.skip, self.skip + left - last)
            with closing(shards.read(pieces, lane)) as blocks:
                for block in blocks:
                    wanted = min(left, len(block))
                    numbered = shards.formats[block.trail.place(0).number] == "text"
                    for index, sample in enumerate(block.rows()[:wanted]):
                        if numbered:  # its key is the number of its line, which says nothing elsewhere
                            sample = {"text": sample["text"]}
                        yield sample, _Place(block, index)
                    left -= wanted

    def look_from(self) -> Iterator[ShardMaterial]:
        """Parts to look at the first samples of: some shards, from all over the recipe."""
        counts = self.shards.checks.samples
        full = np.flatnonzero(counts)
        for shard in full[:: max(-(-len(full) // 8), 1)].tolist():
            stop = self.stops[shard]
            yield self.part(stop - int(counts[shard]), stop)

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
