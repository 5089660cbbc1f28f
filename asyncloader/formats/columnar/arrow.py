"""Arrow IPC: files (Feather is one) and streams, told apart by their content.

Of a file the footer says where its batches are. Whatever columns are wanted, whole batches are read. A
position is the number of rows that were had; how many a batch has is only seen in it, so that those before
are read again, and not converted.
"""

from __future__ import annotations

from functools import partial

from ...errors import FormatError
from ...types import Layout, Planning, Span
from .._push import describe_bytes
from ..compression import SIGNATURE_BYTES, compression_of
from .arrow_file import ArrowFileDecoder, Place
from .arrow_stream import ArrowStreamDecoder
from .flatbuffers import Table
from .footers import Footers, read_footer
from .importing import arrow
from .messages import CONTINUATION
from .selection import Selection
from .spans import HeldSpans, merge

__all__ = ["plan_arrow"]

_MAGIC = b"ARROW1"
_FEATHER_1_MAGIC = b"FEA1"
_HEAD_BYTES = 4 << 10

# Offset, length of the metadata, and length of the body (``File.fbs``).
_BLOCK = "<qi4xq"
_DICTIONARIES, _BATCHES = 2, 3


def plan_arrow(
    *,
    start_sample: int = 0,
    stop_sample: int | None = None,
    selection: Selection,
    footers: Footers | None = None,
) -> Planning:
    """Plan what to read of a shard of Arrow IPC.

    Args:
        start_sample: Rows that were had already.
        stop_sample: Makes no difference: how many rows a batch has is not known before it is read.
        selection: Which columns and rows are wanted.
        footers: Keeps the footer of a file, and may have it already.

    Raises:
        FormatError: It is no Arrow IPC, or truncated.
        ImportError: pyarrow is not installed.
    """
    arrow()
    head = yield Span(0, _HEAD_BYTES)
    if not head.content.startswith(_MAGIC):
        _check_stream(head.content)
        return Layout((Span(0, head.length),), partial(ArrowStreamDecoder, selection, start_sample))
    footer = yield from read_footer("arrow", _MAGIC, head, footers)
    table = Table(footer[: -len(_MAGIC) - 4], "the footer")
    # Dictionaries first: the batches, wherever they are, need them.
    dictionaries, batches = (
        [_place_of(block, head.length - len(footer)) for block in table.structs(field, _BLOCK)]
        for field in (_DICTIONARIES, _BATCHES)
    )
    groups = [[*dictionaries, batches[0]], *([batch] for batch in batches[1:])] if batches else []
    merged, complete = merge([[Span(place.start, place.stop) for place in group] for group in groups])
    file = partial(HeldSpans, merged, head.length, footer)
    return Layout(tuple(merged), partial(ArrowFileDecoder, file, groups, complete, selection, start_sample))


def _place_of(block: tuple[int, ...], stop: int) -> Place:
    start, metadata_bytes, body_bytes = block
    end = start + metadata_bytes + body_bytes
    if min(start, metadata_bytes, body_bytes) < 0 or not start < end <= stop:
        raise FormatError(f"arrow: damaged: a batch is said to be at bytes {start} to {end} of {stop}")
    return Place(start, start + metadata_bytes, end)


def _check_stream(start: bytes) -> None:
    """Refuse what is no stream of messages, by its first bytes."""
    if not start:
        raise FormatError("arrow: truncated: the shard is empty", offset=0)
    if start.startswith(_FEATHER_1_MAGIC):
        raise FormatError(
            "arrow: this is Feather version 1, which is not read; write it anew with "
            "pyarrow.feather.write_feather",
            offset=0,
        )
    hint = describe_bytes(start)
    if compression_of(start[:SIGNATURE_BYTES]) is not None:
        hint += ", and Arrow is not read when it is compressed as a whole: decompress it"
    # A stream begins with its schema's length, behind a marker or, before Arrow 0.15, at once.
    if start[:4] != CONTINUATION and start[2:4] != b"\0\0":
        raise FormatError(
            f"arrow: expected the magic {_MAGIC!r} or a stream of messages, found {start[:6]!r}{hint}",
            offset=0,
        )
