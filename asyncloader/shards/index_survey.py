"""Read shards once, several at a time: to see what an index would say of them, or what differs from it."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from threading import Lock
from typing import Any, TypeAlias

from ..blocks import Block, OffsetTrail
from ..errors import FormatError, StoreError
from ..flow.budget import claim_alone
from ..flow.channel import Channel, EndOfChannel
from ..flow.engine import Engine
from ..flow.process import usable_processors
from ..formats import check_delimited, check_format, compression_named, open_decoder, open_plan
from ..formats.decoder import Decoder, Selection
from ..formats.digest import extra_of, open_digest
from ..formats.tar_layout import check_end, check_member, idx_beside, parse_idx
from ..observe.statistics import NetworkCounts
from ..quantity import as_count
from ..stores.expanding import expand_home
from ..stores.reading import ShardChunks, read_shards
from ..stores.router import Stores
from ..stores.store import Access, NetworkPolicy
from ..stores.urls import INDEX_NAME, local_path, redact, scheme_of, suffix_path
from ..types import Buffer, Layout, Planning, Span
from .expectations import Expectations, Expected
from .index_check import INDEX, FolderIndex, ShardCheck, Teller
from .index_entries import MAX_INDEX_BYTES, OffsetPicker, entry_of, parse_entry
from .index_lookup import Entries
from .names import find_shards, formats_of, is_shard_name

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
            algorithms: Of the digests to compute, as far as they can be; one besides those of an index.

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
            promised: What an index says of it; what is read as a whole is held against it.

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
        """Hold a shard's bytes, all of them, against what an index promises.

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
        """A small object as a whole: an index, and no more of it than one may have.

        Raises:
            StoreError: It cannot be read.
        """
        return self._bring(url, 0)

    def _bring(self, url: str, wanted: int | Span) -> bytes:
        """Some bytes of an object, at most those of an index."""
        pieces: list[Buffer] = []
        with closing(self._open(url, wanted)) as out, closing(out.receive()) as chunks:
            while sum(map(len, pieces)) <= MAX_INDEX_BYTES:
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


def differences(expected: Expected, found: Expected, teller: Teller = INDEX) -> list[str]:
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


Measured: TypeAlias = tuple[str, Expected | StoreError | FormatError]
"""A shard with what it is, or why that cannot be told."""

# Shards that are measured before the one whose turn it is to be told: one that is large holds up nobody.
_MOST_AHEAD = 64


class Journal:
    """What was found of shards, a line each, beside the index; used with ``with``.

    Args:
        index: Path of the index.
    """

    def __init__(self, index: str) -> None:
        folder, name = os.path.split(local_path(index))
        self.path = os.path.join(folder, f".{name}.partial")
        self._lock = Lock()
        self._known: dict[str, tuple[Expected, str | None]] = {}
        self._file: Any = None

    def __enter__(self) -> Journal:
        with suppress(FileNotFoundError), open(self.path, "rb") as file:
            for line in file:
                with suppress(ValueError, FormatError):  # a killed run may have left a part of its last line
                    entry = json.loads(line)
                    if line.endswith(b"\n") and isinstance(entry, dict):
                        name, expected = parse_entry(entry)
                        self._known[name] = expected, entry.get("etag")
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def of(self, name: str, version: Callable[[], tuple[int | None, str | None]]) -> Expected | None:
        """What a run before has found of a shard; None if nothing, or if that may be of another version.

        Args:
            name: In the index.
            version: Asks what the shard is now, as ``Survey.version``; called if something was found.
        """
        found, etag = self._known.get(name, (None, None))
        if found is None or etag is None:
            return None
        return found if version() == (found.size_bytes, etag) else None

    def add(self, name: str, found: Expected, etag: str | None) -> None:
        """Keep what was found of a shard, in the version that its store calls ``etag``.

        Where no file can be written nothing is kept: it is the index that the user has to hear of.
        """
        line = json.dumps({**entry_of(name, found), "etag": etag}) + "\n"
        with self._lock, suppress(OSError):
            if self._file is None:
                # Appended to: of two runs at once each keeps what it has found.
                self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - closed on leaving
                if self._file.tell():
                    self._file.write(b"\n")  # behind a line that was cut
            self._file.write(line.encode())

    def remove(self) -> None:
        """All of it is in the index."""
        with suppress(FileNotFoundError):
            os.unlink(self.path)


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
            promised: What each should be, so that no other digests are computed; None for those of an
                index.
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


