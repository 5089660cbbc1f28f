"""For which rank a loader reads: what it was told, torch's mesh and process group, the launcher."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler

from ..plan.meshes import Cut, mesh_world
from ..plan.topology import World, process_group, resolve_world
from ..torch_kind.generators import innermost_sampler
from ..torch_private import uncut_mesh
from .kind import Loader

__all__ = ["alike_in_replicas", "check_replicas", "check_sampler", "is_told_who_reads", "world_of"]


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


def _cut_of(mesh: Any) -> Cut:
    from torch.distributed.device_mesh import DeviceMesh

    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f'mesh should be a DeviceMesh, such as mesh["dp"], but got {type(mesh).__name__}')
    uncut = uncut_mesh(mesh)
    return Cut(
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
