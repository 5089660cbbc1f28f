"""Read shards, several at a time, to measure them, verify them against an index, or list their lengths."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TypeVar

from ..blocks import Block, OffsetTrail
from ..errors import FormatError, StoreError
from ..flow.budget import claim_alone
from ..flow.channel import Channel, EndOfChannel
from ..flow.engine import Engine
from ..flow.process import usable_processors
from ..formats import compression_named, format_of, may_be_empty, open_decoder, open_plan
from ..formats.decoder import Decoder, Selection
from ..formats.digest import extra_of, open_digest
from ..formats.tar_layout import check_end, check_member, idx_beside, parse_idx
from ..observe.statistics import NetworkCounts
from ..quantity import as_count
from ..stores.reading import ShardChunks, read_shards
from ..stores.router import Stores
from ..stores.store import Access
from ..stores.urls import INDEX_NAME, local_path, redact, scheme_of, suffix_path
from ..types import Buffer, Layout, Planning, Span
from .expectations import Expectations, Expected
from .index_check import INDEX, FolderIndex, ShardCheck
from .index_entries import MAX_INDEX_BYTES, OffsetPicker
from .index_lookup import read_entries
from .names import NamedShards, is_shard_name

# Eight large parts in flight: each thread reads one shard at a time, as fast as possible.
_READ_BYTES = 64 << 20

_DIGESTS = ("sha256", "crc32c")

# Samples are counted, and their images are not decoded.
_COUNTED = Selection(decode=False)

# Length of a member's header.
_HEADER_BYTES = 512


@dataclass(frozen=True)
class Survey:
    """Reads shards from any store, one at a time for each thread that calls it.

    Args:
        engine: Where the reading runs.
        stores: The clients. The caller closes them.
        index: The index of the shards.
        delimiter: What separates the fields of CSV; None for the default.
    """

    engine: Engine
    stores: Stores
    index: FolderIndex
    delimiter: str | None

    def measure(
        self, url: str, format_name: str, algorithms: Iterable[str] = _DIGESTS
    ) -> tuple[Expected, str | None]:
        """Read a shard to its end, count its samples, and check it against the digests of its store.

        Args:
            url: The shard.
            format_name: Its format.
            algorithms: Digests to compute, if available; at most one besides those of our indexes.

        Returns:
            What it is, and the name of this version in its store; None if it has none.

        Raises:
            StoreError: It cannot be read.
            FormatError: It does not have its format.
        """
        # A format with a plan is read a second time, as a loader reads it.
        plan = self._open_plan(format_name)
        decoder = self._open_decoder(url, format_name) if plan is None else None
        found, etag = self._pass_through(url, decoder, algorithms)
        if plan is not None:
            found = replace(found, samples=self._count(url, plan), offsets=())
        return found, etag

    def measure_by_idx(self, url: str) -> Expected:
        """What the ``.idx`` beside a tar says of it, checked against some of its members; no digests.

        Raises:
            StoreError: One of the two files cannot be read.
            FormatError: The ``.idx`` is not sound, or is of another shard.
        """
        beside = idx_beside(url)
        size_bytes, _ = self.version(url)
        if size_bytes is None:
            raise StoreError("the server does not send the length of the shard", shard=redact(url))
        with in_shard(redact(beside)):
            ends, members = parse_idx(self.read(beside), size_bytes)
        with in_shard(redact(url)):
            for member in members:
                check_member(member, self.read(url, Span(member.start - _HEADER_BYTES, member.start)))
            check_end(self.read(url, Span(ends[-1], size_bytes)), ends[-1])
        offsets = OffsetPicker()
        offsets.add_run(0, ends)
        return Expected(size_bytes, len(ends), offsets=offsets.picked(len(ends)))

    def count(self, url: str, format_name: str, promised: Expected | None = None) -> Expected:
        """Count the samples of a shard, without digests. A number that its format stores is enough.

        Args:
            url: The shard.
            format_name: Its format.
            promised: What an index says of it. A shard that is read as a whole is checked against it.

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
        """The names of classes that a shard stores for its columns of labels, by column.

        Raises:
            StoreError, FormatError: See ``measure``.
        """
        plan = self._open_plan(format_name)
        return {} if plan is None else self._look_at(url, plan)[0].class_names

    def _look_at(self, url: str, plan: Planning) -> tuple[Layout, int]:
        """The layout that the plan of a shard finds, and the length of the shard."""
        with self._reading(url, plan) as chunks:
            with suppress(EndOfChannel):  # it has no rows
                chunks.receive()
            assert chunks.shard.layout is not None and chunks.shard.length is not None, "it has a plan"
            return chunks.shard.layout, chunks.shard.length

    def prove(self, url: str, promised: Expected) -> None:
        """Check all bytes of a shard against an index.

        Raises:
            StoreError: It cannot be read, or its length or a digest differs.
        """
        self._pass_through(url, None, (), promised)

    def version(self, url: str) -> tuple[int | None, str | None]:
        """The length of a shard, and the name of this version in its store; None where a server sends none.

        Raises:
            StoreError: It cannot be read.
        """
        out = Channel[tuple[int | None, str | None]](1)
        self.engine.submit(partial(self._ask_version, url, out), out)
        return out.receive()

    def _open_plan(self, format_name: str) -> Planning | None:
        return open_plan(format_name, selection=_COUNTED, schema=self.index.schema)

    def _open_decoder(self, url: str, format_name: str) -> Decoder:
        return open_decoder(
            format_name,
            selection=_COUNTED,
            schema=self.index.schema,
            compression=compression_named(suffix_path(url)),
            delimiter=self.delimiter,
        )

    async def _ask_version(self, url: str, out: Channel[tuple[int | None, str | None]]) -> None:
        async with self.stores.read(url, 0, 1) as body:
            await out.send_async((body.total, body.etag))

    def _pass_through(
        self, url: str, decoder: Decoder | None, algorithms: Iterable[str], promised: Expected | None = None
    ) -> tuple[Expected, str | None]:
        """Read a shard from its first byte to its last, all of one version."""
        digests = {name: digest for name in algorithms if (digest := open_digest(name))}
        check = ShardCheck(redact(url), promised, counts=decoder is not None, index=self.index)
        size = samples = 0
        offsets = OffsetPicker()
        with self._reading(url) as chunks:
            for chunk in chunks:
                check.add(chunks.shard, chunk)
                size += len(chunk)
                for digest in digests.values():
                    digest.update(chunk)
                if decoder is not None:
                    samples += sum(_seen(check, block, offsets) for block in decoder.feed(chunk))
            check.end(chunks.shard)
            if decoder is not None:
                samples += sum(_seen(check, block, offsets) for block in decoder.finish())
            check.finish()
        found = {name: digest.digest() for name, digest in digests.items()}
        sha256, crc32c = (found.pop(name, None) for name in _DIGESTS)
        other = next(iter(found.items()), None)
        return Expected(size, samples, sha256, crc32c, offsets.picked(samples), other), chunks.shard.etag

    def _count(self, url: str, plan: Planning) -> int:
        """The number of samples of a shard that is read with a plan."""
        samples = 0
        decoder: Decoder | None = None
        with self._reading(url, plan) as chunks:
            for chunk in chunks:
                assert chunks.shard.layout is not None, "it has a plan"
                decoder = decoder or chunks.shard.layout.open_decoder()
                samples += sum(map(len, decoder.feed(chunk)))
            return samples if decoder is None else samples + sum(map(len, decoder.finish()))

    def read(self, url: str, wanted: int | Span = 0) -> bytes:
        """A small object, or a part of one; of what is larger than any index only the beginning.

        Args:
            url: The object.
            wanted: The offset to begin at, or the bytes to read.

        Raises:
            StoreError: It cannot be read.
        """
        pieces: list[Buffer] = []
        with self._reading(url, wanted) as chunks:
            for chunk in chunks:
                pieces.append(chunk)
                if sum(map(len, pieces)) > MAX_INDEX_BYTES:
                    break
        return b"".join(pieces)

    @contextmanager
    def _reading(self, url: str, wanted: int | Span | Planning = 0) -> Iterator[ShardChunks]:
        """The bytes of one shard as they come; leaving ends its requests."""
        out = Channel[ShardChunks](1)
        work = partial(read_shards, self.stores, [(url, wanted)], claim_alone(_READ_BYTES), out)
        self.engine.submit(work, out)
        with closing(out), closing(out.receive()) as chunks, in_shard(redact(url)):
            yield chunks