@dataclass(frozen=True)
class Verified:
    """A shard, and what is wrong with it.

    Attributes:
        shard: Its URL or path, without query and user info.
        samples: How many it has; None if that cannot be told.
        size_bytes: Its length; None if that cannot be told.
        wrong: What is not as was promised, each with both values; empty for a sound shard.
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
        count: How many shards there are, those included that are listed and not there.
        each: Each of them, as it becomes known; to be iterated once.
        teller: What it is, for messages.
    """

    index: str
    count: int
    each: Iterator[Verified]
    teller: str


@contextmanager
def open_verifying(
    urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    index: str | os.PathLike[str] | None = None,
    format: str | None = None,
    delimiter: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    concurrency: int | None = None,
) -> Iterator[Verifying]:
    """Read shards, and hold them against their index; writes nothing.

    Args:
        urls: Shards, as ``from_urls`` takes them. Of a folder, prefix or glob shards are missed that are
            listed and not there.
        index: Path or URL; None for ``asyncloader-index.json`` in the one folder or prefix that the shards
            are in.
        format: Of shards whose suffix does not tell.
        delimiter: Of CSV and TSV, as of ``from_urls``.
        storage_options: As of ``from_urls``.
        concurrency: How many shards are read at a time; see ``build_index``.

    Raises:
        TypeError: ``urls`` holds something else than strings and paths.
        ValueError: No shard, names that do not fit, no index, or ``concurrency`` below 1.
        StoreError: A server cannot be asked, or the index not be read.
        FormatError: The index is not sound.
    """
    if format is not None:
        check_format(format)
    options = dict(storage_options or {})
    found = find_shards(urls, format, options)
    shards = found.names
    formats = formats_of(shards, format)
    check_delimited(delimiter, formats)
    place = _index_beside(shards) if index is None else expand_home(os.fspath(index))
    with open_measuring(options, None, concurrency, delimiter=delimiter) as measuring:
        entries = _read(measuring.survey, place)
        is_shard = partial(is_shard_name, format=format)
        gone = (place for match in found.matches for place in entries.missing(match, is_shard))
        missing = [*dict.fromkeys(gone)]
        promised = entries.of(shards)
        each = _each(missing, promised, measuring.each(shards, formats, promised=promised))
        yield Verifying(redact(place), len(shards) + len(missing), each, INDEX.name)


@contextmanager
def open_verifying_by_index(
    urls: Sequence[str],
    formats: Sequence[str],
    promised: Expectations,
    index: FolderIndex,
    access: Access,
    concurrency: int | None = None,
) -> Iterator[Verifying]:
    """The same of the shards of a folder, by the index that another library has written.

    Args:
        urls: In the order of the index, which names them all.
        formats: Of each.
        promised: What it says of each.
        index: Where it is, and what else it says.
        access: How they are reached.
        concurrency: How many shards are read at a time; see ``build_index``.

    Raises:
        ValueError: ``concurrency`` is below 1.
    """
    with open_measuring(access.options, access.network, concurrency, index) as measuring:
        each = _each((), promised, measuring.each(urls, formats, promised=promised), index.teller)
        yield Verifying(redact(index.url), len(urls), each, index.teller.name)


def _read(survey: Survey, place: str) -> Entries:
    if scheme_of(place).is_local and not os.path.lexists(local_path(place)):
        raise _no_index(place)
    try:
        return Entries(place, survey.read(place))
    except StoreError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
    raise _no_index(place)


def _no_index(place: str) -> ValueError:
    return ValueError(
        f"there is no index {redact(place)}; asyncloader index makes one, and --index names another"
    )


def _each(
    missing: Sequence[str],
    entries: Expectations,
    measured: Iterator[Measured],
    teller: Teller = INDEX,
) -> Iterator[Verified]:
    for place in missing:
        yield Verified(place, None, None, ("missing, and listed in the index",))
    for entry, (url, found) in zip(entries, measured, strict=True):
        shown = redact(url)
        if not isinstance(found, Expected):
            yield Verified(shown, None, None, (str(found),))
            continue
        wrong = ["no entry in the index"] if entry is None else differences(entry, found, teller)
        yield Verified(shown, found.samples, found.size_bytes, tuple(wrong))


def _index_beside(urls: Sequence[str]) -> str:
    """Where the index lies beside shards of one folder.

    Raises:
        ValueError: They are not of one, or are behind URLs that are signed each for itself.
    """
    folders = {_folder_of(url) for url in urls}
    folder = folders.pop()
    if folders or folder is None:
        raise ValueError("the shards are not of one folder or prefix; say with --index where theirs is")
    return os.path.join(folder, INDEX_NAME)


def _folder_of(url: str) -> str | None:
    scheme = scheme_of(url)
    if scheme.is_local:
        return os.path.dirname(local_path(url))
    return None if scheme.is_web and "?" in url else url.rpartition("/")[0]
