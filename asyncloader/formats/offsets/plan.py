"""What to read of a shard with a table for some of its samples: the table, and their bytes alone."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

from ...errors import FormatError
from ...types import Answer, Layout, Planning, Span
from ..columnar.footers import Footers
from .decoder import Kind, open_samples
from .table import LEAST_BYTES, Table, check_end, parse_table, samples_begin

__all__ = ["HEAD_BYTES", "plan_samples", "plan_table", "read_table"]

#: The table of 4,000 samples. Of 4 KiB each they are 16 MiB; where there are more, the rest takes another
# request.
HEAD_BYTES = 16 << 10


def plan_samples(
    kind: Kind, *, start_sample: int = 0, stop_sample: int | None = None, footers: Footers | None = None
) -> Planning | None:
    """Plan what to read of a shard; None where all of it is wanted, which needs no plan.

    Args:
        kind: Of the shard.
        start_sample: Samples that were had already.
        stop_sample: Index behind the last one that is wanted; None for all.
        footers: Keeps the table, and may have it already.
    """
    if not start_sample and stop_sample is None:
        return None
    return _plan(kind, start_sample, stop_sample, footers)


def _plan(kind: Kind, start: int, stop: int | None, footers: Footers | None) -> Planning:
    answer = yield Span(0, HEAD_BYTES)
    return (yield from plan_table(kind, answer, start, stop, footers))


def plan_table(kind: Kind, answer: Answer, start: int, stop: int | None, footers: Footers | None) -> Planning:
    """The rest of a plan, where the first ``HEAD_BYTES`` of the shard are known; see ``plan_samples``."""
    table = yield from read_table(kind.name, answer, footers)
    check_end(kind.name, table, answer.length)
    end = table.samples if stop is None else max(min(stop, table.samples), start)
    decoder = partial(open_samples, kind, table, start, end)
    if start >= end:
        return Layout((), decoder, table.samples, passes_over=True)
    span = Span(int(table.bounds[start]), int(table.bounds[end]))
    spans = (span,) if span.start < span.stop else ()
    return Layout(spans, decoder, table.samples, passes_over=True)


def read_table(name: str, answer: Answer, footers: Footers | None) -> Generator[Span, Answer, Table]:
    """The table of the shard whose beginning ``answer`` has, read to its end where that is not all."""
    content, length, version = answer
    begin = samples_begin(name, content[:LEAST_BYTES])
    if begin <= len(content):
        return parse_table(name, content[:begin])
    if footers is not None and version is not None and (kept := footers.find(version, length)) is not None:
        return parse_table(name, kept)
    if begin > length:
        raise FormatError(
            f"{name}: truncated: the first sample should begin at byte {begin}, the shard has {length}",
            offset=length,
        )
    content += (yield Span(len(content), begin)).content
    if footers is not None and version is not None:
        footers.keep(version, length, content)
    return parse_table(name, content)
