"""What the programs that start ranks tell each of them: torchrun, MPI's launchers, Slurm's ``srun``, TPUs.

Pure: environment variables in, a claim out. Launchers nest: ``srun`` often starts torchrun or a daemon of
MPI's once on each node, which then start the ranks. So the innermost is right, and it has at least as many
ranks as the one around it; where it has fewer, each of the outer ranks would think itself the whole world.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

__all__ = ["Claim", "find_claim"]

# From the inside out.
_MPI = (
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MVAPICH"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "Open MPI"),
    ("PMI_RANK", "PMI_SIZE", "MPICH or Intel MPI"),
)

# Tells a rank, but no size.
_PMIX_RANK = "PMIX_RANK"

# As whoever calls ``jax.distributed.initialize`` names them.
_JAX = ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "JAX processes")

# Of what starts processes on TPUs a list has an entry for each process of a slice, and the number is the
# process's place in it. ``PJRT_LOCAL_PROCESS_RANK`` and its like count those of one host only.
_TPU_PROCESS = ("CLOUD_TPU_TASK_ID", "TPU_PROCESS_ADDRESSES", "TPU processes, as of torch_xla")
_TPU_WORKER = ("TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES", "TPU workers, one on each host")

# Where a training has several slices.
_SLICE = ("MEGASCALE_SLICE_ID", "MEGASCALE_NUM_SLICES")

# Batch scripts, interactive shells and the like are steps to Slurm, too, numbered down from 2**32 or
# named, and run once, whatever the number of tasks that their allocation is for.
_FIRST_SPECIAL_STEP = 0xFFFF_FF00

# After which srun names a job that it starts for an interactive shell.
_SHELLS = frozenset({"bash", "csh", "dash", "fish", "ksh", "sh", "tcsh", "zsh"})

_WAY_OUT = "pass rank= and world_size= to the loader (rank=0, world_size=1 reads everything)"


@dataclass(frozen=True, slots=True)
class Claim:
    """What one launcher says.

    Attributes:
        rank: This process's number.
        size: How many ranks there are.
        origin: Which variables say so, and who set them.
        shown: The variables with their values, as told in errors.
    """

    rank: int
    size: int
    origin: str
    shown: str


def find_claim(environ: Mapping[str, str]) -> Claim | None:
    """The word of the innermost launcher, None if there is none.

    Raises:
        ValueError: A variable is not a number, ``RANK`` or ``WORLD_SIZE`` is set without the other, or two
            launchers contradict each other.
    """
    claims = list(_claims(environ))
    if not claims:
        _check_alone(environ)
        return None
    inner, *around = claims
    # torchrun meets its ranks by itself: several of them, one in each task, may also be as many runs.
    if not _is_torchrun(environ):
        for outer in around:
            if outer.size > inner.size or (outer.size == inner.size and outer.rank != inner.rank):
                raise ValueError(
                    f"{inner.shown} and {outer.shown} contradict each other, so that ranks would read the "
                    f"same samples; unset the wrong ones, or {_WAY_OUT}"
                )
    return inner


def _claims(environ: Mapping[str, str]) -> Iterator[Claim]:
    """What all launchers say, the innermost first."""
    if "RANK" in environ or "WORLD_SIZE" in environ:
        yield _torch(environ)
    if _has(environ, *_JAX[:2]):
        yield _claim(environ, *_JAX)
    if _has(environ, *_TPU_PROCESS[:2]):
        yield _tpu(environ, *_TPU_PROCESS)
    for rank, size, launcher in _MPI:
        if _has(environ, rank, size):
            yield _claim(environ, rank, size, launcher)
    if (tasks := _tasks_of_step(environ)) is not None:
        yield _claim(environ, "SLURM_PROCID", tasks, "a Slurm job step")
    # Set for a whole container or machine, whatever is started there.
    if _has(environ, *_TPU_WORKER[:2]):
        yield _tpu(environ, *_TPU_WORKER)


def _has(environ: Mapping[str, str], *names: str) -> bool:
    return all(name in environ for name in names)


def _check_alone(environ: Mapping[str, str]) -> None:
    """Refuse a rank that is not the first, where nothing says of how many."""
    sizes = [(rank, size) for rank, size, _ in (_JAX, _TPU_PROCESS, *_MPI, _TPU_WORKER)]
    for rank, size in (*sizes, ("SLURM_PROCID", "SLURM_STEP_ID with SLURM_STEP_NUM_TASKS")):
        if environ.get(rank, "0") != "0":
            raise ValueError(
                f"{rank}={environ[rank]!r} is a rank of several, and {size} should say of how many, but does "
                f"not; set it, or {_WAY_OUT}"
            )
    if environ.get(_PMIX_RANK, "0") != "0":
        raise ValueError(
            f"{_PMIX_RANK}={environ[_PMIX_RANK]!r} is a rank of several, and PMIx does not say of how many; "
            f"{_WAY_OUT}"
        )


def _is_torchrun(environ: Mapping[str, str]) -> bool:
    return "TORCHELASTIC_RUN_ID" in environ and "RANK" in environ


def _torch(environ: Mapping[str, str]) -> Claim:
    rank, size = environ.get("RANK"), environ.get("WORLD_SIZE")
    if rank is None and size == "1":
        return Claim(0, 1, "WORLD_SIZE", "WORLD_SIZE='1'")
    if rank is None or size is None:
        raise ValueError(
            "RANK and WORLD_SIZE should be set together (torchrun sets both), but got "
            f"RANK={rank!r}, WORLD_SIZE={size!r}; set both or {_WAY_OUT}"
        )
    return _claim(environ, "RANK", "WORLD_SIZE", "torchrun" if _is_torchrun(environ) else "")


def _claim(environ: Mapping[str, str], rank: str, size: str, launcher: str) -> Claim:
    shown = f"{rank}={environ[rank]!r}, {size}={environ[size]!r}"
    numbers = [_number(environ, name, shown) for name in (rank, size)]
    origin = f"{rank} and {size}" + (f" ({launcher})" if launcher else "")
    return Claim(numbers[0], numbers[1], origin, shown)


def _tpu(environ: Mapping[str, str], place: str, listed: str, launcher: str) -> Claim:
    """Of a process that knows its place in a list of all those of its slice."""
    entries = [entry for entry in environ[listed].split(",") if entry.strip()]
    shown = f"{place}={environ[place]!r}, {listed} of {len(entries)}"
    rank = _number(environ, place, shown)
    if not 0 <= rank < len(entries):
        raise ValueError(f"{shown}: {place} should be a place in the list, from 0 on; set both or {_WAY_OUT}")
    if environ.get(_SLICE[1], "1") == "1":
        return Claim(rank, len(entries), f"{place} and {listed} ({launcher})", shown)
    number, slices = _SLICE
    shown += f", {number}={environ.get(number)!r}, {slices}={environ[slices]!r}"
    if number not in environ:
        raise ValueError(
            f"{shown}: of several slices {number} should say which this is; set it, or {_WAY_OUT}"
        )
    count, nth = _number(environ, slices, shown), _number(environ, number, shown)
    origin = f"{place} and {listed}, {number} and {slices} ({launcher})"
    return Claim(nth * len(entries) + rank, count * len(entries), origin, shown)


def _number(environ: Mapping[str, str], name: str, shown: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        found = "is no number" if environ[name].strip() else "is empty"
        raise ValueError(f"{shown}: {name} {found}; set both or {_WAY_OUT}") from None


def _tasks_of_step(environ: Mapping[str, str]) -> str | None:
    """Which variable counts the tasks of the Slurm step that this process is one of; None if it is none.

    In a batch script and after ``salloc`` the variables of the allocation are set as well, and nobody runs
    as many times as they say.
    """
    step = environ.get("SLURM_STEP_ID", "")
    if "SLURM_PROCID" not in environ or not step.isdecimal() or int(step) >= _FIRST_SPECIAL_STEP:
        return None
    tasks = next((name for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") if name in environ), None)
    if tasks is None or environ[tasks] == "1" or environ["SLURM_PROCID"] != "0":
        return tasks
    # Of ``srun --pty`` only task 0 goes on. But what is run from such a shell inherits its variables, and
    # may be the first step of an allocation; only the job's name tells the two apart.
    if step == "0" and "SLURM_PTY_PORT" in environ:
        name = environ.get("SLURM_JOB_NAME", "")
        if name in _SHELLS:
            return None
        if name != "interactive":  # salloc's own name for a job, whose shell is a special step
            raise ValueError(
                f"{tasks}={environ[tasks]!r} with SLURM_PTY_PORT may be an interactive shell, which is "
                f"alone, or a step started from one; {_WAY_OUT}"
            )
    return tasks
