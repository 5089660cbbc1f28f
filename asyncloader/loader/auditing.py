"""What the audit of a stream records of its dataset: which samples exist, and which may be missing."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from time import time

from ..observe.audit import AuditedSource, Begin, Contents, Recording, write_contents
from ..pipeline.components import Composed, Stages, Zipped
from ..pipeline.filter import Filter, FilterBatches
from ..pipeline.mixture import Mixture
from ..pipeline.op import shown
from ..pipeline.shards import Shards
from ..pipeline.take import Repeat, Take
from ..plan.lanes import Cursor
from ..stores.expanding import expand_home
from ..stores.urls import redact
from .kind import StreamOptions


def open_recording(options: StreamOptions, cursor: Cursor) -> Recording:
    """Begin to record a pass.

    Args:
        options: What is read, and by which rank; they name the folder, which is made if it does not exist.
        cursor: Where the pass begins.

    Raises:
        ValueError: The folder or a file in it cannot be made or written.
    """
    stages, world = options.stages, options.world
    assert options.audit is not None
    place = expand_home(os.fspath(options.audit))
    # The digest omits what may change between two runs: what an index adds, sizes of shards, their place.
    name = options.digest({"contents_sha256", "sizes_sha256", "places_sha256"}.__contains__)[:12]
    named, unnamed = _reasons(options, cursor.epoch)
    begin = Begin(
        id=uuid.uuid4().hex[:16],
        began=time(),
        epoch=cursor.epoch,
        rank=world.rank,
        world_size=world.size,
        workers=options.num_workers,
        lanes={lane: row.batches for lane, row in cursor.turns()},
        all_lanes=[*cursor.lanes],
        leaves_out=[*named, *unnamed],
        named_by=named,
    )
    try:
        os.makedirs(place, exist_ok=True)
        contents_path = os.path.join(place, f"{name}.json")
        # The same on all ranks, so one of them writes it, and not anew after a restart.
        if world.rank == 0 and not os.path.exists(contents_path):
            write_contents(contents_path, Contents(options.described, [*_parts_of(stages, (), "", 1)], 2))
        return Recording(os.path.join(place, f"{name}-rank{world.rank:05d}.jsonl"), begin)
    except OSError as error:
        raise ValueError(
            "audit should be a folder where each rank can make files and append to them, but got "
            f"audit={place!r}, and {error.filename or place} cannot be written: "
            f"{error.strerror}; name another folder, or make this one writable"
        ) from error


def _parts_of(
    stages: Stages, component: tuple[int, ...], name: str, outer: int | None
) -> Iterator[AuditedSource]:
    """The sources that samples are recorded of, with how often each of them comes."""
    repetitions = outer
    for op in stages.ops:
        if isinstance(op, Repeat):
            repetitions = None if op.times is None or repetitions is None else repetitions * op.times
    source = stages.source
    if isinstance(source, Composed):
        if isinstance(source, Mixture) and source.stop == "repeat":
            repetitions = None
        for number, (inner, part) in enumerate(zip(source.names, source.parts, strict=True)):
            yield from _parts_of(part, (*component, number), f"{name}/{inner}".lstrip("/"), repetitions)
            if isinstance(source, Zipped):
                return  # each of the others goes with the sample of the first that it was put together with
    elif isinstance(source, Shards):
        counts = source.checks.counts()
        shards = [redact(url) for url in source.urls]
        yield AuditedSource(component, name, shards, counts or [None] * len(shards), repetitions)
    else:
        yield AuditedSource(component, name, None, None, repetitions)


def _reasons(options: StreamOptions, epoch: int) -> tuple[list[str], list[str]]:
    """Why a sample may be missing: operators that record each one, and operators and sources that do not."""
    named = ["drop_last"] if options.described.get("drop_last") else []
    unnamed = ["on_error=SkipErrors(...)"] if options.skips is not None else []
    for part in _followed(options.stages):
        source = part.source
        named += [shown(op) for op in part.ops if isinstance(op, Filter | FilterBatches)]
        unnamed += [shown(op) for op in part.ops if isinstance(op, Take)]
        if isinstance(source, Mixture) and (source.stop != "all" or 0 in source.weights.of(epoch)):
            unnamed.append(f"mix(stop={source.stop!r})")
        if isinstance(source, Zipped) and not source.strict:
            unnamed.append("zip_datasets(strict=False)")
        if isinstance(source, Shards) and source.selection.filters is not None:
            unnamed.append("filters=")
    return named, unnamed


def _followed(stages: Stages) -> Iterator[Stages]:
    """The dataset, and the components whose samples are followed."""
    source = stages.source
    if isinstance(source, Composed):
        for part in source.parts[:1] if isinstance(source, Zipped) else source.parts:
            yield from _followed(part)
    yield stages
