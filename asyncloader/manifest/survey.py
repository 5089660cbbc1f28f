"""Read shards once, and see what a manifest would say of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial

from .._flow.budget import claim_alone
from .._flow.channel import Channel, EndOfChannel
from .._flow.engine import Engine
from ..blocks import Block, OffsetTrail
from ..digest import extra_of, open_digest
from ..errors import FormatError, StoreError
from ..formats import compression_named, open_decoder, open_plan
from ..formats.decoder import Decoder, Selection
from ..formats.tar_layout import check_end, check_member, idx_beside, parse_idx
from ..stores.reading.chunks import ShardChunks
from ..stores.reading.reader import read_shards
from ..stores.router import Stores
from ..stores.urls import redact, suffix_path
from ..types import Buffer, Layout, Planning, Span
from .check import MANIFEST, FolderIndex, ShardCheck, Teller
from .entries import MAX_MANIFEST_BYTES, Expected
from .offsets import OffsetPicker

__all__ = ["Survey", "differences"]

# Eight large parts in flight: shards are read one after another, and each as fast as one may be.
_READ_BYTES = 64 << 20

_DIGESTS = ("sha256", "crc32c")

# Samples are counted, and nobody looks at their images.
_COUNTED = Selection(decode=False)

# Of a member's header.
_HEADER_BYTES = 512


class Survey:
    """Reads shards from wherever they are, one after another.

    Args:
        engine: Where the reading runs.
        stores: The clients; whoever made them closes them.
        index: That of the folder that the shards are in, where another library has written it.
        delimiter: What separates the fields of CSV; None for what is usual.
    """

    def __init__(
        self,
        engine: Engine,
        stores: Stores,
        index: FolderIndex | None = None,
        delimiter: str | None = None,
    ) -> None:
        self._engine = engine
        self._stores = stores
        self._index = index
        self._schema = None if index is None else index.schema
        self._delimiter = delimiter
        self._open_plan = partial(open_plan, selection=_COUNTED, schema=self._schema)

    def measure(
        self, url: str, format_name: str, algorithms: Iterable[str] = _DIGESTS
    ) -> tuple[Expected, str | None]:
        """What ``url`` is: read to its end, its samples counted, held against its store's own digests.

        Args:
            url: The shard.
            format_name: Its format.
            algorithms: Of the digests to compute, as far as they can be; one besides those of a manifest.

        Returns:
            What it is, and what its store calls this version; None if it has no name.

        Raises:
            StoreError: It cannot be read.
            FormatError: It is not of its format.
        """
        # What has a plan is read a second time, as it will be read.
        plan = self._open_plan(format_name)
        decoder = self._open_decoder(url, format_name) if plan is None else None
        found, etag = self._pass_through(url, decoder, algorithms)
        if plan is not None:
            found = replace(found, samples=self._count(url, plan), offsets=())
        return found, etag

    def measure_by_idx(self, url: str) -> Expected:
        """What the ``.idx`` beside a tar says of it, which is held against some of its members; no digests.

        Raises:
            StoreError: One of the two cannot be read.
            FormatError: The index is not sound, or of another shard.
        """
        beside = idx_beside(url)
        size_bytes, _ = self.version(url)
        if size_bytes is None:
            raise StoreError("the server does not tell how long the shard is", shard=redact(url))
        with _in_shard(redact(beside)):
            index = parse_idx(self.read(beside), size_bytes)
        with _in_shard(redact(url)):
            for member in index.looked_at:
                check_member(member, self._bring(url, Span(member.begin - _HEADER_BYTES, member.begin)))
            stop = index.ends[-1]
            check_end(self._bring(url, Span(stop, size_bytes)), stop)
        offsets = OffsetPicker()
        offsets.add_run(0, index.ends)
        return Expected(size_bytes, index.samples, offsets=offsets.picked(index.samples))

    def count(self, url: str, format_name: str, promised: Expected | None = None) -> Expected:
        """The same without digests; of what says itself how many samples it holds, only that is read.

        Args:
            url: The shard.
            format_name: Its format.
            promised: What a manifest says of it; what is read as a whole is held against it.

        Raises:
            StoreError, FormatError: See ``measure``.
        """
        plan = self._open_plan(format_name)
        if plan is None:
            return self._pass_through(url, self._open_decoder(url, format_name), (), promised)[0]
        layout, size_bytes = self._look_at(url, plan)
        samples = layout.samples
        if samples is None:
            again = self._open_plan(format_name)
            assert again is not None
            samples = self._count(url, again)
        return Expected(size_bytes, samples, offsets=())

    def class_names(self, url: str, format_name: str) -> Mapping[str, tuple[str, ...]]:
        """What a shard says of the classes that its columns number, by column.

        Raises:
            StoreError, FormatError: See ``measure``.
        """
        plan = self._open_plan(format_name)
        return {} if plan is None else self._look_at(url, plan)[0].class_names

    def _look_at(self, url: str, plan: Planning) -> tuple[Layout, int]:
        """What the plan of a shard finds out, and the length of the shard."""
        with (
            closing(self._open(url, plan)) as out,
            closing(out.receive()) as chunks,
            _in_shard(redact(url)),
        ):
            with suppress(EndOfChannel):  # it has no rows
                chunks.receive()
            assert chunks.layout is not None and chunks.total is not None, "it has a plan"
            return chunks.layout, chunks.total

    def prove(self, url: str, promised: Expected) -> None:
        """Hold a shard's bytes, all of them, against what a manifest promises.

        Raises:
            StoreError: It cannot be read, or its length or a digest is another.
        """
        self._pass_through(url, None, (), promised)

    def version(self, url: str) -> tuple[int | None, str | None]:
        """The length of a shard as it is now, and what its store calls this version; None as far as not told.

        Raises:
            StoreError: It cannot be read.
        """
        out = Channel[tuple[int | None, str | None]](1)
        self._engine.submit(partial(self._ask_version, url, out), out)
        return out.receive()

    def _open_decoder(self, url: str, format_name: str) -> Decoder:
        return open_decoder(
            format_name,
            selection=_COUNTED,
            schema=self._schema,
            compression=compression_named(suffix_path(url)),
            delimiter=self._delimiter,
        )

    async def _ask_version(self, url: str, out: Channel[tuple[int | None, str | None]]) -> None:
        store = await self._stores.of(url)
        async with store.read(url, 0, 1) as body:
            await out.send_async((body.total, body.etag))

    def _pass_through(
        self, url: str, decoder: Decoder | None, algorithms: Iterable[str], promised: Expected | None = None
    ) -> tuple[Expected, str | None]:
        """Read a shard from its first byte to its last, all of one version."""
        shown = redact(url)
        digests = {name: digest for name in algorithms if (digest := open_digest(name))}
        check = ShardCheck(shown, promised, {}, counts=decoder is not None, index=self._index)
        size = samples = 0
        offsets = OffsetPicker()
        with closing(self._open(url)) as out, closing(out.receive()) as chunks, _in_shard(shown):
            for chunk in check.watch(chunks):
                size += len(chunk)
                for digest in digests.values():
                    digest.update(chunk)
                if decoder is not None:
                    samples += sum(_seen(check.count(block), offsets) for block in decoder.feed(chunk))
            if decoder is not None:
                samples += sum(_seen(check.count(block), offsets) for block in decoder.finish())
            check.finish()
        found = {name: digest.digest() for name, digest in digests.items()}
        sha256, crc32c = (found.pop(name, None) for name in _DIGESTS)
        other = next(iter(found.items()), None)
        return Expected(size, samples, sha256, crc32c, offsets.picked(samples), other), chunks.etag

    def _count(self, url: str, plan: Planning) -> int:
        """The samples of a shard that is read by a plan."""
        samples = 0
        decoder: Decoder | None = None
        with closing(self._open(url, plan)) as out, closing(out.receive()) as chunks, _in_shard(redact(url)):
            for chunk in ShardCheck(redact(url), None, {}).watch(chunks):
                assert chunks.layout is not None, "it has a plan"
                decoder = decoder or chunks.layout.open_decoder()
                samples += sum(map(len, decoder.feed(chunk)))
            return samples if decoder is None else samples + sum(map(len, decoder.finish()))

    def read(self, url: str) -> bytes:
        """A small object as a whole: a manifest, and no more of it than one may have.

        Raises:
            StoreError: It cannot be read.
        """
        return self._bring(url, 0)

    def _bring(self, url: str, wanted: int | Span) -> bytes:
        """Some bytes of an object, at most those of a manifest."""
        pieces: list[Buffer] = []
        with closing(self._open(url, wanted)) as out, closing(out.receive()) as chunks:
            while sum(map(len, pieces)) <= MAX_MANIFEST_BYTES:
                try:
                    pieces.append(chunks.receive())
                except EndOfChannel:
                    break
        return b"".join(pieces)

    def _open(self, url: str, wanted: int | Span | Planning = 0) -> Channel[ShardChunks]:
        out = Channel[ShardChunks](1)
        self._engine.submit(
            partial(read_shards, self._stores, [(url, wanted)], claim_alone(_READ_BYTES), out), out
        )
        return out


def _seen(block: Block, offsets: OffsetPicker) -> int:
    """The samples of a block, at whose ends a decoder may begin if its format can."""
    trail = block.trail
    if isinstance(trail, OffsetTrail) and trail.ends is not None:
        offsets.add_run(trail.first, trail.ends)
    return len(block)


@contextmanager
def _in_shard(shown: str) -> Iterator[None]:
    """Name the shard in what is wrong with its format."""
    try:
        yield
    except FormatError as error:
        error.shard = shown
        raise


def differences(expected: Expected, found: Expected, teller: Teller = MANIFEST) -> list[str]:
    """What of a shard is not as ``teller`` expects it, with both values; digests as far as both are known."""
    wrong = []
    if expected.size_bytes is not None and found.size_bytes not in teller.lengths_of(expected):
        wrong.append(f"size_bytes: expected {expected.size_bytes}, found {found.size_bytes}")
    if expected.samples is not None and found.samples != expected.samples:
        wrong.append(f"samples: expected {expected.samples}, found {found.samples}")
    common = expected.digests.keys() & found.digests.keys()
    if expected.digests and not common:
        extra = extra_of(expected.digests)
        wrong.append(f"{' and '.join(expected.digests)} cannot be computed: pip install asyncloader[{extra}]")
    for algorithm in sorted(common):
        wanted, other = expected.digests[algorithm], found.digests[algorithm]
        if other != wanted:
            wrong.append(f"{algorithm}: expected {wanted.hex()}, found {other.hex()}")
    if odd := {*(expected.offsets or ())} - {*(found.offsets or ())}:
        wrong.append(f"offsets: no sample begins at {', '.join(map(str, sorted(odd)[:3]))}")
    return wrong
