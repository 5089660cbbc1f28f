"""The facade: torch's DataLoader, for every kind of dataset, with ``async for``.

It is a subclass of torch's, so that whoever asks ``isinstance`` is told yes, and torch itself checks the
parameters that it shares. A stream gets the subclass ``StreamLoader``; every other dataset keeps torch's
own loop, in ``torch_kind``. Decisions live elsewhere.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import cached_property
from typing import Any, Protocol, TypeAlias, TypeVar, overload

import torch.utils.data

from ._flow.asking import Asked, Asking, Asks
from .dataset import AsyncIterableDataset, Dataset, from_iterable
from .device import check_device, open_stage
from .options import check_ahead, check_streaming
from .plan.checkpoint import Cursor, load_cursor, save_cursor
from .plan.lanes import check_shards, choose_lanes, rank_lanes
from .plan.topology import World, process_group, resolve_world
from .progress import ProgressBar, Statistics
from .run import BatchIterator, Run, WorkerSetting, stream_in_thread, stream_in_workers
from .seeding import draw_base_seed
from .shards import Shards
from .stream import Lanes
from .torch_kind.adapt import for_torch, torch_reads
from .torch_kind.iterate import AsyncDoor, open_torch_iterator
from .torch_kind.unsplit import UnsplitNotice
from .workers import ForkServer

__all__ = ["DataLoader", "StreamLoader"]

T = TypeVar("T", covariant=True)

Streamed: TypeAlias = Dataset | AsyncIterableDataset


class MapStyle(Protocol):
    """Gives a sample by index."""

    def __getitem__(self, index: Any, /) -> Any: ...


TorchKind: TypeAlias = MapStyle | Iterable[Any] | AsyncIterable[Any]

# Libraries ask this before they give a loader another sampler (Lightning), or deal it to ranks themselves.
# Registered, since the recipe itself must not need torch.
torch.utils.data.IterableDataset.register(Dataset)
torch.utils.data.IterableDataset.register(AsyncIterableDataset)

# Three quarters of it are 96 parts of 8 MiB in flight: at 200 ms and 40 MB/s a connection nearly as much as
# one process can decode (tests/benchmarks/far_away.py). Small beside what a training process takes anyway.
_MEMORY_LIMIT = 1 << 30

_STREAM_OPTIONS = ("ahead", "device", "lanes", "memory_limit", "progress")


class _Loader(torch.utils.data.DataLoader[T]):
    """What all loaders are. It has the ``__init__``, so that type checkers go by ``DataLoader.__new__``."""

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
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
        **stream_options: Any,
    ) -> None:
        if stream_options:
            unknown = next((name for name in stream_options if name not in _STREAM_OPTIONS), None)
            if unknown is not None:
                raise TypeError(f"DataLoader.__init__() got an unexpected keyword argument {unknown!r}")
            raise TypeError(
                f"{', '.join(stream_options)} can be given for streams only (from_urls, from_iterable, "
                f"AsyncIterableDataset), but the dataset is a {type(dataset).__name__}"
            )
        self._world = _world_of_workers(rank, world_size)
        # As given: Lightning makes a loader anew from the public attributes.
        self.rank, self.world_size = rank, world_size
        self._unsplit_notice = UnsplitNotice()
        seen = for_torch(dataset)
        #: What torch's loop reads in the place of a dataset that it does not know.
        self._adapted = None if seen is dataset else seen
        super().__init__(
            seen,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        if self._adapted is not None:
            self._show(dataset)

    # What Python names in the TypeError of a wrong call.
    __init__.__qualname__ = "DataLoader.__init__"

    def __aiter__(self) -> AsyncIterator[T]:
        return AsyncDoor(iter(self))

    def _get_iterator(self) -> Any:
        """torch's hook: called by ``__iter__``, once for the loader's life with persistent workers."""
        dataset = self.dataset if self._adapted is None else self._adapted
        return open_torch_iterator(self, dataset, self._world, self._unsplit_notice)

    @cached_property
    def _is_accelerate_prepared(self) -> bool:
        """What accelerate's ``prepare`` asks, and sets: True has it hand on the loader as it is.

        Otherwise it makes torch's own loader anew from the dataset, which cannot read all that ours can.
        """
        if torch_reads(self.dataset):
            return False
        world = resolve_world(None, None, lambda: process_group(sys.modules), {})
        sampler = getattr(self.batch_sampler, "sampler", self.sampler)
        if world.size > 1 and not isinstance(sampler, torch.utils.data.DistributedSampler):
            raise RuntimeError(
                f"accelerate cannot deal a {type(self.dataset).__name__} to {world.size} ranks, since it "
                "would read it with torch's own loader, which does not know datasets of this kind. Give the "
                "DataLoader a DistributedSampler, or load a stream (from_urls, from_iterable)"
            )
        return True

    def _show(self, dataset: Any) -> None:
        """Let ``dataset`` be the user's own object, past torch's guard against changing it."""
        object.__setattr__(self, "dataset", dataset)


class _Stream(torch.utils.data.IterableDataset[Any]):
    """What torch's constructor sees of a stream: a dataset of the iterable kind."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("torch's loop never runs over a stream")


