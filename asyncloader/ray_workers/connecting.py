"""Ray itself: imported when it is needed, and connected to its cluster as its own libraries do it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["connect", "import_ray"]


def import_ray() -> Any:
    """The module; not as one that is typed, since half of its functions are not."""
    return import_module("ray")


def connect() -> Any:
    """Ray, after ``ray.init()``, which is called unless it was.

    Raises:
        RuntimeError: This process is connected to its cluster by Ray Client.
        ConnectionError: There is no cluster where the environment says that there is one.
    """
    ray = import_ray()
    if ray.util.client.ray.is_connected():
        raise RuntimeError(
            "RayWorkers cannot be used by Ray Client (ray://), which has no object store of its own; run "
            "this program on a node of the cluster, such as by `ray job submit`"
        )
    if not ray.is_initialized():
        ray.init()
    return ray
