"""``convert``: make shards from other shards, or from the files of a folder, in several processes."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import Any, TypeAlias

from ..blocks import bytes_of
from ..errors import FormatError, WorkerDiedError
from ..flow.channel import EndOfChannel
from ..flow.process import usable_processors
from ..observe.report import open_bar
from ..observe.stopwatch import Stopwatch
from ..pipeline.folders import open_shards
from ..pipeline.renamed import INDEX_OPTIONS, with_advice
from ..quantity import as_count, parse_bytes
from ..shards.destinations import Destination, FolderDestination, open_destination
from ..shards.expectations import Expected
from ..shards.open_shard import OpenShard, open_shard, schema_from, schema_of, table_of
from ..stores.expanding import expand_home, read_urls
from ..stores.store import NetworkPolicy
from ..stores.urls import INDEX_NAME, local_path, scheme_of
from ..workers.by_value import dumps_with_modules
from ..workers.pool import WorkerPool, wait_any
from ..workers.worker import Work, Worker
from . import convert_job, convert_sources
from .convert_target import ShardTarget

# More processes would wait for the disk or the network.
_MOST_WORKERS = 8
# Shards that a process may finish before they are counted here: they are on disk already.
_MOST_AHEAD = 64

# Samples of each source to look at before anything is written: enough for optional fields and a mean size,
# and available with one request.
_MOST_SEEN = 256
_MOST_SEEN_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Converted:
    """What ``convert`` has made.

    Attributes:
        output: The folder or prefix, redacted.
        index: Its index.
        samples: Number of samples in all shards, as many as the sources have.
        shards: Number of shards.
        made: How many of them this call has made; the others existed.
        source_bytes: Length of the sources as stored.
        stored_bytes: Length of the shards.
        elapsed_s: Duration of this call.
        hidden_files: Files of a folder that were left out, since their names or those of their folders begin
            with a dot.
        shuffle: The seed of the samples' order; None if they keep their order.
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


