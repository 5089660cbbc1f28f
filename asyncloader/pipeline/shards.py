"""The source of streaming datasets: shards by URL, read ahead and decoded in the lane's order."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from time import perf_counter
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ..blocks import Block, Columns, Place, Rows, bytes_of
from ..cache.fetch import Cache
from ..cache.store import CachedStore
from ..errors import FormatError, StoreError
from ..flow.budget import Reservation
from ..flow.channel import Channel, Producer
from ..flow.engine import Work
from ..formats import compression_named, formats, open_decoder, open_plan
from ..formats.decoder import EVERYTHING, Decoder, FooterCache, Selection
from ..observe.stopwatch import DECODE, STORE
from ..plan.lanes import Deal, UnknownCount
from ..plan.pieces import Cut, Dealing, Piece, Pieces, cut_piece
from ..shards.expectations import Expectations, Expected, Known
from ..shards.index_check import INDEX, FolderIndex, ShardCheck
from ..shards.index_survey import Survey, in_shard, open_survey
from ..stores.lookahead import Wanted
from ..stores.names import names_digest, places_digest
from ..stores.reading import ShardChunks, read_shards
from ..stores.router import Stores
from ..stores.store import Access
from ..stores.urls import redact, suffix_path
from ..types import Position, Span
from .lane import Blocks, Lane
from .skips import StepSkips

# --- from the bytes of a shard to its blocks ---

# For blocks that are decoded ahead, and the one being decoded: one large block, or about ten of token ids.
_AHEAD_BYTES = 8 << 20

# Not more than this part of a lane's budget: memory helps more for reading ahead.
_MOST_SHARE = 1 / 8


def decoded(
    open_decoder: Callable[[], Decoder], chunks: ShardChunks, check: ShardCheck, close: bytes = b""
) -> Blocks:
    """The blocks of a shard, from the first sample that is wanted on.

    Args:
        open_decoder: Called when the first chunk has come.
        chunks: The bytes that are read of it.
        check: Checks them.
        close: What to decode after them.
    """
    decoder: Decoder | None = None
    for chunk in chunks:
        check.add(chunks.shard, chunk)
        decoder = decoder or open_decoder()
        yield from decoder.feed(chunk)
        del chunk  # its memory may be needed for the next one
    check.end(chunks.shard)
    decoder = decoder or open_decoder()
    if close:
        yield from decoder.feed(close)
    yield from decoder.finish()


def up_to(stop: int, blocks: Blocks) -> Blocks:
    """The blocks up to a sample of their shard; closes ``blocks`` there."""
    with closing(blocks):
        for block in blocks:
            if block.trail.place(len(block) - 1).sample < stop - 1:
                yield block
                continue
            wanted = bisect_left(range(len(block)), stop, key=lambda index: block.trail.place(index).sample)
            if wanted:
                yield block.part(0, wanted)
            return


def add_url(block: Block, url: str) -> None:
    """Add the shard's URL to samples that have a key; other JSON objects stay as the user wrote them."""
    if isinstance(block, Rows):  # columns have no keys
        for sample in block.samples:  # check each: where a block ends depends on how the bytes came
            if "__key__" in sample:
                sample["__url__"] = url


@dataclass(slots=True)
class PieceReading:
    """Where a lane is in its pieces.

    Attributes:
        attempts: Counts what is skipped; None if every error is raised.
        nth: Number of the piece.
        cut: What is read of its shard.
        place: Where the next sample is; kept up to date only if errors are skipped.
        check: Of the shard.
    """

    attempts: StepSkips | None
    nth: int
    cut: Cut = field(init=False)
    place: Place = field(init=False)
    check: ShardCheck = field(init=False)

    def entries(self, block: Block) -> dict[str, Any]:
        """The entries of the piece in positions of the next block."""
        if self.attempts is None:
            return {"shard": self.nth}
        self.attempts.good(len(block))
        self.place = self.place._replace(sample=block.trail.place(len(block) - 1).sample + 1)
        return {"shard": self.nth, **self.attempts.entries()}

    def pass_over(self, error: FormatError) -> None:
        """Skip a sample that cannot be decoded, if it is one of the piece."""
        assert self.attempts is not None and error.sample is not None
        if self.cut.first <= error.sample and (self.cut.stop is None or error.sample < self.cut.stop):
            self.check.passed_over()
            error.shard = self.place.shard
            self.attempts.bad("sample", error, self.place._replace(sample=error.sample), "reading")


