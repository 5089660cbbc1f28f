"""Workers that are killed, crash or hang in the middle of a pass."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import torch
from corpus import Corpus, fingerprint
from programs import Programs
from waiting import AT_ONCE_S, opened

import asyncloader as al
from asyncloader import testing
from asyncloader.workers.forkserver import ForkServer

from .dying import Deadly, Stuck, Waiting, doubled, is_wanted, later, numbers, uneven, with_pid

pytestmark = pytest.mark.usefixtures("platform", "fork_server")

STATES = {
    ("sleeping", "native"): "is sleeping",
    ("stopped", "native"): "is stopped (the signal SIGCONT has it go on)",
    ("sleeping", "portable"): "is running, or waits for something",
    ("stopped", "portable"): "is running, or waits for something",
}
"""What is said of a process: more where there is /proc."""

NO_STACK = {"native": "its Python stack is not available", "portable": "it showed no Python stack within 1 s"}


# Each format, operator and batching at least once.
RECIPES: dict[str, tuple[str, Callable[[al.Dataset], al.Dataset], dict[str, Any]]] = {
    "tar": ("tar", lambda recipe: recipe.shuffle(20, seed=3).map(doubled), {"batch_size": 4}),
    "tar.gz, async": ("tar.gz", lambda recipe: recipe.map(later, concurrency=4), {"batch_size": 3}),
    "jsonl": (
        "jsonl",
        lambda recipe: recipe.filter(is_wanted).map(doubled, concurrency=3).repeat(2),
        {"batch_size": 4, "drop_last": True},
    ),
    "tokens": ("jsonl.zst", lambda recipe: recipe, {"batching": al.TokenBatches(max_tokens=20, pool=9)}),
    "buckets": (
        "parquet",
        lambda recipe: recipe,
        {"batching": al.Buckets(bounds=[2, 4], batch_sizes=[4, 3, 2], pool=12)},
    ),
    "packed": ("arrow", lambda recipe: recipe, {"batching": al.Pack(["tokens"], length=8, batch_size=2)}),
    "mixed": (
        "tar",
        lambda recipe: al.mix([recipe.shuffle(9), recipe.map(doubled)], weights=[2, 1], stop="all"),
        {"batch_size": 4},
    ),
    "taken": ("jsonl", lambda recipe: recipe.take(90).select_columns("key", "number"), {"batch_size": None}),
}

SIZES = (20, 0, 31, 1, 17, 25, 9, 40)


@pytest.mark.parametrize(
    ("kind", "in_order"), [*((kind, True) for kind in RECIPES), ("tar", False), ("packed", False)]
)
def test_an_epoch_goes_on_with_the_same_batches_whoever_is_killed(
    kind: str, in_order: bool, make_corpus: Callable[..., Corpus], tmp_path: Path
) -> None:
    suffix, complete, options = RECIPES[kind]
    corpus = make_corpus("jsonl" if suffix in _COLUMNAR else suffix, SIZES)
    paths = _written_anew(corpus, suffix, tmp_path) if suffix in _COLUMNAR else corpus.paths
    recipe = complete(al.from_urls(paths))
    options = {"lanes": 3, "collate_fn": with_pid, **options}
    whole = [fingerprint(batch) for batch, _ in al.DataLoader(recipe, **options)]
    kills, found = _drained_with_kills(recipe, every=7, in_order=in_order, num_workers=2, **options)
    assert kills
    if in_order:
        assert found == whole
    else:
        assert sorted(map(repr, found)) == sorted(map(repr, whole))


_COLUMNAR: dict[str, Callable[[pa.Table, Path], None]] = {
    "parquet": lambda table, path: pq.write_table(table, path, row_group_size=8),
    "arrow": lambda table, path: pa.feather.write_feather(table, path, compression="zstd", chunksize=8),
}


def _written_anew(corpus: Corpus, suffix: str, folder: Path) -> list[str]:
    """The same samples in another format."""
    paths = [folder / f"{Path(path).stem}.{suffix}" for path in corpus.paths]
    schema = pa.schema({"key": pa.string(), "number": pa.int64(), "tokens": pa.list_(pa.int64())})
    for path, target in zip(corpus.paths, paths, strict=True):
        rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
        _COLUMNAR[suffix](pa.Table.from_pylist(rows, schema), target)
    return [str(path) for path in paths]


def _drained_with_kills(
    recipe: al.Dataset, every: int, limit: int = 4, **options: Any
) -> tuple[int, list[Any]]:
    """How many were killed, a worker whose batch has come after each so many batches, and the batches."""
    loader = al.DataLoader(recipe, worker_restarts=limit + 1, prefetch_factor=1, **options)
    found, kills, since, dead = [], 0, every // 2, set()
    for batch, pid in loader:
        found.append(fingerprint(batch))
        since += 1
        if since >= every and kills < limit and pid not in dead:
            os.kill(pid, signal.SIGKILL)
            dead.add(pid)
            kills, since = kills + 1, 0
    # One that was killed behind its last batch is not missed.
    assert kills - 2 <= loader.statistics.worker_restarts <= kills
    return kills, found


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("in_order", [True, False])
def test_a_hundred_kills_in_one_epoch_change_nothing(
    in_order: bool, make_corpus: Callable[..., Corpus]
) -> None:
    recipe = al.from_urls(make_corpus("tar", (200,) * 16).paths).shuffle(50, seed=1).map(doubled)
    draw = random.Random(5)
    options: dict[str, Any] = {"batch_size": 2, "lanes": 6, "collate_fn": with_pid}
    whole = [fingerprint(batch) for batch, _ in al.DataLoader(recipe, **options)]
    with testing.check_leaks():
        loader = al.DataLoader(recipe, num_workers=3, worker_restarts=200, in_order=in_order, **options)
        found, dead = [], set()
        for batch, pid in loader:
            found.append(fingerprint(batch))
            if len(dead) < 100 and pid not in dead and draw.random() < 0.2:
                os.kill(pid, signal.SIGKILL)
                dead.add(pid)
        assert loader.statistics.worker_restarts >= 98
        del loader
    assert len(dead) == 100
    assert (found if in_order else sorted(map(repr, found))) == (
        whole if in_order else sorted(map(repr, whole))
    )


async def test_an_async_loop_goes_on_too() -> None:
    loader = al.DataLoader(numbers(120), 4, num_workers=2, collate_fn=with_pid)
    found: list[int] = []
    async for batch, pid in loader:
        if len(found) == 16:
            os.kill(pid, signal.SIGKILL)
        found += batch
    assert (found[:8], sorted(found)) == ([0, 2, 4, 6, 1, 3, 5, 7], list(range(120)))
    assert loader.statistics.worker_restarts == 1
    assert "worker_restarts=1" in repr(loader.statistics)


def test_batches_that_were_sent_before_a_death_are_delivered_first(tmp_path: Path) -> None:
    def count(number: int) -> int:
        with open(tmp_path / str(number), "a") as file:
            file.write("x")
        return number

    loader = al.DataLoader(
        numbers(40).map(count), 2, num_workers=1, prefetch_factor=3, collate_fn=with_pid, lanes=1
    )
    found: list[int] = []
    for batch, pid in loader:
        found += batch
        if len(found) == 2:
            while not (tmp_path / "7").exists():  # three more batches were made
                time.sleep(0.005)
            time.sleep(0.05)
            os.kill(pid, signal.SIGKILL)
    assert found == list(range(40))
    assert all((tmp_path / str(number)).read_text() == "x" for number in (0, 1, 2, 3, 4, 5))


def test_a_death_while_nothing_comes_is_made_good_at_once(tmp_path: Path) -> None:
    mark, pid = tmp_path / "mark", tmp_path / "pid"

    def tell_pid(worker: int) -> None:
        pid.write_text(str(os.getpid()))

    def kill() -> None:
        while not mark.exists():
            time.sleep(0.01)
        os.kill(int(pid.read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    recipe = numbers(12).map(Stuck(mark, once=True))
    loader = al.DataLoader(recipe, 2, num_workers=1, worker_init_fn=tell_pid)
    assert [number for batch in loader for number in batch.tolist()] == list(range(12))
    killer.join()


# --- errors ---


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_sample_that_always_kills_its_worker_is_an_error_that_names_it(
    number: signal.Signals, make_corpus: Callable[..., Corpus], caplog: pytest.LogCaptureFixture
) -> None:
    corpus = make_corpus("jsonl", SIZES)
    recipe = al.from_urls(corpus.paths).map(Deadly("2-14", number))
    with testing.check_leaks():
        loader = al.DataLoader(recipe, 4, num_workers=2, lanes=4, collate_fn=list)
        found: list[str] = []
        with pytest.raises(al.WorkerDiedError, match="died there too") as caught:
            for batch in loader:
                found += batch
        restarts = loader.statistics.worker_restarts
        del loader
    death = caught.value
    assert (death.worker, death.lane, death.exitcode) == (1, 3, -number)
    # What a map takes at a time goes with the sample.
    assert death.shard == corpus.paths[2] and death.sample in range(15)
    assert f"shard {corpus.paths[2]}, sample {death.sample}" in str(death)
    assert f"2-{death.sample}" not in found
    assert "it carried lanes 1 and 3, in batches of 4; the worker before" in str(
        death
    ) and number.name in str(death)
    said = [record for record in caplog.records if record.name == "asyncloader.workers"]
    assert len(said) == restarts in (1, 2)
    assert said[0].levelno == logging.WARNING and "another worker continues" in said[0].getMessage()


def test_in_a_mixture_that_dies_the_place_in_each_component_is_named(
    make_corpus: Callable[..., Corpus],
) -> None:
    paths = make_corpus("jsonl", (9, 9)).paths
    deadly = al.from_urls(paths[:1]).map(lambda sample: os._exit(3) if sample["key"] == "0-5" else sample)
    loader = al.DataLoader(
        al.mix([deadly, al.from_urls(paths[1:])]),
        2,
        lanes=1,
        num_workers=1,
        collate_fn=len,
        prefetch_factor=1,
    )
    with pytest.raises(al.WorkerDiedError) as caught:
        list(loader)
    assert f"and was at sample 5 of {paths[0]}, sample 5 of {paths[1]}; the worker before" in str(
        caught.value
    )
    assert caught.value.shard is None and caught.value.lane == 0


def test_a_sample_that_kills_its_worker_once_is_no_matter(tmp_path: Path) -> None:
    recipe = numbers(60).map(Deadly(31, partial(os._exit, 3), once=tmp_path / "once"))
    loader = al.DataLoader(recipe, 4, num_workers=2, lanes=2)
    expected = al.DataLoader(numbers(60), 4, lanes=2)
    assert [batch.tolist() for batch in loader] == [batch.tolist() for batch in expected]
    assert loader.statistics.worker_restarts == 1


@pytest.mark.parametrize("restarts", [0, 2, None])
def test_no_more_workers_are_replaced_than_was_said(restarts: int | None) -> None:
    loader = al.DataLoader(
        numbers(4000), 4, num_workers=1, worker_restarts=restarts, collate_fn=with_pid, prefetch_factor=1
    )
    most = 3 if restarts is None else restarts
    dead: list[int] = []
    with pytest.raises(al.WorkerDiedError, match=rf"worker_restarts={most}\)") as caught:
        for _, pid in loader:
            if pid not in dead:
                dead.append(pid)
                os.kill(pid, signal.SIGKILL)
    assert len(dead) == most + 1 and loader.statistics.worker_restarts == most
    assert caught.value.pid == dead[-1] and caught.value.lane == 0


def test_what_user_code_raises_is_not_tried_again(tmp_path: Path) -> None:
    def fail() -> None:
        with open(tmp_path / "calls", "a") as file:
            file.write("x")
        raise al.WorkerDiedError("of a loader of the user's own")

    loader = al.DataLoader(numbers(60).map(Deadly(31, fail)), 4, num_workers=2)
    with pytest.raises(al.WorkerDiedError, match="of the user's own"):
        list(loader)
    assert (tmp_path / "calls").read_text() == "x"
    assert loader.statistics.worker_restarts == 0


@pytest.mark.parametrize("wrong", [-1, True, "3", 1.5])
def test_a_number_of_restarts_that_cannot_be_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=f"worker_restarts should be how many.*worker_restarts={wrong!r}"):
        al.DataLoader(numbers(3), worker_restarts=wrong)


def test_restarts_are_refused_where_torchs_loop_reads() -> None:
    al.DataLoader([1, 2], worker_restarts=0)
    with pytest.raises(TypeError, match="worker_restarts can be given for streams only"):
        al.DataLoader([1, 2], num_workers=1, worker_restarts=1)


# --- what a replacement is ---


def test_a_replacement_finds_what_the_first_one_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(worker: int) -> None:
        with open(tmp_path / "inits", "a") as file:
            file.write(f"{worker} {torch.initial_seed()} {os.getcwd()} {os.environ['OF_THE_PARENT']}\n")

    factor = {"value": 2}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OF_THE_PARENT", "first")
    recipe = numbers(60).map(lambda number: number * factor["value"])
    loader = al.DataLoader(recipe, 4, num_workers=1, worker_init_fn=init, collate_fn=with_pid)
    found: list[int] = []
    for batch, pid in loader:
        if not found:
            # None of this is for workers that are in the middle of an epoch.
            factor["value"] = 3
            monkeypatch.chdir("/")
            monkeypatch.setenv("OF_THE_PARENT", "second")
            os.kill(pid, signal.SIGKILL)
        found += batch
    assert found == [2 * number for number in range(60)]
    first, second = (tmp_path / "inits").read_text().splitlines()
    assert first == second and f"{tmp_path} first" in first


def test_tensors_of_a_dead_worker_stay_valid_and_nothing_is_left() -> None:
    recipe = numbers(40).map(lambda number: torch.full((40_000,), number))
    with testing.check_leaks():
        loader = al.DataLoader(recipe, 2, num_workers=2, lanes=2, collate_fn=_stacked_with_pid)
        kept = []
        for batch, pid in loader:
            kept.append(batch)
            if len(kept) in (4, 9):
                os.kill(pid, signal.SIGKILL)
        expected = [n for k in range(0, 40, 4) for n in ([k, k + 2], [k + 1, k + 3])]
        assert [batch[:, 7].tolist() for batch in kept] == expected
        assert all(bool((batch == batch[:, :1]).all()) for batch in kept)
        assert loader.statistics.worker_restarts == 2
        del loader, kept, batch


def _stacked_with_pid(samples: list[torch.Tensor]) -> Any:
    return torch.stack(samples), os.getpid()


def test_a_pass_closed_while_a_replacement_starts_leaves_nothing() -> None:
    def slow(worker: int) -> None:
        time.sleep(0.5)

    with testing.check_leaks():
        for delay_s in (0.0, 0.01, 0.1):
            loader = al.DataLoader(
                numbers(4000), 4, num_workers=2, worker_init_fn=slow, collate_fn=with_pid, worker_restarts=9
            )
            batches = iter(loader)
            (_, first), (_, second) = next(batches), next(batches)
            os.kill(first, signal.SIGKILL)
            os.kill(second, signal.SIGKILL)
            closer = threading.Timer(delay_s, batches.close)
            closer.start()
            with pytest.raises(RuntimeError, match="was closed before the end"):
                for _ in batches:
                    pass
            closer.join()
            del batches, loader


def test_a_killed_fork_server_is_replaced_with_its_workers() -> None:
    loader = al.DataLoader(numbers(600).map(uneven), 4, num_workers=2, lanes=2, collate_fn=with_pid)
    found = []
    for batch, pid in loader:
        found.append(batch)
        if len(found) == 5:
            os.kill(_parent_of(pid), signal.SIGKILL)
    expected = al.DataLoader(numbers(600), 4, lanes=2, collate_fn=list)
    assert found == list(expected)
    assert loader.statistics.worker_restarts == 2


def _parent_of(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("PPid:"))


_SCRIPT = """
import os, signal
import asyncloader as al

