"""What padding costs: from columns, from rows of the same sequences, and with torch's ``pad_sequence``.

    python tests/benchmarks/padding.py

Batches of 64 sequences of int32 with lognormal lengths, as they lie in a row group, in memory; each way gives
the padded tensor and the lengths, and each batch is let go before the next. The ways take turns in each of
fifteen rounds on one thread; the medians are shown in sequences a second. The last way picks them from a
shuffled window of 10,000 before it pads.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from _measure import machine
from torch.nn.utils.rnn import pad_sequence

import asyncloader as al
from asyncloader.blocks import Block, Columns, OffsetTrail, Rows
from asyncloader.collate.default import collate_block

BATCH, COUNT, ROUNDS = 64, 10_048, 15


def window(mean: int) -> Columns:
    draw = np.random.default_rng(0)
    lengths = np.clip(draw.lognormal(np.log(mean) - 0.18, 0.6, COUNT).astype(int), 1, 2048)
    offsets = np.cumsum([0, *lengths])
    return Columns(
        {"tokens": al.Ragged(draw.integers(0, 50_000, offsets[-1], dtype=np.int32), offsets)},
        OffsetTrail(0, None),
    )


def batches(block: Block) -> list[Block]:
    return [block.part(start, start + BATCH) for start in range(0, COUNT, BATCH)]


def of_torch(block: Block) -> object:
    tensors = [torch.from_numpy(row["tokens"]) for row in block.rows()]
    return pad_sequence(tensors, batch_first=True), torch.tensor([len(tensor) for tensor in tensors])


def with_al(pad: al.Pad) -> Callable[[Block], object]:
    return lambda block: collate_block(pad, block, str)


def each(way: Callable[[Block], object], blocks: Sequence[Block]) -> None:
    for block in blocks:
        way(block)


def shuffled(block: Columns, way: Callable[[Block], object]) -> None:
    order = np.random.default_rng(1).permutation(COUNT).tolist()
    for start in range(0, COUNT, 1024):
        piece = block.take(order[start : start + 1024])
        each(way, [piece.part(first, first + BATCH) for first in range(0, len(piece), BATCH)])


def main() -> None:
    print(machine(), f"torch {torch.__version__}")
    torch.set_num_threads(1)
    plain, longs = al.Pad({"tokens": 0}), al.Pad({"tokens": {"dtype": torch.int64}})
    for mean in (16, 200):
        block = window(mean)
        columns = batches(block)
        rows: Sequence[Block] = [Rows(part.rows(), part.trail) for part in columns]
        longest_first = al.Pad({"tokens": 0}, sort_by="tokens")
        ways: dict[str, Callable[[], None]] = {
            "columns": partial(each, with_al(plain), columns),
            "columns, to int64": partial(each, with_al(longs), columns),
            "columns, longest first": partial(each, with_al(longest_first), columns),
            "rows": partial(each, with_al(plain), rows),
            "pad_sequence": partial(each, of_torch, rows),
            "columns, shuffled before": partial(shuffled, block, with_al(plain)),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, way in ways.items():
                began = time.perf_counter()
                way()
                times[name].append(time.perf_counter() - began)
        for name, taken in times.items():
            print(f"| mean {mean} | {name} | {COUNT / statistics.median(taken):,.0f} |")


if __name__ == "__main__":
    main()
