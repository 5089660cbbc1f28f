"""``.npy``: the header first, then the rows that are wanted, and no byte before them."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from functools import partial

from ...errors import FormatError
from ...types import Answer, Layout, Planning, Span
from ..columnar.footers import Footers
from ..columnar.picking import check_rows
from ..columnar.selection import Selection, choose_names
from .contents import Stored
from .header import HEAD_BYTES, ArrayHeader, header_bytes, parse_header
from .rows import ArrayRows, RowsDecoder

__all__ = ["FIELD", "check_held", "plan_npy", "spans_of", "wanted_rows"]

#: Of what is no structure.
FIELD = "array"

# In Fortran's order a row is spread over the whole array, so that what is wanted is held until it is whole.
_MOST_HELD_BYTES = 256 << 20

# Runs of it that are asked for one by one; of more, all rows are read.
_MOST_RUNS = 256


def plan_npy(
    *,
    start_sample: int = 0,
    stop_sample: int | None = None,
    selection: Selection,
    footers: Footers | None = None,
) -> Planning:
    """Plan what to read of an array.

    Args:
        start_sample: Rows that were had already.
        stop_sample: Row behind the last one that is wanted; None for all.
        selection: Which fields are wanted, of a structure; of others there is ``array`` alone.
        footers: Of no use: the header is at the beginning.

    Raises:
        FormatError: It is no array, truncated, of a kind that is not read, or lacks what is wanted of it.
    """
    head = yield Span(0, HEAD_BYTES)
    header = yield from _read_header(head)
    stop = header.size_bytes + header.body_bytes
    if head.length != stop:
        raise _other_length(header, head.length)
    names = header.dtype.names
    fields = choose_names(selection.columns, names or (FIELD,))
    wanted = wanted_rows(header.rows, start_sample, stop_sample)
    come, spans = spans_of(header, Span(header.size_bytes, stop), wanted)
    rows = ArrayRows("npy", header, tuple((name, name if names else None) for name in fields), come, Stored)
    check_held("npy", [rows])
    turns = [(0, span.stop - span.start) for span in spans]
    return Layout(tuple(spans), partial(RowsDecoder, [rows], turns, wanted), samples=header.rows)


def wanted_rows(rows: int, start_sample: int, stop_sample: int | None) -> range:
    """Which of an array's rows are wanted.

    Raises:
        FormatError: It has fewer than were had.
    """
    check_rows(rows, start_sample)
    return range(
        start_sample, max(start_sample, min(rows, sys.maxsize if stop_sample is None else stop_sample))
    )


def spans_of(header: ArrayHeader, body: Span, wanted: range) -> tuple[range, list[Span]]:
    """Where rows are.

    Args:
        header: Of the array.
        body: Where its elements are, as they are stored.
        wanted: The rows.

    Returns:
        The rows that come, and the spans, none of them empty.
    """
    if not wanted:
        return wanted, []
    if not header.by_columns:
        begin = body.start + wanted.start * header.row_bytes
        return wanted, [Span(begin, begin + len(wanted) * header.row_bytes)]
    come = wanted if header.columns <= _MOST_RUNS else range(header.rows)
    if len(come) == header.rows:
        return come, [body]
    size = header.dtype.itemsize
    begins = [body.start + (run * header.rows + come.start) * size for run in range(header.columns)]
    return come, [Span(begin, begin + len(come) * size) for begin in begins]


def check_held(what: str, arrays: Sequence[ArrayRows]) -> None:
    """Refuse to hold more of arrays in Fortran's order than there is room for.

    Raises:
        FormatError: It is more, of all of them together.
    """
    held = sum(len(rows.come) * rows.header.row_bytes for rows in arrays if rows.header.by_columns)
    if held > _MOST_HELD_BYTES:
        raise FormatError(
            f"{what}: in Fortran's order rows are spread over all of an array, and {held} bytes would be "
            f"held at once; at most {_MOST_HELD_BYTES} are: save numpy.ascontiguousarray of it"
        )


def _read_header(head: Answer) -> Generator[Span, Answer, ArrayHeader]:
    content = head.content
    size = header_bytes(content, "npy")
    if len(content) < min(size, head.length):
        content += (yield Span(len(content), min(size, head.length))).content
    return parse_header(content, "npy")


def _other_length(header: ArrayHeader, length: int) -> FormatError:
    stop = header.size_bytes + header.body_bytes
    what = f"shape {header.shape} of {header.dtype}"
    claim = f"{what} takes {stop} bytes with its header, and the shard has {length}"
    if length < stop:
        whole = (length - header.size_bytes) // header.row_bytes
        return FormatError(
            f"npy: truncated: {claim}", offset=length, sample=None if header.by_columns else max(whole, 0)
        )
    return FormatError(
        f"npy: {claim}: only one array is read; save several with numpy.savez, or in files of their own",
        offset=stop,
    )
