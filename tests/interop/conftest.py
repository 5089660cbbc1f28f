"""What training libraries must not do in a test: reach out to the network, or leave files behind."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from programs import Programs

#: What programs of trainers import, which takes them longer than to train, and what a stream does.
_TRAINERS = ["accelerate", "lightning", "transformers.trainer"]
_STREAMS = [
    f"asyncloader.{name}" for name in ("loader.stream", "loader.workers", "formats", "shards.shard_writer")
]


@pytest.fixture(scope="session")
def trainers() -> Iterator[Programs]:
    """To run scripts that train by libraries, in processes of their own that need not import them."""
    there = [name for name in _TRAINERS if importlib.util.find_spec(name.split(".")[0])]
    with Programs.open(*there, *_STREAMS) as programs:
        yield programs


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse every connection but those inside the machine's own kernel."""
    connect = socket.socket.connect

    def connect_locally(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX:
            raise AssertionError(f"a connection to {address}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect_locally)


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail the test if it leaves a file, such as a log or a checkpoint, in the working directory."""
    here: Path = tmp_path_factory.mktemp("working-directory")
    monkeypatch.chdir(here)
    yield
    assert list(here.iterdir()) == []
