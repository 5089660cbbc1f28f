"""Ray Train trains with our loaders on a cluster of several nodes, loses one, and goes on."""

from __future__ import annotations

import random
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from programs import Programs

from .trainings import EXAMPLES, losses_of

pytest.importorskip("ray", reason="ray is in the dependency group 'interop'")

pytestmark = [
    pytest.mark.slow,  # Ray starts its processes, each of which imports torch, twice
    pytest.mark.timeout(400),
    # Of Ray's own: it forks where it starts its processes, and leaves their logs open.
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning"
    ),
]

# Each node keeps its objects in as much shared memory: about the least that Ray takes.
_STORE_BYTES = 80 << 20
_NODES = 3

#: In which steps nodes are lost; three workers have sixteen in an epoch.
MOMENTS = sorted(random.Random(0).sample(range(2, 32), 10))


@pytest.fixture
def no_network() -> None:
    """Ray's processes talk to each other by addresses of this machine."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head, on which nothing runs, and nodes with room for one worker each."""
    told = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2"}
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="ray") as folder:
        for name, value in told.items():
            patch.setenv(name, value)
        from ray.cluster_utils import Cluster

        head = {
            "num_cpus": 0,
            "object_store_memory": _STORE_BYTES,
            "include_dashboard": False,
            "temp_dir": folder,  # with a short name, since sockets are in it
            # A node that does not answer is taken for lost within some seconds.
            "_system_config": {"health_check_period_ms": 1000, "health_check_failure_threshold": 5},
        }
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            yield cluster
        finally:
            cluster.shutdown()


@pytest.fixture
def train(cluster: Any, programs: Programs, tmp_path: Path) -> Callable[..., str]:
    """Run the example on all nodes; what it prints."""

    def train(name: str, *arguments: object) -> str:
        for node in [*cluster.worker_nodes]:
            if not node.any_processes_alive():
                cluster.worker_nodes.remove(node)
        for _ in range(_NODES - len(cluster.worker_nodes)):
            cluster.add_node(num_cpus=1, object_store_memory=_STORE_BYTES, wait=False)
        cluster.wait_for_nodes()
        told = {"RAY_ADDRESS": cluster.address, "OMP_NUM_THREADS": "1"}
        run = programs.run(
            EXAMPLES / "ray_train.py", "--folder", tmp_path / name, *arguments,
            more=told, strict=False, one_output=True, timeout=260,
        )  # fmt: skip
        assert run.returncode == 0, run.stdout
        return run.stdout

    return train


def assert_each_once(printed: str) -> None:
    """The audit proves both epochs, over the restart."""
    for epoch in range(2):
        told = rf"^epoch {epoch}: exact: 192 samples in 48 batches by ranks [0-2, ]+, each of 192 once$"
        assert re.search(told, printed, re.MULTILINE), printed


@pytest.mark.parametrize("moment", MOMENTS)
def test_when_a_node_is_lost_the_others_go_on_from_merged_states(
    moment: int, train: Callable[..., str]
) -> None:
    printed = train("run", "--workers", 1, 3, "--die-at", moment)
    # Three workers have sixteen steps in an epoch.
    assert len(losses_of(printed)) >= 32, printed
    assert "rank 0 of 2 (torch.distributed)" in printed, printed
    assert_each_once(printed)


@pytest.mark.timeout(560)
@pytest.mark.parametrize("arguments", [[], ["--map-style"]], ids=str)
def test_as_many_workers_on_another_node_come_to_the_same_losses(
    arguments: list[Any], train: Callable[..., str]
) -> None:
    whole = losses_of(train("whole", "--workers", 2, 2, *arguments))
    printed = train("killed", "--workers", 2, 2, "--die-at", 30, *arguments)
    assert losses_of(printed) == whole
    assert len(set(whole.values())) > len(whole) / 2 > 20
    if not arguments:
        assert_each_once(printed)