def decode_ahead(blocks: Blocks, claim: Reservation, wake: Callable[[], None]) -> Blocks:
    """The same blocks, decoded on their own thread while those before become batches.

    If memory is short, they are decoded when they are needed. The thread helps only with decoders that
    release the GIL, as pyarrow's do: others would only contend with the thread that they should relieve.

    Args:
        blocks: Pulled and closed on a thread.
        claim: The memory to take from, used for nothing else; closed at the end.
        wake: Makes ``blocks`` end soon if it waits; called from another thread, before ``blocks`` is closed.
    """
    if not claim.set_aside(_AHEAD_BYTES, _MOST_SHARE):
        claim.close()
        with closing(blocks):
            yield from blocks
        return
    producer = Producer(lambda: blocks, _AHEAD_BYTES, wake, "asyncloader-decoder", _held_bytes)
    with closing(claim), closing(producer):
        producer.start()
        yield from producer


def _held_bytes(block: Block) -> int:
    """The bytes that a block holds."""
    return bytes_of(dict(block.fields)) if isinstance(block, Columns) else 0


def store_of(access: Access, lane: Lane, *, shares: bool) -> Stores | CachedStore:
    """The store of a lane, over one set of clients and one cache for all lanes of an engine.

    Args:
        access: How shards are reached.
        lane: Whose.
        shares: Whether several lanes read parts of one shard.
    """
    services, engine = lane.services, lane.services.engine
    if id(access) not in services.clients:
        made = Stores(engine.resources, access, services.network, services.recorder)
        is_cached = access.cache is not None
        cache = Cache(access, engine, services.network, lane.budget.budget, shares) if is_cached else None
        services.clients[id(access)] = made, cache
    stores, cache = services.clients[id(access)]
    return stores if cache is None else CachedStore(stores, cache, lane.topology.lane)


Unit: TypeAlias = Literal["samples", "bytes"]
"""What shards are weighed in."""


