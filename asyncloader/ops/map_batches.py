"""``.map_batches``: a function of many samples at once, as columns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from .._flow.threads import Threads
from ..blocks import Block, Column, Columns, Ragged, array_of, column_of, columns_of
from ..quantity import as_counts
from ..sizes import bytes_of
from ..types import Position
from .checks import check_plain
from .chunks import hand_on, open_chunks
from .draws import SampleCalls
from .op import Blocks, Lane, Op, Opener, name_of, note_batch, shown
from .pools import Pool

__all__ = ["MapBatches"]


@dataclass(frozen=True)
class MapBatches(Op):
    """Replace chunks of ``batch_size`` samples by ``fn(columns)``, in order.

    Args:
        fn: Any callable of a dict of columns.
        batch_size: Samples of a chunk; the last one of a lane may have fewer.
        concurrency: How many chunks at a time, on threads if above 1.
    """

    fn: Callable[[dict[str, Any]], Mapping[str, Any]]
    batch_size: int
    concurrency: int = 1

    def __post_init__(self) -> None:
        check_plain("map_batches", self.fn, "columns", "; use .map")
        as_counts(self, "batch_size", "concurrency")

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Blocks:
        with closing(open_chunks(upstream, start, self.batch_size, lane)) as chunks:
            if self.concurrency == 1 or lane.singly:
                for chunk in chunks:
                    yield from hand_on(chunk, self._apply(chunk.samples, lane))
                    del chunk
            else:
                yield from self._open_threads(chunks, lane)

    def describe(self) -> Mapping[str, Any]:
        return {"op": "map_batches", "fn": name_of(self.fn), "batch_size": self.batch_size}

    def _open_threads(self, chunks: Iterator[Pool], lane: Lane) -> Blocks:
        running: deque[Pool] = deque()
        chunk_bytes = 0

        def is_full() -> bool:
            # As .map has it: twice as many as run, so that none idles while this thread is elsewhere; but of
            # large ones no more than run.
            return len(running) > 2 * self.concurrency or (
                len(running) > self.concurrency and len(running) * chunk_bytes > lane.made_bytes
            )

        during = shown(self)
        threads = Threads[Columns](self.concurrency, "asyncloader-map-batches", during, lane.engine)
        try:
            for chunk in chunks:
                threads.submit(
                    partial(lane.stopwatch.call, during, partial(self._apply, chunk.samples, lane))
                )
                running.append(chunk)
                while running and (threads.is_first_done or is_full()):
                    made = threads.take()
                    chunk_bytes = max(chunk_bytes, bytes_of(dict(made.fields)))
                    yield from hand_on(running.popleft(), made)
                    del made
                del chunk
            while running:
                made = threads.take()
                yield from hand_on(running.popleft(), made)
                del made
        finally:
            threads.close()

    def _apply(self, block: Block, lane: Lane) -> Columns:
        try:
            given = columns_of(block)
            with SampleCalls(lane, block.trail, ()):
                made = self.fn(dict(given))
            return Columns(_checked(made, given, len(block)), block.trail)
        except Exception as error:
            note_batch(error, shown(self), block.trail, len(block))
            raise


def _checked(made: Any, given: Mapping[str, Column], count: int) -> dict[str, Column]:
    """What the function gave back as columns of ``count`` samples."""
    if not isinstance(made, Mapping):
        raise TypeError(
            f"expected the function to return a mapping of columns, such as the dict that it was given, "
            f"found {type(made).__qualname__}"
        )
    if not made:
        raise ValueError("expected the function to return at least one column, found none")
    unchanged = {id(column) for column in given.values()}
    columns: dict[str, Column] = {}
    for name, value in made.items():
        column = value if id(value) in unchanged else _as_column(name, value)
        if len(column) != count:
            raise ValueError(
                f"expected the function to return columns of the {count} samples that it was given, found "
                f"{len(column)} in {name!r}; .filter_batches drops samples"
            )
        columns[name] = column
    return columns


def _as_column(name: str, value: Any) -> Column:
    if isinstance(value, Ragged):
        return value
    if (array := array_of(value)) is not None and array.ndim:
        return array
    if isinstance(value, list | tuple):
        return column_of(value)
    if getattr(value, "ndim", 0) and hasattr(value, "requires_grad"):
        # NumPy cannot see it, and its list would be of float64.
        raise TypeError(
            f"expected CPU tensors without gradients and of a dtype that NumPy has, found one of "
            f"{value.dtype} on {value.device} as {name!r}, requires_grad={value.requires_grad}; use "
            ".detach(), .cpu(), or convert it, as .float() does"
        )
    if getattr(value, "ndim", 0) and hasattr(value, "tolist"):
        return column_of(value.tolist())  # an array of strings or objects
    shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
    raise TypeError(
        f"expected the function to return an array, an al.Ragged, a list or a CPU tensor for each field, "
        f"found {type(value).__qualname__}{shape} as {name!r}"
    )