def _seen(check: ShardCheck, block: Block, offsets: OffsetPicker) -> int:
    """Check a block and count its samples; adds their ends to the offsets where the format allows it."""
    check.count(block)
    trail = block.trail
    if isinstance(trail, OffsetTrail) and trail.ends is not None:
        offsets.add_run(trail.first, trail.ends)
    return len(block)


@contextmanager
def in_shard(shown: str) -> Iterator[None]:
    """Set the shard of a FormatError."""
    try:
        yield
    except FormatError as error:
        error.shard = shown
        raise


def differences(expected: Expected, found: Expected, index: FolderIndex = INDEX) -> list[str]:
    """Differences of a shard from its index, with both values; of digests those that both have."""
    wrong = []
    if expected.size_bytes is not None and found.size_bytes not in index.lengths_of(expected):
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


# Shards that are read ahead of the one whose result is next: a large one does not hold up the others.
_MOST_AHEAD = 64

# Requests for lengths at a time. Each takes a round trip and next to no bytes; stores answer thousands a
# second.
_MOST_ASKED = 32

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@contextmanager
def open_survey(
    access: Access, at_once: int, index: FolderIndex = INDEX, delimiter: str | None = None
) -> Iterator[tuple[Survey, ThreadPoolExecutor]]:
    """A survey, and threads that read with it.

    Args:
        access: How shards are reached.
        at_once: Number of threads. Each reads one shard at a time.
        index: As for ``Survey``.
        delimiter: As for ``Survey``.
    """
    # The threads first, so that the engine's end ends what they wait for.
    threads = ThreadPoolExecutor(at_once, thread_name_prefix="asyncloader-survey")
    try:
        # To read one small object, as before workers are started, nothing is to be left behind.
        with Engine(with_uvloop=at_once > 1) as engine:
            stores = Stores(engine.resources, access, NetworkCounts())
            yield Survey(engine, stores, index, delimiter), threads
    finally:
        threads.shutdown(cancel_futures=True)


