"""A process that keeps a Ray cluster on this machine, and ends each process of it with itself.

It is asked by lines of JSON over a socket. Once that is closed, and so also when whoever asked was killed, it
kills all that has come of it: it is made the parent of what loses its own one, so that nothing of Ray's gets
away, whatever session it leads.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

# Each node keeps its objects in as much shared memory: the least that Ray takes is 75 MB.
_STORE_BYTES = 80 << 20

# A node that has gone is taken for lost in a second, and not in a quarter of a minute. One that is slow is
# not: it is given ten seconds for each answer.
_SYSTEM = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 300,
    "health_check_failure_threshold": 3,
}

_SET_CHILD_SUBREAPER = 36  # of linux/prctl.h


class Keeper:
    """A head without processors, which only knows the others, and nodes of one processor each."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "object_store_memory": _STORE_BYTES, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args={**head, "_system_config": _SYSTEM})

    def have(self, count: int, wait: bool) -> None:
        """Let there be so many nodes beside the head, as others were lost."""
        nodes = self._cluster.worker_nodes
        for node in [node for node in nodes if not node.remaining_processes_alive()]:
            self._remove(node)
        for _ in range(count - len(nodes)):
            self._cluster.add_node(num_cpus=1, object_store_memory=_STORE_BYTES, wait=False)
        if wait:
            self._cluster.wait_for_nodes(timeout=60)

    def kill(self, node_id: str) -> None:
        """End all processes of a node at once, as if its machine had lost power."""
        (node,) = [node for node in self._cluster.worker_nodes if node.node_id == node_id]
        self._remove(node)

    def told(self) -> dict[str, Any]:
        return {
            "address": self._cluster.address,
            "nodes": sorted(node.node_id for node in self._cluster.worker_nodes),
        }

    def _remove(self, node: Any) -> None:
        for processes in node.all_processes.values():
            for process in processes:
                for pid in (process.process.pid, *descendants(process.process.pid)):
                    _kill(pid)
        self._cluster.remove_node(node, allow_graceful=False)


def descendants(pid: int) -> list[int]:
    """The processes that have come of one, and not lost a parent since."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            # Behind the name, which may have any characters, are the state and the parent.
            parents[int(folder.name)] = int(Path(folder, "stat").read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for each in found:  # which grows meanwhile
        found += [child for child, parent in parents.items() if parent == each]
    return found[1:]


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _end_all() -> None:
    """Kill every descendant, and return once all of them have ended."""
    while True:
        for pid in descendants(os.getpid()):
            _kill(pid)
        try:
            # What has lost its parent so becomes this process's own, and is waited for too.
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _serve(asked: socket.socket) -> None:
    keeper = Keeper()
    with asked.makefile("rw") as lines:
        for line in lines:
            method, arguments = json.loads(line)
            try:
                if method != "told":
                    getattr(keeper, method)(*arguments)
                answer = keeper.told()
            except Exception as error:
                answer = {"error": repr(error)}
            lines.write(json.dumps(answer) + "\n")
            lines.flush()


if __name__ == "__main__":
    assert ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    # With a short name, since sockets are in it; and apart from that in which other programs find a cluster.
    folder = os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="ray")
    try:
        with suppress(ConnectionError):  # whoever asked has gone
            _serve(socket.socket(fileno=int(sys.argv[1])))
    finally:
        _end_all()
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)  # Ray's own clean-up would look for what has ended
