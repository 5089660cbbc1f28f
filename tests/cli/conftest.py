"""A small corpus in every format, in a folder and in a bucket, and the program as a shell runs it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from foreign_folders import write_litdata, write_mds, write_tokens
from servers.moto import run_moto
from servers.s3 import S3Server

import asyncloader as al
from asyncloader.cli import main

TAR_SAMPLES, JSONL_SAMPLES, ROWS = 25, 30, 20
#: Samples of each shard, in ``mds/`` and ``litdata/``; and documents, in ``tokens/``.
FOREIGN = (12, 20, 8)


class Told(NamedTuple):
    """How a command ended, and what it printed."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Ask = Callable[..., Told]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Run a command in this process."""

    def ask(*arguments: str | Path) -> Told:
        capsys.readouterr()
        status = main([*map(str, arguments)])
        return Told(status, *capsys.readouterr())

    return ask


@dataclass(frozen=True)
class Place:
    """Where the corpus is.

    Attributes:
        root: What stands before ``tar/``, ``jsonl/``, ``mds/`` and so on; ends in a slash.
        options: What names its server on a command line.
    """

    root: str
    options: tuple[str, ...] = ()

    def __call__(self, *names: str) -> list[str]:
        """URLs, and the options that they need."""
        return [*(self.root + name for name in names), *self.options]


def jpeg(width: int, height: int) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (width, height)).save(file, "JPEG")
    return file.getvalue()


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import numpy as np
    import pyarrow as pa
    from pyarrow import feather, parquet

    folder = tmp_path_factory.mktemp("corpus")
    picture = jpeg(64, 48)
    with al.ShardWriter(folder / "tar" / "s-%d.tar", samples_per_shard=10) as tars:
        for number in range(TAR_SAMPLES):
            tars.write({"__key__": f"k{number}", "cls": number, "jpg": picture, "npy": np.ones((3, 4), "f4")})
    with al.ShardWriter(folder / "jsonl" / "s-%d.jsonl.gz", samples_per_shard=10) as lines:
        for number in range(JSONL_SAMPLES):
            lines.write({"id": number, "tokens": [*range(number % 3 + 1)], "text": f"text\n{number}"})
    table = pa.table({"id": range(ROWS), "name": [f"n{n}" for n in range(ROWS)], "x": [0.5] * ROWS})
    (folder / "columns").mkdir()
    parquet.write_table(table, folder / "columns" / "a.parquet")
    feather.write_feather(table, str(folder / "columns" / "b.arrow"), compression="uncompressed")
    (folder / "columns" / "c.txt").write_text("one\ntwo\n")
    write_mds(folder / "mds", FOREIGN)
    write_litdata(folder / "litdata", FOREIGN)
    write_tokens(folder / "tokens", FOREIGN)
    return folder


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    with run_moto() as server:
        yield server


@pytest.fixture(scope="session")
def bucket(moto: S3Server, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    client = moto.client()
    client.create_bucket(Bucket="corpus")
    for path in corpus.rglob("*.*"):
        client.upload_file(str(path), "corpus", str(path.relative_to(corpus)))
    client.close()
    secrets = {name: value for name, value in moto.options.items() if name != "endpoint"}
    options = tmp_path_factory.mktemp("options") / "options.json"
    options.write_text(json.dumps(secrets))
    return Place("s3://corpus/", ("--endpoint", moto.endpoint, "--options", str(options)))


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.servers)])
def place(request: pytest.FixtureRequest, corpus: Path) -> Place:
    """The corpus, in each of both."""
    if request.param == "folder":
        return Place(f"{corpus}/")
    return request.getfixturevalue("bucket")  # type: ignore[no-any-return]
