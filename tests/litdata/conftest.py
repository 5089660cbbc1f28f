"""Chunks that litdata has written, in the environment of the peers, and what its own reader has of them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from peer_programs import run_peer
from servers import S3Server, run_moto

from asyncloader import testing


@dataclass(frozen=True)
class Chunks:
    """Data sets in a folder.

    Attributes:
        folder: Each in a folder of its own.
    """

    folder: Path

    def samples(self, name: str) -> list[dict[str, Any]]:
        """What litdata reads of one, as dicts."""
        samples = pickle.loads((self.folder / f"{name}.pickle").read_bytes())
        if name.startswith("tokens"):
            return [{"tokens": sample} for sample in samples]
        return [as_dict(sample) for sample in samples]


def as_dict(sample: Any) -> dict[str, Any]:
    if isinstance(sample, dict):
        return sample
    if isinstance(sample, list | tuple):
        return {str(place): value for place, value in enumerate(sample)}
    return {"value": sample}


@pytest.fixture(scope="session")
def chunks(tmp_path_factory: pytest.TempPathFactory) -> Chunks:
    folder = tmp_path_factory.mktemp("litdata")
    run_peer(Path(__file__).with_name("write_chunks.py"), folder)
    return Chunks(folder)


@pytest.fixture(scope="session")
def chunk_server(chunks: Chunks) -> Iterator[testing.Server]:
    with testing.serve(chunks.folder) as server:
        yield server


@pytest.fixture(scope="session")
def chunk_bucket() -> Iterator[tuple[S3Server, Any]]:
    """A bucket of that name, and a client to fill it with."""
    with run_moto() as server, closing(server.client()) as client:
        client.create_bucket(Bucket="chunks")
        yield server, client


@pytest.fixture(scope="session")
def place(request: pytest.FixtureRequest, chunks: Chunks) -> Callable[[str, str], tuple[str, dict[str, Any]]]:
    """Where a data set is on a disk, an HTTP server and S3, and with which storage options.

    Servers start when the first test asks for them, as fixtures: ``file_leaks`` knows who keeps them.
    """
    filled: set[str] = set()

    def on_s3(name: str) -> tuple[str, dict[str, Any]]:
        server, client = request.getfixturevalue("chunk_bucket")
        if name not in filled:
            filled.add(name)
            for file in (chunks.folder / name).iterdir():
                client.put_object(Bucket="chunks", Key=f"{name}/{file.name}", Body=file.read_bytes())
        return f"s3://chunks/{name}", {"storage_options": server.options}

    def place(where: str, name: str) -> tuple[str, dict[str, Any]]:
        if where == "disk":
            return str(chunks.folder / name), {}
        if where == "http":
            return request.getfixturevalue("chunk_server").url_of(name), {}
        return on_s3(name)

    return place
