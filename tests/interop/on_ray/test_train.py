"""Ray Train trains with our loaders on a cluster of three nodes, loses nodes, and goes on."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from programs import Programs

from ..trainings import EXAMPLES, losses_of
from .loaders import soon

pytest.importorskip("ray", reason="ray is in the dependency group 'interop'")

from .clusters import QUIET, Nodes

pytestmark = [
    pytest.mark.slow,  # Ray starts its processes, each of which imports torch, anew behind each loss
    pytest.mark.timeout(600),
    QUIET,
]

_NODES, _KILLS = 3, 10

# Three workers have as many steps in an epoch, and save in every fourth.
_STEPS = 16

# Of a step behind which moments are drawn: a model's that has something to do.
_STEP_S = 0.05

# Training must not end before the last node was lost: it goes on for a second at most before each.
_EPOCHS = 16

_TOLD = {
    "OMP_NUM_THREADS": "1",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    # What looks after runs, for a dashboard that is not there.
    "RAY_TRAIN_ENABLE_STATE_ACTOR_RECONCILIATION": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    # Workers may be given places on a node that is gone, and wait for that: a minute, if nothing is said.
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "30",
}


class Runs:
    """The example's, each in a folder of its own below ``folder``."""

    def __init__(self, cluster: Nodes, programs: Programs, folder: Path) -> None:
        self._cluster = cluster
        self._programs = programs
        self._folder = folder

    @contextmanager
    def started(self, name: str, *arguments: object) -> Iterator[Future[str]]:
        """Start one on all nodes; what it will have printed, once it has ended well."""
        self._cluster.have(_NODES)
        script = EXAMPLES / "ray_train.py"
        options: dict[str, Any] = {"strict": False, "one_output": True}
        with (
            self._programs.started(
                script, "--folder", self._folder / name, *arguments,
                more=_TOLD | {"RAY_ADDRESS": self._cluster.address}, **options,
            ) as program,
            ThreadPoolExecutor(1) as reader,
        ):  # fmt: skip

            def read() -> str:
                printed, _ = program.communicate(timeout=500)
                assert program.returncode == 0, printed
                return printed

            yield reader.submit(read)

    def run(self, name: str, *arguments: object) -> str:
        """Run one to its end; what it prints."""
        with self.started(name, *arguments) as printed:
            return printed.result()

    def saved(self, name: str) -> int:
        """How many checkpoints there are."""
        return len([*(self._folder / name / "run").glob("checkpoint_*")])


@pytest.fixture
def runs(cluster: Nodes, programs: Programs, tmp_path: Path) -> Runs:
    return Runs(cluster, programs, tmp_path)


def assert_each_once(printed: str, epochs: int) -> None:
    """The audit proves each epoch, over all restarts."""
    for epoch in range(epochs):
        told = rf"^epoch {epoch}: exact: 192 samples in 48 batches by ranks? [0-2, ]+, each of 192 once$"
        assert re.search(told, printed, re.MULTILINE), printed


@pytest.mark.parametrize(("arguments", "kills"), [([], _KILLS), (["--map-style"], 3)], ids=["stream", "map"])
def test_nodes_are_lost_at_random_moments_and_the_losses_are_those_of_a_run_without(
    arguments: list[str], kills: int, runs: Runs, cluster: Nodes, draw: random.Random
) -> None:
    """Another node joins when one was lost, so that as many workers go on."""
    epochs = 1 + _EPOCHS * kills // _KILLS
    several = ("--workers", 3, 3, "--epochs", epochs, *arguments)
    whole = losses_of(runs.run("whole", *several))
    assert len(whole) == epochs * _STEPS and len(set(whole.values())) > len(whole) / 2
    with runs.started("killed", *several, "--step-s", _STEP_S, "--max-failures", -1) as printed:
        for kill in range(1, kills + 1):
            before, wait_s = runs.saved("killed"), draw.uniform(0, 1)
            assert soon(lambda: printed.done() or runs.saved("killed") > before, within_s=90)  # noqa: B023
            time.sleep(wait_s)
            assert not printed.done(), printed.result()
            print(f"node {kill} of {kills} lost {wait_s:.2f} s behind checkpoint {before + 1}", flush=True)
            cluster.kill(draw.choice(cluster.ids))
            cluster.have(_NODES, wait=False)
        told = printed.result()
    assert losses_of(told) == whole
    if not arguments:
        assert_each_once(told, epochs)
        print("\n".join(re.findall(r"^epoch .*", told, re.MULTILINE)))


def test_when_a_node_is_lost_the_others_go_on_from_merged_states(runs: Runs, draw: random.Random) -> None:
    step = draw.randrange(2, 2 * _STEPS)
    print(f"a node is lost in step {step}", flush=True)
    printed = runs.run("fewer", "--workers", 1, 3, "--die-at", step)
    assert len(losses_of(printed)) >= 2 * _STEPS, printed
    assert "rank 0 of 2 (torch.distributed)" in printed, printed
    assert_each_once(printed, 2)
