"""What batching by length costs, and how much it pads.

    python tests/benchmarks/batchings.py

100,000 documents of lognormal lengths, 200 tokens on average and from 16 to 2,048, in memory, in blocks of
1,000: as columns over one array, and as rows with an array each. One lane, batches made and packed ones
collated; the best of five rounds, in which the ways take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import torch  # noqa: F401  # which batches are made of where it is imported
from _measure import machine

import asyncloader as al
from asyncloader.blocks import Block, Columns, OffsetTrail, Ragged, Rows, offsets_of
from asyncloader.collate.default import collate_block
from asyncloader.flow.budget import Budget
from asyncloader.flow.engine import Engine
from asyncloader.pipeline.lane import START, Lane, Services
from asyncloader.plan.topology import Topology

ROUNDS = 5
DOCUMENTS, BLOCK = 100_000, 1000

LENGTHS = np.clip(np.random.default_rng(0).lognormal(np.log(200) - 0.32, 0.8, DOCUMENTS), 16, 2048).astype(
    int
)
TOKENS = Ragged(np.arange(LENGTHS.sum(), dtype=np.int32), offsets_of(LENGTHS))

BATCHINGS: dict[str, Any] = {
    "TokenBatches(max_tokens=16384)": al.TokenBatches(max_tokens=16_384),
    "TokenBatches(max_tokens=16384, pool=8192)": al.TokenBatches(max_tokens=16_384, pool=8192),
    "Buckets, 8 of them": al.Buckets(
        bounds=[64, 128, 192, 256, 384, 512, 1024], batch_sizes=[256, 128, 85, 64, 42, 32, 16, 8]
    ),
    "Pack(length=2048, batch_size=8)": al.Pack(batch_size=8),
    "Pack(length=2048, batch_size=8, pool=1000)": al.Pack(batch_size=8, pool=1000),
    "Pack(length=2048, batch_size=8, pool=4000)": al.Pack(batch_size=8, pool=4000),
}


def columns(start: Any, lane: Lane) -> Iterator[Block]:
    for at in range(0, DOCUMENTS, BLOCK):
        yield Columns({"tokens": TOKENS[at : at + BLOCK]}, OffsetTrail(at, None))


def rows(start: Any, lane: Lane) -> Iterator[Block]:
    for at in range(0, DOCUMENTS, BLOCK):
        yield Rows([{"tokens": tokens} for tokens in TOKENS[at : at + BLOCK]], OffsetTrail(at, None))


def measured(batching: Any, upstream: Callable[..., Any], lane: Lane) -> tuple[float, float]:
    """Seconds of a pass, and the part of it that is padding."""
    tokens = size = 0
    began = time.perf_counter()
    with closing(batching.open(upstream, START, lane)) as batches:
        for batch in batches:
            tokens += batch.tokens
            if isinstance(batching, al.Pack):
                size += collate_block(batching.collate_fn, batch.block, str)["tokens"].numel()
            else:
                column = batch.block.column("tokens")
                size += max(map(len, column)) * len(column)
    assert tokens == LENGTHS.sum(), "nothing is lost"
    return time.perf_counter() - began, 1 - tokens / size


def main() -> None:
    print(machine())
    print("| batching | padding | columns, M tokens/s | rows, M tokens/s |")
    print("|---|---|---|---|")
    with Engine() as engine:
        lane = Lane(Topology(), Services(engine, 1 << 20), Budget(1 << 20, [0]).of(0))
        ways = [(name, upstream) for name in BATCHINGS for upstream in (columns, rows)]
        best: dict[Any, float] = {}
        padding: dict[str, float] = {}
        for _ in range(ROUNDS):
            for name, upstream in ways:
                seconds, padding[name] = measured(BATCHINGS[name], upstream, lane)
                best[name, upstream] = min(seconds, best.get((name, upstream), seconds))
    for name in BATCHINGS:
        speeds = [f"{LENGTHS.sum() / best[name, upstream] / 1e6:.0f}" for upstream in (columns, rows)]
        print(f"| `{name}` | {padding[name]:.1%} | {' | '.join(speeds)} |")


if __name__ == "__main__":
    main()
