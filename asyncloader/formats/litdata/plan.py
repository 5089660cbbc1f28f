"""What to read of a chunk: by its index, and by its first and last bytes, what it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ...types import Layout, Planning, Span, Unpacked
from .._open import SniffingDecoder
from ..columnar.arrow import plan_arrow
from ..columnar.footers import Footers
from ..columnar.selection import EVERYTHING, Selection
from ..compression import SIGNATURE_BYTES, compression_of
from ..decoder import Decoder
from ..offsets.decoder import Kind, Samples, TableDecoder
from ..offsets.packed import Held, UnpackingDecoder
from ..offsets.plan import HEAD_BYTES, plan_table
from .arrays import flat_dtype
from .footer import TAIL_BYTES, find_footer, plan_inside
from .framed import MAGIC, plan_frames
from .index import Schema
from .samples import CompressedSamples, LitDataSamples
from .tokens import Tokens, TokensDecoder, plan_tokens

__all__ = ["open_litdata_decoder", "plan_litdata"]


def plan_litdata(
    *,
    start_sample: int = 0,
    stop_sample: int | None = None,
    selection: Selection = EVERYTHING,
    footers: Footers | None = None,
    schema: Schema,
    unpacked: Unpacked | None = None,
) -> Planning | None:
    """Plan what to read of a chunk; None where all of it is read from front to back.

    Args:
        start_sample: Samples that were had already.
        stop_sample: Index behind the last one that is wanted; None for all.
        selection: Which fields are wanted.
        footers: Keeps the table, or the footer of Arrow, and may have it already.
        schema: What the chunks hold, by their index.
        unpacked: What the chunk should become, if it is compressed as a whole.
    """
    if schema.wrap == "chunk" and not schema.may_be_rows:
        return None
    if schema.wrap != "batch" and not schema.may_be_rows and not start_sample and stop_sample is None:
        return None
    return _plan(start_sample, stop_sample, selection, footers, schema, unpacked)


def open_litdata_decoder(
    *,
    start_sample: int = 0,
    selection: Selection = EVERYTHING,
    schema: Schema,
    unpacked: Unpacked | None = None,
    **options: Any,
) -> Decoder:
    """A decoder of a chunk from front to back, compressed as a whole or not."""
    tokens = _tokens(schema)
    inner: Held
    if tokens is None:
        inner = TableDecoder(_kind(schema, selection), start_sample=start_sample, **options)
    else:
        inner = TokensDecoder(tokens, start_sample=start_sample)  # passes over none: each decodes
    if schema.wrap != "chunk":
        return inner
    return UnpackingDecoder("litdata", _sniffed, inner, unpacked)


def _sniffed(inner: Decoder, check: Callable[[int], None]) -> Decoder:
    return SniffingDecoder(lambda: inner, check)


def _plan(
    start: int,
    stop: int | None,
    selection: Selection,
    footers: Footers | None,
    schema: Schema,
    unpacked: Unpacked | None,
) -> Planning:
    head = yield Span(0, HEAD_BYTES)
    if head.content.startswith(MAGIC):
        return (yield from plan_frames(head, _samples(schema, selection), start, stop))
    # Never of others: one of 559,903 samples begins as gzip does.
    if schema.wrap == "chunk" and compression_of(head.content[:SIGNATURE_BYTES]) is not None:
        decoder = partial(
            open_litdata_decoder, start_sample=start, selection=selection, schema=schema, unpacked=unpacked
        )
        return Layout((Span(0, head.length),), decoder, passes_over=True)
    if schema.may_be_rows:
        tail = head.content[-TAIL_BYTES:]
        if len(head.content) < head.length:
            tail = (yield Span(max(head.length - TAIL_BYTES, 0), head.length)).content
        rows = find_footer(tail, head.length)
        if rows is not None:
            count = int.from_bytes(head.content[:4], "little")
            plan = plan_arrow(start_sample=start, stop_sample=stop, selection=selection, footers=footers)
            return (yield from plan_inside(plan, rows, head, count, start))
    tokens = _tokens(schema)
    if tokens is not None:
        return (yield from plan_tokens(tokens, head, start, stop, footers))
    return (yield from plan_table(_kind(schema, selection), head, start, stop, footers))


def _tokens(schema: Schema) -> Tokens | None:
    """How chunks of tokens are cut; None of others."""
    if schema.block_size is None:
        return None
    return Tokens(flat_dtype(schema.leaves[0]), schema.block_size)


def _kind(schema: Schema, selection: Selection) -> Kind:
    return Kind("litdata", lambda header: _samples(schema, selection))


def _samples(schema: Schema, selection: Selection) -> Samples:
    samples = LitDataSamples(schema.tree, schema.leaves, selection.columns)
    return CompressedSamples(samples) if schema.wrap == "sample" else samples
