"""What ``report()`` says of passes whose bottleneck is known, since it was built in."""

from __future__ import annotations

import asyncio
import bz2
import json
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from corpus import tar_of

import asyncloader as al
from asyncloader import testing
from asyncloader.observe.report import Report
from asyncloader.plan.topology import Topology

pytestmark = pytest.mark.usefixtures("fork_server")

SHARDS = 24
LARGE = np.zeros(24 << 20, np.uint8)


def busy(seconds: float) -> None:
    """Work as long, with the interpreter's lock."""
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass


def works(sample: Any) -> Any:
    busy(0.001)
    return sample


async def asks(sample: Any) -> Any:
    await asyncio.sleep(0.005)
    return sample


def sleeps(sample: Any) -> Any:
    time.sleep(0.002)
    return sample


NOISE = np.random.default_rng(0).integers(0, 9, 300_000, np.uint8).tobytes()


def deflates(sample: Any) -> Any:
    zlib.compress(NOISE)  # without the interpreter's lock
    return sample


def slow_collate(samples: list[Any]) -> int:
    time.sleep(0.02)
    return len(samples)


def large_batch(samples: list[Any]) -> Any:
    return LARGE


def numbers(count: int = 1_000) -> al.Dataset:
    return al.from_iterable(lambda topology: topology.split(range(count)))


def one_lane_is_slow(topology: Topology) -> Iterator[int]:
    for number in topology.split(range(800)):
        if topology.lane % 2:
            time.sleep(0.004)
        yield number


class Numbers(torch.utils.data.Dataset[int]):
    """Map style; subclasses are slow somewhere."""

    def __len__(self) -> int:
        return 320

    def __getitem__(self, index: int) -> int:
        return index


class Busy(Numbers):
    def __getitem__(self, index: int) -> int:
        busy(0.001)
        return index


class Sleepy(Numbers):
    def __getitem__(self, index: int) -> int:
        time.sleep(0.002)
        return index


class Together(Numbers):
    def __getitems__(self, indices: list[int]) -> list[int]:
        busy(0.02)
        return indices


class Remote(Numbers):
    async def __getitem__(self, index: int) -> int:  # type: ignore[override]
        await asyncio.sleep(0.02)
        return index


class Record:
    """What whoever receives it works on."""

    def __reduce__(self) -> Any:
        return _receive, ()


def _receive() -> Record:
    busy(0.02)
    return Record()


class Records(Numbers):
    def __getitem__(self, index: int) -> Any:
        return index if index % 16 else Record()


class Stream(torch.utils.data.IterableDataset[int]):
    """Iterable style, of which each worker has its part."""

    uneven = False

    def __iter__(self) -> Iterator[int]:
        info = al.get_worker_info()
        worker, workers = (info.id, info.num_workers) if info is not None else (0, 1)
        for number in range(worker, 320, workers):
            if not self.uneven or worker:
                time.sleep(0.003)
            yield number


class Uneven(Stream):
    uneven = True


class Drawn(torch.utils.data.Sampler[int]):
    """A sampler that thinks."""

    def __iter__(self) -> Iterator[int]:
        for number in range(320):
            busy(0.002)
            yield number

    def __len__(self) -> int:
        return 320


def slow_start(worker: int) -> None:
    time.sleep(1.0)


def whole(samples: Any) -> Any:
    return samples


class Case(NamedTuple):
    """A pass with one bottleneck.

    Attributes:
        limit: What it is.
        recipe: Makes the dataset of the folder with the shards, or of the URL of the server that has them.
        options: Of the loader.
        server: That has the shards, if they are read from one.
        step_s: What the training loop takes for a batch.
        advice: What the third line speaks of.
        never: What that line does not speak of.
        passes: The report is of the last one.
        workers: With how many workers it is one; if both with 0 and with 2, cases take them in turn, and
            both in the slow tests.
    """

    limit: str
    recipe: Callable[[str], Any]
    options: Mapping[str, Any] = MappingProxyType({})
    server: Callable[[], AbstractContextManager[testing.Server]] | None = None
    step_s: float = 0.0
    advice: str = ""
    never: str = "-"
    passes: int = 1
    workers: tuple[int, ...] = (0, 2)


def serve(
    *faults: testing.Fault, rate: float | None = None, latency_s: float = 0.0, shards: int = SHARDS
) -> Any:
    """A server of tars of 2 MB."""
    body = tar_of(20, 100_000)
    return lambda: testing.serve(
        {f"{n}.tar": body for n in range(shards)}, faults, rate_bytes_s=rate, latency_s=latency_s
    )


