"""``convert``: shards of other shards, or of the files of a folder, made by several processes."""

from __future__ import annotations

import os
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from ..errors import FormatError, WorkerDiedError
from ..flow.channel import EndOfChannel
from ..flow.process import usable_processors
from ..observe.report import open_bar
from ..pipeline.folders import open_shards
from ..quantity import as_count, parse_bytes
from ..shards.destinations import Destination, FolderDestination, open_destination
from ..shards.expectations import Expected
from ..shards.index_lookup import has_index_option
from ..shards.open_shard import encoded_bytes, open_shard, schema_of, table_of
from ..stores.expanding import expand_home, read_urls
from ..stores.store import NetworkPolicy
from ..stores.urls import INDEX_NAME, local_path, scheme_of
from ..workers import Worker, WorkerPool, wait_any
from .convert_job import (
    NOTES,
    Conversion,
    Cuts,
    NewShard,
    cut_by_sizes,
    cut_evenly,
    new_shards,
    note_shard,
    runs_of,
)
from .convert_sources import (
    FileSamples,
    ShardSamples,
    Source,
    SpilledSamples,
    find_files,
    read_versions,
    spill,
)
from .convert_target import ShardTarget

# From here on more processes would wait for the disk or the network.
_MOST_WORKERS = 8
# Shards that a process may finish ahead of their being counted here: they are on disk already.
_MOST_AHEAD = 64

# Looked at of each source before anything is written: enough to see optional fields and a mean, and no more
# than one request brings.
_MOST_SEEN = 256
_MOST_SEEN_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Converted:
    """What ``convert`` has made.

    Attributes:
        output: The folder or prefix, as it may be shown.
        index: Its index.
        samples: In all shards, as many as the sources have.
        shards: How many there are.
        made: How many of them this call has made; the others were there.
        source_bytes: Length of the sources as stored.
        stored_bytes: Length of the shards.
        elapsed_s: How long this call took.
        hidden_files: Files of a folder that were left out, since their names or those of their folders begin
            with a dot.
        shuffle: The seed of the samples' order; None if they keep their own.
    """

    output: str
    index: str
    samples: int
    shards: int
    made: int
    source_bytes: int
    stored_bytes: int
    elapsed_s: float
    hidden_files: int = 0
    shuffle: int | None = None