class DataLoader(_Loader[T]):
    """Loads the batches of a dataset, for ``for`` and for ``async for``.

    The parameters up to ``in_order`` are those of ``torch.utils.data.DataLoader``, with its defaults, its
    meaning and its errors; the rest are additions. Constructing one starts nothing.

    The kinds of dataset:

    - A stream (``from_urls``, ``from_iterable``, an ``AsyncIterableDataset``): see ``StreamLoader``,
      which is what this then constructs.
    - Map style, an object with ``__getitem__``: as in torch. If ``__getitem__`` or ``__getitems__`` is
      ``async def``, the items of a batch are fetched concurrently, at most 48 at a time.
    - Iterable style, an ``IterableDataset``: as in torch, so each worker reads its own copy, and one
      that never asks ``get_worker_info()`` is told; ``asyncloader.split`` deals it exactly. A plain
      iterable, or an object with ``__aiter__``, is treated alike.

    Args:
        dataset: See above.
        batch_size: Samples per batch; None hands on single samples as they are.
        shuffle: Draw the samples in a new order in each epoch; map style only.
        sampler: An iterable of indices; excludes ``shuffle``.
        batch_sampler: An iterable of lists of indices; excludes the three before and ``drop_last``.
        num_workers: Worker processes; 0 loads in this one.
        collate_fn: Makes a batch of a list of samples; torch's rules by default.
        pin_memory: Hand on batches in page-locked memory. Without an accelerator it warns, as torch.
        drop_last: Leave out the short last batch.
        timeout: Seconds that a batch may take to come from workers; 0 for as long as it takes. The
            error says which worker was at which batch.
        worker_init_fn: Called with the worker's number in each worker, after seeding.
        multiprocessing_context: How workers start, torch's platform default if None. Whatever is
            pickled for them goes by cloudpickle, so lambdas and local classes do.
        generator: Draws the order and the workers' base seed; torch's default generator if None.
        prefetch_factor: Batches that each worker makes ahead; 2 with workers, None without.
        persistent_workers: Keep the workers from epoch to epoch.
        pin_memory_device: Deprecated by torch; warns as there.
        in_order: False hands on batches as they are done.
        rank: What workers are told of this process's rank; from ``torch.distributed`` or torchrun's
            environment by default. It does not split a dataset of this kind: use a
            ``DistributedSampler``, or ``split``.
        world_size: The number of ranks; given together with ``rank``.
        stream_options: For streams only; see ``StreamLoader``.

    Raises:
        TypeError: As torch, or an option for streams with another dataset.
        ValueError: As torch.
    """

    @overload
    def __new__(
        cls, dataset: Streamed, *args: Any, collate_fn: Callable[[Any], T], **options: Any
    ) -> StreamLoader[T]: ...
    @overload
    def __new__(
        cls, dataset: Streamed, *args: Any, collate_fn: None = None, **options: Any
    ) -> StreamLoader[Any]: ...
    @overload
    def __new__(
        cls, dataset: TorchKind, *args: Any, collate_fn: Callable[[Any], T], **options: Any
    ) -> DataLoader[T]: ...
    @overload
    def __new__(
        cls, dataset: TorchKind, *args: Any, collate_fn: None = None, **options: Any
    ) -> DataLoader[Any]: ...

    def __new__(cls, dataset: Any = None, *args: Any, **options: Any) -> Any:
        if cls is DataLoader and isinstance(dataset, Streamed):
            return super().__new__(StreamLoader)
        return super().__new__(cls)