@with_advice(INDEX_OPTIONS)
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
    """Make shards from other shards (in another format or size, with fewer fields), or from files.

    If this call is killed, repeat it: it makes the missing shards, and the result has the same bytes. Images
    keep the bytes of their files.

    The number of samples of each source is taken from its index, from the footers of Parquet and Arrow, or
    from the index of MDS and LitData; other sources are read twice, the first time to count. A source whose
    index has a digest is checked as a whole; if several shards are made from it, it is read once more.

    In a folder of files, those with the same path up to the first dot of their names are one sample, as in
    WebDataset: ``cat/0001.jpg`` and ``cat/0001.json`` are the fields ``jpg`` and ``json`` of the sample
    ``cat/0001``. Hidden files are left out, and counted.

    It blocks; in a coroutine, call it on a thread.

    Args:
        urls: Shards, as for ``from_urls``; a folder with an ``index.json``, together with ``format``; or a
            local folder of files, without ``/`` at the end of its name, or with ``format="files"``.
        output: A folder, or a prefix of an object store (``s3://``, ``gs://``, ``az://``). It is empty, or
            from an earlier run of the same call. It gets ``shard-00000.tar`` and so on, their index
            ``asyncloader-index.json``, and ``.convert/`` with notes on the sources.
        to: ``"tar"`` or ``"jsonl"``, with ``.gz``, ``.zst``, ``.xz`` or ``.bz2`` after it to compress; or
            ``"parquet"``. ``docs/how-to/convert.md`` says which values each format keeps.
        shard_size: Approximate size of a shard before compression, estimated from the first samples of some
            sources; all shards but one have the same number of samples. For files, the most bytes of a
            shard; a larger sample gets its own shard. 256 MB by default: large enough for a request to cost
            little, and small enough to give each of many workers several shards.
        samples_per_shard: The most samples of a shard, instead of a size; for files, in addition to it. None:
            by size only.
        columns: Names of the fields to keep, besides ``__key__``. In Parquet and Arrow, only these are read.
            None: all fields.
        types: Types by field: ``"int"``, ``"float"``, ``"bool"`` or ``"json"``. The text of the field, such
            as that of CSV, is converted; in Parquet it is also the type of the column. None: keep text.
        decode: Decode the fields of a tar, or files, by their extension (``txt``, ``json``, ``cls``, ``npy``;
            not images). ``jsonl`` always does that, since JSON has no bytes.
        labels: Use the folders in a folder of files as classes. Each sample gets the name of its class as
            ``label.txt``, and the number of that name in sorted order as ``cls``.
        format: Format of shards, as for ``from_urls``; ``"mds"`` or ``"litdata"`` for a folder that
            ``from_mds`` or ``from_litdata`` reads; or ``"files"`` for a folder of files.
        delimiter: The character that separates the fields of CSV and TSV, as for ``from_urls``.
        block_size: Tokens of a sample in LitData's chunks of tokens, as for ``from_litdata``.
        storage_options: Options of the sources, and of the output if it is in an object store.
        output_options: Options of the output, if they differ from those of the sources.
        network: Time-outs, retries and hedging, as for ``from_urls``.
        index: URL or path of the index of the sources. None: the one beside them.
        shuffle: Seed of a random order of all samples, which does not depend on the number of processes;
            False keeps the order. By default shards keep their order, and files are shuffled with seed 0:
            with a folder for each class, each shard would have one class, and a ``.shuffle`` could not mix
            them. To shuffle shards, their samples are first written to an unnamed file of the same size, in
            ``output`` or, for an object store, in the temporary folder. A call that continues writes it
            again.
        num_workers: The number of processes; 0: only this one. None: one for each processor, up to 8, or 0
            without Linux. The shards do not depend on it.
        overwrite: Remove the shards that another call has left in ``output``.
        progress: Show a progress bar.

    Raises:
        TypeError, ValueError: An argument is wrong; the format cannot keep a value; the output has other
            files or is from another call; or a folder has files that would be lost: one without an
            extension, two for one field, or a link to a folder. If the first samples show it, nothing has
            been written.
        ImportError: A format is Parquet or Arrow, and pyarrow is not installed.
        StoreError, FormatError: A source cannot be read, is damaged, or has changed meanwhile.
        OSError: A shard cannot be written. Finished shards stay, and the next call continues.
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
        output, output_options if output_options is not None else storage_options or {}, convert_job.NOTES
    )
    if isinstance(destination, FolderDestination):
        destination = replace(destination, folder=os.path.abspath(destination.folder))
    began_s = monotonic()
    source: convert_sources.Source
    if folder is not None:
        given = {"delimiter": delimiter, "block_size": block_size, "index": index}
        if odd := [name for name, value in given.items() if value is not None]:
            raise ValueError(f"{odd[0]} is for shards, and {folder!r} is a folder of files: leave it out")
        if (destination.shown + os.sep).startswith(os.path.join(folder, "")):
            raise ValueError(f"the output {destination.shown!r} is in the folder of files: write beside it")
        source = convert_sources.find_files(folder, labels, is_sure=format is not None)
        source = source if target.shuffle is None else source.shuffled(target.shuffle)
    else:
        if labels:
            raise ValueError(
                "labels are for a folder of files: name it without '/' at its end, or with format='files'"
            )
        # Local files have no options: these are for the output.
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
                error.add_note("name a folder of files without '/' at its end, or with format='files'")
            raise
        source = convert_sources.ShardSamples(shards, convert_sources.read_versions(shards))
    with destination.alone():
        job = convert_job.Conversion(destination, target, source, overwrite)
        source, cuts = _cut(job, source)
        made, new = _make_missing(job, source, cuts, workers, progress)
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
            hidden_files=source.hidden if isinstance(source, convert_sources.FileSamples) else 0,
            shuffle=target.shuffle,
        )


def _workers(num_workers: int | None) -> int:
    if num_workers is None:
        return min(usable_processors(), _MOST_WORKERS) if hasattr(os, "fork") else 0
    return as_count("num_workers", num_workers, least=0)


def _folder_of_files(names: Sequence[str], format: str | None) -> str | None:
    """The folder of files that the caller has named; None if the names are something else."""
    if format == "files" and len(names) != 1:
        raise ValueError(f"format 'files' takes one folder, but got {len(names)} names")
    if format not in (None, "files") or len(names) != 1 or not scheme_of(names[0]).is_local:
        return None
    path = os.path.abspath(expand_home(local_path(names[0])))
    is_meant = format == "files" or (not names[0].endswith("/") and os.path.isdir(path))
    return path if is_meant else None


def _cut(
    job: convert_job.Conversion, source: convert_sources.Source
) -> tuple[convert_sources.Source, convert_job.Cuts]:
    """The source with its samples counted, and how it is cut: as an earlier run has noted it, or anew."""
    target = job.target
    if job.cuts is not None:
        return source.counted(job.cuts.counted)[0], job.cuts
    source, counted = source.counted({})
    sample_bytes, schema = _look(target, source)
    if isinstance(source, convert_sources.FileSamples):
        stops = convert_job.cut_by_sizes(source.sizes, target.shard_size, target.samples_per_shard)
    else:
        most = target.samples_per_shard or max(int(target.shard_size / max(sample_bytes, 1)), 1)
        stops = convert_job.cut_evenly(source.stops[-1] if source.stops else 0, most)
    cuts = convert_job.Cuts(stops, schema and schema.serialize().to_pybytes(), counted)
    job.begin(cuts)
    return source, cuts


def _look(target: ShardTarget, source: convert_sources.Source) -> tuple[float, Any]:
    """The mean size of a sample, before compression, and the schema of Parquet, by the first samples.

    Raises:
        ValueError: A value that the target cannot keep; with a note of its sample.
    """
    rows: list[Mapping[str, Any]] = []
    total_bytes = 0
    for part in source.looked_at():
        part_bytes = 0
        with closing(part.samples()) as samples:
            for number, (sample, place) in enumerate(samples):
                if number == _MOST_SEEN or part_bytes > _MOST_SEEN_BYTES:
                    break
                try:
                    kept, encoded = target.keep(sample, number)
                except (ValueError, TypeError) as error:
                    error.add_note(f"in {place()}")
                    raise
                part_bytes += bytes_of(encoded)
                rows.append(kept)
        total_bytes += part_bytes
    schema = None
    if target.format == "parquet":
        schema = schema_of(rows, target.types)
        table_of(schema, rows)  # refuses values that the type of a column does not keep
    return total_bytes / max(len(rows), 1), schema


def _make_missing(
    job: convert_job.Conversion,
    source: convert_sources.Source,
    cuts: convert_job.Cuts,
    workers: int,
    progress: bool,
) -> tuple[dict[str, Expected], int]:
    """Make the missing shards of a job, verify its sources, and write its index.

    Returns:
        All shards, by name, and how many of them are new.
    """
    target = job.target
    shards = convert_job.new_shards(cuts.stops, f".{target.to}")
    made = job.made(shards)
    missing = len(shards) - len(made)
    samples = cuts.stops[-1] if cuts.stops else 0
    is_spilled = target.shuffle is not None and isinstance(source, convert_sources.ShardSamples)
    # Of spilled samples each shard costs the same, wherever its samples are.
    runs = [*convert_job.runs_of(shards, made.keys(), (lambda _: 0) if is_spilled else source.dropped_before)]
    read = [(run[0].first, run[-1].stop) for run in runs]
    with ExitStack() as stack:
        parts: convert_sources.Source | convert_sources.SpilledSamples = source
        if is_spilled and runs:
            assert target.shuffle is not None
            parts = convert_sources.spill(
                source, samples, target.shuffle, stack.enter_context(job.destination.scratch())
            )
            read = [(0, samples)]
        work = [(parts.part(run[0].first, run[-1].stop), run) for run in runs]
        count = min(max(workers, 1), len(runs))
        shares = [work[number::count] for number in range(count)]
        makers = [partial(_make_shards, target, job.destination, cuts.schema, share) for share in shares]
        bar = stack.enter_context(open_bar("convert", len(shards), " shards", len(made), shown=progress))
        each = _made_by(makers) if workers else (shard for maker in makers for shard, _ in maker())
        for name, expected in stack.enter_context(closing(each)):
            made[name] = expected
            bar.update()
    if (found := sum(expected.samples or 0 for expected in made.values())) != samples:
        raise FormatError(f"expected {samples} samples in all shards, found {found}")
    if missing or not job.is_finished:
        source.verify(read)
    job.finish({shard.name: made[shard.name] for shard in shards})
    return made, missing


_Run: TypeAlias = tuple[
    convert_sources.Source | convert_sources.SpilledSamples, Sequence[convert_job.NewShard]
]
"""Samples, and the shards to make of them, one after another."""

_Steps: TypeAlias = Generator[tuple[tuple[str, Expected], None], None, None]


def _make_shards(
    target: ShardTarget, destination: Destination, message: bytes | None, runs: Sequence[_Run]
) -> _Steps:
    """Make shards, and note each when it is whole; in a worker, or in this process.

    Args:
        target: What to make.
        destination: Where the shards go.
        message: The schema of Parquet, as ``Cuts`` has it.
        runs: The shards.

    Yields:
        The name of each and what it is, and None.

    Raises:
        FormatError: The sources have another number of samples than were counted.
        ValueError: A value that the target cannot keep; with a note of its sample.
        StoreError, OSError: The sources cannot be read, or the shards cannot be written.
    """
    schema = None if message is None else schema_from(message)
    for part, run in runs:
        with closing(part.samples()) as samples:
            for new in run:
                shard = open_shard(destination.draft(new.name), target.format, target.compression, schema)
                try:
                    made = _fill(shard, new, samples, target, is_last=new is run[-1])
                except BaseException:
                    shard.discard()
                    raise
                convert_job.note_shard(destination, new.name, made)
                yield (new.name, made), None


def _fill(
    shard: OpenShard,
    new: convert_job.NewShard,
    samples: convert_sources.Samples,
    target: ShardTarget,
    is_last: bool,
) -> Expected:
    for number in range(new.first, new.stop):
        sample, place = next(samples, (None, None))
        if place is None:
            raise FormatError(
                f"expected {new.stop - number} more samples, as many as were counted, but the sources have "
                "ended: have they changed? If so, call convert with overwrite"
            )
        try:
            kept, encoded = target.keep(sample, number)
            shard.check(kept)
            shard.write(encoded)
        except (ValueError, TypeError) as error:
            error.add_note(f"in {place()}")
            raise
    if is_last and next(samples, None) is not None:
        # The end of the sources, where they are checked against their digests, comes before the shard is
        # published.
        raise FormatError("the sources have more samples than were counted: have they changed?")
    return shard.finish()


def _make_part(makers: Sequence[partial[_Steps]], worker: int, _: None) -> Work:
    """The job of all workers, each of which runs one of the makers."""
    return Work(makers[worker](), Stopwatch())


def _made_by(makers: Sequence[partial[_Steps]]) -> Generator[tuple[str, Expected], None, None]:
    """The shards of each maker, which runs in a process of its own, as they are finished."""
    try:
        pickled, buffers, _ = dumps_with_modules(partial(_make_part, makers))
        with WorkerPool((pickled, buffers), [None] * len(makers), prefetch=_MOST_AHEAD) as pool:
            busy: list[Worker] = [*pool.workers]
            while busy:
                for worker in [*busy]:
                    try:
                        while (received := worker.receive_nowait()) is not None:
                            yield received[0]
                    except EndOfChannel:
                        busy.remove(worker)
                if busy:
                    wait_any(busy, None)
    except WorkerDiedError as error:
        error.args = (
            f"{error.args[0]}; call convert again to make the missing shards, with fewer num_workers if "
            "there was too little memory",
        )
        raise
