from __future__ import annotations

from collections.abc import Mapping

import pytest

from asyncloader.plan.topology import World, resolve_world

# What each launcher sets, of what matters here, for rank 2 of 4.
TORCHRUN = {"RANK": "2", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "none"}
BY_HAND = {"RANK": "2", "WORLD_SIZE": "4"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "PMIX_RANK": "2"}
HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "4", "PMI_FD": "8"}
MVAPICH = {"MV2_COMM_WORLD_RANK": "2", "MV2_COMM_WORLD_SIZE": "4", **HYDRA}
STEP = {
    "SLURM_JOB_NAME": "train",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
}
JAX = {"JAX_PROCESS_ID": "2", "JAX_NUM_PROCESSES": "4", "JAX_COORDINATOR_ADDRESS": "10.0.0.1:1234"}
# As torch_xla's spawn sets them in each process, and as a cluster does in each host's container.
TPU_PROCESS = {
    "CLOUD_TPU_TASK_ID": "2",
    "TPU_PROCESS_ADDRESSES": "10.0.0.1:8476,10.0.0.1:8477,10.0.0.2:8476,10.0.0.2:8477",
    "TPU_PROCESS_BOUNDS": "2,2,1",
    "PJRT_LOCAL_PROCESS_RANK": "0",
}
TPU_WORKER = {"TPU_WORKER_ID": "2", "TPU_WORKER_HOSTNAMES": "train-0,train-1,train-2,train-3"}
SLICES = {"MEGASCALE_SLICE_ID": "1", "MEGASCALE_NUM_SLICES": "3"}
BATCH_SCRIPT = {"SLURM_JOB_NAME": "train", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}
ALLOCATED = {"SLURM_JOB_NAME": "interactive", "SLURM_NTASKS": "4"}
PTY_SHELL = {**STEP, "SLURM_PROCID": "0", "SLURM_PTY_PORT": "44263", "SLURM_JOB_NAME": "bash"}


@pytest.mark.parametrize(
    ("environ", "origin"),
    [
        (TORCHRUN, "RANK and WORLD_SIZE (torchrun)"),
        (BY_HAND, "RANK and WORLD_SIZE"),
        (OPEN_MPI, "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE (Open MPI)"),
        (HYDRA, "PMI_RANK and PMI_SIZE (MPICH or Intel MPI)"),
        (MVAPICH, "MV2_COMM_WORLD_RANK and MV2_COMM_WORLD_SIZE (MVAPICH)"),
        (JAX, "JAX_PROCESS_ID and JAX_NUM_PROCESSES (JAX processes)"),
        (
            TPU_PROCESS,
            "CLOUD_TPU_TASK_ID and TPU_PROCESS_ADDRESSES (TPU processes, as of torch_xla)",
        ),
        (TPU_WORKER, "TPU_WORKER_ID and TPU_WORKER_HOSTNAMES (TPU workers, one on each host)"),
        (STEP, "SLURM_PROCID and SLURM_STEP_NUM_TASKS (a Slurm job step)"),
        (STEP | {"SLURM_STEP_ID": "17"}, "SLURM_PROCID and SLURM_STEP_NUM_TASKS (a Slurm job step)"),
    ],
)
def test_each_launcher_is_recognised_and_named(environ: Mapping[str, str], origin: str) -> None:
    world = World.from_env(environ)
    assert world == World(2, 4) and world.origin == origin and origin in repr(world)


@pytest.mark.parametrize("environ", [TPU_PROCESS, TPU_WORKER])
def test_of_several_tpu_slices_the_first_comes_first(environ: Mapping[str, str]) -> None:
    world = World.from_env(environ | SLICES)
    assert world == World(6, 12) and "MEGASCALE_SLICE_ID and MEGASCALE_NUM_SLICES" in world.origin
    assert World.from_env(environ | {"MEGASCALE_NUM_SLICES": "1"}) == World(2, 4)


def test_a_tpu_of_one_host_is_alone() -> None:
    world = World.from_env({"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"})
    assert (world.rank, world.size) == (0, 1)
    # Two runs beside each other, each on half of the host's chips.
    own = {"CLOUD_TPU_TASK_ID": "0", "TPU_PROCESS_ADDRESSES": "localhost:8477"}
    assert World.from_env(own) == World(0, 1)