class StreamLoader(DataLoader[T]):
    """The loader of streams: recipes and ``AsyncIterableDataset``; ``DataLoader(...)`` makes one.

    torch's parameters mean what they mean for any iterable dataset; what differs is named below. Each
    iteration is the next epoch, shuffled by (seed, epoch). Used as a context manager, of either kind, it
    closes what its latest iterator holds when the block is left; without, iterators clean up when the
    loop ends or is left.

    Args:
        dataset: A recipe (``from_urls``, ``from_iterable``) or an ``AsyncIterableDataset``.
        shuffle: Must be left alone, and so must ``sampler`` and ``batch_sampler``: shuffle in the recipe.
        num_workers: Worker processes. 0 streams on threads of this process, which overlaps I/O with the
            consumer; more pay when decoding takes more CPU than one core has.
        drop_last: Leave out the short last batch of each lane.
        timeout: Seconds that a batch may take to come, with or without workers.
        multiprocessing_context: Must be None: the workers of a stream always come from a clean process.
        generator: Draws only the workers' base seed; the order is the recipe's.
        persistent_workers: Accepted. Workers of a stream start in milliseconds, so that keeping them over
            epochs would save nothing; what is expensive, a process that has imported torch, is kept.
        in_order: Streams always come in order.
        device: Deliver batches on this device, copied on a side stream (implies page-locked memory).
        lanes: Streams that an epoch is dealt into; the same number gives the same batches for any number
            of workers. Ranks x max(workers, 1) by default, and what a loaded state says.
        rank: This process's rank; from ``torch.distributed`` or torchrun's environment by default.
        world_size: The number of ranks; given together with ``rank``.
        memory_limit: Bound in bytes on what this rank holds in flight and ahead, all its processes
            together; shuffle windows and the batches in your hands come on top.
        progress: Show a tqdm bar.
        ahead: How many samples may be made beyond those of the batches asked for, by all processes of this
            rank together, dealt evenly to its lanes. For functions whose calls cost money or quota: with 0
            a batch's calls are made when it is asked for. None, the default, does not count them, so that
            the consumer waits least.

    Raises:
        TypeError: A function that cannot be called.
        ValueError: Options that contradict each other or cannot be; with torch's messages.
    """

    # For accelerate, as above: a stream deals itself to the ranks, and moves its batches with device=.
    _is_accelerate_prepared = True

    def __init__(
        self,
        dataset: Dataset | AsyncIterableDataset,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], T] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
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
        ahead: int | None = None,
    ) -> None:
        check_ahead(ahead)
        check_streaming(shuffle, multiprocessing_context, collate_fn, worker_init_fn, memory_limit)
        check_device(device)
        super().__init__(
            _Stream(),
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn or _default_collate(batch_size),
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        self._show(dataset)
        self.device = device
        self.lanes = lanes
        self.memory_limit = memory_limit
        self.progress = progress
        self.ahead = ahead
        self._recipe = dataset if isinstance(dataset, Dataset) else from_iterable(dataset)
        self._world = resolve_world(rank, world_size, lambda: process_group(sys.modules), os.environ)
        self.rank, self.world_size = rank, world_size
        self._lane_count = choose_lanes(lanes, self._world, num_workers)
        self._lanes_given = lanes is not None
        if isinstance(self._recipe.source, Shards):
            check_shards(len(self._recipe.source.urls), self._world)
        self._next = self._new_cursor(0)
        #: Whether a state or an epoch was set since the latest iteration began.
        self._next_counts = False
        self._run: Run | None = None
        self._forkserver: ForkServer | None = None

    # --- iterating ---

    def __iter__(self) -> BatchIterator[T]:  # type: ignore[override]  # torch names its private class
        return BatchIterator(self._start())

    def __aiter__(self) -> BatchIterator[T]:
        return BatchIterator(self._start())

    def __len__(self) -> int:
        raise TypeError(
            "a stream's length is not known before it was read: shards do not say how many samples they "
            "hold. Count batches as they come, or use .take(n) and know it"
        )

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that of ``epoch``.

        It starts at the epoch's beginning, unless a position in this very epoch was loaded before: a
        training loop that calls this at the top of each epoch must not undo a resume.

        Raises:
            ValueError: ``epoch`` is negative or no int.
        """
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise ValueError(f"epoch should be a non-negative integer, but got epoch={epoch!r}")
        if self._next.epoch != epoch:
            self._next = self._new_cursor(epoch)
        self._next_counts = True

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
        cursor = self._next if run is None or run.exhausted or self._next_counts else run.cursor
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
        self._next_counts = True

    # --- life ---

    def close(self) -> None:
        """Stop the latest iteration and free what it holds, and the process that workers come from."""
        if self._run is not None:
            self._run.close()
        self._forkserver = None

    def __enter__(self) -> StreamLoader[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> StreamLoader[T]:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """What is copied and pickled: the loader, and nothing that is running."""
        return {**self.__dict__, "_run": None, "_forkserver": None}

    def check_worker_number_rationality(self) -> None:
        """torch's warning of more workers than cores, which does not hold for workers that wait for bytes."""

    # --- the parts ---

    def _start(self) -> Run:
        """Start a pass at the next cursor."""
        self._check_world()
        cursor = self._next
        seed = draw_base_seed(self.generator)
        pins = self.pin_memory or self.device is not None
        lanes = Lanes(
            recipe=self._recipe,
            turns=tuple(cursor.turns()),
            lane_count=self._lane_count,
            world=self._world,
            epoch=cursor.epoch,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            collate_fn=self.collate_fn,
            # A quarter each for batches made and for those pinned, if any are; the rest for bytes on their
            # way to a decoder.
            read_bytes=self.memory_limit // 4 * (2 if pins else 3),
            ahead=None if self.ahead is None else self.ahead // len(cursor.turns()),
        )
        statistics = Statistics(bar=ProgressBar(f"epoch {cursor.epoch}") if self.progress else None)
        with ExitStack() as stack:
            stack.callback(statistics.end)
            if self.num_workers == 0:
                source = stream_in_thread(lanes, self.memory_limit // 4, statistics.network, stack)
            else:
                # Held by the loader, so that it serves all its epochs.
                self._forkserver = ForkServer.shared()
                prefetch = self.prefetch_factor or 1
                setting = WorkerSetting(self.num_workers, seed, self.worker_init_fn, prefetch)
                source = stream_in_workers(lanes, setting, self.memory_limit // 4, statistics.network, stack)
            asks = Asks() if pins and self.ahead is not None else None
            if asks is not None:  # the stage would read on by itself
                source = Asked(source, asks)
            source = open_stage(
                source,
                pin_memory=self.pin_memory,
                device=self.device,
                pin_memory_device=self.pin_memory_device,
                budget_bytes=self.memory_limit // 4,
            )
            if asks is not None:
                source = Asking(source, asks)
            stack.callback(source.close)
            run = Run(source, cursor, statistics, stack.pop_all(), self.timeout or None)
        self._run = run
        self._next_counts = False
        self._next = self._new_cursor(cursor.epoch + 1)
        statistics.waited(statistics.started_s)  # for the workers, which a loop's first step has to start
        return run

    def _check_world(self) -> None:
        """Refuse to read for another rank than was known when the loader was made."""
        group = process_group(sys.modules)
        if self.rank is None and group is not None and World(*group) != self._world:
            raise RuntimeError(
                f"this loader was made for rank {self._world.rank} of {self._world.size}, but the process "
                f"group says rank {group[0]} of {group[1]}: samples would be read twice. Make the loader "
                "after torch.distributed.init_process_group(), or pass rank= and world_size="
            )

    def _describe(self) -> dict[str, Any]:
        return {
            **self._recipe.describe(),
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "lanes": self._lane_count,
        }

    def _new_cursor(self, epoch: int) -> Cursor:
        return Cursor(epoch, rank_lanes(self._lane_count, self._world))


def _default_collate(batch_size: int | None) -> Callable[[Any], Any]:
    from .collate import default_convert
    from .collate.streaming import streaming_collate

    return default_convert if batch_size is None else streaming_collate


def _world_of_workers(rank: int | None, world_size: int | None) -> World:
    # Only told to the workers here, so that an odd environment is no reason to refuse what torch takes.
    environ = os.environ if {"RANK", "WORLD_SIZE"} <= os.environ.keys() else {}
    return resolve_world(rank, world_size, lambda: process_group(sys.modules), environ)