@dataclass(frozen=True)
class Shards:
    """Samples of many shards.

    Args:
        urls: Every shard of the dataset, in the given order.
        formats: The format of each.
        access: How they are reached.
        checks: What an index expects of each; empty without one.
        selection: Which columns and rows are wanted, of formats that have columns.
        footers: Of shards that were read in an epoch before.
        sizes: Length of each in bytes, ``(shards,) int64``; None if one is unknown. Those of an index are in
            ``checks``.
        cuts: Whether lanes may be cut inside of shards, if an index is known.
        weighs: Whether whole shards are dealt by size, if the sizes are known.
        index: The kind of index that ``checks`` comes from: ours, or that of a folder of another library.
        delimiter: What separates the fields of CSV; None for the usual one.
        lacking: Why no index says how many samples are in each, and what to do, if that is known.
    """

    urls: Sequence[str]
    formats: Sequence[str]
    access: Access = field(default_factory=Access)
    checks: Expectations = field(default_factory=Expectations.of)
    selection: Selection = EVERYTHING
    footers: FooterCache = field(default_factory=FooterCache, compare=False)
    sizes: npt.NDArray[np.int64] | None = field(default=None, compare=False)
    cuts: bool = True
    weighs: bool = True
    index: FolderIndex = INDEX
    delimiter: str | None = None
    lacking: str = field(default="", compare=False)

    def __repr__(self) -> str:
        shown = [" + ".join(f"{count} {name}" for name, count in Counter(self.formats).most_common())]
        shown += [f"first={redact(url)!r}" for url in self.urls[:1]]
        if known := self.checks.count_of():
            shown.append(f"in_index={known}")
        shown += [f"{name}={value!r}" for name, value in self._described_how().items()]
        return f"Shards({', '.join(shown)})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_dealing"}

    @property
    def schema(self) -> Any:
        """The types of their samples, if an index has them and their format needs them; otherwise None."""
        return self.index.schema

    def whole(self) -> Shards:
        """The same, with whole shards dealt to the lanes in turn, whatever is known of them."""
        return replace(self, cuts=False, weighs=False)

    def dealt_as(self, described: Mapping[str, Any]) -> Shards:
        """The same, dealt as in a saved state: in turn, if the state does not say how."""
        return self if {"dealt", "sizes_sha256"} & described.keys() else replace(self, weighs=False)

    def open(self, start: Position, lane: Lane) -> Blocks:
        """The samples of the lane's pieces; a position has the piece as ``shard``, and the place in it.

        ``shard`` counts the lane's pieces; each piece is of another shard.
        """
        mine, inside = self._pieces_of(lane.deal), lane.saved(start)
        reading = PieceReading(lane.attempts(start), inside.get("shard", 0))
        read = self._read if reading.attempts is None else self._read_what_can_be
        return read(mine, inside, lane, reading)

    def open_survey(self, at_once: int) -> AbstractContextManager[tuple[Survey, ThreadPoolExecutor]]:
        """A survey of these shards, and as many threads as shards should be looked at at a time."""
        return open_survey(self.access, at_once, self.index, self.delimiter)

    def read(self, pieces: Pieces, lane: Lane) -> Blocks:
        """The samples of these pieces. If an index has their offsets, no byte after them is requested."""
        return self._read(pieces, {}, lane, PieceReading(None, 0))

    def _read_what_can_be(
        self, mine: Pieces, inside: Mapping[str, Any], lane: Lane, reading: PieceReading
    ) -> Blocks:
        """The samples from the piece on that ``reading`` is at, without those that cannot be read."""
        while reading.nth < len(mine):
            try:
                yield from self._read(mine, inside, lane, reading)
                return
            except (FormatError, StoreError) as error:
                assert reading.attempts is not None
                reading.attempts.bad("shard", error, reading.place, "reading")
                reading.nth, inside = reading.nth + 1, {}

    def _read(self, mine: Pieces, inside: Mapping[str, Any], lane: Lane, reading: PieceReading) -> Blocks:
        """The samples from the piece on that ``reading`` is at, up to the first that cannot be read."""
        first = reading.nth
        if first < len(mine) and self._cut(mine[first], inside) is None:
            first, inside = first + 1, {}

        def cuts() -> Iterator[tuple[int, int, Cut]]:
            # Made one at a time: a lane may have a million shards.
            for nth in range(first, len(mine)):
                cut = self._cut(mine[nth], inside if nth == first else {})
                assert cut is not None, "only a position can be at the end of a piece"
                yield nth, mine[nth].shard, cut

        out = Channel[ShardChunks](1)  # one shard is decoded while the next one's bytes gather
        store = store_of(self.access, lane, shares=self.is_indexed)
        work = partial(
            read_shards,
            store,
            (self._wanted(shard, cut, store) for _, shard, cut in cuts()),
            lane.budget.claim(),
            out,
            lane.services.recorder,
        )
        # Rows are made with the GIL held, so a thread for them would only contend with the decoder.
        # Skipped samples are counted as they come, on one thread.
        if lane.columns and self._decodes_without_lock and reading.attempts is None:
            helped = replace(lane, stopwatch=lane.stopwatch.helper())
            blocks = helped.stopwatch.timed(DECODE, self._blocks_of(cuts(), work, out, helped, reading))
            return decode_ahead(blocks, lane.budget.claim(), out.close)
        return self._blocks_of(cuts(), work, out, lane, reading)

    def _blocks_of(
        self,
        cuts: Iterator[tuple[int, int, Cut]],
        work: Work,
        shards: Channel[ShardChunks],
        lane: Lane,
        reading: PieceReading,
    ) -> Blocks:
        """The blocks of these pieces, whose bytes ``work`` sends to ``shards``; closes that."""
        counts = self.selection.filters is None
        lane.services.engine.submit(work, shards)
        with closing(shards):
            for nth, shard, cut in cuts:
                url = redact(self.urls[shard])
                reading.nth, reading.cut = nth, cut
                reading.place = Place(url, cut.first, shard, lane.repetition)
                reading.check = check = ShardCheck(
                    url, self._check(shard), cut, counts=counts, index=self.index
                )
                with closing(self._next_chunks(shards, lane)) as chunks, in_shard(url):
                    open_decoder = partial(self._open_decoder, shard, chunks, lane.columns, reading)
                    close = b"" if cut.stop_byte is None else formats[self.formats[shard]].close
                    blocks = decoded(open_decoder, chunks, check, close)
                    for block in blocks if cut.stop is None else up_to(cut.stop, blocks):
                        check.count(block)
                        add_url(block, url)
                        entries = reading.entries(block)
                        trail = block.trail.within(url, shard, lane.repetition, lane.component)
                        block.trail = trail.with_entry(lane.stage, entries)
                        yield block
                    check.finish()
                if check.is_empty_unpromised:
                    lane.services.empty_shards.append(url)

    def _next_chunks(self, shards: Channel[ShardChunks], lane: Lane) -> ShardChunks:
        """The bytes of the next shard; closing them stops its requests."""
        began_s = perf_counter()
        try:
            chunks = shards.receive()
        finally:
            lane.stopwatch.waited(STORE, began_s)
        chunks.stopwatch = lane.stopwatch
        return chunks

    stage = DECODE

    @property
    def most_lanes(self) -> int:
        return self._dealing.samples if self.is_indexed else len(self.urls)

    def count_samples(self, deal: Deal) -> list[float]:
        """The samples of each lane, by the index."""
        if self.selection.filters is not None:
            raise UnknownCount("how many rows filters= keeps is not known before they are read")
        if missing := len(self.urls) - self.checks.count_of(Known.SAMPLES):
            raise UnknownCount(
                f"no index says how many samples are in {missing} of the {len(self.urls)} shards; "
                f"{self.lacking or 'asyncloader index makes one'}"
            )
        return self._dealing.count_lanes(deal, self.checks.samples)

    def weigh_lanes(self, deal: Deal, unit: Unit) -> list[float] | None:
        """How much each lane of ``deal`` is dealt, in samples or in bytes of shards.

        Filters and operators are ignored. None if that is not known of every shard.
        """
        if unit == "samples":
            known = self.checks.count_of(Known.SAMPLES) == len(self.urls)
            return self._dealing.count_lanes(deal, self.checks.samples) if known else None
        return None if self._lengths is None else self._dealing.count_lanes(deal, self._lengths)

    @property
    def _lengths(self) -> npt.NDArray[np.int64] | None:
        """The length of each shard in bytes, from the index or the store; None if one is unknown."""
        checks = self.checks
        if checks.count_of() < len(self.urls) or checks.count_of(Known.NO_SIZE):
            return self.sizes
        return checks.size_bytes

    @property
    def _dealt_by(self) -> npt.NDArray[np.int64] | None:
        """The sizes by which whole shards are dealt; None if they are dealt in turn, or cut.

        Not their samples, even if these are known: an index that is added later should change no order.
        """
        return None if self.is_indexed or not self.weighs else self._lengths

    @cached_property
    def is_indexed(self) -> bool:
        """Whether lanes are cut inside of shards: an index has what that needs for every shard."""
        return self.cuts and self.checks.is_indexed

    def _pieces_of(self, deal: Deal) -> Pieces:
        """The pieces of the one lane of ``deal``."""
        return self._dealing.of_lane(deal.lanes[0], deal.lane_count, deal.order_key)

    def places_at(self, entry: Mapping[str, Any], deal: Deal) -> list[Place]:
        mine, nth = self._pieces_of(deal), entry.get("shard", 0)
        if nth >= len(mine):
            return []
        piece = mine[nth]
        sample = entry.get("sample", piece.first)
        return [Place(redact(self.urls[piece.shard]), sample, piece.shard, deal.repetition)]

    def count_unread(self, entry: Mapping[str, Any], deal: Deal) -> int:
        """How many shards the one lane of ``deal`` has not read to the end."""
        nth: int = entry.get("shard", 0)
        return max(len(self._pieces_of(deal)) - nth, 0)

    def describe(self) -> Mapping[str, Any]:
        return dict(self._described)

    @cached_property
    def _described(self) -> Mapping[str, Any]:
        """Computed once, for the first state: the digest of a million names takes a second."""
        described = {"source": "shards", "shards": len(self.urls), "urls_sha256": names_digest(self.urls)}
        if (places := places_digest(self.urls)) is not None:
            described["places_sha256"] = places
        if self.checks:
            described["contents_sha256"] = self.checks.digest()
        if self.is_indexed:
            described["dealt"] = "samples"
        elif self._dealt_by is not None:
            described["sizes_sha256"] = hashlib.sha256(self._dealt_by.astype("<i8").tobytes()).hexdigest()
        if self.schema is not None:
            described.update(self.schema.describe())
        return {**described, **self._described_how()}

    def _described_how(self) -> dict[str, Any]:
        """How they are read, as far as the user gave options for it."""
        described = dict(self.selection.describe())
        return described if self.delimiter is None else {**described, "delimiter": self.delimiter}

    @cached_property
    def _decodes_without_lock(self) -> bool:
        """Whether a package that releases the GIL decodes all shards."""
        return all("filters" in formats[name].options for name in set(self.formats))

    @cached_property
    def _dealing(self) -> Dealing:
        return Dealing(len(self.urls), self.checks.samples if self.is_indexed else None, self._dealt_by)

    def _check(self, shard: int) -> Expected | None:
        return self.checks[shard] if self.checks else None

    def _known_of(self, shard: int) -> dict[str, Any]:
        """Options of plans and decoders alike."""
        unpacked = self.index.unpacked_of(self._check(shard))
        return {"selection": self.selection, "schema": self.schema, "unpacked": unpacked}

    def _cut(self, piece: Piece, inside: Mapping[str, Any]) -> Cut | None:
        """What to read of a shard for a piece of it, from a position on; None if nothing is left of it."""
        check = self._check(piece.shard) if self.is_indexed else None
        if check is None:
            return cut_piece(piece, inside)
        return cut_piece(piece, inside, check.offsets or (), check.samples)

    def _wanted(self, shard: int, cut: Cut, store: Stores | CachedStore) -> Wanted:
        """What to read of a shard."""
        url = self.urls[shard]
        if isinstance(store, CachedStore) and (check := self._check(shard)) is not None:
            store.cache.promise(url, check.sha256)
        plan = open_plan(
            self.formats[shard],
            start_sample=cut.first,
            stop_sample=cut.stop,
            url=url,
            footers=self.footers,
            **self._known_of(shard),
        )
        if plan is not None:
            return url, plan
        return url, cut.byte if cut.stop_byte is None else Span(cut.byte, cut.stop_byte)

    def _open_decoder(self, shard: int, chunks: ShardChunks, columns: bool, reading: PieceReading) -> Decoder:
        """The decoder of what is read of a shard; called when its first chunk has come."""
        cut, pass_over = reading.cut, None if reading.attempts is None else reading.pass_over
        if chunks.shard.layout is None:
            return open_decoder(
                self.formats[shard],
                start_sample=cut.sample,
                start_byte=cut.byte,
                skip=cut.first - cut.sample,
                columns=columns,
                pass_over=pass_over,
                compression=compression_named(suffix_path(self.urls[shard])),
                delimiter=self.delimiter,
                **self._known_of(shard),
            )
        layout = chunks.shard.layout
        options = {"pass_over": pass_over} if layout.passes_over else {}
        decoder: Decoder = layout.open_decoder(**options)
        return decoder