def tars(url: str, **options: Any) -> al.Dataset:
    return al.from_urls(f"{url}/{{0..{SHARDS - 1}}}.tar", **options)


CASES = {
    "slow consumer": Case("consumer", lambda folder: numbers(), step_s=0.02),
    "slow store": Case("store", tars, server=serve(rate=4e6), advice="num_workers"),
    "slow decoding": Case("decode", lambda folder: al.from_urls(f"{folder}/*.bz2"), {"collate_fn": len}),
    "slow function": Case("map(works)", lambda folder: numbers().map(works), advice="num_workers=|process"),
    "function with the lock": Case(
        "map(works)", lambda folder: numbers().map(works, concurrency=4), advice="lock|num_workers=|process"
    ),
    "function that waits": Case(
        "map(sleeps)", lambda folder: numbers(2_000).map(sleeps, concurrency=2), advice="raise concurrency"
    ),
    "function without the lock": Case(
        "map(deflates)",
        lambda folder: numbers(300).map(deflates, concurrency=16),
        advice="processor",
        never="lock",
    ),
    "slow start of a stream": Case(
        "start",
        lambda folder: numbers(),
        {"worker_init_fn": slow_start},
        advice="Nothing to change",
        workers=(2,),
    ),
    "an outage": Case(
        "store", tars, server=serve(testing.Status(500, after=10, times=5), latency_s=0.02), never="in_order"
    ),
    "a full cache": Case(
        "store",
        lambda url: tars(url, cache_dir=CACHE[0], cache_limit="4MB"),
        server=serve(rate=2e7),
        advice="cache_limit",
        passes=2,
    ),
    "slow coroutine": Case(
        "map(asks)", lambda folder: numbers(2_000).map(asks, concurrency=8), advice="Raise concurrency"
    ),
    "slow filter": Case("filter(works)", lambda folder: numbers().filter(works)),
    "slow collate_fn": Case("collate", lambda folder: numbers(), {"collate_fn": slow_collate}),
    "large batches": Case("transport", lambda folder: numbers(), {"collate_fn": large_batch}, workers=(2,)),
    "unbalanced lanes": Case(
        "lanes", lambda folder: al.from_iterable(one_lane_is_slow), advice="in_order", workers=(2,)
    ),
    "a server that refuses": Case(
        "server", tars, server=serve(testing.Status(503, retry_after=0.3, after=4, times=8), rate=8e6)
    ),
    "little memory": Case(
        "memory_limit", tars, {"memory_limit": 16 << 20}, server=serve(rate=3e6, latency_s=0.02)
    ),
    "a cold cache": Case("cache", lambda url: tars(url, cache_dir=CACHE[0]), server=serve(rate=8e6)),
}

TORCHS = {
    "slow consumer of a map": Case("consumer", lambda _: Numbers(), step_s=0.1),
    "slow __getitem__": Case("Busy.__getitem__", lambda _: Busy(), advice="num_workers=|process"),
    "__getitem__ that waits": Case("Sleepy.__getitem__", lambda _: Sleepy(), advice="mostly waits"),
    "slow __getitems__": Case("Together.__getitems__", lambda _: Together(), advice="num_workers=|process"),
    "remote items": Case("Remote.__getitem__", lambda _: Remote(), advice="48"),
    "a subset": Case("Busy.__getitem__", lambda _: torch.utils.data.Subset(Busy(), range(300))),
    "slow sampler": Case("sampler", lambda _: Numbers(), {"sampler": Drawn()}, advice="list of the indices"),
    "slow collate_fn of a map": Case("collate", lambda _: Numbers(), {"collate_fn": slow_collate}),
    "large batches of a map": Case(
        "transport",
        lambda _: Numbers(),
        {"collate_fn": large_batch, "batch_size": 2},  # as many that workers tell of more than the first
        advice="smaller",
        workers=(2,),
    ),
    "batches of slow objects": Case(
        "transport", lambda _: Records(), {"collate_fn": whole}, advice="Return tensors", workers=(2,)
    ),
    "slow start": Case(
        "start",
        lambda _: Numbers(),
        {"worker_init_fn": slow_start},
        advice="persistent_workers",
        workers=(2,),
    ),
    "slow iterable": Case("Stream.__iter__", lambda _: Stream(), advice="mostly waits"),
    "unbalanced workers": Case("workers", lambda _: Uneven(), advice="split", workers=(2,)),
}

