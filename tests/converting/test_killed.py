"""Runs that are killed, by whatever, and go on: the shards are those of a run that nobody disturbed."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from foreign_folders import write_mds
from waiting import until

import asyncloader as al
from asyncloader import testing
from asyncloader.errors import WorkerDiedError
from asyncloader.shards.destinations import open_destination

from .corpora import files_of, write_corpus

SAMPLES = 3000
PROGRAM = """
import sys, asyncloader as al
print("begins", flush=True)
source, output, to, *format = sys.argv[1:]
al.convert(source, output, to=to, format=format[0] if format else None, samples_per_shard=40, num_workers=2)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("source")
    write_corpus("jsonl", folder, SAMPLES, shards=2)  # a worker makes what is cut from one
    return f"{folder}/*.jsonl"


@pytest.fixture(scope="module")
def mds(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(
        write_mds(tmp_path_factory.mktemp("source") / "mds", (SAMPLES // 3, SAMPLES // 2, SAMPLES // 6))
    )


def start(source: str, output: Path, to: str, format: str | None = None) -> subprocess.Popen[str]:
    """A run in a process of its own, which has imported what it needs."""
    command = [sys.executable, "-W", "error", "-c", PROGRAM, source, str(output), to]
    command += [] if format is None else [format]
    run = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "MARK": str(output)}
    )
    assert run.stdout is not None
    assert run.stdout.readline() == "begins\n"
    return run


def processes_of(output: Path) -> list[int]:
    """Those that the run of ``output`` has started, and itself."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and f"MARK={output}\0" in (folder / "environ").read_text():
                found.append(int(folder.name))
        except OSError:
            pass
    return found


@pytest.mark.parametrize(
    ("format", "to", "moments"),
    [
        (None, "tar", 2),
        (None, "parquet", 2),
        ("mds", "parquet", 2),
        *(
            pytest.param(None, to, 20, marks=[pytest.mark.slow, pytest.mark.timeout(600)])
            for to in ("tar", "jsonl.zst", "parquet")
        ),
    ],
)
def test_killed_at_random_moments_and_run_again_gives_the_same_shards(
    format: str | None, to: str, moments: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source: str = request.getfixturevalue(format or "source")
    began = time.monotonic()
    with start(source, tmp_path / "whole", to, format) as run:
        assert run.wait(120) == 0
    took_s = time.monotonic() - began
    expected = files_of(tmp_path / "whole")
    assert len(expected) == SAMPLES // 40 + 1
    draw = random.Random(to + str(moments))
    stages = set()
    for moment in range(moments):
        output = tmp_path / f"killed-{moment}"
        with start(source, output, to, format) as run:
            # A while after so many shards, lest most kills come while the run is still being planned.
            shards = draw.randrange(len(expected)) - 1
            until(lambda output=output, shards=shards: len([*output.glob("shard-*")]) >= shards)  # type: ignore[misc]
            time.sleep(draw.uniform(0, took_s * 0.02))
            run.send_signal(signal.SIGKILL)
        until(lambda output=output: not processes_of(output))  # type: ignore[misc]
        left = files_of(output) if output.exists() else {}
        stages.add(len(left))
        # What has a name is whole.
        assert {name: content for name, content in left.items() if expected[name] != content} == {}
        done = al.convert(source, output, to=to, format=format, samples_per_shard=40, num_workers=0)
        assert (done.samples, files_of(output)) == (SAMPLES, expected)
        assert sorted(path.name for path in (output / ".convert").iterdir()) == sorted(
            path.name for path in (tmp_path / "whole" / ".convert").iterdir()
        )
        shutil.rmtree(output)
    if moments > 10:
        assert len(stages) > 4, f"the kills came at {stages} files"


def test_what_is_whole_is_not_made_again(source: str, tmp_path: Path) -> None:
    al.convert(source, tmp_path / "out", samples_per_shard=100, num_workers=0)
    expected = files_of(tmp_path / "out")
    inodes = {path.name: path.stat().st_ino for path in (tmp_path / "out").glob("*.tar")}
    (tmp_path / "out/shard-00007.tar").unlink()
    with open(tmp_path / "out/shard-00009.tar", "ab") as file:
        file.write(b"more")
    done = al.convert(source, tmp_path / "out", samples_per_shard=100, num_workers=0)
    assert (done.made, done.shards, files_of(tmp_path / "out")) == (2, 30, expected)
    now = {path.name: path.stat().st_ino for path in (tmp_path / "out").glob("*.tar")}
    assert {name for name in now if now[name] != inodes[name]} == {"shard-00007.tar", "shard-00009.tar"}


def test_shards_inside_of_what_is_compressed_are_gone_on_with(tmp_path: Path) -> None:
    urls = write_corpus("jsonl.zst", tmp_path / "in", 600, shards=1)
    al.convert(urls, tmp_path / "out", samples_per_shard=50, num_workers=0)
    expected = files_of(tmp_path / "out")
    for number in (0, 4, 5, 11):
        (tmp_path / f"out/shard-{number:05d}.tar").unlink()
    done = al.convert(urls, tmp_path / "out", samples_per_shard=50, num_workers=2)
    assert (done.made, files_of(tmp_path / "out")) == (4, expected)


def test_a_worker_that_is_killed_ends_the_run_with_an_error(source: str, tmp_path: Path) -> None:
    program = PROGRAM.replace("al.convert", "try: al.convert").rstrip() + (
        "\nexcept al.WorkerDiedError as error: print(error)\n"
    )
    command = [sys.executable, "-c", program, source, str(tmp_path / "out"), "tar"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "MARK": str(tmp_path / "out")}
    ) as run:
        # The run, the process that workers are forked from, and two of these.
        until(lambda: len(processes_of(tmp_path / "out")) == 4)
        for pid in processes_of(tmp_path / "out"):
            if pid != run.pid:
                with suppress(ProcessLookupError):  # the others end with the one that forked them
                    os.kill(pid, signal.SIGKILL)
        said, _ = run.communicate(timeout=60)
    assert "call convert again" in said
    assert WorkerDiedError.__name__ not in said
    assert not processes_of(tmp_path / "out")
    al.convert(source, tmp_path / "out", samples_per_shard=40, num_workers=0)


def test_a_second_run_into_one_folder_is_refused(source: str, tmp_path: Path) -> None:
    (tmp_path / "out/.convert").mkdir(parents=True)
    number = os.open(tmp_path / "out/.convert", os.O_RDONLY)
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="another run is writing to"):
            al.convert(source, tmp_path / "out", num_workers=0)
    finally:
        os.close(number)
    al.convert(source, tmp_path / "out", num_workers=0)


def test_a_folder_that_cannot_be_locked_is_refused(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))  # as some network file systems do

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", flock)
        with pytest.raises(ValueError, match=r"cannot be locked .*write to a local folder"):
            al.convert(source, tmp_path / "out", num_workers=0)
    assert not (tmp_path / "out").exists()


def test_a_full_disk_is_an_error_and_the_next_call_goes_on(source: str, tmp_path: Path) -> None:
    folder, mount = tmp_path / "small", shutil.which("mount")
    folder.mkdir()
    command = [str(mount), "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if mount is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("only who may mount file systems can fill one")
    try:
        for workers in (0, 2):
            with pytest.raises(OSError, match="No space left"):
                al.convert(source, folder / "out", samples_per_shard=100, num_workers=workers)
            assert not [*(folder / "out/.convert").glob(".*.tmp")]
        subprocess.run([mount, "-o", "remount,size=64m", str(folder)], check=True)
        done = al.convert(source, folder / "out", samples_per_shard=100, num_workers=0)
        assert 0 < done.made < done.shards
        al.convert(source, tmp_path / "whole", samples_per_shard=100, num_workers=0)
        assert files_of(folder / "out") == files_of(tmp_path / "whole")
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_what_a_killed_run_has_counted_is_not_counted_again(tmp_path: Path) -> None:
    urls = write_corpus("jsonl", tmp_path / "in")
    (tmp_path / "in/asyncloader-index.json").unlink()
    with testing.serve(tmp_path / "in") as server:
        sources = [server.url_of(Path(url).name) for url in urls]
        al.convert(sources, tmp_path / "out", samples_per_shard=10, num_workers=0)
        expected = files_of(tmp_path / "out")
        (tmp_path / "out/shard-00005.tar").unlink()
        sent = server.counters.bytes_sent
        assert al.convert(sources, tmp_path / "out", samples_per_shard=10, num_workers=0).made == 1
        # A byte of each to learn whether it has changed, and the one that the shard is cut from.
        most = Path(urls[2]).stat().st_size + 100
        assert server.counters.bytes_sent - sent < most
    assert files_of(tmp_path / "out") == expected


def test_the_notes_in_an_object_store_are_read_some_at_a_time_and_in_their_order() -> None:
    names = [f".convert/shard-{number:05d}.jsonl.json" for number in range(100)]
    objects = {f"corpus/out/{name}": name.encode() for name in names if name != names[7]}
    with testing.serve(objects, latency_s=0.2) as server:
        options = {"endpoint": server.url, "anonymous": True}
        found = list(open_destination("s3://corpus/out/", options).read_each(names))
        at_a_time = server.counters.max_concurrent
    assert found == [None if name == names[7] else name.encode() for name in names]
    assert 1 < at_a_time <= 32
