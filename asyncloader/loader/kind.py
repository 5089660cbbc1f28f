"""What a kind of dataset is, and what it knows of the loader that it serves: options, rank and world."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import torch
import torch.utils.data
from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler

from ..flow.engine import run_in_thread
from ..flow.process import usable_processors
from ..observe.report import Report, Setup
from ..observe.statistics import Statistics
from ..pipeline.batching import Batching, FixedSize, Single
from ..pipeline.components import Recipe, leaves_of
from ..pipeline.map import AsyncMap
from ..pipeline.op import shown
from ..pipeline.shards import Shards
from ..pipeline.skips import SkipErrors
from ..plan.topology import DEFAULT_LIMIT_BYTES, MeshSlice, World, mesh_world, process_group, resolve_world
from ..stores.urls import scheme_of
from ..torch_compat.adapt import is_async, is_iterable
from ..torch_compat.stateful import innermost_sampler
from ..torch_compat.timing import stage_of
from ..torch_private import uncut_mesh
from ..workers.by_value import read_settings
from ..workers.ray import RayWorkers
from .options import memory_bytes
from .workers import WorkerSetting

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

T = TypeVar("T", covariant=True)


class Loader(torch.utils.data.DataLoader[T]):
    """What kinds know of a loader: torch's attributes, and the library's own options as they were given.

    Most may change between two passes, so that a kind reads them when it opens one. A ``with`` block
    closes it at its end.
    """

    device: str | torch.device | None
    lanes: int | None
    rank: int | None
    world_size: int | None
    mesh: DeviceMesh | None
    memory_limit: int | str | None
    progress: bool
    batching: Batching | None
    uneven: str | None
    worker_restarts: int | None
    workers: RayWorkers | None
    snapshot_every_n_steps: int
    audit: str | os.PathLike[str] | None
    on_error: str | SkipErrors
    trace: str | os.PathLike[str] | None

    def close(self) -> None:
        """Stop the latest iteration and free what it holds. Idempotent."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await run_in_thread(self.close, "asyncloader-close")

    @property
    def use_stateful_dataloader(self) -> bool:
        """What accelerate asks, for a loader that it hands on as it is: whether to save and load its state.

        It has one file for all ranks, which all write, so that it must not where there are several.
        """
        return resolve_world(None, None, lambda: process_group(sys.modules), {}).size == 1


class DatasetKind(Protocol):
    """A kind of dataset, for one loader.

    It holds no loader, which would be a cycle, but is given it. Copied and pickled, it is a kind of which
    nothing runs.
    """

    #: What torch's constructor is shown in the dataset's place, to tell map style from iterable style.
    seen: Any

    #: Whether torch's own loop reads the dataset, so that torch's methods hold.
    torchs_loop: bool

    def check(
        self,
        loader: Loader[Any],
        *,
        shuffle: Any,
        sampler: Any,
        batch_sampler: Any,
        multiprocessing_context: Any,
        collate_fn: Any,
        worker_init_fn: Any,
    ) -> None:
        """Refuse what torch would not, before torch looks at its parameters; only ours are set as yet."""
        ...

    def default_collate(
        self, batch_size: int | None, batching: Batching | None
    ) -> Callable[[Any], Any] | None:
        """What makes batches where the user names no function; None for torch's."""
        ...

    def attach(self, loader: Loader[Any]) -> None:
        """Take in what was given, all of which torch has found good."""
        ...

    def open(self, loader: Loader[Any]) -> Any:
        """Start a pass; an iterator over its batches."""
        ...

    def length(self, loader: Loader[Any]) -> int:
        """How many batches a pass has; TypeError, with the reason, where that is not known."""
        ...

    def set_epoch(self, loader: Loader[Any], epoch: int) -> None:
        """Make the next pass that of ``epoch``."""
        ...

    def follow_epoch(self, loader: Loader[Any], epoch: int) -> None:
        """Make the next pass no earlier one than that of ``epoch``, which a trainer has come to."""
        ...

    def defer(self, holds: Callable[[], bool]) -> None:
        """Count a batch of the latest pass as delivered when the next one is asked for.

        Args:
            holds: Asked when a state is saved: whether the consumer has that batch in hand and not used it.
        """
        ...

    def statistics(self) -> Statistics:
        """Counts of the latest pass; AttributeError if the kind counts nothing."""
        ...

    def report(self, loader: Loader[Any]) -> Report:
        """What limits the latest pass; AttributeError if the kind counts nothing."""
        ...

    def state_dict(self, loader: Loader[Any]) -> dict[str, Any]:
        """The position after the last batch delivered, as a new dict."""
        ...

    def load_state_dict(self, loader: Loader[Any], state: Mapping[str, Any]) -> None:
        """Go on from ``state`` with the next pass."""
        ...

    def describe(self, loader: Loader[Any]) -> list[str]:
        """What the loader's repr says beside dataset, batch size and workers."""
        ...

    def close(self, loader: Loader[Any]) -> None:
        """Stop the latest pass and free what it holds. Idempotent."""
        ...


