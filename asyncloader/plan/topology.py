"""Where a stream runs: rank, worker, lane and epoch; and how a process learns its rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeVar

from ..quantity import as_whole
from .launchers import find_claim

__all__ = [
    "AskedTopology",
    "Topology",
    "World",
    "current_topology",
    "enter_topology",
    "get_topology",
    "process_group",
    "resolve_world",
]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class World:
    """The ranks that share the data: this one's number and how many there are.

    Several processes may be one rank, and read the same: the replicas of tensor, pipeline and sequence
    parallel trainings. Whatever deals, orders, seeds or saves goes by ``rank`` and ``size`` alone, so that
    replicas get identical batches.

    Attributes:
        rank: Number of this rank, from 0.
        size: How many ranks there are.
        origin: Who says so, in words; two worlds are equal by their numbers.
        replica: Which of its processes this is, from 0. What is written once for a rank, the first writes.
        replicas: How many processes each rank is.
    """

    rank: int = 0
    size: int = 1
    origin: str = field(default="rank= and world_size=", compare=False)
    replica: int = 0
    replicas: int = 1

    def __post_init__(self) -> None:
        for name, place in (("world_size", "size"), ("rank", "rank")):
            number = as_whole(getattr(self, place))  # Python's int, which a saved state can hold
            if number is None:
                raise TypeError(f"{name} should be a whole number, but got {name}={getattr(self, place)!r}")
            object.__setattr__(self, place, number)
        if self.size < 1:
            raise ValueError(f"world_size should be at least 1, but got world_size={self.size}")
        if not 0 <= self.rank < self.size:
            raise ValueError(
                f"rank should be in the interval [0, {self.size - 1}] of world_size={self.size}, "
                f"but got rank={self.rank}"
            )

    def __str__(self) -> str:
        which = f", replica {self.replica} of {self.replicas}" if self.replicas > 1 else ""
        return f"rank {self.rank} of {self.size}{which} ({self.origin})"

    @property
    def name(self) -> str:
        """What this process is called."""
        return f"rank {self.rank}" + (f", replica {self.replica}" if self.replicas > 1 else "")

    @property
    def process(self) -> int:
        """Number of this process, of all ranks together."""
        return self.rank * self.replicas + self.replica

    @property
    def processes(self) -> int:
        """How many there are, those of all ranks together."""
        return self.size * self.replicas

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> World:
        """Rank and world size as the launcher sets them; alone if there is none.

        Raises:
            ValueError: The variables of a launcher make no sense, or those of two contradict each other.
        """
        claim = find_claim(environ)
        if claim is None:
            return cls(origin="alone")
        try:
            return cls(claim.rank, claim.size, claim.origin)
        except ValueError as error:
            raise ValueError(f"{claim.shown}: {error}") from None


def resolve_world(
    rank: int | None,
    world_size: int | None,
    distributed: Callable[[], tuple[int, int] | None],
    environ: Mapping[str, str],
) -> World:
    """The world to load for: as given, else the process group's, else the launcher's, else alone.

    Args:
        rank: Given by the user, with ``world_size``, or None.
        world_size: Given by the user, with ``rank``, or None.
        distributed: Gives (rank, world size) of an initialised process group, or None.
        environ: The environment variables.

    Raises:
        TypeError: ``rank`` or ``world_size`` is no whole number.
        ValueError: They are not given together, or are no rank of a world; or as ``World.from_env``.
    """
    if (rank is None) != (world_size is None):
        raise ValueError(
            f"rank and world_size should be given together, but got rank={rank}, world_size={world_size}"
        )
    if rank is not None and world_size is not None:
        return World(rank, world_size)
    group = distributed()
    return World(*group, "torch.distributed") if group is not None else World.from_env(environ)


def process_group(modules: Mapping[str, Any]) -> tuple[int, int] | None:
    """Rank and world size of torch's process group, None unless one is initialised.

    Args:
        modules: ``sys.modules``. What was not imported is not initialised, and importing it is slow.
    """
    distributed = modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


@dataclass(frozen=True, slots=True)
class Topology:
    """The place of one lane: what a source of your own needs to yield only its part.

    Attributes:
        lane: Number of this lane, from 0, over all ranks and workers.
        lanes: How many lanes share the dataset; each sample belongs to exactly one of them.
        rank: Rank that reads this lane.
        world_size: Number of ranks.
        epoch: Number of the pass over the dataset, from 0; mix it into your own shuffling.
    """

    lane: int = 0
    lanes: int = 1
    rank: int = 0
    world_size: int = 1
    epoch: int = 0
    # Whoever wants to know whether a function has looked at the topology that it was given.
    _reader: AskedTopology | None = field(default=None, init=False, repr=False, compare=False)

    def __getattribute__(self, name: str) -> Any:
        if name == "lane" or (name == "rank" and object.__getattribute__(self, "lanes") == self.world_size):
            reader = object.__getattribute__(self, "_reader")
            if reader is not None:
                reader.asked = True
        return object.__getattribute__(self, name)

    def split(self, items: Iterable[T]) -> Iterator[T]:
        """This lane's part of ``items``: every ``lanes``-th one, starting at ``lane``."""
        return islice(iter(items), self.lane, None, self.lanes)


@dataclass(slots=True)
class AskedTopology:
    """The topology of the running source, and what it has looked at to find its part.

    Attributes:
        topology: The place of its lane.
        asked: Whether it has looked at that.
        asked_workers: Whether it has looked at torch's number of its worker, or how many there are.
    """

    topology: Topology
    asked: bool = field(default=False)
    asked_workers: bool = field(default=False)

    def told(self) -> Topology:
        """The topology for a function that is handed it: looking at the lane's place is asking."""
        topology = replace(self.topology)
        object.__setattr__(topology, "_reader", self)
        return topology


_current: ContextVar[AskedTopology | None] = ContextVar("asyncloader_topology", default=None)


def get_topology() -> Topology:
    """The lane that is being read, from inside a dataset's ``__iter__`` or ``__aiter__``.

    Outside a loader it is the one lane of a world of one, so that a dataset also works on its own.
    """
    here = _current.get()
    if here is None:
        return Topology()
    here.asked = True
    return here.topology


def current_topology() -> AskedTopology | None:
    """The topology of the source that runs in this context; looking does not count as asking."""
    return _current.get()


def enter_topology(here: AskedTopology) -> None:
    """Make ``here`` the topology of this context."""
    _current.set(here)
