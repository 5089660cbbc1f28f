"""``.map`` with a plain function: one after another, or several at a time on threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from ..types import Block, Position
from .op import PIECE_SAMPLES, Blocks, Lane, Opener, name_of, note_sample

__all__ = ["Map"]

# A thread hop costs some 30 us, next to nothing for the millisecond functions that threads are for.
_THREAD_PIECE_SAMPLES = 4


@dataclass(frozen=True)
class Map:
    """Replace each sample by ``fn(sample)``, in order.

    Args:
        fn: Any callable of one sample.
        concurrency: How many samples at a time. Above 1 the calls run on threads, which pays for
            functions that release the GIL (decoding images, NumPy, I/O).
    """

    fn: Callable[[Any], Any]
    concurrency: int = 1

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Blocks:
        with closing(upstream(start, lane)) as blocks:
            if self.concurrency == 1:
                for block in blocks:
                    # Not ``map``, out of which a StopIteration of the function would end the epoch quietly.
                    for piece in block.pieces(PIECE_SAMPLES):
                        yield self._apply(piece)
            else:
                yield from self._open_threads(blocks)

    def describe(self) -> Mapping[str, Any]:
        return {"op": "map", "fn": name_of(self.fn)}

    def _open_threads(self, blocks: Iterator[Block]) -> Blocks:
        running: deque[Future[Block]] = deque()
        pool = ThreadPoolExecutor(self.concurrency, thread_name_prefix="asyncloader-map")
        try:
            for block in blocks:
                for piece in block.pieces(_THREAD_PIECE_SAMPLES):
                    running.append(pool.submit(self._apply, piece))
                    # Twice as many as run, so that none idles while this thread is elsewhere.
                    if len(running) > 2 * self.concurrency:
                        yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _apply(self, block: Block) -> Block:
        mapped: list[Any] = []
        try:
            for sample in block.samples:
                mapped.append(self.fn(sample))
        except Exception as error:
            note_sample(error, f"map({name_of(self.fn)})", block.samples[len(mapped)])
            raise
        return Block(mapped, block.trail)