# What a loader of a stream asks for, with the defaults that streams have.

# As many as accidents explain. Workers that die again and again have a reason, such as too little memory.
_RESTARTS = 3


def batching_of(loader: Loader[Any]) -> Batching:
    """What makes its batches."""
    if loader.batching is not None:
        return loader.batching
    return Single() if loader.batch_size is None else FixedSize(loader.batch_size, loader.drop_last)


def memory_of(loader: Loader[Any]) -> int:
    """How many bytes it may hold; raises as ``memory_bytes``."""
    return DEFAULT_LIMIT_BYTES if loader.memory_limit is None else memory_bytes(loader.memory_limit)


def worker_setting(loader: Loader[Any], base_seed: int) -> WorkerSetting:
    """What each of its worker processes is to the user's code."""
    return WorkerSetting(
        loader.num_workers,
        base_seed,
        loader.worker_init_fn,
        prefetch=loader.prefetch_factor or 1,
        restarts=_RESTARTS if loader.worker_restarts is None else loader.worker_restarts,
        in_order=loader.in_order,
        program=read_settings(),
        start_timeout_s=float(loader.timeout) or None,
    )


def budget_of(loader: Loader[Any]) -> SkipErrors | None:
    """How much it may skip; None if every error is raised.

    Raises:
        ValueError: It says something else.
    """
    asked = loader.on_error
    if isinstance(asked, SkipErrors):
        return asked
    if asked != "raise":
        raise ValueError(f'on_error should be "raise" or al.SkipErrors(...), but got on_error={asked!r}')
    return None


def told_once(budget: SkipErrors | None, world: World) -> SkipErrors | None:
    """The same, of replicas with dead letters in the first alone: all skip the same."""
    if budget is None or world.replica == 0:
        return budget
    return replace(budget, dead_letters=None)


def check_world(loader: Loader[Any], mine: World) -> None:
    """Refuse to read for another rank than was known when the loader was made."""
    group = process_group(sys.modules)
    if loader.rank is not None or loader.mesh is not None or group is None:
        return
    if World(*group) != mine:
        raise RuntimeError(
            f"this loader was made for rank {mine.rank} of {mine.size}, but the process "
            f"group says rank {group[0]} of {group[1]}: samples would be read twice. Make the loader "
            "after torch.distributed.init_process_group(), or pass rank= and world_size="
        )


def setup_of(loader: Loader[Any], recipe: Recipe, world: World) -> Setup:
    """What advice on its passes has to go by."""
    shards = [source for source in leaves_of(recipe) if isinstance(source, Shards)]
    return Setup(
        num_workers=loader.num_workers,
        in_order=loader.in_order,
        concurrency={shown(op): op.concurrency for op in recipe.all_ops if hasattr(op, "concurrency")},
        coroutines=[shown(op) for op in recipe.all_ops if isinstance(op, AsyncMap)],
        processors=usable_processors(),
        caches=any(source.access.cache is not None for source in shards),
        is_local=all(scheme_of(url).is_local for source in shards for url in source.urls[:1]),
        is_indexed=bool(shards) and all(source.is_indexed for source in shards),
        has_ranks=world.processes > 1,
        on_cluster=loader.workers is not None,
    )