@has_index_option
def convert(
    urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    to: str = "tar",
    shard_size: int | str = "256MB",
    samples_per_shard: int | None = None,
    columns: Iterable[str] | None = None,
    types: Mapping[str, str] | None = None,
    decode: bool = False,
    labels: bool = False,
    format: str | None = None,
    delimiter: str | None = None,
    block_size: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    output_options: Mapping[str, Any] | None = None,
    network: NetworkPolicy | None = None,
    index: str | os.PathLike[str] | None = None,
    shuffle: int | bool | None = None,
    num_workers: int | None = None,
    overwrite: bool = False,
    progress: bool = False,
) -> Converted:
    """Make shards of other shards (of another format, another size, with fewer fields), or of files.

    If it is killed, call it again: it goes on with the shards that are missing, and the bytes of all are
    those that they would have been. Sources whose index does not tell how many samples they hold are read
    twice, the first time to count; Parquet and Arrow files tell it themselves, of MDS and LitData their
    index. A source with a digest in its index is checked as a whole: if several shards are cut from it,
    by reading it once more. Images stay the bytes of their files.

    Of a folder of files, those whose paths are the same up to the first dot of their names are one sample, as
    in WebDataset: ``cat/0001.jpg`` and ``cat/0001.json`` are the fields ``jpg`` and ``json`` of sample
    ``cat/0001``. Hidden files are left out, and counted.

    Blocks; in a coroutine, call it on a thread.

    Args:
        urls: Shards, as ``from_urls`` takes them, CSV too; a folder with an ``index.json`` (``format``); or a
            local folder of files, without ``/`` at the end of its name, or with ``format="files"``.
        output: A folder, or a prefix of an object store (``s3://``, ``gs://``, ``az://``), empty or of a run
            of the same call. It gets ``shard-00000.tar`` and so on, their index ``asyncloader-index.json``,
            and ``.convert/`` with what they were made of.
        to: ``"tar"`` or ``"jsonl"``, with ``.gz``, ``.zst``, ``.xz`` or ``.bz2`` after it to compress; or
            ``"parquet"``. For the values that each keeps see ``docs/reference/converting.md``.
        shard_size: About how large a shard is to be before compression, estimated from the first samples of
            some sources; all have the same number of samples, but for one. Of files, the most bytes of those
            in a shard; a sample that is larger has a shard of its own. The default of 256 MB is worth a
            request, and leaves several for each of many workers.
        samples_per_shard: The most samples of a shard, in place of a size; of files, beside it.
        columns: Names of the fields that are kept, beside ``__key__``; None for all. Of Parquet and Arrow no
            others are read.
        types: Makes of the text of fields, such as all those of CSV, ``"int"``, ``"float"``, ``"bool"`` or
            ``"json"``, by name; for Parquet it also says the type of a column.
        decode: Make of a tar's fields, or of files, what their extension says (``txt``, ``json``, ``cls``,
            ``npy``; not images). ``jsonl`` always does, since JSON has no bytes.
        labels: Take the folders in a folder of files for classes: each sample gets the name of its own as
            ``label.txt``, and as ``cls`` its number in the order of the names.
        format: Of shards whose suffix does not tell; ``"mds"`` or ``"litdata"``, for the one folder that
            ``from_mds`` or ``from_litdata`` reads; or ``"files"``, for the one folder of files.
        delimiter: Of CSV and TSV, as of ``from_urls``.
        block_size: Of LitData's chunks of tokens, as of ``from_litdata``.
        storage_options: Of the sources, and of the output if it is in an object store.
        output_options: Of the output, where they are not those of the sources.
        network: Time-outs, retries and hedging of reading.
        index: Of the sources, if it is not found beside them.
        shuffle: Seed of a random order of all samples, the same for any number of processes; False keeps the
            order. By default shards keep their order, and files are shuffled with seed 0, since a folder for
            each class would make shards of one class each, which no window of ``.shuffle`` can mix. Samples
            of shards are first written to a file without a name, which takes as much room as they do: in
            ``output``, or in the temporary folder if that is an object store. A run that goes on writes it
            again.
        num_workers: Processes; 0 for this one. By default as many as this process may use, of up to 8 (0
            where there are no worker processes, which need Linux). It makes no difference to what is written.
        overwrite: Remove the shards that another call has left in ``output``.
        progress: Show a bar of the shards.

    Raises:
        TypeError, ValueError: Something that cannot be, such as a format that does not keep a value, an
            output with other files in it, or of another call; or something in a folder that would be lost: a
            file without an extension, two files for one field, a link to a folder. As far as the first
            samples tell, before anything is written.
        ImportError: Parquet or Arrow, and pyarrow is not installed.
        StoreError, FormatError: A source cannot be read or is not sound, or was changed meanwhile.
        OSError: A shard cannot be written. What is whole stays, and the next call goes on.
        WorkerDiedError: A process was killed.
    """
    if isinstance(columns, str):
        raise TypeError(f"columns should be a list of names, but got the text {columns!r}")
    workers = _workers(num_workers)
    names = read_urls(urls)
    folder = _folder_of_files(names, format)
    target = ShardTarget(
        to,
        parse_bytes("shard_size", shard_size),
        samples_per_shard,
        None if columns is None else [*columns],
        dict(types or {}),
        decode,
        0 if shuffle is None and folder is not None else None if shuffle is False else shuffle,
    )
    destination = open_destination(
        output, output_options if output_options is not None else storage_options or {}, NOTES
    )
    if isinstance(destination, FolderDestination):
        destination = replace(destination, folder=os.path.abspath(destination.folder))
    began_s = monotonic()
    source: Source
    if folder is not None:
        given = {"delimiter": delimiter, "block_size": block_size, "index": index}
        if odd := [name for name, value in given.items() if value is not None]:
            raise ValueError(f"{odd[0]} is for shards, and {folder!r} is a folder of files: leave it out")
        if (destination.shown + os.sep).startswith(os.path.join(folder, "")):
            raise ValueError(f"the output {destination.shown!r} is in the folder of files: write beside it")
        source = find_files(folder, labels, is_sure=format is not None)
        source = source if target.shuffle is None else source.shuffled(target.shuffle)
    else:
        if labels:
            raise ValueError(
                "labels are of a folder of files, which is named without '/' at its end, or with "
                "format='files'"
            )
        # Files of this machine have no options: those that are given are the output's.
        options = {} if all(scheme_of(name).is_local for name in names) else dict(storage_options or {})
        try:
            shards = open_shards(
                names,
                format,
                block_size=block_size,
                delimiter=delimiter,
                columns=target.columns,
                index=index,
                storage_options=options,
                network=network,
            )
        except ValueError as error:
            if format is None and names[0].endswith("/") and scheme_of(names[0]).is_local:
                error.add_note(
                    "of a folder of files, give the name without '/' at its end, or format 'files'"
                )
            raise
        source = ShardSamples(shards, read_versions(shards))
    with destination.alone():
        job = Conversion(destination, target, source, overwrite)
        source, cuts = _cut(job, target, source)
        made, new = _make_missing(job, target, source, cuts, destination, workers, progress)
        stored = made.values()
        return Converted(
            output=destination.shown,
            index=destination.path_of(INDEX_NAME),
            samples=sum(expected.samples or 0 for expected in stored),
            shards=len(stored),
            made=new,
            source_bytes=source.size_bytes,
            stored_bytes=sum(expected.size_bytes or 0 for expected in stored),
            elapsed_s=monotonic() - began_s,
            hidden_files=source.hidden if isinstance(source, FileSamples) else 0,
            shuffle=target.shuffle,
        )


