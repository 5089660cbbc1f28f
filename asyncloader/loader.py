"""The facade: torch's DataLoader surface, ``for``, ``async for``, state. Decisions live elsewhere."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import AsyncIterable, Callable, Mapping
from contextlib import ExitStack
from typing import Any, Generic, TypeVar

from ._flow.channel import EndOfChannel
from .dataset import AsyncIterableDataset, Dataset, from_iterable
from .device import check_device, open_stage
from .options import check_ours, check_streaming, check_workers
from .plan.checkpoint import Cursor, load_cursor, save_cursor
from .plan.lanes import check_shards, choose_lanes, rank_lanes
from .plan.topology import resolve_world
from .progress import ProgressBar, Statistics
from .run import Run, WorkerSetting, stream_in_thread, stream_in_workers
from .seeding import draw_base_seed
from .shards import Shards
from .stream import Lanes
from .workers import ForkServer

__all__ = ["BatchIterator", "DataLoader"]

T = TypeVar("T", covariant=True)

# Enough to keep 16 parts of 8 MiB in flight, which fills a link of 50 ms and 40 MB/s a connection, with as
# much again for batches; small beside what a training process takes anyway.
_MEMORY_LIMIT = 256 << 20


class DataLoader(Generic[T]):
    """Streams the batches of a dataset, for ``for`` and for ``async for``.

    The parameters up to ``in_order`` are those of ``torch.utils.data.DataLoader``, with its defaults and
    its errors; the rest are additions. Constructing one starts nothing.

    Each iteration is the next epoch, shuffled by (seed, epoch). Used as a context manager, of either
    kind, it closes what its iterators hold when the block is left; without, they clean up when the loop
    ends or is left.

    Args:
        dataset: A recipe (``from_urls``, ``from_iterable``) or an ``AsyncIterableDataset``.
        batch_size: Samples per batch; None hands on single samples as they are.
        shuffle: Must be left alone for streams: shuffle in the recipe. So must ``sampler`` and
            ``batch_sampler``.
        sampler: See ``shuffle``.
        batch_sampler: See ``shuffle``.
        num_workers: Worker processes. 0 streams on threads of this process, which overlaps I/O with the
            consumer; more pay when decoding takes more CPU than one core has.
        collate_fn: Makes a batch of a list of samples; ``default_collate`` by default, and
            ``default_convert`` of single samples when ``batch_size`` is None.
        pin_memory: Hand on batches in page-locked memory. Without an accelerator it warns, as torch.
        drop_last: Leave out the short last batch of each lane.
        timeout: Seconds that a batch may take to come; 0 for as long as it takes.
        worker_init_fn: Called with the worker's number in each worker, after seeding.
        multiprocessing_context: Must be left alone for streams, whose workers always come from a clean
            process.
        generator: Draws the workers' base seed; torch's default generator if None.
        prefetch_factor: Batches that each worker makes ahead; 2 with workers, None without.
        persistent_workers: Accepted. Workers of a stream start in milliseconds, so that keeping them over
            epochs would save nothing; what is expensive, a process that has imported torch, is kept.
        pin_memory_device: Deprecated by torch; warns as there.
        in_order: Streams always come in order.
        device: Deliver batches on this device, copied on a side stream (implies page-locked memory).
        lanes: Streams that an epoch is dealt into; the same number gives the same batches for any number
            of workers. Ranks x max(workers, 1) by default, and what a loaded state says.
        rank: This process's rank; from ``torch.distributed`` or torchrun's environment by default.
        world_size: The number of ranks; given together with ``rank``.
        memory_limit: Bound in bytes on what this rank holds in flight and ahead, all its processes
            together; shuffle windows and the batches in your hands come on top.
        progress: Show a tqdm bar.

    Raises:
        TypeError: A dataset of an unknown kind, a function that cannot be called.
        ValueError: Options that contradict each other or cannot be; with torch's messages.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], T] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        device: Any = None,
        lanes: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        memory_limit: int = _MEMORY_LIMIT,
        progress: bool = False,
    ) -> None:
        self.prefetch_factor = check_workers(num_workers, timeout, prefetch_factor, persistent_workers)
        check_streaming(shuffle, sampler, batch_sampler, batch_size, drop_last)
        check_ours(multiprocessing_context, collate_fn, worker_init_fn, memory_limit)
        check_device(device)
        self.dataset = dataset
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.collate_fn = collate_fn
        self.pin_memory = pin_memory
        self.drop_last = drop_last
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.generator = generator
        self.persistent_workers = persistent_workers
        self.pin_memory_device = pin_memory_device
        self.in_order = in_order
        self.device = device
        self.memory_limit = memory_limit
        self.progress = progress
        self._recipe = _as_recipe(dataset)
        self._world = resolve_world(rank, world_size, _process_group, os.environ)
        self._lane_count = choose_lanes(lanes, self._world, num_workers)
        self._lanes_given = lanes is not None
        if isinstance(self._recipe.source, Shards):
            check_shards(len(self._recipe.source.urls), self._world)
        self._next = self._new_cursor(0)
        self._run: Run | None = None
        self._forkserver: ForkServer | None = None

    # --- iterating ---

    def __iter__(self) -> BatchIterator[T]:
        return BatchIterator(self._start())

    def __aiter__(self) -> BatchIterator[T]:
        return BatchIterator(self._start())

    def __len__(self) -> int:
        raise TypeError(
            "a stream's length is not known before it was read: shards do not say how many samples they "
            "hold. Count batches as they come, or use .take(n) and know it"
        )

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that of ``epoch``, from its beginning.

        Raises:
            ValueError: ``epoch`` is negative or no int.
        """
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise ValueError(f"epoch should be a non-negative integer, but got epoch={epoch!r}")
        self._next = self._new_cursor(epoch)
        self._run = None

    @property
    def statistics(self) -> Statistics:
        """Counts of the latest iteration; of none, zeros."""
        return self._run.statistics if self._run is not None else Statistics()

    # --- state ---

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch delivered, whatever was prefetched: JSON-plain, a few KB.

        Inside the loop after the last batch it says that the epoch is over: resuming gives no batch, and
        then the next epoch. After the loop has ended it is the beginning of the next epoch.
        """
        run = self._run
        cursor = self._next if run is None or run.exhausted else run.cursor
        return save_cursor(cursor, self._describe(), self._world)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state`` at the next iteration. The number of workers may be another.

        Raises:
            ValueError: The state is of another recipe, shard list, batch size, rank or world size; the
                message names each difference.
        """
        recipe = state.get("recipe") if isinstance(state, Mapping) else None
        saved = recipe.get("lanes") if isinstance(recipe, Mapping) else None
        lanes = self._lane_count
        if not self._lanes_given and isinstance(saved, int):
            lanes = choose_lanes(saved, self._world, self.num_workers)
        mine = {**self._describe(), "lanes": lanes}
        # Nothing is taken over before the whole state was found good: a refused one changes nothing.
        self._next = load_cursor(state, mine, self._world, rank_lanes(lanes, self._world))
        self._lane_count = lanes
        self._run = None

    # --- life ---

    def close(self) -> None:
        """Stop the latest iteration and free what it holds, and the process that workers come from."""
        if self._run is not None:
            self._run.close()
        self._forkserver = None

    def __enter__(self) -> DataLoader[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> DataLoader[T]:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    # --- the parts ---

    def _start(self) -> Run:
        """Start a pass at the next cursor."""
        cursor = self._next
        seed = draw_base_seed(self.generator)
        lanes = Lanes(
            recipe=self._recipe,
            turns=tuple(cursor.turns()),
            lane_count=self._lane_count,
            world=self._world,
            epoch=cursor.epoch,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            collate_fn=self.collate_fn or _default_collate(self.batch_size),
            # Half for bytes on their way to a decoder, a quarter each for batches made and for those pinned.
            read_bytes=self.memory_limit // 2,
        )
        with ExitStack() as stack:
            if self.num_workers == 0:
                source = stream_in_thread(lanes, self.memory_limit // 4, stack)
            else:
                # Held by the loader, so that it serves all its epochs.
                self._forkserver = self._forkserver or ForkServer.shared()
                prefetch = self.prefetch_factor or 1
                setting = WorkerSetting(self.num_workers, seed, self.worker_init_fn, prefetch)
                source = stream_in_workers(lanes, setting, self.memory_limit // 4, stack)
            source = open_stage(
                source,
                pin_memory=self.pin_memory,
                device=self.device,
                pin_memory_device=self.pin_memory_device,
                budget_bytes=self.memory_limit // 4,
            )
            stack.callback(source.close)
            statistics = Statistics()
            if self.progress:
                statistics.bar = ProgressBar(f"epoch {cursor.epoch}")
                stack.callback(statistics.bar.close)
            run = Run(source, cursor, statistics, stack.pop_all(), self.timeout or None)
        self._run = run
        self._next = self._new_cursor(cursor.epoch + 1)
        return run

    def _describe(self) -> dict[str, Any]:
        return {
            **self._recipe.describe(),
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "lanes": self._lane_count,
        }

    def _new_cursor(self, epoch: int) -> Cursor:
        return Cursor(epoch, rank_lanes(self._lane_count, self._world))


class BatchIterator(Generic[T]):
    """One pass over a loader, for both kinds of loop. Letting go of it frees what it holds."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._closer = weakref.finalize(self, run.close)

    def __iter__(self) -> BatchIterator[T]:
        return self

    def __next__(self) -> T:
        try:
            batch: T = self._run.next_batch()
        except EndOfChannel:
            raise StopIteration from None
        return batch

    def __aiter__(self) -> BatchIterator[T]:
        return self

    async def __anext__(self) -> T:
        try:
            batch: T = await self._run.next_batch_async()
        except EndOfChannel:
            raise StopAsyncIteration from None
        return batch

    def close(self) -> None:
        """End the pass now and free what it holds."""
        self._closer()

    async def aclose(self) -> None:
        """End the pass now and free what it holds."""
        self._closer()

    def __reduce__(self) -> Any:
        raise NotImplementedError("an iterator cannot be pickled; pickle the loader, and its state_dict()")


def _as_recipe(dataset: Any) -> Dataset:
    if isinstance(dataset, Dataset):
        return dataset
    if isinstance(dataset, AsyncIterableDataset | AsyncIterable):
        return from_iterable(dataset)
    raise TypeError(
        "dataset should be a recipe (asyncloader.from_urls, asyncloader.from_iterable) or an "
        f"AsyncIterableDataset, but got {type(dataset).__name__}"
    )


def _default_collate(batch_size: int | None) -> Callable[[Any], Any]:
    from .collate import default_convert
    from .collate.streaming import streaming_collate

    return default_convert if batch_size is None else streaming_collate


def _process_group() -> tuple[int, int] | None:
    # Not imported yet means not initialised, and importing it is slow.
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()
