"""torch's ``get_worker_info()`` in a worker, with rank and world size."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

from torch.utils.data import get_worker_info as torch_worker_info

from ..plan.topology import World, current_topology
from ..torch_private import TorchWorkerInfo, set_worker_info

# The world of a loader that reads without workers, while it does.
_reading: ContextVar[World | None] = ContextVar("asyncloader_reading", default=None)

# Whether the dataset in this process has looked at its number. One process is one worker, for life.
_asked = False


@dataclass(frozen=True)
class WorkerInfo(TorchWorkerInfo):  # type: ignore[misc]  # torch's class is untyped
    """torch's ``WorkerInfo``, with the rank that the worker works for.

    In the source of a stream it says worker 0 of 1. The source takes the part of its lane by the topology,
    and a library inside it that splits by worker would take a part of that part.

    Attributes:
        id: Number of the worker, from 0.
        num_workers: How many workers the loader has.
        seed: Seed of the random generators in this worker, different for each worker.
        dataset: The copy of the dataset in this process.
        rng: As in torch, which sets it for workers on threads only.
        worker_method: As in torch.
        rank: Rank of the process that iterates the loader.
        world_size: The number of ranks.
    """

    rank: int = 0
    world_size: int = 1

    def __getattribute__(self, name: str) -> Any:
        if name in ("id", "num_workers"):
            source = current_topology()
            if source is not None:
                source.asked_workers = True
                return 0 if name == "id" else 1
            global _asked
            _asked = True
        return super().__getattribute__(name)


def get_worker_info() -> WorkerInfo | None:
    """Return the number of this worker, how many there are, its seed, rank and world size.

    Returns:
        The object of ``torch.utils.data.get_worker_info()``, with types; None outside of workers.
    """
    return cast("WorkerInfo | None", torch_worker_info())


def enter_worker(worker: int, num_workers: int, seed: int, dataset: Any, rank: int, world_size: int) -> None:
    """Make this process a worker for all code that asks torch."""
    global _asked
    set_worker_info(
        WorkerInfo(
            id=worker, num_workers=num_workers, seed=seed, dataset=dataset, rank=rank, world_size=world_size
        )
    )
    _asked = False


class read_for:
    """Set the world of the loader that reads in this context, in a process that is no worker.

    A class: ``contextmanager`` sets the traceback of an error, which one that is a frozen dataclass refuses.
    """

    def __init__(self, world: World) -> None:
        self._world = world

    def __enter__(self) -> None:
        self._token = _reading.set(self._world)

    def __exit__(self, *_: object) -> None:
        _reading.reset(self._token)


def reading_world() -> World | None:
    """The world of the loader without workers that reads in this context; None if there is none."""
    return _reading.get()


def worker_number() -> int:
    """This worker's number, 0 outside of workers; this does not count as asking."""
    info = torch_worker_info()
    return 0 if info is None else int(object.__getattribute__(info, "id"))


def was_asked() -> bool:
    """Whether code in this process has read its worker's number, or how many there are."""
    return _asked
