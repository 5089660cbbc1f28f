"""A plan for 16,384 ranks of 16 workers over a million shards, resized at random five times in an epoch.

Pure: nothing is read. Each lane delivers some of its samples in each world, and is reopened in the next one
at its position, which is all that is kept of it. In the end every sample was delivered once.

    python tests/benchmarks/resized_plan.py [SHARDS] [RANKS] [WORKERS]
"""

from __future__ import annotations

import random
import resource
import sys
import time
from array import array

import numpy as np

from asyncloader.plan.lanes import rank_lanes
from asyncloader.plan.pieces import Dealing, Pieces, cut_piece
from asyncloader.plan.topology import World
from asyncloader.types import Position

RESIZES = 5
KEY = (0, 0, 0)


def main(shards: int, ranks: int, workers: int) -> None:
    lanes = ranks * workers
    source = random.Random(0)
    counts = np.random.default_rng(0).integers(0, 2000, shards)
    dealing = Dealing(shards, counts)
    began_s = time.perf_counter()
    dealing.of_lane(0, lanes, KEY)
    print(f"plan of the first of {lanes} lanes: {time.perf_counter() - began_s:.2f} s", flush=True)
    fitting = [size for size in range(1, lanes + 1) if lanes % size == 0]
    sizes = [ranks, *source.choices(fitting, k=RESIZES)]
    positions: dict[int, Position] = {}
    delivered = array("q")  # runs of samples: shard, first, stop
    for number, size in enumerate(sizes):
        began_s = time.perf_counter()
        most = 2 * dealing.samples // lanes // RESIZES
        for rank in range(size):
            for lane in rank_lanes(lanes, World(rank, size)):
                pieces = dealing.of_lane(lane, lanes, KEY)
                wanted = sys.maxsize if number == RESIZES else source.randrange(most)
                positions[lane] = advance(pieces, counts, positions.get(lane, {}), wanted, delivered)
        took_s = time.perf_counter() - began_s
        print(f"{size} ranks: {len(delivered) // 3} runs so far, {took_s:.1f} s", flush=True)
    check(np.frombuffer(delivered, np.int64).reshape(-1, 3), counts)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{dealing.samples} samples of {shards} shards, each once; {peak_mb:.0f} MB at most")


def advance(
    pieces: Pieces,
    counts: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    start: Position,
    most: int,
    delivered: array[int],
) -> Position:
    """Deliver at most so many samples of a lane from a position on; where it stands then."""
    nth: int = start.get("shard", 0)
    inside: Position = start.get("from", {})
    while nth < len(pieces):
        piece = pieces[nth]
        cut = cut_piece(piece, inside, (), int(counts[piece.shard]))
        if cut is not None:
            stop = int(counts[piece.shard]) if cut.stop is None else cut.stop
            taken = min(most, stop - cut.first)
            if taken:
                delivered.extend((piece.shard, cut.first, cut.first + taken))
            most -= taken
            if not most:
                return {"shard": nth, "from": {"sample": cut.first + taken}}
        nth, inside = nth + 1, {}
    return {"shard": nth}


def check(
    delivered: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    counts: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
) -> None:
    """Every sample is in exactly one run."""
    runs = delivered[np.lexsort((delivered[:, 1], delivered[:, 0]))]
    shard, first, stop = runs.T
    begins = np.r_[True, shard[1:] != shard[:-1]]
    assert (first[begins] == 0).all(), "a shard was begun in its middle"
    assert (first[~begins] == stop[:-1][~begins[1:]]).all(), "a sample is lacking, or came twice"
    ends = np.r_[begins[1:], True]
    assert (stop[ends] == counts[shard[ends]]).all(), "a shard was not read to its end"
    assert set(np.flatnonzero(counts)) == set(shard.tolist()), "a shard was not read"


if __name__ == "__main__":
    arguments = [int(argument) for argument in sys.argv[1:]]
    main(*(arguments + [1_000_000, 16_384, 16][len(arguments) :]))
