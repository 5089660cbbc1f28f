"""``.npz``: a field for each array in a zip archive; the directory first, then the headers, then rows.

Of members that are stored only the rows that are wanted are read; those that are deflated are inflated from
their beginning, and what is before the wanted rows is dropped.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial

from ...errors import FormatError
from ...types import Answer, Layout, Planning, Span
from ..columnar.footers import Footers
from ..columnar.selection import Selection, choose_names
from .archive import LOCAL_BYTES, ArchiveMember, Asking, find_members, inflated, locate
from .contents import Deflated, Stored
from .header import HEAD_BYTES, MOST_ROW_BYTES, ArrayHeader, header_bytes, parse_header
from .npy import check_held, spans_of, wanted_rows
from .rows import ArrayRows, RowsDecoder

__all__ = ["plan_npz"]

_SUFFIX = ".npy"

# All of a small shard.
_HEAD_BYTES = 64 << 10

# As many bytes of an array come in a row, before those of the others: enough for a request.
_TURN_BYTES = 4 << 20

# Behind a member's name in its own header: lengths of 64 bits, times.
_MORE_BYTES = 64

# Of a deflated member, in which the array's header should have ended.
_MOST_START_BYTES = 1 << 20

# Fields of samples are some tens; of each array that is deflated a piece of 1 MiB may be held.
_MOST_ARRAYS = 1024


@dataclass(frozen=True, slots=True)
class _Member:
    """A member whose header was read.

    Attributes:
        field: Its name.
        entry: In the directory.
        header: Of the array.
        head: The header's bytes.
        body: Where its bytes are in the shard, from its header on.
    """

    field: str
    entry: ArchiveMember
    header: ArrayHeader
    head: bytes
    body: Span

    @property
    def what(self) -> str:
        return _what(self.entry)


def plan_npz(
    *,
    start_sample: int = 0,
    stop_sample: int | None = None,
    selection: Selection,
    footers: Footers | None = None,
) -> Planning:
    """Plan what to read of an archive of arrays.

    Args:
        start_sample: Rows that were had already.
        stop_sample: Row behind the last one that is wanted; None for all.
        selection: Which arrays are wanted.
        footers: Keeps the directory, and may have it already.

    Raises:
        FormatError: It is no archive of arrays, truncated, of a kind that is not read, or lacks what is
            wanted of it; or the arrays that are wanted differ in their numbers of rows, or are more or larger
            than can be held.
    """
    head = yield Span(0, _HEAD_BYTES)
    entries = yield from find_members(head, footers)
    by_field = {entry.name.removesuffix(_SUFFIX): entry for entry in entries}
    fields = choose_names(selection.columns, tuple(by_field))
    if len(fields) > _MOST_ARRAYS:
        raise FormatError(
            f"npz: {len(fields)} arrays would be read; at most {_MOST_ARRAYS} are: choose some by columns="
        )
    members = []
    for field in fields:
        members.append((yield from _open(field, by_field[field], head)))
    rows = _check_rows(members)
    wanted = wanted_rows(rows, start_sample, stop_sample)
    arrays, pieces = [], []
    for number, member in enumerate(members):
        come, spans, stored_rows = _spans_of(member, wanted)
        content = partial(_open_content, member, come)
        arrays.append(ArrayRows(member.what, member.header, ((member.field, None),), come, content))
        pieces += _pieces(number, spans, stored_rows, wanted, alone=len(members) == 1)
    check_held("npz", arrays)
    pieces.sort(key=lambda piece: piece[:2])
    turns = [(number, span.stop - span.start) for _, number, span in pieces]
    requested = tuple(span for _, _, span in pieces)
    return Layout(requested, partial(RowsDecoder, arrays, turns, wanted), samples=rows)


def _open(field: str, entry: ArchiveMember, head: Answer) -> Generator[Span, Answer, _Member]:
    """Read the headers of a member: that of the archive, and that of the array."""
    what = _what(entry)
    if not entry.name.endswith(_SUFFIX):
        raise FormatError(
            f"{what} is no array: its name should end with {_SUFFIX}, as numpy.savez names them; choose "
            "others by columns="
        )
    size = LOCAL_BYTES + len(entry.raw_name) + _MORE_BYTES + HEAD_BYTES
    start = yield from _bring(head, Span(entry.local, min(entry.local + size, head.length)))
    body = locate(entry, start, head.length)
    start = start[body.start - entry.local :][: entry.stored_bytes]
    plain = yield from _bring_header(entry, head, body, start)
    header = parse_header(plain, what)
    if header.size_bytes + header.body_bytes != entry.size_bytes:
        raise FormatError(
            f"{what}: damaged: shape {header.shape} of {header.dtype} takes "
            f"{header.size_bytes + header.body_bytes} bytes with its header, and the member has "
            f"{entry.size_bytes}",
            offset=body.start,
        )
    if header.dtype.names is not None:
        raise FormatError(
            f"{what} is of a structure: of .npz each array is a field; save those of the structure as arrays"
        )
    return _Member(field, entry, header, plain[: header.size_bytes], body)


def _bring_header(entry: ArchiveMember, head: Answer, body: Span, start: bytes) -> Asking:
    """The first bytes of an array, its header among them, of which those stored in ``start`` are there."""
    what = _what(entry)
    while True:
        plain = inflated(start, HEAD_BYTES * 4, what) if entry.is_deflated else start
        is_all = len(start) == entry.stored_bytes
        size = header_bytes(plain, what) if len(plain) >= 12 or is_all else 12
        if len(plain) >= size or is_all:
            return plain
        if len(start) >= _MOST_START_BYTES:  # deflated bytes may become nothing at all, as many as they are
            raise FormatError(
                f"{what}: damaged: {len(start)} deflated bytes hold no header", offset=body.start
            )
        more = Span(body.start + len(start), min(body.start + max(size, 2 * len(start)), body.stop))
        start += yield from _bring(head, more)


def _check_rows(members: Sequence[_Member]) -> int:
    """How many rows all arrays have; and that one of all of them can be held."""
    row_bytes = sum(member.header.row_bytes for member in members)
    rows = {member.header.rows for member in members}
    if len(rows) > 1:
        told = ", ".join(f"{member.field!r} {member.header.rows}" for member in members[:10])
        raise FormatError(
            f"npz: expected as many rows in each array, along its first axis, found {told}; choose those "
            "that belong together by columns="
        )
    count = rows.pop()
    if count and row_bytes > MOST_ROW_BYTES:
        raise FormatError(
            f"npz: a row of all arrays has {row_bytes} bytes; at most {MOST_ROW_BYTES} are read: choose some "
            "by columns="
        )
    return count


def _spans_of(member: _Member, wanted: range) -> tuple[range, list[Span], range]:
    """The rows that come of a member, where they are, and the rows that are stored there."""
    header = member.header
    if not wanted:
        return wanted, [], wanted
    if not member.entry.is_deflated:
        body = Span(member.body.start + header.size_bytes, member.body.stop)
        come, spans = spans_of(header, body, wanted)
        return come, spans, wanted
    every = range(header.rows)
    return every if header.by_columns else range(wanted.start, header.rows), [member.body], every


def _open_content(member: _Member, come: range) -> Stored | Deflated:
    """What takes the bytes of a member; its checksum is verified where all of them come."""
    header, entry = member.header, member.entry
    if entry.is_deflated and come:
        skip = header.size_bytes + come.start * header.row_bytes
        return Deflated(entry.stored_bytes, entry.size_bytes, skip, entry.crc32)
    if len(come) < header.rows or entry.is_deflated:
        return Stored()
    return Stored(entry.crc32, zlib.crc32(member.head))


def _pieces(
    number: int, spans: Sequence[Span], stored: range, wanted: range, *, alone: bool
) -> list[tuple[int, int, Span]]:
    """The spans of an array, cut so that arrays come in turns: each with the row that it is read for."""
    if len(spans) != 1 or alone:
        return [(wanted.start, number, span) for span in spans]
    ((start, stop),) = spans
    cuts = -(-(stop - start) // _TURN_BYTES)
    bounds = [start + (stop - start) * cut // cuts for cut in range(cuts + 1)]
    rows = [max(stored.start + len(stored) * cut // cuts, wanted.start) for cut in range(cuts)]
    return [
        (row, number, Span(begin, end)) for row, begin, end in zip(rows, bounds, bounds[1:], strict=False)
    ]


def _bring(head: Answer, span: Span) -> Asking:
    """Bytes of the shard, of which some are there."""
    if span.stop <= len(head.content) or span.start >= span.stop:
        return head.content[span.start : span.stop]
    return (yield span).content


def _what(entry: ArchiveMember) -> str:
    return f"npz: member {entry.name!r}"
