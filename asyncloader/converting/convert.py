"""``convert`` and ``pack``: what is asked for is checked, planned, made by processes, and counted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import Any

from ..errors import FormatError
from ..foreign.opening import open_shards
from ..manifest.entries import Expected
from ..processors import usable_processors
from ..quantity import as_whole
from ..report import open_bar
from ..stores.expanding import expand_home, read_urls
from ..stores.policy import NetworkPolicy
from ..stores.urls import MANIFEST_NAME, scheme_of
from .counting import count_noted
from .crew import make_all
from .file_material import FileMaterial, find_files
from .job import Job, Plan, finish
from .looking import look
from .making import Task
from .material import Material, Part
from .outlets import Outlet, make_outlet
from .plan import cut_by_sizes, cut_evenly, runs_of
from .shard_material import ShardMaterial, versions_of
from .spill import spill
from .target import Target, make_target

__all__ = ["Converted", "convert", "pack"]

# From here on more processes would wait for the disk or the network.
_MOST_WORKERS = 8


@dataclass(frozen=True, slots=True)
class Converted:
    """What ``convert`` or ``pack`` has made.

    Attributes:
        output: The folder or prefix, as it may be shown.
        manifest: Its manifest.
        samples: In all shards, as many as the sources have.
        shards: How many there are.
        made: How many of them this call has made; the others were there.
        source_bytes: Length of the sources as stored.
        stored_bytes: Length of the shards.
        elapsed_s: How long this call took.
        hidden_files: Files that ``pack`` has left out, since their names or those of their folders begin
            with a dot.
        shuffle: The seed of the samples' order; None if they keep their own.
    """

    output: str
    manifest: str
    samples: int
    shards: int
    made: int
    source_bytes: int
    stored_bytes: int
    elapsed_s: float
    hidden_files: int = 0
    shuffle: int | None = None


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
    format: str | None = None,
    delimiter: str | None = None,
    block_size: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    output_options: Mapping[str, Any] | None = None,
    network: NetworkPolicy | None = None,
    manifest: str | os.PathLike[str] | None = None,
    shuffle: int | None = None,
    num_workers: int | None = None,
    overwrite: bool = False,
    progress: bool = False,
) -> Converted:
    """Make shards of other shards: of another form, another size, with fewer fields.

    The samples keep their order, unless ``shuffle`` draws another. If it is killed, call it again: it goes on
    with the shards that are missing, and the bytes of all are those that they would have been. Sources whose
    manifest does not tell how many samples they hold are read twice, the first time to count; Parquet and
    Arrow files say it themselves, of MDS and LitData their index. What is promised a digest of is read as a
    whole: if several shards are cut from it, once more. Images stay the bytes of their files.

    Blocks; in a coroutine, call it on a thread.

    Args:
        urls: Shards, as ``from_urls`` takes them, CSV too; or a folder with an ``index.json`` (``format``).
        output: A folder, or a prefix of an object store (``s3://``, ``gs://``, ``az://``), empty or of a run
            of the same call. It gets ``shard-00000.tar`` and so on, a ``manifest.json`` that is their index,
            and ``.convert/`` with what they were made of.
        to: ``"tar"`` or ``"jsonl"``, with ``.gz``, ``.zst``, ``.xz`` or ``.bz2`` after it to compress; or
            ``"parquet"``. Which values each keeps, and how, is told in ``docs/reference/converting.md``.
        shard_size: About how large a shard is to be before compression, told by the first samples of some
            sources. All have the same number of samples, but for one. The default of 256 MB is worth a
            request, and leaves several for each of many workers.
        samples_per_shard: The most samples of a shard, in place of a size.
        columns: Names of the fields that are kept, beside ``__key__``; None for all. Of Parquet and Arrow no
            others are read.
        types: Makes of the text of fields, such as all those of CSV, ``"int"``, ``"float"``, ``"bool"`` or
            ``"json"``, by name; for Parquet it also says the type of a column.
        decode: Make of a tar's fields what their extension says (``txt``, ``json``, ``cls``, ``npy``; not
            images). ``jsonl`` always does, since JSON has no bytes.
        format: Of shards whose suffix does not tell; or ``"mds"`` or ``"litdata"``, for the one folder that
            ``from_mds`` or ``from_litdata`` reads.
        delimiter: Of CSV and TSV, as of ``from_urls``.
        block_size: Of LitData's chunks of tokens, as of ``from_litdata``.
        storage_options: Of the sources, and of the output if it is in an object store.
        output_options: Of the output, where they are not those of the sources.
        network: Time-outs, retries and hedging of reading.
        manifest: Of the sources, if it is not found beside them.
        shuffle: Seed of a random order of all samples, the same for any number of processes; None keeps the
            order. For sources that are sorted, by class or by date, which no window of ``.shuffle`` can mix.
            The samples are first written to a file without a name, which takes as much room as they do:
            in ``output``, or in the temporary folder if that is an object store. A run that goes on writes
            it again.
        num_workers: Processes; 0 for this one. By default as many as this process may use, of up to 8. It
            makes no difference to what is written.
        overwrite: Remove the shards that another call has left in ``output``.
        progress: Show a bar of the shards.

    Raises:
        TypeError, ValueError: Something that cannot be, such as a format that does not keep a value, an
            output with other files in it, or of another call; the message says what to do. As far as the
            first samples tell, before anything is written.
        ImportError: Parquet or Arrow, and pyarrow is not installed.
        StoreError, FormatError: A source cannot be read or is not sound, or was changed meanwhile.
        OSError: A shard cannot be written. What is whole stays, and the next call goes on.
        WorkerDiedError: A process was killed.
    """
    columns = columns if columns is None or isinstance(columns, str) else [*columns]
    target = make_target(to, shard_size, samples_per_shard, columns, types, decode, shuffle)
    workers = _workers(num_workers)
    outlet = make_outlet(output, output_options if output_options is not None else storage_options or {})
    names = read_urls(urls)
    # Files of this machine have no options: those that are given are the output's.
    options = {} if all(scheme_of(name).is_local for name in names) else dict(storage_options or {})
    began_s = monotonic()
    shards = open_shards(
        names,
        format,
        block_size=block_size,
        delimiter=delimiter,
        columns=target.columns,
        manifest=manifest,
        storage_options=options,
        network=network,
    )
    versions = versions_of(shards)
    with outlet.alone():
        job = Job(outlet, target, ShardMaterial(shards).describe(), versions, overwrite)
        material = ShardMaterial(replace(shards, checks=count_noted(shards, outlet)), versions)
        plan = partial(_plan_shards, target, material)
        spilled = target.shuffle is not None
        return _run(job, outlet, target, material, plan, workers, progress, began_s, spilled=spilled)


def pack(
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    to: str = "tar",
    shard_size: int | str = "256MB",
    samples_per_shard: int | None = None,
    labels: bool = False,
    decode: bool = False,
    shuffle: int | None = 0,
    storage_options: Mapping[str, Any] | None = None,
    num_workers: int | None = None,
    overwrite: bool = False,
    progress: bool = False,
) -> Converted:
    """Make shards of the files of a folder.

    Files whose paths are the same up to the first dot of their names are one sample, as in WebDataset:
    ``cat/0001.jpg`` and ``cat/0001.json`` are the fields ``jpg`` and ``json`` of sample ``cat/0001``. They
    are shuffled. Hidden files are left out, and counted. In all else it is as ``convert``.

    Args:
        folder: With folders in it, of any depth.
        output: As of ``convert``; not below ``folder``.
        to: As of ``convert``.
        shard_size: The most bytes of a shard's files; a sample that is larger has a shard of its own.
        samples_per_shard: The most samples of a shard, too.
        labels: Take the folders in ``folder`` for classes: each sample gets the name of its own as
            ``label.txt``, and as ``cls`` its number in the order of the names.
        decode: As of ``convert``.
        shuffle: Seed of a random order of the samples; None for the order of their keys. By default they are
            shuffled, since a folder for each class would make shards of one class each, which no window of
            ``.shuffle`` can mix.
        storage_options: Of the output.
        num_workers: As of ``convert``.
        overwrite: Remove the shards that another call has left in ``output``.
        progress: Show a bar of the shards.

    Raises:
        TypeError, ValueError: As of ``convert``; or something in the folder that would be lost: a file
            without an extension, two files for one field, a link to a folder.
        StoreError: A file cannot be read, or was changed meanwhile.
        OSError, WorkerDiedError: As of ``convert``.
    """
    target = make_target(to, shard_size, samples_per_shard, None, None, decode, shuffle)
    workers = _workers(num_workers)
    outlet = make_outlet(output, storage_options or {})
    began_s = monotonic()
    root = os.path.abspath(expand_home(os.fspath(folder)))
    if (outlet.shown + os.sep).startswith(os.path.join(root, "")):
        raise ValueError(f"the output {outlet.shown!r} is in the folder that is packed: write beside it")
    material, hidden = find_files(root, labels)
    if shuffle is not None:
        material = material.shuffled(shuffle)
    with outlet.alone():
        job = Job(outlet, target, material.describe(), material.versions, overwrite)
        plan = partial(_plan_files, target, material)
        return _run(job, outlet, target, material, plan, workers, progress, began_s, hidden)


def _plan_shards(target: Target, material: ShardMaterial) -> Plan:
    """Shards of equal numbers of samples."""
    samples = material.stops[-1] if material.stops else 0
    seen = look(target, material.look_from())
    if target.most_samples is not None:
        most = target.most_samples
    else:
        most = max(int(target.most_bytes / max(seen.sample_bytes, 1)), 1)
    return Plan(cut_evenly(samples, most), seen.schema)


def _plan_files(target: Target, material: FileMaterial) -> Plan:
    """Shards of as many samples as fit."""
    seen = look(target, [material])
    return Plan(cut_by_sizes(material.sizes, target.most_bytes, target.most_samples), seen.schema)


def _run(
    job: Job,
    outlet: Outlet,
    target: Target,
    material: Material,
    make_plan: Callable[[], Plan],
    workers: int,
    progress: bool,
    began_s: float,
    hidden: int = 0,
    spilled: bool = False,
) -> Converted:
    """Make what is missing of a job, and its manifest."""
    plan = job.plan()
    if plan is None:
        try:
            plan = make_plan()
        except (ValueError, TypeError):
            # Another call is to be made, which this one's note must not be in the way of.
            job.withdraw()
            raise
        job.note_plan(plan)
    shards = job.shards(plan)
    made = job.made(shards)
    missing = len(shards) - len(made)
    samples = plan.stops[-1] if plan.stops else 0
    # Of a spill each shard costs the same, wherever its samples are.
    runs = [*runs_of(shards, made.keys(), (lambda _: 0) if spilled else material.in_vain)]
    read = [(run[0].first, run[-1].stop) for run in runs]
    with ExitStack() as stack:
        part: Callable[[int, int], Part] = material.part
        inherited: list[int] = []
        if spilled and runs:
            assert target.shuffle is not None
            file = stack.enter_context(outlet.scratch())
            read = [(0, samples)]
            with closing(material.part(0, samples).samples()) as source:
                part = spill(source, samples, target.shuffle, file)
            inherited = [file.fileno()]
        tasks = (Task(part(run[0].first, run[-1].stop), run, target, plan.schema, outlet) for run in runs)
        bar = None
        if progress:
            bar = stack.enter_context(open_bar("convert", len(shards), " shards", len(made)))

        def told(name: str, expected: Expected) -> None:
            made[name] = expected
            if bar is not None:
                bar.update()

        make_all(tasks, min(workers, missing), told, inherited)
    found = sum(expected.samples or 0 for expected in made.values())
    if found != samples:
        raise FormatError(f"expected {samples} samples in all shards, found {found}")
    if missing or not job.is_finished():
        material.prove(read)
    finish(outlet, {shard.name: made[shard.name] for shard in shards})
    return Converted(
        output=outlet.shown,
        manifest=os.path.join(outlet.shown, MANIFEST_NAME),
        samples=samples,
        shards=len(shards),
        made=missing,
        source_bytes=material.size_bytes,
        stored_bytes=sum(expected.size_bytes or 0 for expected in made.values()),
        elapsed_s=monotonic() - began_s,
        hidden_files=hidden,
        shuffle=target.shuffle,
    )


def _workers(num_workers: int | None) -> int:
    if num_workers is None:
        return min(usable_processors(), _MOST_WORKERS)
    count = as_whole(num_workers)
    if count is None or count < 0:
        raise ValueError(f"num_workers should be a whole number of 0 or more, but got {num_workers!r}")
    return count
