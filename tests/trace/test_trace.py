"""Traces of passes: what stands in the file, when it is written, and that viewers can read it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from programs import Programs
from torch.utils.data import Dataset

import asyncloader as al
from asyncloader import testing
from asyncloader.plan.topology import Topology

from .trace_format import check_events, slices_of

pytestmark = pytest.mark.usefixtures("fork_server")

SHARDS = 6


def slow(sample: Any) -> Any:
    time.sleep(0.001)
    return {"tokens": list(sample["txt"])}


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    folder = tmp_path / "shards"
    folder.mkdir()
    with al.ShardWriter(str(folder / "{:02d}.tar"), samples_per_shard=20) as writer:
        for number in range(20 * SHARDS):
            writer.write({"__key__": f"{number:05d}", "txt": "x" * (5 + number % 20), "bin": bytes(5_000)})
    return folder


def recipe(url: object) -> al.Dataset:
    return al.from_urls(f"{url}/{{00..0{SHARDS - 1}}}.tar").map(slow)


def loader_of(dataset: Any, path: Path, **options: Any) -> al.DataLoader[Any]:
    return al.DataLoader(dataset, batch_size=8, collate_fn=al.Pad({"tokens": 0}), trace=path, **options)


def load(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The events and the summary of a file, whose format is checked."""
    run = json.loads(path.read_text())
    check_events(run)
    return run["traceEvents"], run["asyncloader"]


def of_consumer(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event.get("cat") == "consumer"]


def check_whole(consumer: list[dict[str, Any]], wall_s: float) -> None:
    """Each event begins where the one before ends, and all together are what the loop took.

    Seen from outside it took longer: the pass is also made in that time, closed, and written.
    """
    for event, following in pairwise(sorted(consumer, key=lambda event: event["ts"])):
        assert following["ts"] == pytest.approx(event["ts"] + event["dur"], abs=10)  # microseconds
    assert wall_s / 5 < sum(event["dur"] for event in consumer) / 1e6 <= wall_s


@pytest.mark.parametrize("workers", [0, 2])
def test_a_trace_of_a_stream_is_in_the_format_and_adds_up(shards: Path, tmp_path: Path, workers: int) -> None:
    path = tmp_path / "run.json"
    with testing.serve(shards, latency_s=0.005) as server:
        loader = loader_of(recipe(server.url), path, num_workers=workers)
        began_s = time.perf_counter()
        for _ in loader:
            time.sleep(0.05)
        wall_s = time.perf_counter() - began_s
    events, summary = load(path)
    consumer = of_consumer(events)
    assert {event["name"] for event in consumer} == {"waiting for a batch", "training step"}
    check_whole(consumer, wall_s)
    stepped = sum(event["dur"] for event in consumer if event["name"] == "training step")
    assert stepped / 1e6 >= 0.05 * summary["statistics"]["batches"] > 0
    waited = sum(event["dur"] for event in consumer if event["name"] == "waiting for a batch")
    assert waited == pytest.approx(summary["statistics"]["wait_s"] * 1e6, rel=0.05)
    makers = [slices for slices in slices_of(events).values() if slices[0]["cat"] == "maker"]
    assert len(makers) == max(workers, 1)
    for slices in makers:  # each moment of a thread is of one stage
        seconds = (slices[-1]["ts"] + slices[-1]["dur"] - slices[0]["ts"]) / 1e6
        assert sum(event["dur"] for event in slices) / 1e6 == pytest.approx(seconds, rel=0.05)
        assert {"map(slow)", "store", "collate"} <= {event["name"] for event in slices}
    parts = [event for event in events if event["ph"] == "b"]
    assert {event["name"] for event in parts} == {f"0{n}.tar" for n in range(SHARDS)}
    assert summary["latency"]["count"] == len(parts) and summary["latency"]["p50_s"] >= 0.005
    assert any(event["ph"] == "C" and event["args"]["bytes"] for event in events)


