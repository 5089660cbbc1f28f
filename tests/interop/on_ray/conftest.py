"""One cluster for all tests of a session; each test finds as many nodes on it as it asks for."""

from __future__ import annotations

import copy
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from .clusters import Nodes, connected, open_cluster
from .loaders import loader, stream, write_shards


@pytest.fixture
def no_network() -> None:
    """Ray's processes talk to each other by addresses of this machine."""


@pytest.fixture(scope="session")
def cluster() -> Iterator[Nodes]:
    """A head, on which nothing runs."""
    with open_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="package")
def driver(cluster: Nodes) -> Iterator[Nodes]:
    """This process is connected to it. Not longer than it has to: Ray has threads here."""
    cluster.have(2)
    with connected(cluster):
        yield cluster


@pytest.fixture
def nodes(driver: Nodes) -> Nodes:
    """It has two nodes at least, whatever the test before did to them."""
    driver.have(2)
    return driver


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    write_shards(folder)
    return folder


@pytest.fixture(scope="session")
def local(folder: Path) -> list[Any]:
    """The batches that two local workers make, as copies: kept for a session, they would hold their slots."""
    return [copy.deepcopy(batch) for batch in loader(stream(folder), num_workers=2)]


@pytest.fixture
def draw() -> random.Random:
    """Draws moments, other ones in each run; what it prints brings back those of a run, as a variable."""
    seed = int(os.environ.get("ON_RAY_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"\nON_RAY_SEED={seed}", flush=True)
    return random.Random(seed)


@pytest.fixture
def leaving_nothing(nodes: Nodes) -> Callable[[], AbstractContextManager[None]]:
    """Assert that no actor, reference or descriptor is left by a block: ``with leaving_nothing():``."""
    import ray

    core = ray._private.worker.global_worker.core_worker

    def counted() -> tuple[int, int, int]:
        names = [_named(descriptor) for descriptor in os.listdir("/proc/self/fd")]
        pipes = sum(name.startswith("pipe:") for name in names)
        return len(nodes.actors()), len(core.get_all_reference_counts()), pipes

    @contextmanager
    def leaving_nothing() -> Iterator[None]:
        before = counted()
        yield
        deadline = time.monotonic() + 30
        while any(now > then for now, then in zip(counted(), before, strict=True)):
            assert time.monotonic() < deadline, (before, counted())
            time.sleep(0.05)

    return leaving_nothing


def _named(descriptor: str) -> str:
    with suppress(FileNotFoundError):  # it was closed since
        return os.readlink(f"/proc/self/fd/{descriptor}")
    return ""
