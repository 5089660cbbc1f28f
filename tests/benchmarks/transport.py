"""What a batch costs on its way from a worker: the processor's time on each side, nobody waiting.

    python tests/benchmarks/transport.py [--rounds 30]

Both ends run in turn on one thread, so that there is nothing in it of being woken and of other processes in
the caches. The batch is a dict of a padded field as int32 and its 64 lengths, with the note that a stream
sends along; the worker's side makes it, of nothing but padding, where the parent will read it, or in memory
of its own. Medians of 100 batches each, of which the lowest is what a busy machine adds least to.
"""

from __future__ import annotations

import argparse
import io
import statistics
import time
from typing import Any

import torch
from _measure import machine

from asyncloader.blocks.memory import borrowing, filled, lend
from asyncloader.pipeline.stream import Note
from asyncloader.workers._worker_main import _Outlet
from asyncloader.workers.lifeline import Lifeline
from asyncloader.workers.link import Link, MessageSocket, Setting, socketpair
from asyncloader.workers.pool import wait_any
from asyncloader.workers.worker import Worker

_AMPLE = 1 << 28
_POSITION = {"shards": [3], "open": [[2, 1234]], "taken": 12345}


class Transport:
    """A worker's end and the parent's, in one process."""

    def __init__(self) -> None:
        parents, workers = socketpair()
        told, self._untold = socketpair()
        self._outlet = _Outlet(workers, Setting([], [], "", {}, 2, _AMPLE, _AMPLE))
        lifeline = Lifeline(MessageSocket(told), io.BytesIO())
        self._worker = Worker(0, Link(parents, 0, _AMPLE), lifeline)

    def pass_on(self, width: int, in_place: bool) -> tuple[float, float]:
        """Seconds on the worker's side and on the parent's, for one batch of ``64 * width`` numbers."""
        began = time.thread_time()
        self._outlet.take_credit()
        if not in_place:
            lend(None)
        self._outlet.send(_make(width))
        sent = time.thread_time()
        while (received := self._worker.receive_nowait()) is None:
            wait_any([self._worker], None)
        del received
        return sent - began, time.thread_time() - sent


def _make(width: int) -> tuple[Any, Note]:
    with borrowing():
        tokens = torch.from_numpy(filled((64, width), 0, "int32"))
    return {"tokens": tokens, "tokens_lengths": torch.zeros(64).long()}, Note(0, _POSITION, 64, 256 * width)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    print(f"{machine()}\n\n| batch | worker, us | made apart, us | parent, us |\n|---|---|---|---|")
    for name, width in (("1 KB", 4), ("230 KB", 900), ("2 MB", 8000)):
        transports = {in_place: Transport() for in_place in (True, False)}
        medians = [
            [
                side
                for in_place, transport in transports.items()
                for side in _medians(transport, width, in_place)
            ]
            for _ in range(1 + rounds)
        ]
        worker, parent, apart, _ = (min(side) * 1e6 for side in zip(*medians[1:], strict=True))
        print(f"| {name} | {worker:.0f} | {apart:.0f} | {parent:.0f} |", flush=True)


def _medians(transport: Transport, width: int, in_place: bool) -> list[float]:
    passed = [transport.pass_on(width, in_place) for _ in range(100)]
    return [statistics.median(side) for side in zip(*passed, strict=True)]


if __name__ == "__main__":
    main()