class Slow(Dataset[dict[str, Any]]):
    """Map style."""

    def __len__(self) -> int:
        return 120

    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(0.001)
        return {"tokens": [1] * (1 + index % 20)}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_trace_of_a_map_style_dataset_is_in_the_format_and_adds_up(tmp_path: Path, workers: int) -> None:
    path = tmp_path / "run.json"
    loader = loader_of(Slow(), path, num_workers=workers, persistent_workers=bool(workers))
    walls_s = []
    for _ in range(2):
        began_s = time.perf_counter()
        for _ in loader:
            time.sleep(0.05)
        walls_s.append(time.perf_counter() - began_s)
    del loader
    for name, wall_s in zip(("run.json", "run-epoch-1.json"), walls_s, strict=True):
        events, summary = load(tmp_path / name)
        consumer = of_consumer(events)
        check_whole(consumer, wall_s)
        waited = sum(event["dur"] for event in consumer if event["name"] == "waiting for a batch")
        assert waited == pytest.approx(summary["statistics"]["wait_s"] * 1e6, rel=0.05, abs=1e3)
        makers = [slices for slices in slices_of(events).values() if slices[0]["cat"] == "maker"]
        assert len(makers) == max(workers, 1)
        assert all("Slow.__getitem__" in {event["name"] for event in slices} for slices in makers)
        rows = summary["series"]["rows"]
        assert sum(rows["batches"]) == summary["statistics"]["batches"] == 15
        assert 0.5 < sum(rows["real_cells"]) / sum(rows["cells"]) < 1


