"""A Ray cluster of several nodes on this machine, for all tests of a session."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

__all__ = ["QUIET", "Nodes", "connect", "connected", "open_cluster"]

#: Of Ray's own: it forks where it starts its processes, and leaves their logs open.
QUIET = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning"
)

_TESTS = Path(__file__).parents[2]


class Nodes:
    """A head without processors, which only knows the others, and nodes of one processor each."""

    def __init__(self, asked: socket.socket) -> None:
        self._lines = asked.makefile("rw")
        self._lock = threading.Lock()

    @property
    def address(self) -> str:
        """What Ray's programs find it by, as ``RAY_ADDRESS``."""
        address = self._ask("told")["address"]
        assert isinstance(address, str)
        return address

    @property
    def ids(self) -> list[str]:
        """Those of all nodes but the head, as far as they were not killed here."""
        return list(self._ask("told")["nodes"])

    def have(self, count: int, *, wait: bool = True) -> None:
        """Start nodes until there are so many.

        Args:
            count: Of those beside the head.
            wait: Whether to wait until the cluster knows them, and that others were lost.
        """
        self._ask("have", count, wait)

    def kill(self, node_id: str) -> None:
        """End all processes of a node at once, as if its machine had lost power."""
        self._ask("kill", node_id)

    def actors(self) -> list[dict[str, Any]]:
        """The loaders' that live or are to be placed, by what the head knows of them."""
        import ray

        every = ray._private.state.actors().values()
        return [
            actor for actor in every if actor["ActorClassName"] == "LaneWorker" and actor["State"] != "DEAD"
        ]

    def _ask(self, method: str, *arguments: object) -> dict[str, Any]:
        with self._lock:
            self._lines.write(json.dumps([method, arguments]) + "\n")
            self._lines.flush()
            line = self._lines.readline()
        assert line, "the process that keeps the cluster has ended"
        answer: dict[str, Any] = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer


@contextmanager
def open_cluster() -> Iterator[Nodes]:
    """A head alone. However this process ends, every process of the cluster ends with it."""
    ours, theirs = socket.socketpair()
    told = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
        # What a test's module defines is sent by its name.
        "PYTHONPATH": os.pathsep.join(map(str, (_TESTS, _TESTS.parent))),
    }
    with ours:
        with theirs:
            keeper = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("keeper.py")), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | told,
                start_new_session=True,  # a Ctrl-C is not for it
            )
        try:
            yield Nodes(ours)
        finally:
            ours.shutdown(socket.SHUT_RDWR)
            keeper.wait(timeout=60)


def connect(nodes: Nodes) -> None:
    """Let this process be a driver of the cluster, until ``ray.shutdown()``."""
    import ray

    ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")


@contextmanager
def connected(nodes: Nodes) -> Iterator[None]:
    """This process is a driver of the cluster."""
    import ray

    connect(nodes)
    try:
        yield
    finally:
        ray.shutdown()
