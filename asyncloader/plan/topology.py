"""Where a stream runs: rank, worker, lane and epoch; and how a process learns its rank."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from ..quantity import as_whole

# The variables that launchers set in each rank: torchrun, MPI's launchers, Slurm's ``srun``, TPUs.
#
# Pure: environment variables in, a ``LaunchInfo`` out. Launchers nest: ``srun`` often starts torchrun or an
# MPI daemon once on each node, which then starts the ranks. So the innermost is right, and it has at least as
# many ranks as the one around it. Where it has fewer, each outer rank would take itself for all of them.

# From the inside out.
_MPI = (
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MVAPICH"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "Open MPI"),
    ("PMI_RANK", "PMI_SIZE", "MPICH or Intel MPI"),
)

# A rank without a size.
_PMIX_RANK = "PMIX_RANK"

# As programs that call ``jax.distributed.initialize`` name them.
_JAX = ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "JAX processes")

# Launchers of TPU processes set a list with an entry for each process of a slice, and a number, which is the
# process's place in it. ``PJRT_LOCAL_PROCESS_RANK`` and similar ones count the processes of one host only.
_TPU_PROCESS = ("CLOUD_TPU_TASK_ID", "TPU_PROCESS_ADDRESSES", "TPU processes, as of torch_xla")
_TPU_WORKER = ("TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES", "TPU workers, one on each host")

# Where a training has several slices.
_SLICE = ("MEGASCALE_SLICE_ID", "MEGASCALE_NUM_SLICES")

# Batch scripts and interactive shells are steps to Slurm, too, numbered down from 2**32 or named. They run
# once, whatever the number of tasks of their allocation.
_FIRST_SPECIAL_STEP = 0xFFFF_FF00

# srun names a job that it starts for an interactive shell after the shell.
_SHELLS = frozenset({"bash", "csh", "dash", "fish", "ksh", "sh", "tcsh", "zsh"})

_WAY_OUT = "pass rank= and world_size= to the loader (rank=0, world_size=1 reads everything)"


@dataclass(frozen=True, slots=True)
class LaunchInfo:
    """What one launcher says.

    Attributes:
        rank: This process's number.
        size: How many ranks there are.
        origin: Which variables say so, and who set them.
        shown: The variables with their values, for errors.
    """

    rank: int
    size: int
    origin: str
    shown: str


def _claims(environ: Mapping[str, str]) -> Iterator[LaunchInfo]:
    """What all launchers say, the innermost first."""
    if "RANK" in environ or "WORLD_SIZE" in environ:
        yield _torch(environ)
    step = ("SLURM_PROCID", _tasks_of_step(environ) or "", "a Slurm job step")
    # The last ones are set for a whole container or machine, whatever is started there.
    for rank, size, launcher in (_JAX, _TPU_PROCESS, *_MPI, step, _TPU_WORKER):
        if rank in environ and size in environ:
            read = _tpu if size.startswith("TPU_") else _claim
            yield read(environ, rank, size, launcher)


def _check_alone(environ: Mapping[str, str]) -> None:
    """Refuse a rank that is not the first, where no variable says how many there are."""
    sizes = [(rank, size) for rank, size, _ in (_JAX, _TPU_PROCESS, *_MPI, _TPU_WORKER)]
    for rank, size in (*sizes, ("SLURM_PROCID", "SLURM_STEP_ID with SLURM_STEP_NUM_TASKS")):
        if environ.get(rank, "0") != "0":
            raise ValueError(
                f"{rank}={environ[rank]!r} is one rank of several, but {size}, which gives their "
                f"number, is not set; set it, or {_WAY_OUT}"
            )
    if environ.get(_PMIX_RANK, "0") != "0":
        raise ValueError(
            f"{_PMIX_RANK}={environ[_PMIX_RANK]!r} is one rank of several, and PMIx does not set their "
            f"number; {_WAY_OUT}"
        )


def _is_torchrun(environ: Mapping[str, str]) -> bool:
    return "TORCHELASTIC_RUN_ID" in environ and "RANK" in environ


def _torch(environ: Mapping[str, str]) -> LaunchInfo:
    rank, size = environ.get("RANK"), environ.get("WORLD_SIZE")
    if rank is None and size == "1":
        return LaunchInfo(0, 1, "WORLD_SIZE", "WORLD_SIZE='1'")
    if rank is None or size is None:
        raise ValueError(
            "RANK and WORLD_SIZE should be set together (torchrun sets both), but got "
            f"RANK={rank!r}, WORLD_SIZE={size!r}; set both or {_WAY_OUT}"
        )
    return _claim(environ, "RANK", "WORLD_SIZE", "torchrun" if _is_torchrun(environ) else "")


def _claim(environ: Mapping[str, str], rank: str, size: str, launcher: str) -> LaunchInfo:
    shown = f"{rank}={environ[rank]!r}, {size}={environ[size]!r}"
    numbers = [_number(environ, name, shown) for name in (rank, size)]
    origin = f"{rank} and {size}" + (f" ({launcher})" if launcher else "")
    return LaunchInfo(numbers[0], numbers[1], origin, shown)


def _tpu(environ: Mapping[str, str], place: str, listed: str, launcher: str) -> LaunchInfo:
    """The rank of a process that knows its place in a list of all processes of its slice."""
    entries = [entry for entry in environ[listed].split(",") if entry.strip()]
    shown = f"{place}={environ[place]!r}, {listed} of {len(entries)}"
    rank = _number(environ, place, shown)
    if not 0 <= rank < len(entries):
        raise ValueError(f"{shown}: {place} should be a place in the list, from 0; set both or {_WAY_OUT}")
    if environ.get(_SLICE[1], "1") == "1":
        return LaunchInfo(rank, len(entries), f"{place} and {listed} ({launcher})", shown)
    number, slices = _SLICE
    shown += f", {number}={environ.get(number)!r}, {slices}={environ[slices]!r}"
    if number not in environ:
        raise ValueError(
            f"{shown}: with several slices, {number} should be the number of this one; set it, or {_WAY_OUT}"
        )
    count, nth = _number(environ, slices, shown), _number(environ, number, shown)
    origin = f"{place} and {listed}, {number} and {slices} ({launcher})"
    return LaunchInfo(nth * len(entries) + rank, count * len(entries), origin, shown)


def _number(environ: Mapping[str, str], name: str, shown: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        found = "is not a number" if environ[name].strip() else "is empty"
        raise ValueError(f"{shown}: {name} {found}; set both or {_WAY_OUT}") from None


def _tasks_of_step(environ: Mapping[str, str]) -> str | None:
    """Which variable counts the tasks of the Slurm step that this process is one of; None if it is none.

    In a batch script and after ``salloc`` the variables of the allocation are set as well, though only one
    process runs.
    """
    step = environ.get("SLURM_STEP_ID", "")
    if "SLURM_PROCID" not in environ or not step.isdecimal() or int(step) >= _FIRST_SPECIAL_STEP:
        return None
    tasks = next((name for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") if name in environ), None)
    if tasks is None or environ[tasks] == "1" or environ["SLURM_PROCID"] != "0":
        return tasks
    # Of ``srun --pty`` only task 0 goes on. But a program run from such a shell inherits its variables, and
    # may be the first step of an allocation; only the job's name distinguishes the two.
    if step == "0" and "SLURM_PTY_PORT" in environ:
        name = environ.get("SLURM_JOB_NAME", "")
        if name in _SHELLS:
            return None
        if name != "interactive":  # salloc's own name for a job, whose shell is a special step
            raise ValueError(
                f"{tasks}={environ[tasks]!r} with SLURM_PTY_PORT may be an interactive shell, which "
                f"is a single process, or a step started from one; {_WAY_OUT}"
            )
    return tasks


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class World:
    """The ranks that share the data: this one's number and how many there are.

    Several processes may be one rank, and read the same: the replicas of tensor, pipeline and sequence
    parallel trainings. Dealing, order, seeds and states depend on ``rank`` and ``size`` alone, so that
    replicas get identical batches.

    Attributes:
        rank: Number of this rank, from 0.
        size: How many ranks there are.
        origin: Where the numbers come from, in words; two worlds are equal by their numbers.
        replica: Which of its processes this is, from 0. The first one writes what is written once for a rank.
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
        """The name of this process in messages."""
        return f"rank {self.rank}" + (f", replica {self.replica}" if self.replicas > 1 else "")

    @property
    def process(self) -> int:
        """Number of this process, of all ranks together."""
        return self.rank * self.replicas + self.replica

    @property
    def processes(self) -> int:
        """How many processes all ranks have together."""
        return self.size * self.replicas

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> World:
        """Rank and world size as the innermost launcher sets them; alone if there is none.

        Raises:
            ValueError: The variables of a launcher are invalid, one is set without the other, or those of two
                launchers contradict each other.
        """
        claims = list(_claims(environ))
        if not claims:
            _check_alone(environ)
            return cls(origin="alone")
        inner, *around = claims
        # torchrun finds its ranks without another launcher: one in each task may be as many separate runs.
        for outer in () if _is_torchrun(environ) else around:
            if outer.size > inner.size or (outer.size == inner.size and outer.rank != inner.rank):
                raise ValueError(
                    f"{inner.shown} and {outer.shown} contradict each other, so that ranks would read the "
                    f"same samples; unset the wrong ones, or {_WAY_OUT}"
                )
        try:
            return cls(inner.rank, inner.size, inner.origin)
        except ValueError as error:
            raise ValueError(f"{inner.shown}: {error}") from None


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
        TypeError: ``rank`` or ``world_size`` is not a whole number.
        ValueError: They are not given together, or are out of range; or as ``World.from_env``.
    """
    if (rank is None) != (world_size is None):
        raise ValueError(
            f"rank and world_size should be given together, but got rank={rank}, world_size={world_size}"
        )
    if rank is not None and world_size is not None:
        return World(rank, world_size)
    group = distributed()
    return World(*group, "torch.distributed") if group is not None else World.from_env(environ)


def process_group() -> tuple[int, int] | None:
    """Rank and world size of torch's process group, None unless one is initialised."""
    # What was not imported is not initialised, and importing it is slow.
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


