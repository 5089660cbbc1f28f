"""The rank that a place in a mesh of processes is, where others of the mesh read the same. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .topology import World

__all__ = ["Cut", "mesh_world"]


class Cut(NamedTuple):
    """A mesh of processes, and what it was cut out of, as torch's ``DeviceMesh`` tells them.

    Attributes:
        names: Of its dimensions; None if they have none.
        shape: How many processes along each.
        process: This one's number.
        processes: The numbers of those in it, in row-major order.
        uncut: Those in the mesh that it was cut out of, likewise; None if it was not.
    """

    names: Sequence[str] | None
    shape: Sequence[int]
    process: int
    processes: Sequence[int]
    uncut: Sequence[int] | None


def mesh_world(mesh: Cut) -> World:
    """The world whose ranks are the places in ``mesh``, of which all dimensions are data-parallel.

    What it was cut out of is as many meshes of the same shape beside each other: these are the replicas.

    Raises:
        ValueError: It has several dimensions and nobody chose them; or this process is not in it; or the
            meshes beside it are not of its shape.
    """
    names, by = mesh.names or (), ""
    if len(mesh.shape) > 1 and mesh.uncut is None:
        shown = ", ".join(f"{name} of {size}" for name, size in zip(names, mesh.shape, strict=False))
        one = names[0] if names else "dp"
        raise ValueError(
            "mesh should be the data-parallel part of a DeviceMesh, but got all of one with the dimensions "
            f"{shown or tuple(mesh.shape)}; give the one that is data-parallel, such as mesh[{one!r}], or "
            "several, which are flattened. If all are, every process reads for itself: leave mesh= out"
        )
    if mesh.process not in mesh.processes:
        raise ValueError(
            f"mesh should be one that this process is in, but it is number {mesh.process}, and the mesh has "
            f"{', '.join(map(str, mesh.processes))}"
        )
    if names:
        by = f" dimension{'s' * (len(names) > 1)} {' x '.join(names)}"
    replica, replicas = (0, 1) if mesh.uncut is None else _replica(mesh.processes, mesh.uncut)
    rank, size = mesh.processes.index(mesh.process), len(mesh.processes)
    return World(rank, size, f"mesh{by}", replica, replicas)


def _replica(processes: Sequence[int], uncut: Sequence[int]) -> tuple[int, int]:
    """Which mesh this is of those beside each other, and how many they are.

    They are alike but for where they begin. By places rather than by coordinates, since a flattened
    dimension is none of the mesh that it came from.
    """
    places = {process: place for place, process in enumerate(uncut)}
    mine = sorted(places[process] for process in processes)
    starts: list[int] = []
    covered: set[int] = set()
    for place in range(len(uncut)):
        if place not in covered:
            starts.append(place)
            covered.update(place + each - mine[0] for each in mine)
    if len(starts) * len(mine) != len(uncut) or len(covered) != len(uncut) or mine[0] not in starts:
        raise ValueError(
            f"mesh should be a part in which every process has a place, but got {list(processes)} of "
            f"{list(uncut)}; pass rank= and world_size= instead"
        )
    return starts.index(mine[0]), len(starts)
