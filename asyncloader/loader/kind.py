"""What kinds of dataset take from their loader: the rank it reads for, and the options of a stream."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler

from ..flow.process import usable_processors
from ..observe.report import Setup
from ..pipeline.batching import Batching, FixedSize, Single
from ..pipeline.components import Stages, leaves_of
from ..pipeline.map import Map
from ..pipeline.op import shown
from ..pipeline.shards import Shards
from ..pipeline.skips import SkipErrors
from ..plan.lanes import Deal
from ..plan.states import without
from ..plan.topology import DEFAULT_LIMIT_BYTES, World, mesh_world, process_group, resolve_world
from ..stores.urls import scheme_of
from ..torch_compat.adapt import is_async, is_iterable
from ..torch_compat.stateful import innermost_sampler
from ..torch_compat.timing import stage_of
from ..torch_private import uncut_mesh
from .options import memory_bytes

if TYPE_CHECKING:
    from .loader import DataLoader

# Attributes of a loader that the options of a stream have as they are.
_AS_GIVEN = (
    *("audit", "collate_fn", "device", "generator", "in_order", "num_workers", "pin_memory"),
    *("pin_memory_device", "prefetch_factor", "progress", "timeout", "uneven", "worker_init_fn"),
)

# As many as accidents explain. Workers that die again and again have a reason, such as too little memory.
_RESTARTS = 3


@dataclass(frozen=True)
class StreamOptions:
    """All that decides what a pass over a stream does. Made anew for each pass and each question about one.

    A loader's attributes may change between two passes, as torch lets them.

    Attributes:
        stages: What is read.
        world: The rank that it is read for.
        lane_count: Lanes of all ranks together.
        batching: What makes batches.
        skips: How much may be skipped; None raises every error.
        memory_bytes: How many bytes the processes of the rank may hold.
        restarts: How many workers may be replaced in a pass.
        is_traced: Whether a trace is written.
        on_cluster: Whether Ray's actors read.

    The others are attributes of ``DataLoader``.
    """

    stages: Stages
    world: World
    lane_count: int
    batching: Batching
    skips: SkipErrors | None
    memory_bytes: int
    restarts: int
    is_traced: bool
    on_cluster: bool
    audit: str | os.PathLike[str] | None
    collate_fn: Callable[[Any], Any]
    device: str | torch.device | None
    generator: torch.Generator | None
    in_order: bool
    num_workers: int
    pin_memory: bool
    pin_memory_device: str
    prefetch_factor: int | None
    progress: bool
    timeout: float
    uneven: str | None
    worker_init_fn: Callable[[int], object] | None

    @classmethod
    def of(cls, loader: DataLoader[Any], stages: Stages, world: World, lane_count: int) -> StreamOptions:
        """The options of a loader as its attributes are now.

        Raises:
            TypeError: As ``memory_bytes``.
            ValueError: As ``memory_bytes`` and ``skips_of``.
        """
        batching: Batching | None = loader.batching
        if batching is None:
            many, drops = loader.batch_size, loader.drop_last
            batching = Single() if many is None else FixedSize(many, drops)
        skips = skips_of(loader)
        if skips is not None and world.replica:
            skips = replace(skips, dead_letters=None)  # all replicas skip the same: the first writes it down
        return cls(
            stages,
            world,
            lane_count,
            batching,
            skips,
            DEFAULT_LIMIT_BYTES if loader.memory_limit is None else memory_bytes(loader.memory_limit),
            _RESTARTS if loader.worker_restarts is None else loader.worker_restarts,
            loader.trace is not None,
            loader.workers is not None,
            **{name: getattr(loader, name) for name in _AS_GIVEN},
        )

    @property
    def is_audited(self) -> bool:
        """Whether this process records: of replicas the first, since all deliver the same."""
        return self.audit is not None and self.world.replica == 0

    @cached_property
    def described(self) -> dict[str, Any]:
        """What a saved state and a loader must agree on."""
        return {**self.stages.describe(), **self.batching.describe(), "lanes": self.lane_count}

    def deal(self, lanes: Iterable[int], epoch: int) -> Deal:
        """These lanes in an epoch."""
        return Deal(tuple(lanes), self.lane_count, epoch, self.stages.order_seed)

    def digest(self, is_left_out: Callable[[str], bool]) -> str:
        """A digest of ``described`` without the entries with such names: 16 hexadecimal digits."""
        described = json.dumps(without(self.described, is_left_out), sort_keys=True)
        return hashlib.sha256(described.encode()).hexdigest()[:16]

    def setup(self) -> Setup:
        """What advice on a pass depends on."""
        shards = [source for source in leaves_of(self.stages) if isinstance(source, Shards)]
        ops = self.stages.all_ops
        return Setup(
            num_workers=self.num_workers,
            in_order=self.in_order,
            concurrency={shown(op): op.concurrency for op in ops if hasattr(op, "concurrency")},
            coroutines=[shown(op) for op in ops if isinstance(op, Map) and op.is_async],
            processors=usable_processors(),
            caches=any(source.access.cache is not None for source in shards),
            is_local=all(scheme_of(url).is_local for source in shards for url in source.urls[:1]),
            is_indexed=bool(shards) and all(source.is_indexed for source in shards),
            has_ranks=self.world.processes > 1,
            on_cluster=self.on_cluster,
        )


def skips_of(loader: DataLoader[Any]) -> SkipErrors | None:
    """How much a loader may skip; None if every error is raised.

    Raises:
        ValueError: ``on_error`` is something else.
    """
    asked = loader.on_error
    if isinstance(asked, SkipErrors):
        return asked
    if asked != "raise":
        raise ValueError(f'on_error should be "raise" or al.SkipErrors(...), but got on_error={asked!r}')
    return None


def setup_of_torch(loader: DataLoader[Any], dataset: Any) -> Setup:
    """What advice on a pass depends on, of a dataset that torch's loop reads."""
    return Setup(
        num_workers=loader.num_workers,
        in_order=loader.in_order,
        concurrency={},
        coroutines=[stage_of(dataset)] if is_async(dataset) else [],
        processors=usable_processors(),
        is_local=True,
        style="iterable" if is_iterable(dataset) else "map",
        keeps_workers=loader.persistent_workers or not loader.num_workers,
    )


