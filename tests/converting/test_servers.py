"""From servers, and to buckets: the same shards as from a folder to a folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from servers import S3Server, run_moto
from waiting import until

import asyncloader as al
from asyncloader import testing
from asyncloader.shards.index_entries import parse_index
from asyncloader.stores.objects.store import ObjectFolder

from .corpora import SAMPLES, files_of, samples_of, write_corpus


@pytest.fixture(scope="module")
def moto() -> Iterator[S3Server]:
    with run_moto() as server, closing(server.client()) as client:
        client.create_bucket(Bucket="corpus")
        ObjectFolder("s3://corpus/", server.options).sizes()  # obstore's threads stay: no test's leak
        yield server


def objects_of(server: S3Server, prefix: str) -> dict[str, bytes]:
    with closing(server.client()) as client:
        found = client.list_objects_v2(Bucket="corpus", Prefix=prefix).get("Contents", [])
        keys = [entry["Key"] for entry in found]
        return {
            key.removeprefix(prefix): client.get_object(Bucket="corpus", Key=key)["Body"].read()
            for key in keys
        }


def shards_of(server: S3Server, prefix: str) -> list[str]:
    with closing(server.client()) as client:
        found = client.list_objects_v2(Bucket="corpus", Prefix=f"{prefix}shard-").get("Contents", [])
    return [entry["Key"] for entry in found]


def upload(server: S3Server, prefix: str, paths: list[str]) -> str:
    with closing(server.client()) as client:
        for path in paths:
            client.put_object(Bucket="corpus", Key=prefix + Path(path).name, Body=Path(path).read_bytes())
    return f"s3://corpus/{prefix}"


@pytest.mark.parametrize("workers", [0, 2])
def test_from_a_bucket_to_a_bucket_is_as_between_folders(
    workers: int, moto: S3Server, tmp_path: Path, no_leaks: None
) -> None:
    urls = write_corpus("jsonl", tmp_path / "in")
    al.convert(urls, tmp_path / "out", samples_per_shard=17, num_workers=0)
    source = upload(moto, f"in{workers}/", urls)
    options: Any = {"samples_per_shard": 17, "num_workers": workers, "storage_options": moto.options}
    done = al.convert(source, f"s3://corpus/out{workers}", **options)
    found = objects_of(moto, f"out{workers}/")
    assert (done.samples, done.shards, done.made) == (SAMPLES, 4, 4)
    assert done.index == f"s3://corpus/out{workers}/asyncloader-index.json"
    notes = {".convert/job.json"}
    assert found.keys() - notes == files_of(tmp_path / "out").keys()
    assert {name: found[name] for name in files_of(tmp_path / "out")} == files_of(tmp_path / "out")
    assert samples_of(f"s3://corpus/out{workers}/", storage_options=moto.options) == samples_of(
        str(tmp_path / "out") + "/"
    )
    # Once more, there is nothing to do; or what is missing.
    assert al.convert(source, f"s3://corpus/out{workers}/", **options).made == 0
    with closing(moto.client()) as client:
        client.delete_object(Bucket="corpus", Key=f"out{workers}/shard-00002.tar")
    assert al.convert(source, f"s3://corpus/out{workers}/", **options).made == 1
    assert objects_of(moto, f"out{workers}/") == found
    with pytest.raises(ValueError, match="was made with samples_per_shard=17"):
        al.convert(source, f"s3://corpus/out{workers}", **{**options, "samples_per_shard": 5})
    al.convert(source, f"s3://corpus/out{workers}", **{**options, "to": "jsonl"}, overwrite=True)
    assert "shard-00000.tar" not in objects_of(moto, f"out{workers}/")


def test_a_writer_puts_its_shards_into_a_bucket(moto: S3Server, tmp_path: Path) -> None:
    url = "s3://corpus/written"
    for number, pattern in enumerate((f"{url}/a-%d.tar", url, f"{url}/b.parquet")):
        with al.ShardWriter(pattern, storage_options=moto.options) as writer:
            writer.write({"__key__": str(number), "txt": "x"})
            assert not [name for name in objects_of(moto, "written/") if name == "b.parquet"]
    assert writer.shards[0].path == f"{url}/b.parquet"
    found = objects_of(moto, "written/")
    assert sorted(found) == ["a-0.tar", "asyncloader-index.json", "b.parquet", "shard-00000.tar"]
    assert {*parse_index(found["asyncloader-index.json"])} == {*found} - {"asyncloader-index.json"}
    with (
        pytest.raises(FileExistsError, match=r"written/b.parquet' exists"),
        al.ShardWriter(f"{url}/b.parquet", storage_options=moto.options) as again,
    ):
        again.write({"txt": "y"})
    with (
        pytest.raises(ZeroDivisionError),
        al.ShardWriter(f"{url}/c.tar", storage_options=moto.options) as ended,
    ):
        ended.write({"__key__": "0", "txt": "x"})
        raise ZeroDivisionError
    assert objects_of(moto, "written/") == found
    assert len(al.from_urls(f"{url}/*.tar", storage_options=moto.options).head(9)) == 2


def test_a_folder_is_packed_into_a_bucket(moto: S3Server, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(5):
        (tmp_path / f"in/{number}.bin").write_bytes(bytes([number]) * (9 << 20))  # an upload in parts
    done = al.convert(
        tmp_path / "in",
        "s3://corpus/packed",
        shard_size="30MB",
        shuffle=False,
        storage_options=moto.options,
        num_workers=1,
    )
    assert (done.samples, done.shards) == (5, 2)
    found = samples_of("s3://corpus/packed/", storage_options=moto.options)
    assert [sample["bin"] == bytes([number]) * (9 << 20) for number, sample in enumerate(found)] == [True] * 5


def test_a_bucket_that_refuses_is_an_error(moto: S3Server, tmp_path: Path) -> None:
    urls = write_corpus("jsonl", tmp_path / "in")
    with pytest.raises(al.StoreError, match="404"):
        al.convert(urls, "s3://nowhere/out/", storage_options=moto.options, num_workers=0)
    with pytest.raises(ValueError, match=r"unknown option 'endpiont'.*endpoint"):
        al.convert(urls, "s3://corpus/out/", storage_options={"endpiont": moto.endpoint}, num_workers=0)


@pytest.mark.parametrize("kind", ["tar", "parquet", "csv"])
def test_from_a_web_server(kind: str, tmp_path: Path, no_leaks: None) -> None:
    urls = write_corpus(kind, tmp_path / "in")
    al.convert(urls, tmp_path / "out", to="parquet", samples_per_shard=17, num_workers=0)
    with testing.serve(tmp_path / "in") as server:
        remote = [server.url_of(Path(url).name) for url in urls]
        al.convert(remote, tmp_path / "web", to="parquet", samples_per_shard=17, num_workers=2)
    assert files_of(tmp_path / "web") == files_of(tmp_path / "out")


def test_a_run_between_buckets_that_is_killed_goes_on(moto: S3Server, tmp_path: Path) -> None:
    urls = write_corpus("jsonl", tmp_path / "in", 600)
    source = upload(moto, "killed-in/", urls)
    options: Any = {"samples_per_shard": 20, "num_workers": 0, "storage_options": moto.options}
    al.convert(source, "s3://corpus/whole/", **options)
    program = (
        "import sys, asyncloader as al\nprint('begins', flush=True)\n"
        f"al.convert({source!r}, 's3://corpus/killed/', samples_per_shard=20, num_workers=2)"
    )
    # In the environment, since the whole machine sees command lines.
    environment = {
        **os.environ,
        "AWS_ENDPOINT_URL": moto.endpoint,
        "AWS_REGION": moto.region,
        "AWS_ACCESS_KEY_ID": moto.access_key_id,
        "AWS_SECRET_ACCESS_KEY": moto.secret_access_key,
    }
    command = [sys.executable, "-c", program]
    # Each goes on where the last one was killed: after so many shards, before there are all.
    for shards in (1, 9, 17):
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as run:
            assert run.stdout is not None and run.stdout.readline()
            until(lambda shards=shards: len(shards_of(moto, "killed/")) >= shards)  # type: ignore[misc]
            run.send_signal(signal.SIGKILL)
        assert run.wait() == -signal.SIGKILL
        assert shards <= len(shards_of(moto, "killed/")) <= 30
        assert "asyncloader-index.json" not in objects_of(moto, "killed/"), (
            "it came to its end before it was killed"
        )
    al.convert(source, "s3://corpus/killed/", **options)
    whole, killed = objects_of(moto, "whole/"), objects_of(moto, "killed/")
    assert killed == whole
