"""One fork server for the room's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from asyncloader.workers import ForkServer


@pytest.fixture(scope="session")
def _server() -> Iterator[ForkServer]:
    server = ForkServer.shared()
    yield server
    server.close()


@pytest.fixture
def server(_server: ForkServer, request: pytest.FixtureRequest) -> ForkServer:
    """It imports torch and the test's module: a worker that did would take two seconds."""
    _server.preload(["torch", request.module.__name__])
    _server.wait_ready()
    return _server


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Two threads that wait for each other on a busy machine take far longer than one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
