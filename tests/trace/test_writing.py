"""How the file of a traced pass is written, whatever the loop; and how one that is not ours is read."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
import time
from collections.abc import AsyncIterable
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Dataset

import asyncloader as al
from asyncloader import testing
from asyncloader.observe import trace_keeping as counters
from asyncloader.observe.page import render
from asyncloader.observe.statistics import Meter
from asyncloader.observe.trace_file import read_run
from asyncloader.observe.trace_keeping import STEP, WAITING, Trace
from asyncloader.observe.tracing import Flight, Slice

SLOWED_S = 0.7


class SlowDisk:
    """Files take long to be written; says which threads did."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.began = threading.Event()
        self._write = counters.write_run

    def write_run(self, *args: Any) -> None:
        self.threads.append(threading.current_thread().name)
        self.began.set()
        time.sleep(SLOWED_S)
        self._write(*args)


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    disk = SlowDisk()
    monkeypatch.setattr(counters, "write_run", disk.write_run)
    return disk


async def longest_gap(work: Any) -> float:
    """How long the event loop was held up at most while ``work`` was awaited."""
    longest_s, since_s = 0.0, time.perf_counter()
    task = asyncio.ensure_future(work)
    while not task.done():
        await asyncio.wait([task], timeout=0.005)
        now_s = time.perf_counter()
        longest_s, since_s = max(longest_s, now_s - since_s), now_s
    await task
    return longest_s


