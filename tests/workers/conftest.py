"""One fork server for the room's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from asyncloader.workers.forkserver import ForkServer


@pytest.fixture(scope="session")
def _servers() -> Iterator[list[ForkServer]]:
    servers: list[ForkServer] = []
    yield servers
    for server in servers:
        server.close()


@pytest.fixture
def server(platform: str, _servers: list[ForkServer], request: pytest.FixtureRequest) -> ForkServer:
    """It imports torch and the test's module: a worker that did would take two seconds."""
    server = ForkServer.shared()
    if server not in _servers:
        _servers.append(server)
    server.preload(["torch", request.module.__name__])
    server.wait_ready()
    return server


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Two threads that wait for each other on a busy machine take far longer than one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