# --- shards that are looked at before any is read for its samples ---


def count_shards(
    shards: Shards,
    known: Mapping[int, Expected],
    report: Callable[[int, Expected], object],
    *,
    at_once: int = 2,
) -> Expectations:
    """Count the samples of each shard, and find where to begin inside of it.

    Args:
        shards: Those whose index has both are not read, except if it says that they are empty: an empty shard
            is never read later, so a wrong entry would not be noticed.
        known: What was found of some before, by number.
        report: Called with what is found of each other shard, in any order, on one thread at a time.
        at_once: How many are read at a time. Two, since decoding mostly holds the GIL; more for formats that
            say how many samples they hold.

    Returns:
        What is known of each shard, by its index and by counting it.

    Raises:
        StoreError, FormatError: A shard cannot be read, or is damaged.
    """
    entries = [*shards.checks] if shards.checks else [None] * len(shards.urls)
    for number, expected in known.items():
        entries[number] = _counted(entries[number], expected)
    missing = [
        number
        for number, entry in enumerate(entries)
        if number not in known and (entry is None or not entry.is_indexed or not entry.samples)
    ]
    with shards.open_survey(at_once) as (survey, threads):

        def count(number: int) -> Expected:
            return survey.count(shards.urls[number], shards.formats[number], entries[number])

        for number, expected in zip(missing, threads.map(count, missing), strict=True):
            entries[number] = _counted(entries[number], expected)
            report(number, expected)
    return Expectations.of(entries)


def _counted(entry: Expected | None, found: Expected) -> Expected:
    """What is known of one shard, by its index and by counting it."""
    return found if entry is None else replace(entry, samples=found.samples, offsets=found.offsets)