@dataclass(frozen=True, slots=True)
class Topology:
    """The place of a lane, from which a source of your own finds the part that it should yield.

    Attributes:
        lane: Number of this lane, from 0, over all ranks and workers.
        lanes: How many lanes share the dataset; each sample belongs to exactly one of them.
        rank: The rank that reads this lane.
        world_size: The number of ranks.
        epoch: Number of the epoch, from 0; use it in the seed of your own shuffling.
    """

    lane: int = 0
    lanes: int = 1
    rank: int = 0
    world_size: int = 1
    epoch: int = 0
    # Notes whether a function has read the topology that it was given.
    _reader: AskedTopology | None = field(default=None, init=False, repr=False, compare=False)

    def __getattribute__(self, name: str) -> Any:
        if name == "lane" or (name == "rank" and object.__getattribute__(self, "lanes") == self.world_size):
            reader = object.__getattribute__(self, "_reader")
            if reader is not None:
                reader.asked = True
        return object.__getattribute__(self, name)

    def split(self, items: Iterable[T]) -> Iterator[T]:
        """Return this lane's part of ``items``: every ``lanes``-th one, starting at ``lane``.

        Args:
            items: An iterable that yields the same items in the same order in every lane.

        Returns:
            An iterator. It reads all items and yields those of this lane.
        """
        return islice(iter(items), self.lane, None, self.lanes)


