"""``.map`` with a plain function: one after another, or several at a time on threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from ..blocks import Block, Rows
from ..plan.counts import Counter, Deal
from ..quantity import as_counts
from ..types import Position
from .checks import check_map
from .context import MakeContext, given
from .draws import Calls
from .op import PIECE_SAMPLES, Blocks, Lane, Opener, name_of, note_sample
from .pieces import Pieces

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
        context: Makes what is the function's second argument.
    """

    fn: Callable[..., Any]
    concurrency: int = 1
    context: MakeContext | None = None

    def __post_init__(self) -> None:
        check_map(self.fn, self.context)
        as_counts(self, "concurrency")

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Blocks:
        fn = given(self.fn, self.context, lane)
        with closing(upstream(start, lane.for_columns(False))) as blocks:
            if self.concurrency == 1:
                pieces = Pieces(PIECE_SAMPLES, lane.made_bytes)
                for block in blocks:
                    for piece in lane.want.pieces(block, pieces.size):
                        applied = self._apply(fn, piece, lane)
                        pieces.measure(applied.block.rows())
                        yield from applied.hand_on()
                        del applied  # before the next one is made
            else:
                yield from self._open_threads(fn, blocks, lane)

    def count_samples(self, upstream: Counter, deal: Deal) -> list[float]:
        return upstream(deal)

    def describe(self) -> Mapping[str, Any]:
        return {"op": "map", "fn": name_of(self.fn)}

    def _open_threads(self, fn: Callable[[Any], Any], blocks: Iterator[Block], lane: Lane) -> Blocks:
        pieces = Pieces(_THREAD_PIECE_SAMPLES, lane.made_bytes)
        running: deque[tuple[int, Future[_Applied]]] = deque()
        outstanding = 0  # samples

        def wanted() -> int:
            return lane.want.samples - outstanding

        def most() -> int:
            # What is wanted may be too little for such pieces: then every thread gets something.
            return min(pieces.size(), -(-lane.want.samples // self.concurrency))

        pool = ThreadPoolExecutor(self.concurrency, thread_name_prefix="asyncloader-map")
        try:
            for block in lane.want.pull(blocks, wanted):
                for piece in lane.want.pieces(block, most, wanted):
                    running.append((len(piece), pool.submit(self._apply, fn, piece, lane)))
                    outstanding += len(piece)
                    # Twice as many as run, so that none idles while this thread is elsewhere; but of large
                    # samples no more than run, and never more than are wanted.
                    while running and (
                        running[0][1].done()
                        or len(running) > 2 * self.concurrency
                        or outstanding >= lane.want.samples
                        or (outstanding > self.concurrency and not pieces.may_hold(outstanding))
                    ):
                        samples, future = running.popleft()
                        outstanding -= samples
                        applied = future.result()
                        pieces.measure(applied.block.rows())
                        yield from applied.hand_on()
                        del future, applied
            while running:
                yield from running.popleft()[1].result().hand_on()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _apply(self, fn: Callable[[Any], Any], block: Block, lane: Lane) -> _Applied:
        mapped: list[Any] = []
        try:
            with Calls(lane, block.trail, mapped):
                for sample in block.rows():
                    mapped.append(fn(sample))
        except Exception as error:
            note_sample(error, f"map({name_of(self.fn)})", block, len(mapped))
            return _Applied(Rows(mapped, block.trail), error)
        return _Applied(Rows(mapped, block.trail), None)


@dataclass(frozen=True, slots=True)
class _Applied:
    """A mapped block, cut short where the function failed."""

    block: Block
    failure: Exception | None

    def hand_on(self) -> Blocks:
        """The block, then the failure: what came before it is good, and may complete a batch."""
        if len(self.block):
            yield self.block
        if self.failure is not None:
            raise self.failure