class Items(Dataset[int]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        return index


async def read(batches: AsyncIterable[Any]) -> None:
    async for _ in batches:
        pass


async def read_one(loader: Any) -> None:
    batches = aiter(loader)
    await anext(batches)
    await batches.aclose()


@pytest.mark.parametrize("reading", [read, read_one])
@pytest.mark.parametrize("dataset", [al.from_iterable(range(20)), Items()], ids=["stream", "map style"])
def test_an_event_loop_goes_on_while_the_file_is_written(
    tmp_path: Path, slow_disk: SlowDisk, dataset: Any, reading: Any
) -> None:
    path = tmp_path / "run.json"
    loader = al.DataLoader(dataset, batch_size=2, trace=path)
    with testing.check_leaks():
        assert asyncio.run(longest_gap(reading(loader))) < SLOWED_S / 2
    assert len(slow_disk.threads) == 1 and threading.current_thread().name not in slow_disk.threads
    assert read_run(str(path))["statistics"]["batches"] == (10 if reading is read else 1)


def test_a_loader_that_an_event_loop_leaves_does_not_hold_it_up(tmp_path: Path, slow_disk: SlowDisk) -> None:
    path = tmp_path / "run.json"

    async def leave() -> None:
        async with al.DataLoader(al.from_iterable(range(20)), batch_size=2, trace=path) as loader:
            batches = aiter(loader)
            await anext(batches)

    assert asyncio.run(longest_gap(leave())) < SLOWED_S / 2
    assert len(slow_disk.threads) == 1 and path.exists()


def test_a_loop_that_is_cancelled_while_the_file_is_written_leaves_it_whole(
    tmp_path: Path, slow_disk: SlowDisk
) -> None:
    path = tmp_path / "run.json"

    async def cancel() -> None:
        reading = asyncio.ensure_future(read(al.DataLoader(al.from_iterable(range(2)), trace=path)))
        await asyncio.to_thread(slow_disk.began.wait, 10)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    with testing.check_leaks():
        asyncio.run(cancel())
    assert read_run(str(path))["statistics"]["batches"] == 2


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_folder_that_is_gone_is_told_with_the_option_and_the_path(
    tmp_path: Path, asynchronous: bool
) -> None:
    path = tmp_path / "traces" / "run.json"
    path.parent.mkdir()
    batches: Any = iter(al.DataLoader(al.from_iterable([1, 2]), trace=path))
    next(batches)
    shutil.rmtree(path.parent)
    with pytest.raises(
        FileNotFoundError, match=r"trace='.*/traces/run\.json': the trace of a pass"
    ) as raised:
        asyncio.run(read(batches)) if asynchronous else list(batches)
    assert ".tmp" not in str(raised.value)


@pytest.mark.parametrize("dataset", [al.from_iterable([1]), Items()], ids=["stream", "map style"])
def test_a_file_that_cannot_be_written_is_refused_before_the_pass(tmp_path: Path, dataset: Any) -> None:
    with pytest.raises(IsADirectoryError, match="name another file"):
        iter(al.DataLoader(dataset, trace=tmp_path))
    with pytest.raises(OSError, match=r"trace='/proc/run.json': no trace could be written"):
        iter(al.DataLoader(dataset, trace="/proc/run.json"))
    assert not list(tmp_path.iterdir())


def test_what_kept_a_pass_from_beginning_is_told_before_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("asyncloader.atomic_file.os.fsync", fail)
    (tmp_path / "taken").touch()
    recipe = al.from_iterable(lambda topology: [1])
    loader = al.DataLoader(recipe, audit=tmp_path / "taken", trace=tmp_path / "run.json")
    with pytest.raises(ValueError, match="audit should be a folder") as caught:
        iter(loader)
    assert any("No space left on device" in note for note in caught.value.__notes__)
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_file_at_its_limits_is_written_in_about_a_second(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    trace = Trace(str(path), {"num_workers": 4}, lambda statistics: {})
    passed, start_s, kept = Meter(trace=trace), trace.start_s, trace._timeline
    for number in range(counters._MOST_OF_CONSUMER):
        at_s = start_s + number * 1e-6
        about = {"batch": number, "samples": 64, "bytes": 4096}
        kept.consumer.append(Slice(0, (WAITING, STEP)[number % 2], at_s, at_s + 1e-6, about))
    for number in range(counters._MOST_SLICES):
        at_s = start_s + number * 1e-6
        kept.slices.setdefault(number % 4, []).append(Slice(0, "decode", at_s, at_s + 1e-6))
    for number in range(counters._MOST_FLIGHTS):
        at_s, shard = start_s + number * 1e-6, f"https://example.com/train-{number:05d}.tar"
        flight = Flight(shard, 0, 4096, 4096, at_s, at_s, at_s + 1e-6, True)
        kept.flights.setdefault(number % 4, []).append(flight)
    began_s = time.thread_time()  # of this thread: others share the machine
    passed.close()
    assert time.thread_time() - began_s < 1.5
    assert 5e6 < path.stat().st_size < 20e6


# --- what is read again ---


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    list(al.DataLoader(al.from_iterable(range(20)), batch_size=2, trace=path))
    return path


EVIL = '<meta http-equiv=refresh content="0;url=https://example.com">'


def numbers_of(value: Any, *path: str) -> Any:
    """Where there are numbers in what was told, and what may be unknown."""
    for name, inner in value.items() if isinstance(value, dict) else ():
        yield from numbers_of(inner, *path, name)
    if path and (value is None or isinstance(value, int | float)):
        yield path


@pytest.mark.parametrize(
    "evil", [EVIL, -1, 1e300, [], 10**400], ids=["text", "-1", "1e300", "list", "10**400"]
)
def test_a_number_that_is_none_is_refused_or_does_no_harm(run_file: Path, evil: Any) -> None:
    whole = json.loads(run_file.read_text())
    places = list(numbers_of(whole["asyncloader"]))
    assert ("epoch",) in places and ("statistics", "elapsed_s") in places and len(places) > 30
    for place in places:
        run = json.loads(json.dumps(whole))
        inner = run["asyncloader"]
        for name in place[:-1]:
            inner = inner[name]
        inner[place[-1]] = evil
        run_file.write_text(json.dumps(run))
        try:
            page = render(read_run(str(run_file)))
        except ValueError as error:
            assert str(error).startswith(f"{run_file}: expected"), place
        else:
            assert EVIL not in page, place


@pytest.mark.parametrize("name", ["loader", "epoch", "statistics", "report", "series", "latency", "dropped"])
def test_a_file_that_lacks_something_is_refused(run_file: Path, name: str) -> None:
    run = json.loads(run_file.read_text())
    del run["asyncloader"][name]
    run_file.write_text(json.dumps(run))
    with pytest.raises(ValueError, match=f"expected a file that .* has written: .*`{name}`"):
        read_run(str(run_file))


@pytest.mark.parametrize("names", [["batches"], ["makers"], ["batches", "makers"]])
def test_a_file_that_lacks_some_of_its_statistics_is_refused(run_file: Path, names: list[str]) -> None:
    run = json.loads(run_file.read_text())
    for name in names:
        del run["asyncloader"]["statistics"][name]
    run_file.write_text(json.dumps(run))
    with pytest.raises(ValueError, match=f"has written: its statistics lack {', '.join(names)}"):
        read_run(str(run_file))


@pytest.mark.parametrize(
    "content",
    [
        b'{"asyncloader": {"version": 1}}',
        b'{"asyncloader": ' + b"[" * 100_000,
        b'{"asyncloader": {"version": 1}, "traceEvents": ' + b"[" * 100_000,
        b'{"asyncloader": {"version": "\xff"}}',
        b'{"asyncloader": {"version": {}}}',
        b"",
    ],
)
def test_a_file_that_is_none_is_told_in_one_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"run\.json: expected"):
        read_run(str(path))


@pytest.mark.parametrize(
    "latency", [{"bins": {"-40": 1}}, {"count": 3}, {"bins": {"999999999": 1}, "count": 1}]
)
def test_latencies_that_do_not_add_up_are_refused(run_file: Path, latency: dict[str, Any]) -> None:
    run = json.loads(run_file.read_text())
    run["asyncloader"]["latency"] |= latency
    run_file.write_text(json.dumps(run))
    with pytest.raises(ValueError, match="has written"):
        read_run(str(run_file))


def test_names_that_a_page_shows_are_text_whatever_they_are(run_file: Path) -> None:
    run = read_run(str(run_file))
    told = {**run, "epoch": EVIL, "rank": EVIL, "world_size": 2, "loader": EVIL}
    told["report"] = {**run["report"], "lines": [EVIL] * 3}
    assert "<meta http-equiv=refresh" not in render(told)
