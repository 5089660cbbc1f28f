"""The source of streaming recipes: shards by URL, read ahead and decoded in the lane's order."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from .._flow.channel import Channel
from ..blocks import Block, NestedTrail, Place, Rows, SourceTrail
from ..cache.store import CachedStores
from ..errors import FormatError
from ..formats import open_decoder, open_plan
from ..formats.columnar.selection import EVERYTHING, Selection
from ..formats.decoder import Decoder
from ..manifest.check import ShardCheck
from ..manifest.entries import Expected
from ..ops.op import START, Blocks, Lane
from ..plan.counts import Deal, UnknownCount, lane_counts
from ..plan.lanes import lane_shards
from ..stores.access import Access
from ..stores.names import names_digest
from ..stores.reading.lookahead import Wanted
from ..stores.reading.reader import ShardChunks, StoresByUrl, read_shards
from ..stores.router import Stores
from ..stores.urls import redact
from ..types import Position
from .footers import FooterCache

__all__ = ["Shards"]


@dataclass(frozen=True)
class Shards:
    """Samples of many shards.

    Args:
        urls: Every shard of the dataset, in the given order.
        formats: The format of each.
        access: How they are reached.
        checks: What a manifest expects of each, None for a shard that it does not know; empty without one.
        selection: Which columns and rows are wanted, where the formats have columns.
        footers: Of shards that were read in an epoch before.
    """

    urls: Sequence[str]
    formats: Sequence[str]
    access: Access = field(default_factory=Access)
    checks: tuple[Expected | None, ...] = ()
    selection: Selection = EVERYTHING
    footers: FooterCache = field(default_factory=FooterCache, compare=False)

    def __repr__(self) -> str:
        shown = [" + ".join(f"{count} {name}" for name, count in Counter(self.formats).most_common())]
        shown += [f"first={redact(url)!r}" for url in self.urls[:1]]
        if known := sum(check is not None for check in self.checks):
            shown.append(f"in_manifest={known}")
        shown += [f"{name}={value!r}" for name, value in self.selection.describe().items()]
        return f"Shards({', '.join(shown)})"

    def open(self, start: Position, lane: Lane) -> Blocks:
        """The samples of the lane's shards; a position is ``{"shard", "from": position in it}``."""
        mine = self._lane_shards(lane)
        first: int = start.get("shard", 0)
        inside: Position = start.get("from", {})
        if first >= len(mine):
            return
        out = Channel[ShardChunks](1)  # one shard is decoded while the next one's bytes gather
        work = partial(
            read_shards,
            self._stores(lane),
            # Named as they come up: a lane may have a million shards.
            (
                self._wanted(shard, inside if nth == first else START)
                for nth, shard in enumerate(mine[first:], first)
            ),
            lane.budget.claim(lane.topology.lane),
            out,
        )
        lane.engine.submit(work, out)
        try:
            for nth, shard in enumerate(mine[first:], first):
                url = redact(self.urls[shard])
                for block in self._decode(shard, inside, out.receive(), lane.columns):
                    trail = SourceTrail(block.trail, url, shard, lane.repetition, lane.component)
                    yield block.follow(NestedTrail(trail, {"shard": nth}))
                inside = {}
        finally:
            out.close()

    @property
    def shard_count(self) -> int:
        return len(self.urls)

    def count_samples(self, deal: Deal) -> list[float]:
        """The samples of each lane, by the manifest."""
        if self.selection.filters is not None:
            raise UnknownCount("how many rows filters= keeps is not known before they are read")
        counts = [check.samples for check in self.checks if check is not None and check.samples is not None]
        if missing := len(self.urls) - len(counts):
            raise UnknownCount(
                f"no manifest says how many samples are in {missing} of the {len(self.urls)} shards; "
                "ShardWriter writes one, and python -m asyncloader.manifest makes it of shards that exist"
            )
        return lane_counts(counts, deal)

    def place_at(self, position: Position, deal: Deal) -> Place | None:
        key = None if deal.order_seed is None else deal.draw_key(deal.order_seed)
        mine = lane_shards(len(self.urls), deal.lanes[0], deal.lane_count, key)
        nth: int = position.get("shard", 0)
        if nth >= len(mine):
            return None
        sample = position.get("from", START).get("sample", 0)
        return Place(redact(self.urls[mine[nth]]), sample, mine[nth], deal.repetition)

    def describe(self) -> Mapping[str, Any]:
        return dict(self._described)

    @cached_property
    def _described(self) -> Mapping[str, Any]:
        """Made once, for the first state: a million names take a second."""
        described = {"source": "shards", "shards": len(self.urls), "urls_sha256": names_digest(self.urls)}
        if self.checks:
            described["contents_sha256"] = _digest_of(self.checks)
        return {**described, **self.selection.describe()}

    def _lane_shards(self, lane: Lane) -> list[int]:
        key = None if lane.order_seed is None else lane.draw_key(lane.order_seed)
        return lane_shards(len(self.urls), lane.topology.lane, lane.topology.lanes, key)

    def _stores(self, lane: Lane) -> StoresByUrl:
        """One set of clients for all lanes of an engine."""
        stores: Stores | CachedStores | None = lane.shared.get(id(self.access))
        if stores is None:
            stores = lane.shared[id(self.access)] = self._open_stores(lane)
        return stores.for_lane(lane.topology.lane) if isinstance(stores, CachedStores) else stores

    def _open_stores(self, lane: Lane) -> Stores | CachedStores:
        engine = lane.engine
        stores = Stores(engine.resources, self.access, lane.network)
        if self.access.cache is None:
            return stores
        sha256s = {
            url: check.sha256
            for url, check in zip(self.urls, self.checks, strict=False)
            if check is not None and check.sha256 is not None
        }
        return CachedStores(stores, self.access, self.access.cache, engine.resources, engine.submit, sha256s)

    def _wanted(self, shard: int, start: Position) -> Wanted:
        """What to read of a shard that is opened at a position."""
        url = self.urls[shard]
        plan = open_plan(
            self.formats[shard],
            start_sample=start.get("sample", 0),
            selection=self.selection,
            footers=self.footers.of(url),
        )
        return url, start.get("byte", 0) if plan is None else plan

    def _open_decoder(self, shard: int, start: Position, chunks: ShardChunks, columns: bool) -> Decoder:
        """The decoder of what is read of a shard, which is known when its first chunk has come."""
        if chunks.layout is None:
            sample, byte = start.get("sample", 0), start.get("byte", 0)
            return open_decoder(self.formats[shard], start_sample=sample, start_byte=byte, columns=columns)
        decoder: Decoder = chunks.layout.open_decoder()
        return decoder

    def _decode(self, shard: int, start: Position, chunks: ShardChunks, columns: bool) -> Blocks:
        """The samples of one shard; closes its channel, which stops its requests."""
        url = redact(self.urls[shard])
        expected = self.checks[shard] if self.checks else None
        check = ShardCheck(url, expected, start, counts=self.selection.filters is None)
        decoder: Decoder | None = None
        open_decoder = partial(self._open_decoder, shard, start, chunks, columns)
        try:
            for chunk in check.watch(chunks):
                decoder = decoder or open_decoder()
                for block in decoder.feed(chunk):
                    yield check.count(_with_url(block, url))
            decoder = decoder or open_decoder()
            for block in decoder.finish():
                yield check.count(_with_url(block, url))
            check.finish()
        except FormatError as error:
            error.shard = url
            raise
        finally:
            chunks.close()


def _digest_of(checks: tuple[Expected | None, ...]) -> str:
    """What tells these shards from others of the same names, in a saved state."""
    digest = hashlib.sha256()
    for expected in checks:
        if expected is not None:
            # One of the two: a manifest that gains the other one is of the same shards.
            content = expected.sha256 or expected.crc32c or b""
            digest.update(f"{expected.size_bytes} {content.hex()}".encode())
        digest.update(b"\n")
    return digest.hexdigest()


def _with_url(block: Block, url: str) -> Block:
    """Name the shard in samples that have a key; other JSON objects stay the user's."""
    if isinstance(block, Rows):  # columns have no keys
        for sample in block.samples:  # each for itself: where a block ends depends on how the bytes came
            if "__key__" in sample:
                sample["__url__"] = url
    return block
