"""What the audit of a stream records of its dataset: which samples there are, and which may not come."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from time import time
from typing import Any

from ..observe.audit import AuditedSource, Begin, Contents, Recording, write_contents
from ..pipeline.components import Composed, Recipe
from ..pipeline.filter import Filter, FilterBatches
from ..pipeline.mixture import Mixture
from ..pipeline.op import shown
from ..pipeline.shards import Shards
from ..pipeline.take import Repeat, Take
from ..pipeline.zipped import Zipped
from ..plan.lanes import Cursor
from ..plan.states import without
from ..plan.topology import World
from ..stores.expanding import expand_home
from ..stores.urls import redact


def open_recording(
    folder: str | os.PathLike[str],
    dataset: Recipe,
    described: Mapping[str, Any],
    world: World,
    cursor: Cursor,
    workers: int,
    skips: bool,
) -> Recording:
    """Begin to record a pass.

    Args:
        folder: Of the audit; created if there is none.
        dataset: The dataset that is read.
        described: What a state of it says of the dataset: distinguishes the files of several loaders.
        world: The rank.
        cursor: Where the pass begins.
        workers: How many read it.
        skips: Whether samples may be skipped.

    Raises:
        ValueError: The folder or a file in it cannot be created or written.
    """
    place, name = expand_home(os.fspath(folder)), _digest_of(described)
    named, unnamed = _reasons(dataset, described, cursor.epoch, skips)
    begin = Begin(
        id=uuid.uuid4().hex[:16],
        began=time(),
        epoch=cursor.epoch,
        rank=world.rank,
        world_size=world.size,
        workers=workers,
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
            write_contents(contents_path, Contents(dict(described), [*_parts_of(dataset, (), "", 1)]))
        return Recording(os.path.join(place, f"{name}-rank{world.rank:05d}.jsonl"), begin)
    except OSError as error:
        raise ValueError(
            "audit should be a folder where each rank can create files and append to them, but got "
            f"audit={os.fspath(folder)!r}, and {error.filename or place} cannot be written: "
            f"{error.strerror}; name another folder, or make this one writable"
        ) from error


def _digest_of(described: Mapping[str, Any]) -> str:
    # Without what may change between two runs: what an index adds, sizes of shards, their places.
    lasting = without(described, {"contents_sha256", "sizes_sha256", "places_sha256"}.__contains__)
    return hashlib.sha256(json.dumps(lasting, sort_keys=True).encode()).hexdigest()[:12]


def _parts_of(
    dataset: Recipe, component: tuple[int, ...], name: str, outer: int | None
) -> Iterator[AuditedSource]:
    """The sources whose samples are recorded, with how often each of them comes."""
    repetitions = outer
    for op in dataset.ops:
        if isinstance(op, Repeat):
            repetitions = None if op.times is None or repetitions is None else repetitions * op.times
    source = dataset.source
    if isinstance(source, Composed):
        if isinstance(source, Mixture) and source.stop == "repeat":
            repetitions = None
        for number, (inner, part) in enumerate(zip(source.names, source.recipes, strict=True)):
            yield from _parts_of(part, (*component, number), f"{name}/{inner}".lstrip("/"), repetitions)
            if isinstance(source, Zipped):
                return  # samples of the others are not recorded: each belongs to one of the first
    elif isinstance(source, Shards):
        counts = source.checks.counts()
        shards = [redact(url) for url in source.urls]
        yield AuditedSource(component, name, shards, counts or [None] * len(shards), repetitions)
    else:
        yield AuditedSource(component, name, None, None, repetitions)


def _reasons(
    dataset: Recipe, described: Mapping[str, Any], epoch: int, skips: bool
) -> tuple[list[str], list[str]]:
    """What may leave samples out: what names each that it leaves out, and what does not."""
    ops = [op for part in _followed(dataset) for op in part.ops]
    named = [shown(op) for op in ops if isinstance(op, Filter | FilterBatches)]
    named += ["drop_last"] if described.get("drop_last") else []
    unnamed = [*_sources_that_leave_out(dataset, epoch)]
    unnamed += [shown(op) for op in ops if isinstance(op, Take)]
    unnamed += ["on_error=SkipErrors(...)"] if skips else []
    return named, unnamed


def _followed(dataset: Recipe) -> Iterator[Recipe]:
    """The dataset, and the components whose samples are followed."""
    source = dataset.source
    if isinstance(source, Composed):
        for part in source.recipes[:1] if isinstance(source, Zipped) else source.recipes:
            yield from _followed(part)
    yield dataset


def _sources_that_leave_out(dataset: Recipe, epoch: int) -> Iterator[str]:
    for source in (part.source for part in _followed(dataset)):
        if isinstance(source, Mixture) and (source.stop != "all" or 0 in source.weights.of(epoch)):
            yield f"mix(stop={source.stop!r})"
        if isinstance(source, Zipped) and not source.strict:
            yield "zip_datasets(strict=False)"
        if isinstance(source, Shards) and source.selection.filters is not None:
            yield "filters="
