"""The facade: torch's DataLoader, for every kind of dataset, with ``async for``.

It is a subclass of torch's, so that ``isinstance`` is true of it, and torch itself checks the parameters that
both have. What it does with a dataset is in ``stream`` and ``torch``.
"""

from __future__ import annotations

import copy
import os
import reprlib
import sys
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

import torch.utils.data
from typing_extensions import TypeVar

from ..flow.engine import run_in_thread
from ..observe.page import report_html
from ..observe.report import Report
from ..observe.statistics import Statistics
from ..pipeline.batching import Batching
from ..pipeline.dataset import AsyncIterableDataset, Dataset
from ..pipeline.renamed import LOADER_ATTRIBUTES, LOADER_OPTIONS, missing, with_advice
from ..pipeline.skips import SkipErrors
from ..plan.topology import process_group, resolve_world
from ..quantity import as_count
from ..torch_compat.adapt import torch_reads
from ..torch_compat.loop import AsyncDoor
from ..torch_private import attributes_at_rest
from ..workers.ray.options import BATCHES_AHEAD_OF_ACTORS, RayWorkers, count_workers
from .kind import alike_in_replicas
from .lightning_private import find_reader
from .options import check_batching, check_path
from .stream import Streamed, StreamKind
from .torch import TorchKind

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# Libraries check this before they give a loader another sampler (Lightning), or deal it to ranks themselves.
# Registered, since the dataset itself must not need torch.
torch.utils.data.IterableDataset.register(Dataset)
torch.utils.data.IterableDataset.register(AsyncIterableDataset)


# What a loader may be given to load.


class MapStyle(Protocol):
    """Gives a sample by index."""

    def __getitem__(self, index: Any, /) -> Any: ...


AnyDataset: TypeAlias = Streamed | MapStyle | Iterable[Any] | AsyncIterable[Any]


def shown_dataset(dataset: Any) -> str:
    """A dataset on one line: a stream in full, others cut short, since one may be a list of a million."""
    if isinstance(dataset, Dataset):
        return repr(dataset)
    short = reprlib.Repr()
    short.maxother = short.maxstring = 120
    return " ".join(short.repr(dataset).split())


# The type of a batch does not follow from that of a dataset: Any, unless a collating function declares it.
T = TypeVar("T", covariant=True, default=Any)