def test_each_of_many_small_batches_is_in_a_trace_with_all_its_stages(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    for _ in al.DataLoader(range(600), 2, trace=path):
        pass
    events, summary = load(path)
    (slices,) = [slices for slices in slices_of(events).values() if slices[0]["cat"] == "maker"]
    for stage in ("sampler", "range.__getitem__", "collate"):
        assert 300 <= sum(event["name"] == stage for event in slices) <= 301
    told_s, elapsed_s = sum(event["dur"] for event in slices) / 1e6, summary["statistics"]["elapsed_s"]
    assert elapsed_s / 5 < told_s <= elapsed_s


def test_a_map_style_loop_that_is_left_is_written_too(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    for _ in loader_of(Slow(), path, num_workers=2):
        break
    assert load(path)[1]["statistics"]["batches"] == 1


@pytest.mark.parametrize(
    "options", ["range(99)", "range(99), num_workers=1", "al.from_iterable(range(99))"], ids=str
)
def test_the_file_is_there_when_an_error_ends_the_program(
    tmp_path: Path, programs: Programs, options: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import asyncloader as al\n"
        f"for _ in al.DataLoader({options}, trace={str(tmp_path / 'run.json')!r}):\n"
        "    raise SystemExit(3)\n"
    )
    assert programs.run(script, strict=False).returncode == 3
    assert load(tmp_path / "run.json")[1]["statistics"]["batches"] == 1


def test_what_comes_of_it_over_time_is_what_was_counted(shards: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with testing.serve(shards) as server:
        for _ in loader_of(recipe(server.url), path, num_workers=2):
            time.sleep(0.002)
    _, summary = load(path)
    rows, statistics = summary["series"]["rows"], summary["statistics"]
    assert len({len(row) for row in rows.values()}) == 1
    for name in ("batches", "samples", "size_bytes"):
        assert sum(rows[name]) == statistics[name]
    assert sum(rows["waited_s"]) == pytest.approx(statistics["wait_s"], rel=0.05)
    assert sum(rows["received_bytes"]) == pytest.approx(
        sum(path.stat().st_size for path in shards.glob("*.tar")), rel=0.01
    )
    assert 0.5 < sum(rows["real_cells"]) / sum(rows["cells"]) < 0.9
    assert summary["report"]["lines"][0].startswith("16 batches")
    assert summary["setup"]["num_workers"] == 2


def test_retries_and_refusals_are_marked_without_secrets(shards: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    faults = [
        testing.CutAt(key="01.tar", times=1, byte=10_000),
        testing.Status(503, key="02.tar", times=1),
    ]
    with testing.serve(shards, faults) as server:
        urls = [f"{server.url}/{number:02d}.tar?X-Amz-Signature=secret" for number in range(SHARDS)]
        for _ in loader_of(al.from_urls(urls).map(slow), path):
            pass
    events, summary = load(path)
    marks = {event["name"]: event["args"] for event in events if event["ph"] == "i"}
    assert marks.keys() == {"retry", "throttled"}
    assert "01.tar" in marks["retry"]["shard"] and marks["throttled"]["status"] == 503
    assert sum(summary["series"]["rows"]["mark/retry"]) == 1
    assert "secret" not in path.read_text()


def test_a_killed_worker_and_what_is_skipped_are_marked(tmp_path: Path) -> None:
    killed = tmp_path / "killed"

    def dies_once(number: int) -> int:
        if number == 150 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if number == 20:
            raise ValueError("a bad sample")
        return number

    path = tmp_path / "run.json"
    recipe = al.from_iterable(lambda topology: topology.split(range(400))).map(dies_once)
    loader = al.DataLoader(recipe, 10, num_workers=2, on_error=al.SkipErrors(max=5), trace=path)
    assert sum(len(batch) for batch in loader) == 399
    events, summary = load(path)
    marks = [event["name"] for event in events if event["ph"] == "i"]
    assert sorted(marks) == ["skipped", "worker restarted"]
    assert summary["statistics"]["worker_restarts"] == summary["statistics"]["skipped"] == 1


def test_the_file_is_whole_when_a_loop_breaks_or_raises(shards: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with testing.check_leaks():
        batches = iter(loader_of(recipe(shards), path))
        next(batches)
        assert not path.exists()
        batches.close()
    assert load(path)[1]["statistics"]["batches"] == 1

    def fails(sample: Any) -> Any:
        raise ValueError("the user's own")

    path = tmp_path / "failed.json"
    with pytest.raises(ValueError, match="the user's own"):
        list(loader_of(recipe(shards).map(fails), path))
    events, summary = load(path)
    assert summary["statistics"]["batches"] == 0 and of_consumer(events)
    assert not list(tmp_path.glob(".*"))


def test_each_epoch_and_each_rank_has_a_file_of_its_own(shards: Path, tmp_path: Path) -> None:
    loader = loader_of(recipe(shards), tmp_path / "run.json")
    for _ in range(2):
        list(loader)
    loader.set_epoch(0)
    list(loader)
    assert [load(tmp_path / name)[1]["epoch"] for name in ("run.json", "run-epoch-1.json")] == [0, 1]
    assert load(tmp_path / "run-2.json")[1]["epoch"] == 0
    list(loader_of(recipe(shards), tmp_path / "run.json", rank=1, world_size=2, uneven="ignore"))
    events, summary = load(tmp_path / "run-rank-1.json")
    assert summary["rank"] == 1
    assert {event["pid"] for event in events}.isdisjoint(
        {event["pid"] for event in load(tmp_path / "run.json")[0]}
    )


@pytest.mark.parametrize("trace", [5, b"run.json"])
def test_a_trace_that_is_no_path_is_refused(trace: Any) -> None:
    with pytest.raises(TypeError, match="trace should be the path of a file, but got"):
        al.DataLoader(al.from_iterable([1]), trace=trace)


def test_a_url_and_a_folder_that_is_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="trace should be the path of a file on disk"):
        al.DataLoader(al.from_iterable([1]), trace="s3://bucket/run.json")
    with pytest.raises(ValueError, match="is not a folder; make it, or pass another path"):
        iter(al.DataLoader(al.from_iterable([1]), trace=tmp_path / "nowhere" / "run.json"))


def numbers(topology: Topology) -> Iterator[int]:
    yield from topology.split(range(2_000))


def test_a_trace_stays_bounded_and_says_what_it_has_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncloader.observe.trace_keeping._MOST_OF_CONSUMER", 100)
    monkeypatch.setattr("asyncloader.observe.trace_keeping._MOST_SLICES", 50)
    path = tmp_path / "run.json"
    for number in al.DataLoader(al.from_iterable(numbers), batch_size=None, trace=path):
        if number == 1_000:
            time.sleep(0.2)
    events, summary = load(path)
    assert len(of_consumer(events)) <= 100
    assert sum(event["ph"] == "X" for event in events) <= 150
    assert summary["dropped"]["slices"] > 3_000
    # The longest stay, wherever they are.
    assert max(event["dur"] for event in of_consumer(events)) > 0.19e6
    told = sum(event["dur"] for event in of_consumer(events)) / 1e6
    assert told > 0.2
    assert sum(summary["series"]["rows"]["batches"]) == 2_000
