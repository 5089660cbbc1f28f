"""Padded batches of token sequences: asyncloader beside torch's DataLoader over pyarrow, and LitData.

    python tests/benchmarks/padded_tokens.py [--rounds 5] [--workers 0 2] [--sequences 60000]

Sequences of lognormal lengths (mean 200, from 16 to 2,048) of int32 on local disk, handed on in batches of
64 padded to their longest. asyncloader reads Parquet and JSON Lines packed with zstd; torch's
``DataLoader`` has an ``IterableDataset`` written with pyarrow, and one with zstandard and json, and
``pad_sequence`` as its collation; LitData reads chunks of its own (where it is installed: ``pip install
--no-deps litdata lightning_utilities tifffile``). All sides run in turn within a round, each in a fresh
process; the table gives medians, and the median of the ratios to asyncloader's Parquet round by round.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from _measure import machine, run_fresh

BATCH, FILES = 64, 6


def draw_lengths(count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Lognormal, with a mean of some 200."""
    drawn = np.random.default_rng(0).lognormal(np.log(200) - 0.32, 0.8, count)
    return np.clip(drawn, 16, 2048).astype(np.int64)


def write_corpus(directory: Path, count: int) -> None:
    """The same sequences in three forms."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import zstandard

    draw = np.random.default_rng(1)
    sequences = [draw.integers(0, 50_000, length, np.int32) for length in draw_lengths(count)]
    for file in range(FILES):
        mine = sequences[file::FILES]
        offsets = np.concatenate([[0], np.cumsum([len(sequence) for sequence in mine])]).astype(np.int32)
        tokens = pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(mine)))
        pq.write_table(
            pa.table({"tokens": tokens}), directory / f"train-{file}.parquet", row_group_size=5_000
        )
        lines = "".join(json.dumps({"tokens": sequence.tolist()}) + "\n" for sequence in mine)
        packed = zstandard.ZstdCompressor().compress(lines.encode())
        (directory / f"train-{file}.jsonl.zst").write_bytes(packed)
    if has_litdata():
        from litdata.streaming.writer import BinaryWriter

        writer = BinaryWriter(str(directory / "chunks"), chunk_bytes="16MB")
        for index, sequence in enumerate(sequences):
            writer[index] = {"tokens": sequence}
        writer.done()
        writer.merge()


def has_litdata() -> bool:
    return importlib.util.find_spec("litdata") is not None


def ours(base: str, workers: int, suffix: str) -> Iterator[int]:
    import asyncloader as al

    dataset = al.from_urls(f"{base}/train-{{0..{FILES - 1}}}.{suffix}")
    pad = al.Pad({"tokens": al.PadField(dtype="int32")})
    for batch in al.DataLoader(dataset, BATCH, num_workers=workers, collate_fn=pad):
        yield len(batch["tokens"])


def over_torch(base: str, workers: int, read: Callable[[str], Iterator[Any]]) -> Iterator[int]:
    """torch's loader over files dealt to its workers."""
    import torch.utils.data
    from torch.nn.utils.rnn import pad_sequence

    class Sequences(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            info = torch.utils.data.get_worker_info()
            first, step = (0, 1) if info is None else (info.id, info.num_workers)
            for file in range(first, FILES, step):
                yield from read(f"{base}/train-{file}")

    def collate(sequences: list[Any]) -> Any:
        return pad_sequence(sequences, batch_first=True)

    for batch in torch.utils.data.DataLoader(Sequences(), BATCH, num_workers=workers, collate_fn=collate):
        yield len(batch)


def read_parquet(path: str) -> Iterator[Any]:
    """Row group by row group, a tensor over Arrow's memory for each row: what a person writes by hand."""
    import pyarrow.parquet as pq
    import torch

    for batch in pq.ParquetFile(f"{path}.parquet").iter_batches(BATCH, columns=["tokens"]):
        column = batch.column(0)
        values, offsets = column.values.to_numpy(), column.offsets.to_numpy()
        for start, stop in pairwise(offsets.tolist()):
            yield torch.as_tensor(values[start:stop].copy())


def read_lines(path: str) -> Iterator[Any]:
    """Line by line."""
    import torch
    import zstandard

    with (
        open(f"{path}.jsonl.zst", "rb") as file,
        zstandard.ZstdDecompressor().stream_reader(file) as stream,
    ):
        for line in io.TextIOWrapper(stream, encoding="utf-8"):
            yield torch.tensor(json.loads(line)["tokens"], dtype=torch.int32)


def litdata(base: str, workers: int) -> Iterator[int]:
    import torch
    from litdata import StreamingDataLoader, StreamingDataset
    from torch.nn.utils.rnn import pad_sequence

    def collate(samples: list[Any]) -> Any:
        return pad_sequence(
            [torch.from_numpy(sample["tokens"].copy()) for sample in samples], batch_first=True
        )

    dataset = StreamingDataset(f"{base}/chunks")
    for batch in StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers, collate_fn=collate):
        yield len(batch)


SIDES: dict[str, Callable[[str, int], Iterator[int]]] = {
    "asyncloader, Parquet": lambda base, workers: ours(base, workers, "parquet"),
    "asyncloader, JSONL.zst": lambda base, workers: ours(base, workers, "jsonl.zst"),
    "DataLoader + pyarrow": lambda base, workers: over_torch(base, workers, read_parquet),
    "DataLoader + zstandard + json": lambda base, workers: over_torch(base, workers, read_lines),
    "LitData, its chunks": litdata,
}


def measure(side: str, base: str, workers: int, count: int) -> None:
    """One pass, in this process; prints a line of JSON."""
    sequences = counted_from = 0
    began = 0.0
    for size in SIDES[side](base, workers):
        sequences += size
        if not began:  # imports and starting processes are measured elsewhere
            began, counted_from = time.perf_counter(), sequences
    took_s = time.perf_counter() - began
    assert sequences == count, f"{sequences} sequences"
    print(json.dumps({"sequences_s": (sequences - counted_from) / took_s}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--sequences", type=int, default=60_000)
    parser.add_argument("--measure", nargs=3, metavar=("SIDE", "BASE", "WORKERS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        side, base, workers = options.measure
        measure(side, base, int(workers), int((Path(base) / "sequences").read_text()))
        return
    sides = [side for side in SIDES if side != "LitData, its chunks" or has_litdata()]
    print(f"{machine()}\n")
    print("| workers | | sequences/s | asyncloader's Parquet to it |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        write_corpus(Path(directory), options.sequences)
        (Path(directory) / "sequences").write_text(str(options.sequences))
        for workers in options.workers:
            rounds = [
                [run_fresh(__file__, side, directory, str(workers))["sequences_s"] for side in sides]
                for _ in range(options.rounds)
            ]
            for nth, side in enumerate(sides):
                rate = statistics.median(each[nth] for each in rounds)
                ratio = statistics.median(each[0] / each[nth] for each in rounds)
                print(f"| {workers} | {side} | {rate:,.0f} | {ratio:.2f}x |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
