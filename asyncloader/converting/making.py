"""One run of shards, from material to finished files; in whatever process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from ..errors import FormatError
from ..index.expectations import Expected
from .encoders import Encoder, open_encoder
from .job import note_shard
from .material import Part
from .outlets import Outlet
from .plan import Shard
from .tables import Schema
from .target import Target
from .values import prepared

__all__ = ["Task", "make_shards"]


@dataclass(frozen=True)
class Task:
    """A run of shards with all that it takes to make them.

    Attributes:
        part: The samples of all of them.
        shards: In a row.
        target: What they are to be.
        schema: Of Parquet.
        outlet: Where they go.
    """

    part: Part
    shards: Sequence[Shard]
    target: Target
    schema: Schema | None
    outlet: Outlet


def make_shards(task: Task) -> Iterator[tuple[str, Expected]]:
    """Make the shards of a run, and note each when it is whole.

    Yields:
        Its name, and what it is.

    Raises:
        FormatError: The sources have fewer samples than they were counted to have.
        ValueError: A value that the target cannot keep; says of which sample.
        StoreError, OSError: The sources cannot be read, or the shards not be written.
    """
    prepare = prepared(task.target)
    with closing(task.part.samples()) as samples:
        for shard in task.shards:
            encoder = open_encoder(task.target, task.outlet.draft(shard.name), task.schema)
            try:
                _fill(encoder, shard, samples, prepare)
                if shard is task.shards[-1] and next(samples, None) is not None:
                    # Its end, where a source is held against its digest, comes before the shard is one.
                    raise FormatError("the sources have more samples than were counted: have they changed?")
                made = encoder.finish()
            except BaseException:
                encoder.discard()
                raise
            note_shard(task.outlet, shard.name, made)
            yield shard.name, made


def _fill(encoder: Encoder, shard: Shard, samples: Iterator[tuple[Any, object]], prepare: Any) -> None:
    for number in range(shard.first, shard.stop):
        sample, place = next(samples, (None, None))
        if place is None:
            raise FormatError(
                f"expected {shard.stop - number} more samples, as many as were counted, and the sources have "
                "no more: have they changed? If so, begin anew with overwrite"
            )
        try:
            encoder.add(prepare(sample), number)
        except (ValueError, TypeError) as error:
            error.add_note(f"in {place}")
            raise