#: Cases that are tried beside busy processes each time; the others are slow tests.
BESIDE = [("slow function", 0), ("slow __getitem__", 2), ("function without the lock", 0)]


def write_lines(folder: Path) -> Path:
    """JSON Lines, compressed so that they are slow to read, and in a folder below as they are."""
    (folder / "plain").mkdir()
    for shard in range(SHARDS):
        lines = (json.dumps({"n": n, "tokens": list(range(1_000))}) + "\n" for n in range(200))
        body = "".join(lines).encode()
        # Slow to decompress: nearly all of the time is in the decoding, however busy the machine is.
        (folder / f"{shard}.jsonl.bz2").write_bytes(bz2.compress(body, 1))
        (folder / "plain" / f"{shard}.jsonl").write_bytes(body)
    return folder


CACHE: list[Path] = []
"""The folder of the test that runs."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lines(tmp_path_factory.mktemp("lines"))


def report_of(case: Case, workers: int, folder: Path) -> Report:
    with case.server() if case.server is not None else nullcontext() as server:
        recipe = case.recipe(str(folder) if server is None else server.url)
        with al.DataLoader(recipe, **{"batch_size": 16, "num_workers": workers, **case.options}) as loader:
            for _ in range(case.passes):
                for _ in loader:
                    if case.step_s:  # even a sleep of nothing would wait for the interpreter's lock
                        time.sleep(case.step_s)
            return loader.report()


def _passes() -> Iterator[Any]:
    cases = {**CASES, **TORCHS}
    for nth, (name, case) in enumerate(cases.items()):
        for at, workers in enumerate(case.workers):
            others = len(case.workers) > 1 and (nth + at) % 2
            yield pytest.param(name, workers, marks=pytest.mark.slow if others else [])


def own_ticks(pid: int) -> int:
    """The processor time of a process, of those that it has started, and of those of them that ended."""
    ticks = 0
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended meanwhile
            ticks += sum(map(own_ticks, map(int, children.read_text().split())))
    with suppress(OSError):  # the process has ended meanwhile
        ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks


def others_ticks() -> int:
    """The processor time of all other processes of the machine."""
    taken = [*map(int, Path("/proc/stat").read_text().split(maxsplit=9)[1:9])]
    del taken[3:5]  # idle, and idle while a disk is waited for
    return sum(taken) - own_ticks(os.getpid())


@pytest.mark.parametrize(("name", "workers"), [*_passes()])
def test_the_bottleneck_is_named(name: str, workers: int, folder: Path, tmp_path: Path) -> None:
    """Where other processes took the processors, another pass is judged.

    After five such passes the report has to say that processors are missing.
    """
    case = {**CASES, **TORCHS}[name]
    for attempt in range(5):
        CACHE[:] = [tmp_path / str(attempt)]
        began_s, others = time.perf_counter(), others_ticks()
        report = report_of(case, workers, folder)
        others_cpus = (others_ticks() - others) / os.sysconf("SC_CLK_TCK") / (time.perf_counter() - began_s)
        print(report, f"Other processes kept {others_cpus:.2f} processors busy.", sep="\n")
        if report.limit == case.limit or others_cpus < 0.25:
            break
    else:
        assert report.limit in ("processor", "start")[: 1 + (workers > 0)], str(report)
        return
    assert report.limit == case.limit, str(report)
    advice = case.advice.split("|")
    assert any(part in report.lines[2] for part in advice), str(report)
    assert case.never not in report.lines[2], str(report)
    assert sum(report.shares.values()) == pytest.approx(1.0)


@pytest.fixture
def busy_machine() -> Iterator[None]:
    """Two other processes that want all of a processor each."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


@pytest.mark.usefixtures("busy_machine")
@pytest.mark.parametrize(
    ("name", "workers"),
    [
        pytest.param(name, workers, marks=[] if (name, workers) in BESIDE else pytest.mark.slow)
        for name, case in {**CASES, **TORCHS}.items()
        for workers in case.workers
    ],
)
def test_beside_busy_processes_nothing_is_taken_for_another(
    name: str, workers: int, folder: Path, tmp_path: Path
) -> None:
    """The bottleneck, or that processors are what is missing; and work is never told to wait less."""
    CACHE[:] = [tmp_path]
    case = {**CASES, **TORCHS}[name]
    report = report_of(case, workers, folder)
    print(report)
    assert report.limit in (case.limit, "processor", *["start"] * (workers > 0)), str(report)
    if "process" in case.advice:
        assert "waits" not in report.lines[2] and "lock" not in report.lines[2].partition(".")[0], str(report)