def test_numbers_within_one_host_are_no_ranks() -> None:
    assert World.from_env({"PJRT_LOCAL_PROCESS_RANK": "1", "PJRT_LOCAL_PROCESS_COUNT": "4"}) == World(0, 1)


def test_a_step_without_its_own_count_goes_by_the_jobs() -> None:
    world = World.from_env({name: value for name, value in STEP.items() if "STEP_NUM" not in name})
    assert (world.rank, world.size, world.origin) == (
        2,
        4,
        "SLURM_PROCID and SLURM_NTASKS (a Slurm job step)",
    )


@pytest.mark.parametrize(
    "environ",
    [
        BATCH_SCRIPT,
        BATCH_SCRIPT | {"SLURM_STEP_ID": "4294967291"},
        BATCH_SCRIPT | {"SLURM_STEP_ID": "batch"},
        ALLOCATED,
        # salloc's shell may be a step of its own, into which the allocation's numbers are passed on.
        ALLOCATED | {"SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "4"},
        PTY_SHELL,
        {"PMIX_RANK": "0"},
        {"PMI_RANK": "0"},
    ],
    ids=str,
)
def test_what_runs_once_in_an_allocation_of_many_tasks_is_alone(environ: Mapping[str, str]) -> None:
    world = World.from_env(environ)
    assert world == World(0, 1) and world.origin == "alone"


def test_a_step_started_from_an_interactive_shell_is_a_step() -> None:
    inherited = PTY_SHELL | {"SLURM_STEP_ID": "1"}
    from_salloc = PTY_SHELL | {"SLURM_JOB_NAME": "interactive"}
    for environ in (inherited, from_salloc):
        for rank in ("0", "3"):
            assert World.from_env(environ | {"SLURM_PROCID": rank}) == World(int(rank), 4)


def test_what_may_be_a_shell_or_a_step_is_refused_with_the_way_out() -> None:
    environ = PTY_SHELL | {"SLURM_JOB_NAME": "mine"}
    with pytest.raises(ValueError, match=r"SLURM_PTY_PORT may be an interactive shell.*rank=0, world_size=1"):
        World.from_env(environ)
    assert resolve_world(0, 1, lambda: None, environ) == World(0, 1)


@pytest.mark.parametrize(
    ("inner", "around"),
    [
        # srun starts torchrun, or MPI's daemon, once on each of two nodes.
        ({"RANK": "13", "WORLD_SIZE": "16", "TORCHELASTIC_RUN_ID": "x"}, {"SLURM_PROCID": "1"}),
        ({"RANK": "13", "WORLD_SIZE": "16"}, {"SLURM_PROCID": "1"}),
        ({"OMPI_COMM_WORLD_RANK": "13", "OMPI_COMM_WORLD_SIZE": "16"}, {"SLURM_PROCID": "1"}),
        ({"PMI_RANK": "13", "PMI_SIZE": "16"}, {"SLURM_PROCID": "1"}),
        ({"RANK": "13", "WORLD_SIZE": "16"}, {"SLURM_PROCID": "1", "PMI_RANK": "1", "PMI_SIZE": "2"}),
        # Processes of a host's chips, in the container of that host.
        (
            {"CLOUD_TPU_TASK_ID": "13", "TPU_PROCESS_ADDRESSES": ",".join(["host:1"] * 16)},
            {"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "a,b", "SLURM_PROCID": "1"},
        ),
        ({"RANK": "13", "WORLD_SIZE": "16"}, {"TPU_WORKER_ID": "3", "TPU_WORKER_HOSTNAMES": "a,b,c,d"}),
    ],
    ids=str,
)
def test_the_innermost_launcher_is_right(inner: Mapping[str, str], around: Mapping[str, str]) -> None:
    step = STEP | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2"}
    assert World.from_env({**step, **around, **inner}) == World(13, 16)


def test_launchers_that_agree_are_no_contradiction() -> None:
    assert World.from_env({**STEP, **HYDRA, **BY_HAND}) == World(2, 4)


def test_torchrun_alone_in_each_task_of_a_step_is_as_many_runs() -> None:
    alone = {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "none"}
    assert World.from_env(STEP | alone) == World(0, 1)


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        (STEP | {"WORLD_SIZE": "1"}, "WORLD_SIZE='1' and SLURM_PROCID='2', SLURM_STEP_NUM_TASKS='4'"),
        (STEP | {"RANK": "0", "WORLD_SIZE": "4"}, "RANK='0', WORLD_SIZE='4' and SLURM_PROCID='2'"),
        (
            STEP | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
            "OMPI_COMM_WORLD_RANK='0', OMPI_COMM_WORLD_SIZE='1' and SLURM_PROCID='2'",
        ),
        (
            TPU_WORKER | {"RANK": "0", "WORLD_SIZE": "1"},
            "RANK='0', WORLD_SIZE='1' and TPU_WORKER_ID='2', TPU_WORKER_HOSTNAMES of 4",
        ),
        (
            OPEN_MPI | {"PMI_RANK": "1", "PMI_SIZE": "8"},
            "_SIZE='4' and PMI_RANK='1', PMI_SIZE='8'",
        ),
    ],
)
def test_launchers_that_contradict_each_other_are_refused_by_name(
    environ: Mapping[str, str], told: str
) -> None:
    with pytest.raises(ValueError, match=r"rank=0, world_size=1 reads everything") as caught:
        World.from_env(environ)
    assert f"{told}" in str(caught.value) and "contradict each other" in str(caught.value)
    assert resolve_world(0, 1, lambda: None, environ) == World(0, 1)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"RANK": "", "WORLD_SIZE": "2"}, "RANK='', WORLD_SIZE='2': RANK is empty"),
        ({"RANK": "0", "WORLD_SIZE": " "}, "WORLD_SIZE is empty"),
        ({"RANK": "", "WORLD_SIZE": ""}, "RANK is empty"),
        ({"RANK": "0", "WORLD_SIZE": "two"}, "RANK='0', WORLD_SIZE='two': WORLD_SIZE is not a number"),
        ({"RANK": ""}, "set together .* RANK='', WORLD_SIZE=None"),
        ({"WORLD_SIZE": ""}, "set together .* RANK=None, WORLD_SIZE=''"),
        (STEP | {"SLURM_PROCID": "x"}, "SLURM_PROCID is not a number"),
        (
            {"PMI_RANK": "2"},
            "PMI_RANK='2' is one rank of several, but PMI_SIZE, which gives their number",
        ),
        (
            TPU_WORKER | {"TPU_WORKER_ID": "4"},
            "TPU_WORKER_HOSTNAMES of 4: TPU_WORKER_ID should be a place in",
        ),
        (TPU_WORKER | {"TPU_WORKER_HOSTNAMES": ""}, "TPU_WORKER_HOSTNAMES of 0"),
        (
            TPU_PROCESS | {"CLOUD_TPU_TASK_ID": "x"},
            "TPU_PROCESS_ADDRESSES of 4: CLOUD_TPU_TASK_ID is not a number",
        ),
        (
            TPU_WORKER | {"MEGASCALE_NUM_SLICES": "2"},
            "with several slices, MEGASCALE_SLICE_ID should be the number",
        ),
        (
            TPU_WORKER | {"MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "2"},
            r"rank should be in the interval \[0, 7\]",
        ),
        (
            {"CLOUD_TPU_TASK_ID": "3"},
            "CLOUD_TPU_TASK_ID='3' is one rank of several, but TPU_PROCESS_ADDRESSES",
        ),
        ({"TPU_WORKER_ID": "3"}, "TPU_WORKER_HOSTNAMES, which gives their number, is not set"),
        ({"JAX_PROCESS_ID": "3"}, "JAX_NUM_PROCESSES, which gives their number, is not set"),
        ({"PMIX_RANK": "2"}, "PMIX_RANK='2' is one rank of several, and PMIx does not set their number"),
        ({"OMPI_COMM_WORLD_RANK": "1"}, "OMPI_COMM_WORLD_SIZE, which gives their number"),
        ({"SLURM_PROCID": "1", "SLURM_STEP_ID": "x", "SLURM_NTASKS": "2"}, "SLURM_STEP_ID"),
        (HYDRA | {"PMI_SIZE": "2"}, r"PMI_RANK='2', PMI_SIZE='2': rank should be in the interval \[0, 1\]"),
    ],
)
def test_a_malformed_variable_is_named(environ: Mapping[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        World.from_env(environ)


def test_a_world_tells_where_it_came_from() -> None:
    assert resolve_world(0, 1, lambda: (1, 2), STEP).origin == "rank= and world_size="
    assert resolve_world(None, None, lambda: (1, 2), STEP).origin == "torch.distributed"
    assert resolve_world(None, None, lambda: None, {}).origin == "alone"
