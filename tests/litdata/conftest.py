"""Chunks that litdata has written, in the environment of the peers, and what its own reader has of them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
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
def place(chunks: Chunks) -> Iterator[Callable[[str, str], tuple[str, dict[str, Any]]]]:
    """Where a data set is on a disk, an HTTP server and S3, and with which storage options."""
    http: list[testing.Server] = []
    filled: set[str] = set()
    with ExitStack() as stack:
        s3: list[tuple[S3Server, Any]] = []

        def on_http(name: str) -> tuple[str, dict[str, Any]]:
            if not http:
                http.append(stack.enter_context(testing.serve(chunks.folder)))
            return http[0].url_of(name), {}

        def on_s3(name: str) -> tuple[str, dict[str, Any]]:
            if not s3:
                server = stack.enter_context(run_moto())
                s3.append((server, stack.enter_context(closing(server.client()))))
                s3[0][1].create_bucket(Bucket="chunks")
            server, client = s3[0]
            if name not in filled:
                filled.add(name)
                for file in (chunks.folder / name).iterdir():
                    client.put_object(Bucket="chunks", Key=f"{name}/{file.name}", Body=file.read_bytes())
            return f"s3://chunks/{name}", {"storage_options": server.options}

        def place(where: str, name: str) -> tuple[str, dict[str, Any]]:
            if where == "disk":
                return str(chunks.folder / name), {}
            return on_http(name) if where == "http" else on_s3(name)

        yield place
