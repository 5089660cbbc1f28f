"""The facade: torch's DataLoader, for every kind of dataset, with ``async for``.

It is a subclass of torch's, so that ``isinstance`` is true of it, and torch itself checks the parameters that
both have. What it does with a dataset is in ``stream`` and ``torch``.
"""

from __future__ import annotations

import copy
import os
import reprlib
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
    defaults, meaning and errors; the others are additions. The constructor reads nothing; with workers it
    starts the process that they are forked from. The end of a loop frees what the pass holds, also after a
    ``break``. As a context manager, a loader closes its latest pass at the end of the block.

    The kinds of dataset:

    - A stream: a ``Dataset`` (``from_urls``, ``from_iterable``) or an ``AsyncIterableDataset``. Each pass is
      the next epoch, shuffled by (seed, epoch). The arguments below name the differences from torch.
    - Map style, an object with ``__getitem__``: as in torch. If ``__getitem__`` or ``__getitems__`` is
      ``async def``, the items of a batch are fetched concurrently, at most 48 at a time.
    - Iterable style, an ``IterableDataset``: as in torch, so each worker reads its own copy. A warning names
      a dataset that never calls ``get_worker_info()``; ``asyncloader.split_iterable`` splits it. The same
      holds for a plain iterable, or an object with ``__aiter__``.

    Lightning makes new loaders from the arguments of a loader. A subclass with arguments of its own should
    name them in its signature and keep them as attributes, since Lightning does not see ``**options``.

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
        dataset: The dataset, of one of the kinds above.
        batch_size: Samples of a batch. None: single samples, without collating them.
        shuffle: Draw a new order of samples in each epoch, for map-style datasets. Streams refuse this
            option, ``sampler`` and ``batch_sampler``: use ``.shuffle(window, seed=...)`` of the dataset.
        sampler: An iterable of indices; excludes ``shuffle``.
        batch_sampler: An iterable of lists of indices; excludes ``batch_size``, ``shuffle``, ``sampler`` and
            ``drop_last``.
        num_workers: The number of worker processes. 0: load in this process; a stream is then read on
            threads, which overlaps I/O with the loop. Workers help if batches need more CPU than one core.
        collate_fn: A function that makes a batch of a list of samples. None: torch's rules
            (``default_collate``, or ``default_convert`` if ``batch_size`` is None), or that of ``batching``.
        pin_memory: Deliver batches in page-locked memory. Without an accelerator it warns, as in torch.
        drop_last: Leave out the last batch if it is short; in a stream, that of each lane.
        timeout: The most seconds to wait for a batch, and for the workers of a stream to start; 0 for no
            limit. The ``TimeoutError`` of a stream names the worker, its state and the line of its code. The
            iterator stays usable.
        worker_init_fn: A function that each worker calls with its number, after seeding.
        multiprocessing_context: How workers start. None: torch's default on the platform. Objects are sent
            with cloudpickle, so lambdas and local classes work. Streams refuse this option, since their
            workers always come from a clean process.
        generator: The generator of the workers' base seed, and of the order of samples unless the dataset has
            its own. None: torch's default generator; for replicas, one that is seeded with their rank.
        prefetch_factor: How many batches to make ahead. With workers, for each of them; None: 2, or 16 with
            Ray's actors, which send several small batches at a time. For a stream without workers, the most
            batches that are made and not delivered; None: 3.
        persistent_workers: Keep the workers from epoch to epoch. For a stream this only makes a difference to
            Ray actors, which start in seconds; other workers start in milliseconds.
        pin_memory_device: Deprecated by torch; warns as there.
        in_order: False: deliver each batch as soon as a worker has made it. The order then differs from run
            to run; each batch still comes once, and states stay exact. No difference without workers.
        device: For streams: the device on which batches are delivered, copied on a side stream from
            page-locked memory. None: host memory.
        lanes: For streams: the number of lanes of an epoch, a multiple of the world size. The same number
            gives the same batches with any number of workers. None: that of a loaded state, or otherwise
            ranks x max(workers, 1).
        rank: The rank of this process, together with ``world_size``. None: that of the process group of
            ``torch.distributed``, or of the variables that ``torchrun``, ``srun`` or ``mpirun`` set, or 0 of
            1. For map-style and iterable datasets it has no effect except that workers can read it: use a
            ``DistributedSampler``, or ``split_iterable``.
        world_size: The number of ranks. With ``rank=0, world_size=1`` this process reads everything.
        mesh: The data-parallel part of torch's ``DeviceMesh``, for trainings in which several processes read
            the same (tensor, pipeline, sequence parallel): ``mesh["dp"]``, or several dimensions, which are
            flattened. Its size is the world size, and the place in it is the rank. Processes at the same
            place are replicas, which get identical batches. Excludes ``rank`` and ``world_size``. Without a
            mesh, ``rank=r // n, world_size=w // n`` makes ``n`` consecutive processes read the same.
        memory_limit: For streams: the most bytes in flight and prefetched in all processes of this rank, as
            an int or as text such as ``"2GB"`` or ``"512 MiB"``; at least 16 MiB. None: 1 GiB, which keeps
            one process busy for over 200 ms; a fast store needs less. Shuffle windows, pools and delivered
            batches are not included.
        progress: For streams: show a tqdm bar.
        batching: For streams: ``TokenBatches``, ``Buckets`` or ``Pack``, which choose the samples of a batch.
            Excludes ``batch_size`` and ``drop_last``. None: a fixed number of samples.
        uneven: For streams: what ranks do when only some of them have a batch for a step. ``"stop"``: all
            end, with a warning. ``"pad"``: the others get batches without samples, which ``is_empty``
            detects. ``"raise"``: all raise a ``RanksError``. ``"ignore"``: nothing. None: ``"stop"`` if all
            processes of the process group read, since a collective call of fewer waits forever; otherwise
            ``"ignore"``. If that may leave out more than 2 % of the samples of shards, a pass raises a
            ``RanksError`` before its first batch: use an index, or choose one of the others.
        worker_restarts: For streams: how many killed or crashed workers a pass replaces; it continues with
            the same batches. None: 3, enough for accidents. A second death at the same place is always an
            error, and exceptions of your functions are never retried.
        snapshot_every_n_steps: For iterable datasets with a ``state_dict``: each worker calls it after this
            many batches. 1 by default, since most are cheap; 0: after the first batch only. Streams refuse
            this option, since each batch carries its position.
        audit: For streams: a folder in which each rank records what it delivered, by shard and sample.
            ``asyncloader audit`` then proves that an epoch was delivered once, also over restarts. None: no
            record.
        on_error: For streams: ``"raise"``, the default, since a skipped sample is lost; or an
            ``al.SkipErrors``, which skips bad samples and shards within a budget.
        trace: A file, such as ``"run.json"``, that each pass writes at its end, for Perfetto and for a report
            page. From the second pass on, the name also has the epoch. None: no trace, since recording costs
            a little.
        workers: For streams: ``al.RayWorkers(4)``, actors on a Ray cluster; ``num_workers`` is then 0 or 4.
            None: local processes.

    Raises:
        TypeError: As in torch; an option for streams with another dataset; ``snapshot_every_n_steps`` with a
            stream; or, for streams, an object that cannot be called in place of a function.
        ImportError: ``workers`` needs Ray, and it is not installed.
        ValueError: As in torch; or, for streams, options that are out of range or exclude each other.
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
        """Set the epoch of the next pass.

        A stream starts at the beginning of the epoch. If a position in the same epoch was loaded before, it
        starts there, so that a loop which calls this for each epoch does not undo a resume. For map-style
        and iterable datasets, it calls the ``set_epoch`` of the samplers and of the dataset, if they have
        one.

        Args:
            epoch: Number of the epoch, from 0.

        Raises:
            ValueError: ``epoch`` is negative or not an int; or a position in another epoch was loaded, which
                has batches left.
        """
        self._kind.set_epoch(self, epoch)

    def warm_up(self) -> None:
        """Begin a stream's next pass now, so that its first batches are ready when the loop begins.

        Workers start, connections open and batches are read ahead, within the usual limits, while the program
        builds its model. Call ``load_state_dict()`` before it; ``set_epoch()`` with the epoch of the pass may
        come after it. Errors are raised in the loop. The times in the statistics count from this call.

        Example:
            loader.load_state_dict(checkpoint["loader"])
            loader.warm_up()
            model = build_model()
            for batch in loader:
                train(model, batch)

        Raises:
            TypeError: The dataset is not a stream: torch draws seeds and order when the loop begins.
            RuntimeError: The latest pass has not ended.
        """
        self._kind.warm_up(self)

    @property
    def statistics(self) -> Statistics:
        """Counts and times of the latest pass, as of now; 0 before the first. Any thread may read it."""
        return self._kind.statistics()

    def report(self) -> Report:
        """Return what limits the latest pass, which may be running: ``print(loader.report())``.

        Returns:
            An ``al.observe.Report``, whose text has three lines: the rate, the bottleneck, what to change.
        """
        return self._kind.report(self)

    # --- state ---

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch delivered, whatever was prefetched.

        After the last batch, inside the loop, it is the end of the epoch: a resumed loader gives no batch in
        its first pass, and the next epoch in its second. After the loop, it is the beginning of the next
        epoch, and inside the loop too if ``len(loader)`` was called before the first batch.

        Returns:
            A new dict of JSON values, of a few KB. For map-style and iterable datasets it also has the states
            of generators, and what the ``state_dict`` of a sampler or dataset returned.

        Raises:
            Exception: An error of the ``state_dict`` of a sampler or dataset, also in a worker.
        """
        return self._kind.state_dict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state`` with the next pass.

        For a stream, the number of workers may change. The number of ranks may change too, with the state
        that ``merge_states`` makes of the states of all ranks: any world size that divides the number of
        lanes can load it, and each rank takes its own part.

        A map-style loader draws the same order and skips the batches that were delivered, without reading
        them. If its order or seeds come from torch's default generator, this call sets that generator to the
        saved state. A dataset with a ``load_state_dict`` gets its own state, in each worker. Another
        iterable dataset is read again from the beginning of the epoch, with a warning. Both need the same
        number of workers.

        Args:
            state: What ``state_dict`` or ``merge_states`` returned. ``{}`` makes the loader start again: a
                stream with epoch 0, the others with the next epoch.

        Raises:
            ValueError: The state has another version, dataset, shard list, batch size or sampler, or is that
                of one rank in another world; the message names each difference. Nothing has changed then.
        """
        self._kind.load_state_dict(self, state)

    # --- life ---

    def close(self) -> None:
        """Stop the latest pass and free what it holds. The loader can be iterated again.

        Without workers it waits at most about five seconds for running calls of your functions, and then
        warns. The process that workers are forked from stays for other loaders.
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
        """Warn of more workers than cores, as torch does; not for streams, whose workers wait for bytes."""
        if self._kind.torchs_loop:
            super().check_worker_number_rationality()

    @property
    def use_stateful_dataloader(self) -> bool:
        """Whether accelerate should save and load the state of this loader.

        It is False if there are several ranks, since accelerate writes the states of all ranks to one file.
        """
        return resolve_world(None, None, process_group, {}).size == 1

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
        world = resolve_world(None, None, process_group, {})
        sampler = getattr(self.batch_sampler, "sampler", self.sampler)
        if world.size > 1 and not isinstance(sampler, torch.utils.data.DistributedSampler):
            raise RuntimeError(
                f"accelerate cannot deal a {type(self.dataset).__name__} to {world.size} ranks, since it "
                "would read it with torch's own loader, which does not know datasets of this kind. Give the "
                "DataLoader a DistributedSampler, or load a stream (from_urls, from_iterable)"
            )
        return True
