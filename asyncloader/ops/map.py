"""``.map`` with a plain function: one after another, or several at a time on threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

from .._flow.residents import MakeContext
from .._flow.threads import Threads
from ..blocks import Block, PickedTrail, Rows
from ..quantity import as_counts
from ..types import Position
from .checks import check_map
from .context import given
from .draws import Calls
from .op import PIECE_SAMPLES, Blocks, Lane, Op, Opener, name_of, note_sample, shown
from .pieces import Pieces
from .skips import Applied, Attempts, apply

__all__ = ["Map", "OneByOne"]

# A thread hop costs some 30 us, next to nothing for the millisecond functions that threads are for.
_THREAD_PIECE_SAMPLES = 4


@dataclass(frozen=True)
class OneByOne(Op):
    """Replace each sample by what ``fn`` makes of it, in order.

    Args:
        fn: A function of one sample.
        concurrency: How many samples at a time, in each lane.
        context: Makes what is the function's second argument.
    """

    fn: Callable[..., Any]
    concurrency: int = 1
    context: MakeContext | None = None

    def __post_init__(self) -> None:
        check_map(self.fn, self.context)
        as_counts(self, "concurrency")

    def describe(self) -> Mapping[str, Any]:
        return {"op": "map", "fn": name_of(self.fn)}


class Map(OneByOne):
    """``fn(sample)`` in the place of each sample.

    With a concurrency above 1 the calls run on threads, which pays for functions that release the GIL
    (decoding images, NumPy, I/O).
    """

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Blocks:
        fn = given(self.fn, self.context, lane)
        attempts, during = lane.attempts(start), shown(self)
        with closing(upstream(start, lane.for_columns(False))) as blocks:
            if self.concurrency == 1:
                pieces = Pieces(PIECE_SAMPLES, lane.made_bytes)
                for block in blocks:
                    for piece in lane.want.pieces(block, pieces.size):
                        lane.engine.check()
                        began_s = perf_counter()
                        applied = self._apply(fn, piece, lane)
                        pieces.measure(applied.made.rows(), perf_counter() - began_s)
                        yield from applied.hand_on(attempts, during)
                        del applied  # before the next one is made
            else:
                yield from self._open_threads(fn, blocks, lane, attempts)

    def _open_threads(
        self, fn: Callable[[Any], Any], blocks: Iterator[Block], lane: Lane, attempts: Attempts | None
    ) -> Blocks:
        during = shown(self)
        pieces = Pieces(_THREAD_PIECE_SAMPLES, lane.made_bytes)
        running: deque[int] = deque()  # samples of each piece
        outstanding = 0

        def wanted() -> int:
            return lane.want.samples - outstanding

        def most() -> int:
            # What is wanted may be too little for such pieces: then every thread gets something.
            return min(pieces.size(), -(-lane.want.samples // self.concurrency))

        def call(sample: Any) -> Any:
            lane.engine.check()  # so that whoever closes the pass waits for one call, and not for a piece
            return fn(sample)

        threads = Threads[Applied](self.concurrency, "asyncloader-map", during, lane.engine)
        try:
            for block in lane.want.pull(blocks, wanted):
                for piece in lane.want.pieces(block, most, wanted):
                    apply = partial(self._apply, call, piece, lane)
                    threads.submit(partial(lane.stopwatch.call, during, apply))
                    running.append(len(piece))
                    outstanding += len(piece)
                    # Twice as many as run, so that none idles while this thread is elsewhere; but of large
                    # samples no more than run, and never more than are wanted.
                    while running and (
                        threads.is_first_done
                        or len(running) > 2 * self.concurrency
                        or outstanding >= lane.want.samples
                        or (outstanding > self.concurrency and not pieces.may_hold(outstanding))
                    ):
                        outstanding -= running.popleft()
                        applied = threads.take()
                        pieces.measure(applied.made.rows())
                        yield from applied.hand_on(attempts, during)
                        del applied
            while running:
                running.popleft()
                yield from threads.take().hand_on(attempts, during)
        finally:
            threads.close()

    def _apply(self, fn: Callable[[Any], Any], block: Block, lane: Lane) -> Applied:
        if lane.skips is not None:
            results, good, failed = apply(fn, block, partial(Calls, lane, block.trail))
            return Applied(block, len(block), Rows(results, PickedTrail(block.trail, good)), None, failed)
        mapped: list[Any] = []
        try:
            with Calls(lane, block.trail, mapped):
                for sample in block.rows():
                    mapped.append(fn(sample))
        except Exception as error:
            note_sample(error, shown(self), block, len(mapped))
            return Applied(block, len(mapped), Rows(mapped, block.trail), error)
        return Applied(block, len(mapped), Rows(mapped, block.trail))