@dataclass(slots=True)
class AskedTopology:
    """The topology of the running source, and what it has read to find its part.

    Attributes:
        topology: The place of its lane.
        asked: Whether it has read that.
        asked_workers: Whether it has read torch's number of its worker, or how many there are.
    """

    topology: Topology
    asked: bool = field(default=False)
    asked_workers: bool = field(default=False)

    def told(self) -> Topology:
        """The topology as an argument of a function: reading the lane's place sets ``asked``."""
        topology = replace(self.topology)
        object.__setattr__(topology, "_reader", self)
        return topology


_current: ContextVar[AskedTopology | None] = ContextVar("asyncloader_topology", default=None)


def get_topology() -> Topology:
    """Return the place of the lane that is being read, inside a dataset's ``__iter__`` or ``__aiter__``.

    Returns:
        A ``Topology`` with ``lane``, ``lanes``, ``rank``, ``world_size``, ``epoch`` and ``split(items)``.
        Outside of a loader it describes a single lane of a single rank, so that a dataset also works alone.
    """
    here = _current.get()
    if here is None:
        return Topology()
    here.asked = True
    return here.topology


def current_topology() -> AskedTopology | None:
    """The topology of the source that runs in this context, without setting ``asked``."""
    return _current.get()


def enter_topology(here: AskedTopology) -> None:
    """Make ``here`` the topology of this context."""
    _current.set(here)


