"""A look at the first samples of some sources: how large, of which columns, and can the target keep them?"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass

from ..blocks import bytes_of
from .encoders import encoded_bytes
from .material import Part
from .tables import Schema, make_schema
from .target import Target
from .values import prepared

__all__ = ["Look", "look"]

# Of each part: enough to see optional fields and a mean, and no more than one request brings.
_MOST_SAMPLES = 256
_MOST_BYTES = 8 << 20


@dataclass(frozen=True)
class Look:
    """What was seen.

    Attributes:
        sample_bytes: What a sample takes before compression, on average.
        schema: Of Parquet.
    """

    sample_bytes: float
    schema: Schema | None


def look(target: Target, parts: Iterable[Part]) -> Look:
    """Look at the first samples of each part.

    Raises:
        ValueError: A value that the target cannot keep; says of which sample.
    """
    prepare = prepared(target)
    rows = []
    total_bytes = count = 0
    for part in parts:
        part_bytes = 0
        with closing(part.samples()) as samples:
            for number, (sample, place) in enumerate(samples):
                if number == _MOST_SAMPLES or part_bytes > _MOST_BYTES:
                    break
                try:
                    kept = prepare(sample)
                    if target.format == "parquet":
                        rows.append(kept)
                        part_bytes += bytes_of(kept)
                    else:
                        part_bytes += encoded_bytes(target, kept, number)
                except (ValueError, TypeError) as error:
                    error.add_note(f"in {place}")
                    raise
                count += 1
        total_bytes += part_bytes
    if target.format == "parquet":
        schema, size = make_schema(target, rows)
        return Look(size, schema)
    return Look(total_bytes / max(count, 1), None)