def setup_of_torch(loader: Loader[Any], dataset: Any) -> Setup:
    """Likewise, of a dataset that torch's loop reads."""
    return Setup(
        num_workers=loader.num_workers,
        in_order=loader.in_order,
        concurrency={},
        coroutines=[stage_of(dataset)] if is_async(dataset) else [],
        processors=usable_processors(),
        caches=False,
        is_local=True,
        is_indexed=False,
        has_ranks=False,
        style="iterable" if is_iterable(dataset) else "map",
        keeps_workers=loader.persistent_workers or not loader.num_workers,
    )


# For which rank a loader reads: what it was told, torch's mesh and process group, the launcher.


def is_told_who_reads(loader: Loader[Any]) -> bool:
    """Whether a loader was told that several processes read the same."""
    return loader.mesh is not None


def world_of(loader: Loader[Any]) -> World:
    """The world that a loader reads for.

    Raises:
        TypeError: ``mesh`` is no ``DeviceMesh``.
        ValueError: What was given contradicts itself, or as ``resolve_world`` and ``mesh_world``.
    """
    if loader.mesh is None:
        group = lambda: process_group(sys.modules)  # noqa: E731  # asked only where nothing was given
        return resolve_world(loader.rank, loader.world_size, group, os.environ)
    beside = {"rank": loader.rank, "world_size": loader.world_size}
    given = [f"{name}={value!r}" for name, value in beside.items() if value is not None]
    if given:
        raise ValueError(
            "mesh option is mutually exclusive with rank and world_size, which it says by itself, but "
            f"got {', '.join(given)}"
        )
    return mesh_world(_cut_of(loader.mesh))


def _cut_of(mesh: Any) -> MeshSlice:
    from torch.distributed.device_mesh import DeviceMesh

    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f'mesh should be a DeviceMesh, such as mesh["dp"], but got {type(mesh).__name__}')
    uncut = uncut_mesh(mesh)
    return MeshSlice(
        mesh.mesh_dim_names,
        mesh.shape,
        mesh.get_rank(),
        mesh.mesh.flatten().tolist(),
        None if uncut is mesh else uncut.mesh.flatten().tolist(),
    )


def alike_in_replicas(loader: Loader[Any], generator: Any) -> Any:
    """What a loader is to draw from: ``generator``, or where replicas must draw alike one that all seed so.

    Of torch's default generator no two processes are sure to be in the same state.
    """
    if generator is not None or not is_told_who_reads(loader):
        return generator
    world = world_of(loader)
    return torch.Generator().manual_seed(world.rank) if world.replicas > 1 else None


def check_replicas(loader: Loader[Any], world: World) -> None:
    """Refuse what would make batches of replicas differ.

    Raises:
        ValueError: Batches come as workers are done with them.
    """
    if world.replicas > 1 and not loader.in_order and loader.num_workers:
        raise ValueError(
            f"in_order=False hands on batches in another order in each process, but {world.replicas} "
            "processes are to get the same ones; leave it out"
        )


def check_sampler(loader: Loader[Any], world: World) -> None:
    """Refuse samplers of map-style data that deal it otherwise than the loader was told.

    Raises:
        ValueError: A ``DistributedSampler`` is of another rank or world, as it is by default; or the sampler
            is torch's own, which gives each rank everything.
    """
    sampler = innermost_sampler(loader)
    wanted = f"DistributedSampler(dataset, num_replicas={world.size}, rank={world.rank})"
    if isinstance(sampler, DistributedSampler):
        if (sampler.rank, sampler.num_replicas) != (world.rank, world.size):
            raise ValueError(
                f"the sampler should deal for {world}, but it is that of rank {sampler.rank} of "
                f"{sampler.num_replicas}; make it as {wanted}"
            )
    elif world.size > 1 and type(sampler) in (RandomSampler, SequentialSampler):
        raise ValueError(
            f"map-style data is dealt to ranks by its sampler, but with a {type(sampler).__name__} each "
            f"of the {world.size} ranks ({world.origin}) would read all of it; give sampler={wanted}"
        )