# The rank that a place in a mesh of processes is, where others of the mesh read the same. Pure.


def mesh_world(
    names: Sequence[str] | None,
    shape: Sequence[int],
    process: int,
    processes: Sequence[int],
    uncut: Sequence[int] | None,
) -> World:
    """The world whose ranks are the places in a mesh, as in torch's ``DeviceMesh``.

    All its dimensions are data-parallel. The mesh that it was cut out of consists of meshes of the same shape
    beside each other: the replicas.

    Args:
        names: Of its dimensions; None if they have none.
        shape: How many processes along each.
        process: This one's number.
        processes: The numbers of those in it, in row-major order.
        uncut: Those in the mesh that it was cut out of, likewise; None if it was not.

    Raises:
        ValueError: It has several dimensions which were not chosen; or this process is not in it; or the
            meshes beside it are not of its shape.
    """
    names, by = names or (), ""
    if len(shape) > 1 and uncut is None:
        shown = ", ".join(f"{name} of {size}" for name, size in zip(names, shape, strict=False))
        one = names[0] if names else "dp"
        raise ValueError(
            "mesh should be the data-parallel part of a DeviceMesh, but got a whole mesh with the dimensions "
            f"{shown or tuple(shape)}; pass the one that is data-parallel, such as mesh[{one!r}], or "
            "several, which are flattened. If all are, leave mesh= out: every process reads its own part"
        )
    if process not in processes:
        raise ValueError(
            f"mesh should contain this process, but it is number {process}, and the mesh has "
            f"{', '.join(map(str, processes))}"
        )
    if names:
        by = f" dimension{'s' * (len(names) > 1)} {' x '.join(names)}"
    replica, replicas = (0, 1) if uncut is None else _replica(processes, uncut)
    return World(processes.index(process), len(processes), f"mesh{by}", replica, replicas)


def _replica(processes: Sequence[int], uncut: Sequence[int]) -> tuple[int, int]:
    """Which mesh this is of those beside each other, and how many they are.

    They differ only in where they begin. Compared by places rather than by coordinates, since a flattened
    dimension is not one of the mesh that it came from.
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


# How the memory of a rank is divided: bytes in flight, what operators make of them, batches ahead.

# A cap: three quarters of it in flight are, at 200 ms and 40 MB/s a connection, what one process can decode
# (the workload "distance" of tests/benchmarks/against_peers.py). Less is used where that is enough.
DEFAULT_LIMIT_BYTES = 1 << 30

#: Batches made ahead of the consumer without workers: two that are ready, one in the making.
BATCHES_AHEAD = 3


class MemoryShares(NamedTuple):
    """Bounds on what all processes of a rank hold together.

    Attributes:
        read_bytes: Requested and not yet decoded, and made by operators and not yet in a batch.
        batch_bytes: Batches made and not yet received.
        pinned_bytes: Batches in pinned memory, where there are any.
    """

    read_bytes: int
    batch_bytes: int
    pinned_bytes: int


def share_memory(limit_bytes: int, *, pins: bool) -> MemoryShares:
    """A quarter each for batches made and for those pinned, if any are; what remains is for bytes in flight.

    Args:
        limit_bytes: Of the rank.
        pins: Whether batches are pinned.
    """
    quarter = limit_bytes // 4
    return MemoryShares(quarter * (2 if pins else 3), quarter, quarter)


def share_with_operators(read_bytes: int, makers: int) -> tuple[int, int]:
    """Divide ``read_bytes`` into bytes in flight and those of operators that make samples, which get a third.

    Args:
        read_bytes: Of a process.
        makers: How many such operators there are.
    """
    made_bytes = read_bytes // 3 if makers else 0
    return read_bytes - made_bytes, made_bytes