def readers(concurrency: int | None) -> int:
    """How many shards to read at a time: by default one for each processor, up to 8.

    Raises:
        ValueError: ``concurrency`` is not a whole number, or below 1.
    """
    return min(usable_processors(), 8) if concurrency is None else as_count("concurrency", concurrency)


def in_order(
    threads: ThreadPoolExecutor, work: Callable[[_Item], _Result], items: Iterable[_Item]
) -> Iterator[_Result]:
    """The results of ``work`` for each item, in order. Unlike ``map`` of the threads it is lazy."""
    running: deque[Future[_Result]] = deque()
    for item in items:
        running.append(threads.submit(work, item))
        if len(running) >= _MOST_AHEAD:
            yield running.popleft().result()
    while running:
        yield running.popleft().result()


@dataclass(frozen=True)
class Verified:
    """The result for one shard.

    Attributes:
        shard: URL or path of the shard, without query and user info.
        samples: How many samples it has; None if unknown.
        size_bytes: Its length; None if unknown.
        wrong: Differences from the index, each with both values; empty if there is none.
    """

    shard: str
    samples: int | None
    size_bytes: int | None
    wrong: tuple[str, ...]


@dataclass
class Verifying:
    """Shards that are being verified; see ``open_verifying``.

    Attributes:
        index: Where it is, without query and user info.
        count: How many shards there are, including those that are listed and missing.
        each: The results, in order; can be iterated once.
        teller: What kind of index it is, for messages.
    """

    index: str
    count: int
    each: Iterator[Verified]
    teller: str


@contextmanager
def open_verifying(
    named: NamedShards, index: str | os.PathLike[str] | None = None, concurrency: int | None = None
) -> Iterator[Verifying]:
    """Read shards and compare each with their index. Arguments and errors are those of ``verify_shards``."""
    found, formats = named.find_with_formats()
    shards = found.names
    place = index_beside(shards, "--index or index=") if index is None else os.fspath(index)
    entries = read_entries(place, named.access.options)
    is_shard = partial(is_shard_name, format=named.format)
    gone = (missing for match in found.matches for missing in entries.missing(match, is_shard))
    missing = [
        Verified(shard, None, None, ("missing, and listed in the index",)) for shard in dict.fromkeys(gone)
    ]
    with open_survey(named.access, readers(concurrency), delimiter=named.delimiter) as (survey, threads):
        each = _verified(survey, threads, shards, formats, entries.of(shards), INDEX)
        yield Verifying(redact(place), len(missing) + len(shards), chain(missing, each), INDEX.name)


@contextmanager
def open_verifying_by_index(
    urls: Sequence[str],
    formats: Sequence[str],
    promised: Expectations,
    index: FolderIndex,
    access: Access,
    concurrency: int | None = None,
) -> Iterator[Verifying]:
    """Read the shards of a folder, and compare each with the index that another library has written.

    Args:
        urls: In the order of the index, which names them all.
        formats: The format of each.
        promised: What the index says of each.
        index: Where it is, and what else it says.
        access: How the shards are reached.
        concurrency: How many shards are read at a time; as for ``build_index``.

    Raises:
        ValueError: ``concurrency`` is below 1.
    """
    with open_survey(access, readers(concurrency), index) as (survey, threads):
        each = _verified(survey, threads, urls, formats, promised, index)
        yield Verifying(redact(index.url), len(urls), each, index.name)


