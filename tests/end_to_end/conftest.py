"""One data set on every real server, each started and filled when a test first asks for it; how to resume."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import requests
from servers import S3Server, run_azurite, run_gcs, run_moto, run_nginx, run_swift

import asyncloader as al

from .harness import assert_resume_everywhere

KiB, MiB = 1 << 10, 1 << 20

# Samples of a shard and bytes of a sample. The third shard takes three requests, one of them of a full
# part; the fourth has a sample larger than the first part; the last is compressed as well.
SHARDS = ((3, KiB), (0, 0), (160, 64 * KiB), (1, 3 * MiB), (20, 10 * KiB))
SUFFIXES = ("", "", "", "", ".gz")

KINDS = ("tar", "jsonl")


@pytest.fixture(
    params=[
        pytest.param(3, id="in turn"),
        pytest.param(1, id="in full", marks=[pytest.mark.slow, pytest.mark.timeout(300)]),
    ]
)
def assert_resumes(request: pytest.FixtureRequest) -> Callable[..., None]:
    """``assert_resume_everywhere``, from every third state with workers too; from each in the slow tests."""
    return partial(assert_resume_everywhere, every=request.param)


@dataclass(frozen=True)
class DataSet:
    """The shards of one format.

    Attributes:
        shards: Their contents by name, in order.
        samples: Key and digest of every sample, in order.
    """

    shards: dict[str, bytes]
    samples: list[tuple[str, str]]


@dataclass(frozen=True)
class Place:
    """Where a server keeps the shards.

    Attributes:
        url: What their names are appended to.
        options: The ``storage_options`` that open it.
        put: Writes an object by its name.
        server: What the server itself told.
    """

    url: str
    put: Callable[[str, bytes], None]
    options: dict[str, str | bool] = field(default_factory=dict)
    server: Any = None

    def urls(self, data_set: DataSet) -> list[str]:
        return [self.url + name for name in data_set.shards]


@pytest.fixture(scope="session")
def data_sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DataSet]:
    """The same samples as tar and as JSONL."""
    return {kind: _write(kind, tmp_path_factory.mktemp(kind)) for kind in KINDS}


def _write(kind: str, folder: Path) -> DataSet:
    source = random.Random(0)
    shards, samples = {}, []
    for shard, ((size, sample_bytes), compression) in enumerate(zip(SHARDS, SUFFIXES, strict=True)):
        path = folder / f"shard-{shard}.{kind}{compression}"
        with al.ShardWriter(path) as writer:
            for index in range(size):
                # As text, so that both formats can hold it.
                key, text = f"{shard}-{index:03d}", source.randbytes(sample_bytes // 2).hex()
                names = ("__key__", "txt") if kind == "tar" else ("key", "text")
                writer.write(dict(zip(names, (key, text), strict=True)))
                samples.append((key, sha256(text.encode()).hexdigest()))
        if size == 0:
            path.write_bytes(bytes(1024) if kind == "tar" else b"")
        shards[path.name] = path.read_bytes()
    return DataSet(shards, samples)


@pytest.fixture(scope="session")
def nginx(data_sets: dict[str, DataSet], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("nginx")
    ages_s = count(start=1_000_000, step=-1)

    def put(name: str, content: bytes) -> None:
        new = folder / f"{name}.new"
        new.write_bytes(content)
        # nginx's ETag is length and time in whole seconds, and tests change a file within one.
        written = time.time() - next(ages_s)
        os.utime(new, (written, written))
        new.replace(folder / name)

    with run_nginx(folder) as url:
        yield _filled(Place(f"{url}/", put), data_sets)


@pytest.fixture(scope="session")
def moto(data_sets: dict[str, DataSet]) -> Iterator[Place]:
    with run_moto() as server, _bucket_of(server) as place:
        yield _filled(place, data_sets)


@pytest.fixture(scope="session")
def swift(data_sets: dict[str, DataSet]) -> Iterator[Place]:
    with run_swift() as server, _bucket_of(server) as place:
        yield _filled(place, data_sets)


@contextmanager
def _bucket_of(server: S3Server) -> Iterator[Place]:
    with closing(server.client()) as client:
        client.create_bucket(Bucket="corpus")

        def put(name: str, content: bytes) -> None:
            client.put_object(Bucket="corpus", Key=name, Body=content)

        yield Place("s3://corpus/", put, server.options, server)


@pytest.fixture(scope="session")
def azurite(data_sets: dict[str, DataSet]) -> Iterator[Place]:
    with run_azurite() as server:
        _request("PUT", f"{server.endpoint}/corpus?restype=container&{server.sas('c')}")

        def put(name: str, content: bytes) -> None:
            url = f"{server.endpoint}/corpus/{quote(name)}?{server.sas('cw')}"
            _request("PUT", url, data=content, headers={"x-ms-blob-type": "BlockBlob"})

        yield _filled(Place("az://corpus/", put, server.options, server), data_sets)


@pytest.fixture(scope="session")
def gcs(data_sets: dict[str, DataSet]) -> Iterator[Place]:
    with run_gcs() as url:
        _request("POST", f"{url}/storage/v1/b", json={"name": "corpus"})

        def put(name: str, content: bytes) -> None:
            where = f"{url}/upload/storage/v1/b/corpus/o"
            _request("POST", where, params={"uploadType": "media", "name": name}, data=content)

        options: dict[str, str | bool] = {"endpoint": url, "anonymous": True}
        yield _filled(Place("gs://corpus/", put, options, url), data_sets)


def _request(method: str, url: str, **arguments: Any) -> None:
    requests.request(method, url, timeout=20, **arguments).raise_for_status()


def _filled(place: Place, data_sets: dict[str, DataSet]) -> Place:
    for data_set in data_sets.values():
        for name, content in data_set.shards.items():
            place.put(name, content)
    return place
