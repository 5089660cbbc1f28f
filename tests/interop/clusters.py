"""A Ray cluster of several nodes on this machine, for one module of tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["Nodes", "open_cluster"]

# Each node keeps its objects in as much shared memory: the least that Ray takes is 75 MB.
_STORE_BYTES = 100 << 20


class Nodes:
    """A head without processors, which only knows the others, and nodes that actors are placed on."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster

    def add(self, count: int) -> None:
        """Start nodes, of two processors each, and wait until they are known."""
        for _ in range(count):
            self._cluster.add_node(num_cpus=2, object_store_memory=_STORE_BYTES)
        self._cluster.wait_for_nodes(timeout=60)

    def kill(self, node_id: str) -> None:
        """End all processes of a node at once, as if its machine had lost power."""
        (node,) = [node for node in self._cluster.worker_nodes if node.node_id == node_id]
        self._cluster.remove_node(node, allow_graceful=False)

    def actors(self) -> list[dict[str, Any]]:
        """Those that live or are to be placed, by what the head knows of them."""
        import ray

        every = ray._private.state.actors().values()
        return [actor for actor in every if actor["State"] != "DEAD"]


@contextmanager
def open_cluster(count: int) -> Iterator[Nodes]:
    """A head and ``count`` nodes more, to which this process is connected."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # What a test's module defines is sent by its name.
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    import ray
    from ray.cluster_utils import Cluster

    head = {
        "num_cpus": 0,
        "object_store_memory": _STORE_BYTES,
        "include_dashboard": False,
        # A node that does not answer is taken for lost within some seconds, and not a quarter of a minute.
        "_system_config": {"health_check_period_ms": 1000, "health_check_failure_threshold": 3},
    }
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        nodes = Nodes(cluster)
        nodes.add(count)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        try:
            yield nodes
        finally:
            ray.shutdown()
    finally:
        cluster.shutdown()