# For which rank a loader reads: its own options, torch's mesh and process group, or the launcher say so.


def world_of(loader: DataLoader[Any]) -> World:
    """The world that a loader reads for.

    Raises:
        TypeError: ``mesh`` is not a ``DeviceMesh``.
        ValueError: The options contradict each other, or as ``resolve_world`` and ``mesh_world``.
    """
    if loader.mesh is None:
        return resolve_world(loader.rank, loader.world_size, process_group, os.environ)
    beside = {"rank": loader.rank, "world_size": loader.world_size}
    given = [f"{name}={value!r}" for name, value in beside.items() if value is not None]
    if given:
        raise ValueError(
            "mesh option is mutually exclusive with rank and world_size, which the mesh determines, but "
            f"got {', '.join(given)}"
        )
    from torch.distributed.device_mesh import DeviceMesh

    mesh = loader.mesh
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f'mesh should be a DeviceMesh, such as mesh["dp"], but got {type(mesh).__name__}')
    uncut = uncut_mesh(mesh)
    cut_out_of = None if uncut is mesh else uncut.mesh.flatten().tolist()
    processes = mesh.mesh.flatten().tolist()
    return mesh_world(mesh.mesh_dim_names, mesh.shape, mesh.get_rank(), processes, cut_out_of)


def alike_in_replicas(loader: DataLoader[Any], generator: Any) -> Any:
    """What a loader draws from: ``generator``, or for replicas a new one that all of them seed alike.

    torch's default generator may be in another state in each process.
    """
    if generator is not None or loader.mesh is None:
        return generator
    world = world_of(loader)
    return torch.Generator().manual_seed(world.rank) if world.replicas > 1 else None


def check_world(loader: DataLoader[Any], mine: World) -> None:
    """Refuse to read for another rank than was known when the loader was made."""
    group = process_group()
    if loader.rank is not None or loader.mesh is not None or group is None:
        return
    if World(*group) != mine:
        raise RuntimeError(
            f"this loader was made for rank {mine.rank} of {mine.size}, but the process "
            f"group says rank {group[0]} of {group[1]}: samples would be read twice. Make the loader "
            "after torch.distributed.init_process_group(), or pass rank= and world_size="
        )


def check_replicas(loader: DataLoader[Any], world: World) -> None:
    """Refuse what would make batches of replicas differ.

    Raises:
        ValueError: Batches come as workers finish them.
    """
    if world.replicas > 1 and not loader.in_order and loader.num_workers:
        raise ValueError(
            f"in_order=False delivers batches in another order in each process, but {world.replicas} "
            "processes should get the same ones; leave it out"
        )


def check_sampler(loader: DataLoader[Any], world: World) -> None:
    """Refuse samplers of map-style data that deal it otherwise than the loader's mesh says.

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
