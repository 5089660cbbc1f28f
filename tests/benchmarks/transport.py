"""What a batch costs on its way from a worker: the processor's time on each side, nobody waiting.

    python tests/benchmarks/transport.py [--rounds 30]

Both ends run in turn on one thread, so that there is nothing in it of being woken, of other processes in the
caches, and of making the batch. The batch is a dict of a padded field as int32 and its 64 lengths, with the
note that a stream sends along. Medians of 100 batches each, of which the lowest is what a busy machine adds
least to.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from _measure import machine

from asyncloader.stream import Note
from asyncloader.workers._wire import Setting, socketpair
from asyncloader.workers._worker_main import _Outlet
from asyncloader.workers.lifeline import Lifeline
from asyncloader.workers.slots import InboundSlots
from asyncloader.workers.worker import Worker

_AMPLE = 1 << 28
_POSITION = {"shards": [3], "open": [[2, 1234]], "taken": 12345}


class Transport:
    """A worker's end and the parent's, in one process."""

    def __init__(self) -> None:
        parents, workers = socketpair()
        told, self._untold = socketpair()
        self._outlet = _Outlet(workers, Setting(0, 2, _AMPLE, _AMPLE, [], [], "", {}))
        self._worker = Worker(0, parents, Lifeline(told), InboundSlots(_AMPLE))

    def pass_on(self, width: int) -> tuple[float, float]:
        """Seconds on the worker's side and on the parent's, for one batch of ``64 * width`` numbers."""
        batch = {
            "tokens": torch.zeros(64, width, dtype=torch.int32),
            "tokens_lengths": torch.zeros(64).long(),
        }
        pair = batch, Note(0, _POSITION, 64, 256 * width)
        del batch
        began = time.thread_time()
        self._outlet.wait_credit()
        self._outlet.send(pair)
        del pair
        sent = time.thread_time()
        received = self._worker.receive()
        del received
        return sent - began, time.thread_time() - sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    print(f"{machine()}\n\n| batch | worker, us | parent, us |\n|---|---|---|")
    for name, width in (("1 KB", 4), ("230 KB", 900), ("2 MB", 8000)):
        transport = Transport()
        for _ in range(100):
            transport.pass_on(width)
        medians = [
            [
                statistics.median(side)
                for side in zip(*[transport.pass_on(width) for _ in range(100)], strict=True)
            ]
            for _ in range(rounds)
        ]
        worker, parent = (min(side) * 1e6 for side in zip(*medians, strict=True))
        print(f"| {name} | {worker:.0f} | {parent:.0f} |", flush=True)


if __name__ == "__main__":
    main()