def _workers(num_workers: int | None) -> int:
    if num_workers is None:
        return min(usable_processors(), _MOST_WORKERS) if hasattr(os, "memfd_create") else 0
    return as_count("num_workers", num_workers, least=0)


def _folder_of_files(names: Sequence[str], format: str | None) -> str | None:
    """The folder of files that the user has named; None if it is something else."""
    if format == "files" and len(names) != 1:
        raise ValueError(f"format 'files' takes one folder, but got {len(names)} names")
    if format not in (None, "files") or len(names) != 1 or not scheme_of(names[0]).is_local:
        return None
    path = os.path.abspath(expand_home(local_path(names[0])))
    is_meant = format == "files" or (not names[0].endswith("/") and os.path.isdir(path))
    return path if is_meant else None


def _cut(job: Conversion, target: ShardTarget, source: Source) -> tuple[Source, Cuts]:
    """The source with its samples counted, and how it is cut: as a run before has noted it, or anew."""
    cuts = job.cuts()
    if cuts is not None:
        return source.counted(cuts.counted)[0], cuts
    try:
        source, counted = source.counted({})
        sample_bytes, schema = _look(target, source)
    except Exception:
        # This call's note must not stand in the way of another one.
        job.withdraw()
        raise
    if isinstance(source, FileSamples):
        stops = cut_by_sizes(source.sizes, target.shard_size, target.samples_per_shard)
    else:
        most = target.samples_per_shard or max(int(target.shard_size / max(sample_bytes, 1)), 1)
        stops = cut_evenly(source.stops[-1] if source.stops else 0, most)
    cuts = Cuts(stops, schema, counted)
    job.note_cuts(cuts)
    return source, cuts


def _look(target: ShardTarget, source: Source) -> tuple[float, Any]:
    """What a sample takes on average, before compression, and the schema of Parquet, by the first samples.

    Raises:
        ValueError: A value that the target cannot keep; with a note of its sample.
    """
    keep = target.keep()
    rows: list[Mapping[str, Any]] = []
    total_bytes = count = 0
    for part in source.looked_at():
        part_bytes = 0
        with closing(part.samples()) as samples:
            for number, (sample, place) in enumerate(samples):
                if number == _MOST_SEEN or part_bytes > _MOST_SEEN_BYTES:
                    break
                try:
                    kept, encoded = keep(sample, number)
                except (ValueError, TypeError) as error:
                    error.add_note(f"in {place}")
                    raise
                part_bytes += encoded_bytes(encoded)
                count += 1
                if target.format == "parquet":
                    rows.append(kept)
        total_bytes += part_bytes
    schema = None
    if target.format == "parquet":
        schema = schema_of(rows, target.types)
        table_of(schema, rows)  # refuses what the type of a column does not keep
    return total_bytes / max(count, 1), schema


