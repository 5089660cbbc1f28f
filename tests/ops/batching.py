"""Running a batching over texts in memory, as rows and as columns, cut into blocks in any way."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np

from asyncloader.blocks import Block, Columns, OffsetTrail, Ragged, Rows
from asyncloader.pipeline.batching import Batch, Batching
from asyncloader.pipeline.lane import START, Blocks, Lane
from asyncloader.types import Position, entry_of

__all__ = ["Made", "Texts", "assert_resumes_everywhere", "lognormal_lengths", "made_of"]


@dataclass
class Texts:
    """Samples ``number``, ``tokens`` (numbers that all differ) and ``labels`` (their negatives).

    Args:
        lengths: Of the tokens of each.
        as_columns: Columns, or rows of lists.
        sizes: Of the blocks, over and over.
    """

    lengths: Sequence[int]
    as_columns: bool = False
    sizes: Sequence[int] = (3, 1, 4)
    handed_on: int = 0

    def __post_init__(self) -> None:
        self.offsets = np.concatenate([[0], np.cumsum(np.asarray(self.lengths, np.int64))])
        self.tokens = np.arange(1, self.offsets[-1] + 1)

    def open(self, start: Position, lane: Lane) -> Blocks:
        at: int = entry_of(start, 0).get("sample", 0)
        for size in cycle(self.sizes):
            if at >= len(self.lengths):
                return
            stop = min(at + size, len(self.lengths))
            self.handed_on += stop - at
            yield self.block(at, stop, lane.topology.lane)
            at = stop

    def block(self, at: int, stop: int, number: int = 0) -> Block:
        trail = OffsetTrail(at, None).within("listed", number, 0)
        if not self.as_columns:
            return Rows([self._row(index) for index in range(at, stop)], trail)
        ragged = Ragged(self.tokens, self.offsets)[at:stop]
        labels = Ragged(
            -self.tokens[self.offsets[at] : self.offsets[stop]], ragged.offsets - self.offsets[at]
        )
        return Columns({"number": np.arange(at, stop), "tokens": ragged, "labels": labels}, trail)

    def _row(self, index: int) -> dict[str, Any]:
        tokens = self.tokens[self.offsets[index] : self.offsets[index + 1]].tolist()
        return {"number": index, "tokens": tokens, "labels": [-token for token in tokens]}


class Made(NamedTuple):
    """A batch as plain values."""

    content: Any
    position: str
    samples: int
    tokens: int


def made_of(batching: Batching, texts: Texts, lane: Lane, start: Position = START) -> list[Made]:
    """The batches, each with its position as JSON."""
    with closing(batching.open(texts.open, start, lane)) as batches:
        return [
            Made(_plain(batch), json.dumps(batch.position), batch.samples, batch.tokens) for batch in batches
        ]


def _plain(batch: Batch) -> Any:
    def plain(value: Any) -> Any:
        return value.tolist() if hasattr(value, "tolist") else value

    assert len(batch.block), "no batch is empty"
    return [{name: plain(value) for name, value in row.items()} for row in batch.block.rows()]


def assert_resumes_everywhere(batching: Batching, lengths: Sequence[int], lane: Lane) -> list[Made]:
    """Cut into blocks in any way, as rows or as columns: reopened behind any batch, the rest comes."""
    whole = made_of(batching, Texts(lengths), lane)
    assert made_of(batching, Texts(lengths, as_columns=True, sizes=(7,)), lane) == whole
    for done, made in enumerate(whole, 1):
        texts = Texts(lengths, as_columns=done % 2 == 1, sizes=(2, 5))
        rest = made_of(batching, texts, lane, json.loads(made.position))
        assert rest == whole[done:], f"after {done} batches, at {made.position}"
    return whole


def lognormal_lengths(count: int, seed: int = 0) -> list[int]:
    """As of texts: 200 tokens on average, 16 to 2,048."""
    drawn = np.random.default_rng(seed).lognormal(np.log(200) - 0.32, 0.8, count)
    lengths: list[int] = np.clip(drawn, 16, 2048).astype(int).tolist()
    return lengths
