"""Chunks of tokens: documents end to end, of which each sample is a block, wherever documents begin."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ...blocks import Block, Columns, OffsetTrail
from ...errors import FormatError
from ...types import Answer, Layout, Planning, Span
from .._push import MAX_BLOCK_BYTES, MAX_BLOCK_SAMPLES, PushDecoder
from ..columnar.footers import Footers
from ..offsets.plan import read_table
from ..offsets.table import Table, TableHead, check_end

__all__ = ["FIELD", "Tokens", "TokensDecoder", "plan_tokens"]

#: The field that a block of tokens is.
FIELD = "tokens"


@dataclass(frozen=True)
class Tokens:
    """How the tokens of a chunk are cut.

    Args:
        dtype: Of the tokens.
        block_size: How many make a sample.
    """

    dtype: np.dtype[np.generic]
    block_size: int

    @property
    def block_bytes(self) -> int:
        """Of a sample."""
        return self.dtype.itemsize * self.block_size

    def blocks(self, table: Table) -> int:
        """How many samples a chunk has, by the table of its documents.

        Raises:
            FormatError: The documents are no whole tokens.
        """
        begin, end = int(table.bounds[0]), int(table.bounds[-1])
        if (end - begin) % self.dtype.itemsize:
            raise FormatError(
                f"litdata: damaged: {end - begin} bytes are no whole tokens of {self.dtype}", offset=begin
            )
        return (end - begin) // self.block_bytes


def plan_tokens(
    tokens: Tokens, head: Answer, start: int, stop: int | None, footers: Footers | None
) -> Planning:
    """Plan what to read of a chunk of tokens: its table, and the blocks that are wanted.

    Args:
        tokens: How it is cut.
        head: The beginning of the chunk.
        start: Blocks that were had already.
        stop: Index behind the last one that is wanted; None for all.
        footers: Keeps the table, and may have it already.

    Raises:
        FormatError: The chunk is truncated or damaged, or has fewer blocks than were had.
    """
    table = yield from read_table("litdata", head, footers)
    check_end("litdata", table, head.length)
    count = tokens.blocks(table)
    end = count if stop is None else min(stop, count)
    if start > count:
        raise _too_few(start, count)
    decoder = partial(BlocksDecoder, tokens, start, end)
    begin = int(table.bounds[0])
    spans = (Span(begin + start * tokens.block_bytes, begin + end * tokens.block_bytes),)
    return Layout(spans if start < end else (), decoder, count)


class BlocksDecoder(PushDecoder):
    """Cut tokens into blocks; fed those of whole blocks.

    Args:
        tokens: How they are cut.
        first: Index in the chunk of the first block.
        stop: Index behind the last one.
    """

    def __init__(self, tokens: Tokens, first: int, stop: int) -> None:
        super().__init__()
        self._tokens = tokens
        self._next = first
        self._stop = stop
        self._held: list[bytes] = []  # the beginning of a block
        self._held_bytes = 0

    @property
    def sample(self) -> int | None:
        """Index in the chunk of the block that is read next; None behind the last one."""
        return self._next if self._next < self._stop else None

    @property
    def held_bytes(self) -> int:
        """How much of that block has come."""
        return self._held_bytes

    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]:
        size = self._tokens.block_bytes
        whole = (self._held_bytes + len(chunk)) // size * size
        if not whole:
            self._hold(chunk)
            return
        # One copy, since what is fed is lent, into one array for all blocks that end here.
        flat = np.empty(whole, np.uint8)
        at = 0
        for part in self._held:
            flat[at : at + len(part)] = np.frombuffer(part, np.uint8)
            at += len(part)
        stop = whole - at
        flat[at:] = np.frombuffer(chunk, np.uint8, stop)
        self._held, self._held_bytes = [], 0
        if stop < len(chunk):
            self._hold(chunk[stop:])
        yield from self._blocks(flat)

    def _decode_end(self) -> Iterator[Block]:
        yield from ()
        if self._next < self._stop or self._held:
            raise FormatError("litdata: truncated within a block of tokens", sample=self._next)

    def _hold(self, part: bytes | memoryview) -> None:
        self._held.append(bytes(part))
        self._held_bytes += len(part)

    def _blocks(self, flat: NDArray[np.uint8]) -> Iterator[Block]:
        """The blocks of whole ones, over the one array that they are in."""
        tokens = self._tokens
        values = flat != 0 if tokens.dtype == np.bool_ else flat.view(tokens.dtype)
        blocks = values.reshape(-1, tokens.block_size)
        most = max(min(MAX_BLOCK_SAMPLES, MAX_BLOCK_BYTES // tokens.block_bytes), 1)
        for begin in range(0, len(blocks), most):
            part = blocks[begin : begin + most]
            trail = OffsetTrail(self._next, None)
            self._next += len(part)
            yield Columns({FIELD: part}, trail)


class TokensDecoder(PushDecoder):
    """Decode a chunk of tokens from front to back.

    Args:
        tokens: How it is cut.
        start_sample: Blocks before the first one that is wanted.
    """

    def __init__(self, tokens: Tokens, *, start_sample: int = 0) -> None:
        super().__init__()
        self._tokens = tokens
        self._start = start_sample
        self._head = TableHead("litdata")
        self._blocks: BlocksDecoder | None = None
        # Where in the chunk the next byte is, where the blocks begin and end, and the tokens.
        self._at = self._begin = self._stop = self._end = 0

    @property
    def has_table(self) -> bool:
        """Whether the table has come."""
        return self._blocks is not None

    @property
    def held_bytes(self) -> int:
        """How much has come of the table, or of the block that is read next."""
        return self._head.held_bytes if self._blocks is None else self._blocks.held_bytes

    @property
    def sample(self) -> int | None:
        """Index in the chunk of the block that is read next; None before all that are wanted, and behind."""
        return None if self._blocks is None or self._at < self._begin else self._blocks.sample

    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]:
        if self._blocks is None:
            table, chunk = self._head.take(chunk)
            if table is None:
                return
            self._blocks = self._open(table)
        at, self._at = self._at, self._at + len(chunk)
        wanted = chunk[max(self._begin - at, 0) : max(self._stop - at, 0)]
        if len(wanted):
            yield from self._blocks.feed(wanted)
        if self._at > self._end:
            raise FormatError(
                "litdata: damaged: there are bytes behind the last token, which the table ends at byte "
                f"{self._end}",
                offset=self._end,
            )

    def _decode_end(self) -> Iterator[Block]:
        if self._blocks is None:
            raise self._head.truncated()
        if self._at < self._end:
            raise FormatError("litdata: truncated", offset=self._at)
        yield from self._blocks.finish()

    def _open(self, table: Table) -> BlocksDecoder:
        count, size = self._tokens.blocks(table), self._tokens.block_bytes
        if self._start > count:
            raise _too_few(self._start, count)
        self._at, self._end = int(table.bounds[0]), int(table.bounds[-1])
        self._begin, self._stop = self._at + self._start * size, self._at + count * size
        return BlocksDecoder(self._tokens, self._start, count)


def _too_few(start: int, count: int) -> FormatError:
    return FormatError(
        f"expected at least {start} blocks of tokens, as many come before those to read or were read from it "
        f"before; found {count}: the shard has changed"
    )