def _make_missing(
    job: Conversion,
    target: ShardTarget,
    source: Source,
    cuts: Cuts,
    destination: Destination,
    workers: int,
    progress: bool,
) -> tuple[dict[str, Expected], int]:
    """Make what is missing of a job, verify its sources, and write its index.

    Returns:
        All shards, by name, and how many of them are new.
    """
    shards = new_shards(cuts.stops, f".{target.to}")
    made = job.made(shards)
    missing = len(shards) - len(made)
    samples = cuts.stops[-1] if cuts.stops else 0
    is_spilled = target.shuffle is not None and isinstance(source, ShardSamples)
    # Of a spill each shard costs the same, wherever its samples are.
    runs = [*runs_of(shards, made.keys(), (lambda _: 0) if is_spilled else source.dropped_before)]
    read = [(run[0].first, run[-1].stop) for run in runs]
    with ExitStack() as stack:
        parts: Source | SpilledSamples = source
        if is_spilled and runs:
            assert target.shuffle is not None
            parts = spill(source, samples, target.shuffle, stack.enter_context(destination.scratch()))
            read = [(0, samples)]
        makers = [
            _ShardMaker(target, cuts.schema, destination) for _ in range(min(max(workers, 1), len(runs)))
        ]
        for run in runs:
            least = min(makers, key=lambda maker: maker.shards)
            least.take(parts.part(run[0].first, run[-1].stop), run)
        bar = None
        if progress:
            bar = stack.enter_context(open_bar("convert", len(shards), " shards", len(made)))
        each = _made_by(makers) if workers else (shard for maker in makers for shard, _ in maker())
        for name, expected in stack.enter_context(closing(each)):
            made[name] = expected
            if bar is not None:
                bar.update()
    found = sum(expected.samples or 0 for expected in made.values())
    if found != samples:
        raise FormatError(f"expected {samples} samples in all shards, found {found}")
    if missing or not job.is_finished:
        source.verify(read)
    job.finish({shard.name: made[shard.name] for shard in shards})
    return made, missing


class _ShardMaker:
    """The runs of shards that one process makes: a job of ``workers``, which travels there.

    Args:
        target: What the shards are to be.
        schema: Of Parquet.
        destination: Where they go.
    """

    def __init__(self, target: ShardTarget, schema: Any, destination: Destination) -> None:
        self.shards = 0
        self._runs: list[tuple[Source | SpilledSamples, Sequence[NewShard]]] = []
        self._target = target
        self._schema = schema
        self._destination = destination

    def take(self, part: Source | SpilledSamples, run: Sequence[NewShard]) -> None:
        """Make these shards too; ``part`` has their samples."""
        self._runs.append((part, run))
        self.shards += len(run)

    def __call__(self) -> Generator[tuple[tuple[str, Expected], None], None, None]:
        """Make the shards, and note each when it is whole.

        Yields:
            Its name and what it is, and nothing.

        Raises:
            FormatError: The sources have another number of samples than were counted.
            ValueError: A value that the target cannot keep; with a note of its sample.
            StoreError, OSError: The sources cannot be read, or the shards not be written.
        """
        keep = self._target.keep()
        for part, run in self._runs:
            with closing(part.samples()) as samples:
                for shard in run:
                    made = self._make(shard, samples, keep, is_last=shard is run[-1])
                    note_shard(self._destination, shard.name, made)
                    yield (shard.name, made), None

    def _make(self, new: NewShard, samples: Iterator[Any], keep: Any, is_last: bool) -> Expected:
        target = self._target
        shard = open_shard(self._destination.draft(new.name), target.format, target.compression, self._schema)
        try:
            for number in range(new.first, new.stop):
                sample, place = next(samples, (None, None))
                if place is None:
                    raise FormatError(
                        f"expected {new.stop - number} more samples, as many as were counted, and the "
                        "sources have no more: have they changed? If so, begin anew with overwrite"
                    )
                try:
                    kept, encoded = keep(sample, number)
                    shard.check(kept)
                    shard.write(encoded)
                except (ValueError, TypeError) as error:
                    error.add_note(f"in {place}")
                    raise
            if is_last and next(samples, None) is not None:
                # The end of the sources, where they are checked against their digests, comes before the shard
                # is published.
                raise FormatError("the sources have more samples than were counted: have they changed?")
            return shard.finish()
        except BaseException:
            shard.discard()
            raise


def _made_by(makers: Sequence[_ShardMaker]) -> Generator[tuple[str, Expected], None, None]:
    """What each maker makes in a process of its own, as it comes."""
    try:
        with WorkerPool(makers, prefetch=_MOST_AHEAD) as pool:
            busy: list[Worker] = [*pool.workers]
            ready: Collection[int] = ()
            while busy:
                for worker in [*busy]:
                    try:
                        while (received := worker.receive_nowait(ready)) is not None:
                            yield received[0]
                    except EndOfChannel:
                        busy.remove(worker)
                ready = wait_any(busy, None) if busy else ()
    except WorkerDiedError as error:
        raise WorkerDiedError(
            f"{error.args[0]}; call convert again, which goes on with the shards that are missing, with "
            "fewer num_workers if there was too little memory",
            worker=error.worker,
            pid=error.pid,
            exitcode=error.exitcode,
        ) from None