def _verified(
    survey: Survey,
    threads: ThreadPoolExecutor,
    urls: Sequence[str],
    formats: Sequence[str],
    promised: Expectations,
    index: FolderIndex,
) -> Iterator[Verified]:
    def verify(number: int) -> Verified:
        url, expected = urls[number], promised[number]
        # No digests are computed besides those of the index.
        algorithms = () if expected is None else expected.digests
        try:
            found, _ = survey.measure(url, formats[number], algorithms)
        except (StoreError, FormatError) as error:
            return Verified(redact(url), None, None, (str(error),))
        wrong = ["no entry in the index"] if expected is None else differences(expected, found, index)
        return Verified(redact(url), found.samples, found.size_bytes, tuple(wrong))

    return in_order(threads, verify, range(len(urls)))


def index_beside(urls: Sequence[str], option: str) -> str:
    """Where the index lies beside shards of one folder.

    Args:
        urls: The shards.
        option: How a caller names another place, for the message.

    Raises:
        ValueError: They are in several folders, or have signed URLs.
    """
    folders = {_folder_of(url) for url in urls}
    folder = folders.pop()
    if folders or folder is None:
        raise ValueError(
            f"the shards are not of one folder or prefix: pass the place of their index as {option}"
        )
    return os.path.join(folder, INDEX_NAME)


def _folder_of(url: str) -> str | None:
    scheme = scheme_of(url)
    if scheme.is_local:
        return os.path.dirname(local_path(url))
    return None if scheme.is_web and "?" in url else url.rpartition("/")[0]


@dataclass(frozen=True)
class ListedShard:
    """A shard in a list.

    Attributes:
        url: Its URL or path, without query and user info.
        format: As named, or by its suffix; None if neither shows it.
        size_bytes: Its length; None if it is unavailable, or the store does not report it.
        error: Why it is unavailable, or that it is empty where its format does not allow it; else None.
    """

    url: str
    format: str | None
    size_bytes: int | None
    error: str | None


@dataclass
class ShardList:
    """Shards with their lengths; see ``open_shard_list``.

    Attributes:
        count: How many there are.
        shards: Each of them, in order; can be iterated once.
    """

    count: int
    shards: Iterator[ListedShard]


@contextmanager
def open_shard_list(named: NamedShards) -> Iterator[ShardList]:
    """Find shards and their lengths. Lengths that a listing has are not requested again.

    Raises:
        TypeError: ``urls`` holds something else than strings and paths.
        ValueError: No shard, or names that do not fit.
        StoreError: A server does not list its shards. An unavailable shard has an error in its result.
    """
    found = named.find()
    known: dict[str, int] = {}
    for match in found.matches:
        known.update(zip(match.urls, match.sizes or (), strict=False))
    formats = (named.format or _format_by_suffix(url) for url in found.names)
    with open_lengths(found.names, formats, named.access, known) as listed:
        yield listed


@contextmanager
def open_lengths(
    urls: Sequence[str], formats: Iterable[str | None], access: Access, known: Mapping[str, int] | None = None
) -> Iterator[ShardList]:
    """Find the lengths of shards.

    Args:
        urls: In order.
        formats: The format of each; None where it is not known.
        access: How they are reached.
        known: Lengths that are known already, by URL.
    """
    sizes = known or {}
    with open_survey(access, _MOST_ASKED) as (survey, threads):

        def ask(url: str) -> int | str | None:
            try:
                return survey.version(url)[0]
            except StoreError as error:
                return str(error.args[0])

        asked = in_order(threads, ask, (url for url in urls if url not in sizes))
        yield ShardList(
            len(urls),
            (
                _listed(url, format, sizes[url] if url in sizes else next(asked))
                for url, format in zip(urls, formats, strict=True)
            ),
        )


def _listed(url: str, format: str | None, length: int | str | None) -> ListedShard:
    error = length if isinstance(length, str) else None
    if length == 0 and format is not None and not may_be_empty(format, suffix_path(url)):
        error = f"it has 0 bytes, which is no whole {compression_named(suffix_path(url)) or format}"
    return ListedShard(redact(url), format, None if isinstance(length, str) else length, error)


def _format_by_suffix(url: str) -> str | None:
    try:
        return format_of(suffix_path(url))
    except ValueError:
        return None