class Tripler:
    def __call__(self, number):
        return Sample(3 * number)

class Sample:
    def __init__(self, value):
        self.value, self.pid = value, os.getpid()

loader = al.DataLoader(
    al.from_iterable(lambda topology: topology.split(range(40))).map(Tripler()),
    4, num_workers=2, collate_fn=lambda samples: samples,
)
found = []
for batch in loader:
    found += [sample.value for sample in batch]
    if len(found) == 12:
        os.kill(batch[0].pid, signal.SIGKILL)
assert type(batch[0]) is Sample
print(sorted(found) == [3 * number for number in range(40)], loader.statistics.worker_restarts)
"""


def test_workers_of_a_script_are_replaced_with_what_it_defines(tmp_path: Path, programs: Programs) -> None:
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT)
    with testing.check_leaks():
        run = programs.run(script)
    assert (run.returncode, run.stdout) == (0, "True 1\n"), run.stderr
    assert "another worker continues at its place" in run.stderr


# --- workers that stand still ---


def _told_of(mark: Path, batches: Iterator[Any]) -> str:
    """What the first timeout says after the mark was made."""
    while True:
        was_there = mark.exists()
        with suppress(TimeoutError):
            next(batches)
            continue
        if was_there:
            with pytest.raises(TimeoutError) as caught:
                next(batches)
            return str(caught.value)


def test_a_timeout_says_where_a_worker_is_stuck(platform: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with testing.check_leaks():
        loader = al.DataLoader(numbers(60).map(Stuck(mark)), 4, num_workers=2, timeout=0.5)
        batches = opened(loader)
        told = _told_of(mark, batches)
        assert (
            "no batch came within timeout=0.5 seconds; raise it, or see what takes so long: worker 1 ("
            in told
        )
        assert "whose next batch, of 4 samples, is of lane 1 and continues at sample" in told
        assert STATES["sleeping", platform] in told and "in _wait_for_nothing" in told
        first, second = told.partition("its Python stack:\n")[2].splitlines()[:2]
        assert "dying.py" in first and "in __call__" in first, "the function's frame, and then what it calls"
        assert "in _wait_for_nothing" in second
        assert "in _wait_for_nothing" in _told_of(mark, batches), "and again: the worker lives on"
        loader.close()
        del batches, loader


async def test_a_timeout_says_it_in_an_async_loop_too(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    loader = al.DataLoader(numbers(60).map(Stuck(mark)), 4, num_workers=2, timeout=0.5)
    batches, told = opened(loader), ""
    while not (told and mark.exists()):
        told = ""
        try:
            await anext(batches)
        except TimeoutError as error:
            told = str(error)
    with pytest.raises(TimeoutError, match=r"(?s)worker 1 \(pid .*in _wait_for_nothing"):
        await anext(batches)
    loader.close()


def test_a_timeout_tells_a_stopped_worker_and_the_pass_goes_on_with_it(platform: str) -> None:
    loader = al.DataLoader(numbers(400), 4, num_workers=1, timeout=0.5, collate_fn=with_pid)
    batches, found = opened(loader), []
    while not found:
        with suppress(TimeoutError):
            found, pid = next(batches)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(TimeoutError) as caught:
            for batch, _ in batches:
                found += batch
        assert f"(pid {pid})" in str(caught.value)
        told = str(caught.value)
        assert STATES["stopped", platform] in told and NO_STACK[platform] in told
    finally:
        os.kill(pid, signal.SIGCONT)
    while len(found) < 400:
        with suppress(TimeoutError):
            found += next(batches)[0]
    assert found == list(range(400))


def test_a_timeout_covers_the_start_of_workers(platform: str, fork_server: ForkServer) -> None:
    loader = al.DataLoader(numbers(60), 4, num_workers=2, timeout=0.5)
    gc.collect()  # what an earlier test has left would be collected below, and wait for the stopped server
    os.kill(fork_server.pid, signal.SIGSTOP)
    began = time.monotonic()
    try:
        with pytest.raises(TimeoutError) as caught:
            iter(loader)
        assert time.monotonic() - began < AT_ONCE_S
    finally:
        os.kill(fork_server.pid, signal.SIGCONT)
    told = str(caught.value)
    assert "no workers were started within timeout=0.5 seconds" in told
    assert f"(pid {fork_server.pid}) {STATES['stopped', platform]}" in told
    assert sorted(number for batch in opened(loader) for number in batch.tolist()) == list(range(60))


def test_a_timeout_covers_a_worker_init_fn_that_hangs() -> None:
    def init(worker: int) -> None:
        threading.Event().wait()

    loader = al.DataLoader(numbers(60), 4, num_workers=1, timeout=0.5, worker_init_fn=init)
    batches = opened(loader)
    with pytest.raises(TimeoutError, match=r"(?s)worker 0 \(pid .*in init"):
        while True:
            next(batches)
    loader.close()


def test_a_timeout_covers_the_start_of_a_replacement(fork_server: ForkServer) -> None:
    loader = al.DataLoader(numbers(400), 4, num_workers=1, timeout=0.5, collate_fn=with_pid)
    batches, found = opened(loader), []
    while not found:
        with suppress(TimeoutError):
            found, pid = next(batches)
    gc.collect()  # as above
    os.kill(fork_server.pid, signal.SIGSTOP)
    try:
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(TimeoutError):
            for batch, _ in batches:
                found += batch
    finally:
        os.kill(fork_server.pid, signal.SIGCONT)
    while len(found) < 400:
        with suppress(TimeoutError):
            found += next(batches)[0]
    assert found == list(range(400))


def test_a_timeout_leaves_handlers_of_the_users_own_alone(platform: str, tmp_path: Path) -> None:
    def init(worker: int) -> None:
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            with suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)

    mark = tmp_path / "mark"
    loader = al.DataLoader(numbers(60).map(Stuck(mark)), 4, num_workers=1, timeout=0.5, worker_init_fn=init)
    batches = opened(loader)
    for _ in range(2):
        told = _told_of(mark, batches)
        assert STATES["sleeping", platform] in told and NO_STACK[platform] in told, "no signal has ended it"
    loader.close()


def test_a_timeout_without_workers_says_where_the_thread_is(tmp_path: Path) -> None:
    go = tmp_path / "go"
    loader = al.DataLoader(numbers(60).map(Waiting(go)), 4, timeout=0.3)
    batches = iter(loader)
    with pytest.raises(
        TimeoutError, match=r'the thread that makes them is at\n  File ".*dying.py".*in __call__'
    ):
        next(batches)
    go.touch()
    loader.close()


def test_a_timeout_says_where_a_thread_of_map_is(tmp_path: Path) -> None:
    go = tmp_path / "go"
    loader = al.DataLoader(numbers(60).map(Waiting(go), concurrency=2), 4, timeout=0.3)
    batches = iter(loader)
    with pytest.raises(
        TimeoutError, match=r'the thread that makes them is at\n  File ".*dying.py".*in __call__'
    ):
        next(batches)
    go.touch()
    loader.close()


# --- as they are done ---


def test_out_of_order_no_worker_waits_for_a_slow_one(tmp_path: Path) -> None:
    go = tmp_path / "go"  # which lane 0 would deliver first
    recipe = numbers(90).map(Waiting(go))
    loader = al.DataLoader(recipe, 3, num_workers=3, lanes=3, in_order=False, collate_fn=list)
    found = []
    for batch in loader:
        found.append(batch)
        if len(found) == 20:  # all of the other two lanes'
            assert all(number % 3 for batch in found for number in batch)
            go.touch()
    assert sorted(number for batch in found for number in batch) == list(range(90))
    of_lanes = [[batch for batch in found if batch[0] % 3 == lane] for lane in range(3)]
    assert all(batches == sorted(batches) for batches in of_lanes), "each lane's own order holds"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_out_of_order_every_state_is_exact(asynchronous: bool) -> None:
    def loader(workers: int, in_order: bool) -> al.DataLoader[Any]:
        return al.DataLoader(
            numbers(50).map(uneven), 3, num_workers=workers, lanes=3, in_order=in_order, collate_fn=list
        )

    states, found = [], []
    first = loader(3, in_order=False)

    async def drain() -> None:
        async for batch in first:
            found.append(batch)
            states.append(first.state_dict())

    if asynchronous:
        asyncio.run(drain())
    else:
        for batch in first:
            found.append(batch)
            states.append(first.state_dict())
    assert sorted(number for batch in found for number in batch) == list(range(50))
    for delivered, state in enumerate(states, 1):
        for workers in (0, 2) if delivered % 5 == 0 else (0,):
            rest = loader(workers, in_order=bool(delivered % 2))
            rest.load_state_dict(state)
            assert sorted([*found[:delivered], *rest]) == sorted(found)


def test_without_workers_order_is_kept_whatever_was_said() -> None:
    batches = [batch.tolist() for batch in al.DataLoader(numbers(20), 4, lanes=2, in_order=False)]
    assert batches == [batch.tolist() for batch in al.DataLoader(numbers(20), 4, lanes=2)]


def test_a_signal_without_a_name_is_told_by_its_number() -> None:
    number = signal.SIGRTMIN + 5

    def dies(sample: Any) -> Any:
        os.kill(os.getpid(), number)
        return sample

    recipe = al.from_iterable(lambda turn: turn.split({"n": n} for n in range(4))).map(dies)
    with pytest.raises(al.WorkerDiedError, match=f"was killed by signal {number:d}") as caught:
        list(al.DataLoader(recipe, 1, num_workers=1, worker_restarts=0))
    assert caught.value.exitcode == -number
