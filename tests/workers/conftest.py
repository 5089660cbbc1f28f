"""One fork server for the room's tests: each would otherwise pay a second for importing torch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from asyncloader.workers import ForkServer


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    server = ForkServer.shared()
    server.wait_ready()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Two threads that wait for each other on a busy machine take far longer than one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