class DataLoader(torch.utils.data.DataLoader[T]):
    """Load the batches of a dataset, with ``for`` and with ``async for``.

    A subclass of ``torch.utils.data.DataLoader``. The parameters up to ``in_order`` are torch's, with its
    defaults, meaning and errors; the others are additions. Constructing a loader reads nothing; with workers
    it starts the process that they are forked from. A pass frees what it holds when its loop ends or is left.
    As a context manager, a loader closes its latest pass when the block is left.

    The kinds of dataset:

    - A stream: a ``Dataset`` (``from_urls``, ``from_iterable``) or an ``AsyncIterableDataset``. Each pass is
      the next epoch, shuffled by (seed, epoch). Differences from torch are named below.
    - Map style, an object with ``__getitem__``: as in torch. If ``__getitem__`` or ``__getitems__`` is
      ``async def``, the items of a batch are fetched concurrently, at most 48 at a time.
    - Iterable style, an ``IterableDataset``: as in torch, so each worker reads its own copy, and a warning
      names a dataset that never calls ``get_worker_info()``; ``asyncloader.split_iterable`` deals it exactly.
      A plain iterable, or an object with ``__aiter__``, is treated alike.

    Lightning makes loaders anew from their arguments. A subclass that takes additions should therefore name
    them in its signature and keep them as attributes: behind ``**options`` Lightning finds only torch's.

    Example:
        ```python
        import asyncloader as al

        dataset = al.from_urls("shards/train-{000..003}.tar").decode().shuffle(1000, seed=0)
        loader = al.DataLoader(dataset, batch_size=32, num_workers=2)
        for epoch in range(3):
            for batch in loader:
                labels = batch["cls"]  # a tensor (32,) int64
        ```

    Args:
        dataset: See above.
        batch_size: Samples per batch. None delivers single samples as they are.
        shuffle: Draw a new order of samples in each epoch; map style only. Streams refuse this option,
            ``sampler`` and ``batch_sampler``: use ``.shuffle(window, seed=...)`` of the dataset.
        sampler: An iterable of indices; excludes ``shuffle``.
        batch_sampler: An iterable of lists of indices; excludes ``batch_size``, ``shuffle``, ``sampler`` and
            ``drop_last``.
        num_workers: Worker processes; 0 loads in this process. A stream is then read on threads, which
            overlaps I/O with the loop; workers help when making batches takes more CPU than one core has.
        collate_fn: Makes a batch of a list of samples. None: torch's rules (``default_collate``, or
            ``default_convert`` if ``batch_size`` is None), or what ``batching`` pads with.
        pin_memory: Deliver batches in page-locked memory. Without an accelerator it warns, as in torch.
        drop_last: Leave out the last batch if it is short; in a stream, that of each lane.
        timeout: Seconds that a batch may take, and that the workers of a stream may take to start; 0 for no
            limit. The TimeoutError of a stream says which worker it waits for, whether that runs, sleeps or
            was stopped, and where its code is; the iterator can be used again after it.
        worker_init_fn: Called with the worker's number in each worker, after seeding.
        multiprocessing_context: How workers start; None: torch's default of the platform. Objects are sent
            with cloudpickle, so lambdas and local classes work. Streams refuse this option: their workers
            always come from a clean process.
        generator: Draws the workers' base seed, and the order of samples unless the dataset does. None:
            torch's default generator; with replicas, one that is seeded with their rank.
        prefetch_factor: Batches made ahead. With workers, for each of them; None: 2, or 16 with Ray's actors,
            which send several small batches at a time. A stream takes it without workers too, as the most
            batches that are made and not delivered; None: 3.
        persistent_workers: Keep the workers from epoch to epoch. It makes no difference to a stream, whose
            workers start in milliseconds, except with Ray actors, which start in seconds.
        pin_memory_device: Deprecated by torch; warns as there.
        in_order: False delivers each batch as soon as a worker has made it. The order then differs from run
            to run; each batch still comes once, and states stay exact. No difference without workers.
        device: For streams: deliver batches on this device, copied on a side stream; implies page-locked
            memory.
        lanes: For streams: into how many lanes an epoch is dealt, a multiple of the world size. The same
            number gives the same batches for any number of workers. None: what a loaded state says, or
            ranks x max(workers, 1).
        rank: The rank of this process, given together with ``world_size``. None: that of the process group
            of ``torch.distributed``, or of the variables that ``torchrun``, ``srun`` or ``mpirun`` set; 0 of
            1 without them. It does not deal map-style and iterable datasets, whose workers can only read
            it: use a ``DistributedSampler``, or ``split_iterable``.
        world_size: The number of ranks. ``rank=0, world_size=1`` reads everything.
        mesh: For trainings in which several processes read the same (tensor, pipeline, sequence parallel):
            the data-parallel part of torch's ``DeviceMesh``, ``mesh["dp"]`` or several dimensions, which are
            flattened. Rank and world size are the place in it and its size. Processes at the same place are
            replicas, which get identical batches. Excludes ``rank`` and ``world_size``. Without a mesh,
            ``rank=r // n, world_size=w // n`` makes ``n`` consecutive processes read the same.
        memory_limit: For streams: bound on what all processes of this rank hold in flight and ahead, in bytes
            or as a text such as ``"2GB"`` or ``"512 MiB"``; at least 16 MiB. None: 1 GiB, which keeps one
            process busy for over 200 ms; less is taken where data is near. Shuffle windows, pools and batches
            in your hands come on top.
        progress: For streams: show a tqdm bar.
        batching: For streams: which samples make a batch, instead of a fixed number of them:
            ``TokenBatches``, ``Buckets`` or ``Pack``. Excludes ``batch_size`` and ``drop_last``.
        uneven: For streams: what ranks do when some have no batch for a step and others have one. ``"stop"``:
            all end, with a warning. ``"pad"``: those without get batches of no samples, which ``is_empty``
            finds. ``"raise"``: a ``RanksError``. ``"ignore"``: nothing. None: ``"stop"`` if as many processes
            read as the process group has, since a collective of fewer waits for ever; otherwise
            ``"ignore"``. If that may leave out more than 2 % of the samples of shards, a pass raises a
            ``RanksError`` before its first batch: use an index, or choose one of the others.
        worker_restarts: For streams: how many workers that were killed or crashed are replaced in a pass,
            which continues with the same batches. None: 3, enough for accidents. A second death at the same
            place is always an error, and what user code raises is never retried.
        snapshot_every_n_steps: For iterable datasets with a ``state_dict``: after how many batches, in each
            worker, it is called. 1, since most are cheap; 0: after the first batch only. Streams refuse it:
            each batch carries its position.
        audit: For streams: a folder to which each rank appends what it delivered, by shard and sample.
            ``asyncloader audit`` then proves that an epoch was delivered once, over restarts.
        on_error: For streams: ``"raise"``, since a sample that is left out unseen is lost; or an
            ``al.SkipErrors``, which skips bad samples and shards within a budget.
        trace: A file, such as ``"run.json"``, that each pass writes at its end: a timeline for Perfetto, and
            what a report page shows. The epoch is added to the name of all but the first. None: no trace,
            since recording costs a little.
        workers: For streams: ``al.RayWorkers(4)``, actors on a Ray cluster. ``num_workers`` is then 0 or 4.

    Raises:
        TypeError: As torch; an option for streams with another dataset; ``snapshot_every_n_steps`` with a
            stream; for streams, something that cannot be called where a function is expected.
        ImportError: ``workers`` asks for Ray, and it is not installed.
        ValueError: As torch, in its words; for streams, options that contradict each other or are out of
            range.
    """

    @with_advice(LOADER_OPTIONS)
    def __init__(
        self,
        dataset: AnyDataset,
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
        device: str | torch.device | None = None,
        lanes: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: DeviceMesh | None = None,
        memory_limit: int | str | None = None,
        progress: bool = False,
        batching: Batching | None = None,
        uneven: str | None = None,
        worker_restarts: int | None = None,
        snapshot_every_n_steps: int = 1,
        audit: str | os.PathLike[str] | None = None,
        on_error: str | SkipErrors = "raise",
        trace: str | os.PathLike[str] | None = None,
        workers: RayWorkers | None = None,
    ) -> None:
        # As given: Lightning makes a loader anew from the public attributes.
        self.device, self.lanes, self.rank, self.world_size = device, lanes, rank, world_size
        self.mesh = mesh
        self.memory_limit, self.progress = memory_limit, progress
        self.batching, self.uneven, self.worker_restarts = batching, uneven, worker_restarts
        self.snapshot_every_n_steps = as_count("snapshot_every_n_steps", snapshot_every_n_steps, least=0)
        self.audit, self.on_error, self.trace, self.workers = audit, on_error, trace, workers
        num_workers = count_workers(workers, num_workers)
        check_path("trace", "file", trace)
        if workers is not None and prefetch_factor is None:
            prefetch_factor = BATCHES_AHEAD_OF_ACTORS
        batch_size = check_batching(batching, batch_size, drop_last)
        self._kind: StreamKind | TorchKind = (
            StreamKind(dataset) if isinstance(dataset, Streamed) else TorchKind(dataset)
        )
        self._kind.check(
            self,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            num_workers=num_workers,
            multiprocessing_context=multiprocessing_context,
            collate_fn=collate_fn,
            worker_init_fn=worker_init_fn,
        )
        super().__init__(
            self._kind.seen,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn or self._kind.default_collate(batch_size, batching),
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            alike_in_replicas(self, generator),
            prefetch_factor=prefetch_factor if num_workers or self._kind.torchs_loop else None,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        if self.dataset is not dataset:  # the user's own object; torch's guard refuses a plain assignment
            object.__setattr__(self, "dataset", dataset)
        self.prefetch_factor = self.prefetch_factor or prefetch_factor  # of a stream also without workers
        self._kind.attach(self)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing(self, type(self).__name__, name, LOADER_ATTRIBUTES)

    def __repr__(self) -> str:
        if "_kind" not in self.__dict__:  # a subclass that has not called our constructor yet
            return super().__repr__()
        many = f"batch_size={self.batch_size}" if self.batching is None else f"batching={self.batching}"
        parts = [shown_dataset(self.dataset), many, f"num_workers={self.num_workers}"]
        return f"{type(self).__name__}({', '.join([*parts, *self._kind.describe(self)])})"

    def _repr_html_(self) -> str:
        """For notebooks: the loader, and the verdict on its latest pass."""
        return report_html(self.report() if self.statistics.batches else None, repr(self))

    # --- iterating ---

    def __iter__(self) -> Iterator[T]:  # type: ignore[override]  # torch names its private class
        reader = find_reader()
        if reader is not None and reader.epoch is not None:
            self._kind.follow_epoch(self, reader.epoch)
        batches: Any = super().__iter__() if self._kind.torchs_loop else self._get_iterator()
        if reader is not None and reader.holds is not None:
            self._kind.defer(reader.holds)  # not the iterator, which may be a subclass's own
        return batches  # type: ignore[no-any-return]

    def _get_iterator(self) -> Any:
        """torch's hook: called by ``__iter__``; of torch's kinds once in all with persistent workers."""
        return self._kind.open(self)

    def __aiter__(self) -> AsyncIterator[T]:
        batches: Any = iter(self)
        return batches if isinstance(batches, AsyncIterator) else AsyncDoor(batches)

    def __len__(self) -> int:
        return self._kind.length(self)

    def __bool__(self) -> bool:
        """Whether there is something to load, as in torch; true of a stream, and where no length is known."""
        if not self._kind.torchs_loop:
            return True
        try:
            return len(self) > 0
        except TypeError:
            return True

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass that of ``epoch``.

        A stream starts at the epoch's beginning, unless a position in this very epoch was loaded before:
        a training loop that calls this at the top of each epoch must not undo a resume. For map-style and
        iterable datasets the ``set_epoch`` of samplers and dataset is called, if they have one.

        Args:
            epoch: Its number, from 0.

        Raises:
            ValueError: ``epoch`` is negative or not an int; or it would drop a loaded position that has
                batches left.
        """
        self._kind.set_epoch(self, epoch)

    def warm_up(self) -> None:
        """Begin a stream's next iteration now, so that its first batches are ready when the loop begins.

        Workers start, connections open and batches are read ahead, within the usual limits, while the program
        builds its model. The loop that follows takes them; ``load_state_dict()`` comes before this call, and
        a ``set_epoch()`` with the epoch of that iteration may come after it. What the iteration raises is
        raised in the loop. Its times and rates count from here, and the workers' base seed is drawn here.

        Example:
            loader.load_state_dict(checkpoint["loader"])
            loader.warm_up()
            model = build_model()
            for batch in loader:
                train(model, batch)

        Raises:
            TypeError: The dataset is no stream: torch's loop draws seeds and order when its loop begins.
            RuntimeError: The latest iteration has not ended.
        """
        self._kind.warm_up(self)

    @property
    def statistics(self) -> Statistics:
        """Counts and times of the latest pass, as they are now, from any thread; zeros before the first."""
        return self._kind.statistics()

    def report(self) -> Report:
        """What limits the latest pass, which may be running: ``print(loader.report())``.

        Returns:
            An ``al.observe.Report``, whose text has three lines: the rate, the bottleneck, what to change.
        """
        return self._kind.report(self)

    # --- state ---

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch delivered, whatever was prefetched.

        Inside the loop, after the last batch, it says that the epoch is over: resuming gives no batch, and
        then the next epoch. If ``len(loader)`` was called before the first batch, it is at once the beginning
        of the next epoch, as it is after the loop has ended.

        Returns:
            A new dict of JSON values, of a few KB. For map-style and iterable datasets it also has the states
            of generators, and what the ``state_dict`` of a sampler or dataset returned, as it is.

        Raises:
            Exception: What the ``state_dict`` of a sampler or dataset raised, in its worker or here.
        """
        return self._kind.state_dict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state`` with the next pass.

        The number of workers of a stream may change. So may the number of ranks, with the state that
        ``merge_states`` makes of those of all ranks: any world size that divides the number of lanes loads
        it, and each rank takes its own part.

        A map-style dataset draws the same order and skips what was delivered, unread. If its order or seeds
        come from torch's default generator, that is set at once to its state when ``state`` was made. A
        dataset with a ``load_state_dict`` gets its own state, in each worker; another iterable one is read
        again from the beginning of the epoch, with a warning. Both need the same number of workers.

        Args:
            state: What ``state_dict`` or ``merge_states`` returned. ``{}`` makes the loader begin anew: a
                stream with epoch 0, the others with the next epoch.

        Raises:
            ValueError: The state is of another dataset, shard list, batch size or sampler, of another
                version, or of one rank of another world; the message names each difference. Nothing is
                changed then.
        """
        self._kind.load_state_dict(self, state)

    # --- life ---

    def close(self) -> None:
        """Stop the latest pass and free what it holds; the loader can be iterated again.

        Without workers it waits about five seconds at most for running calls of the dataset's functions, then
        warns and leaves them. The process that workers are forked from stays for other loaders.
        """
        self._kind.close(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await run_in_thread(self.close, "asyncloader-close")

    def __getstate__(self) -> dict[str, Any]:
        """What is copied and pickled: the loader, and nothing that is running, persistent workers neither."""
        return {**attributes_at_rest(self), "_kind": copy.copy(self._kind)}

    # --- what others probe ---

    def check_worker_number_rationality(self) -> None:
        """torch's warning of more workers than cores, which is wrong for workers that wait for bytes."""
        if self._kind.torchs_loop:
            super().check_worker_number_rationality()

    @property
    def use_stateful_dataloader(self) -> bool:
        """accelerate asks this of a loader that it uses as it is: whether to save and load its state.

        It has one file for all ranks, which all write, so this is False where there are several.
        """
        return resolve_world(None, None, lambda: process_group(sys.modules), {}).size == 1

    @cached_property
    def _is_accelerate_prepared(self) -> bool:
        """accelerate's ``prepare`` reads this, and sets it: whether it must return the loader as it is.

        Otherwise it makes torch's own loader anew from the dataset, which cannot read all that ours can. A
        stream deals itself to the ranks, and moves its batches with ``device=``.

        Raises:
            RuntimeError: Neither is possible: torch's loader cannot read the dataset, and it is not dealt to
                the ranks.
        """
        if not self._kind.torchs_loop:
            return True
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
