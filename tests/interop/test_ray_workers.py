"""A stream's lanes are read by Ray actors: same batches, order, state and errors as by local workers."""

from __future__ import annotations

import itertools
import json
import math
import os
import pickle
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import asyncloader as al

pytest.importorskip("ray")

from .clusters import Nodes, open_cluster

pytestmark = [
    pytest.mark.timeout(120),
    # Of Ray's own: it forks where it starts its processes, and leaves their logs open.
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning"
    ),
]

SHARDS, PER_SHARD, SIZE = 6, 40, 8


@pytest.fixture
def no_network() -> None:
    """Ray's processes talk to each other by addresses of this machine."""


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with open_cluster(2) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    for shard in range(SHARDS):
        numbers = range(shard * PER_SHARD, (shard + 1) * PER_SHARD)
        lines = [json.dumps({"number": number, "tokens": [number] * (number % 7)}) for number in numbers]
        (folder / f"{shard}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def decode(sample: dict[str, Any]) -> dict[str, Any]:
    return {
        "number": sample["number"],
        "tokens": np.array(sample["tokens"], np.int64),
        "image": np.full(
            (60, 80), sample["number"], np.float32
        ),  # batches of 150 KB: too large for a message
        "drawn": float(al.sample_rng().random()),  # Ray's own threads draw from ``random``, too
    }


def stream(folder: Path) -> al.Dataset:
    return al.from_urls(f"{folder}/*.jsonl").map(decode).shuffle(50, seed=3)


def loader(dataset: al.Dataset, **options: Any) -> al.DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    options = {"batch_size": SIZE, "lanes": 4, "collate_fn": al.Pad({"tokens": -1}), **options}
    return al.DataLoader(dataset, generator=generator, **options)


def on_ray(count: int = 2, **options: Any) -> dict[str, Any]:
    return {"workers": al.RayWorkers(count, **options)}


def same(ours: list[Any], theirs: list[Any]) -> bool:
    def equal(one: Any, other: Any) -> bool:
        if isinstance(one, torch.Tensor):
            return one.dtype == other.dtype and torch.equal(one, other) and one.stride() == other.stride()
        return type(one) is type(other) and one == other

    return len(ours) == len(theirs) and all(
        one.keys() == other.keys() and all(equal(one[name], other[name]) for name in one)
        for one, other in zip(ours, theirs, strict=True)
    )


@pytest.fixture(scope="module")
def local(folder: Path) -> list[Any]:
    """The batches that two local workers make."""
    return list(loader(stream(folder), num_workers=2))


@contextmanager
def nothing_left(nodes: Nodes) -> Iterator[None]:
    """Assert that no actor, reference, descriptor or thread is left by the block."""
    import ray

    core = ray._private.worker.global_worker.core_worker

    def counted() -> tuple[int, int, int]:
        names = [_named(descriptor) for descriptor in os.listdir("/proc/self/fd")]
        return len(nodes.actors()), len(core.get_all_reference_counts()), names.count("anon_inode:[eventfd]")

    before = counted()
    yield
    deadline = time.monotonic() + 30
    while any(now > then for now, then in zip(counted(), before, strict=True)):
        assert time.monotonic() < deadline, (before, counted())
        time.sleep(0.05)


def _named(descriptor: str) -> str:
    with suppress(FileNotFoundError):  # it was closed since
        return os.readlink(f"/proc/self/fd/{descriptor}")
    return ""


def test_batches_are_those_of_local_workers(
    nodes: Nodes, folder: Path, local: list[Any], tmp_path: Path
) -> None:
    with nothing_left(nodes):
        ours = loader(stream(folder), **on_ray(), audit=tmp_path)
        places = set()
        batches = []
        for batch in ours:
            places |= {actor["Address"]["NodeID"] for actor in nodes.actors()}
            batches.append(batch)
    assert same(batches, local)
    assert len(places) == 2, "they are spread over the nodes"
    statistics = ours.statistics
    assert (statistics.samples, statistics.worker_restarts) == (SHARDS * PER_SHARD, 0)
    assert len(statistics.makers) == 2
    assert all(verdict.verdict == "exact" for verdict in al.verify_audit(tmp_path))
    # They lie in the store's memory, and are nobody else's: a loop may write to them, as to any batch.
    batches[0]["image"].mul_(2)
    assert torch.equal(batches[0]["image"], local[0]["image"] * 2)


@pytest.mark.slow
async def test_asynchronous_loops_get_them_too(nodes: Nodes, folder: Path, local: list[Any]) -> None:
    assert same([batch async for batch in loader(stream(folder), **on_ray())], local)


def test_states_go_from_local_workers_to_actors_and_back(
    nodes: Nodes, folder: Path, local: list[Any]
) -> None:
    batches, state = read(folder, None, 7, num_workers=3)
    more, state = read(folder, state, 8, **on_ray())
    rest, _ = read(folder, state, None, num_workers=1)
    # What is drawn from a worker's own generator is another after a resume.
    assert same(without_draws([*batches, *more, *rest]), without_draws(local))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_is_resumed_after_every_third_batch(nodes: Nodes, folder: Path, local: list[Any]) -> None:
    for after in range(1, len(local), 3):
        batches, state = read(folder, None, after, **on_ray())
        rest, _ = read(folder, state, None, **on_ray())
        assert same(without_draws([*batches, *rest]), without_draws(local)), after


def read(folder: Path, state: Any, most: int | None, **options: Any) -> tuple[list[Any], Any]:
    """So many batches, from a state on, and the state behind them."""
    ours = loader(stream(folder), **options)
    if state is not None:
        ours.load_state_dict(state)
    with ours:
        batches = list(itertools.islice(ours, most))
        return batches, json.loads(json.dumps(ours.state_dict()))


def without_draws(batches: list[Any]) -> list[Any]:
    return [{name: field for name, field in batch.items() if name != "drawn"} for batch in batches]


def fail_at_100(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["number"] == 100:
        raise LookupError("no such picture")
    return sample


def test_what_user_code_raises_is_raised_with_its_type_and_place(nodes: Nodes, folder: Path) -> None:
    failing = al.from_urls(f"{folder}/*.jsonl").map(fail_at_100)
    with nothing_left(nodes), pytest.raises(LookupError, match="no such picture") as caught:
        list(loader(failing, **on_ray()))
    notes = "\n".join(caught.value.__notes__)
    assert "in map(fail_at_100) of sample 20" in notes
    assert "in lane 2 of 4, rank 0, epoch 0" in notes
    assert "in worker 0 (pid " in notes and " on node " in notes
    assert notes.count("File ") == 1, "frames begin with the user's own"
    del caught


def test_a_loop_that_is_left_leaves_nothing_on_the_cluster(nodes: Nodes, folder: Path) -> None:
    with nothing_left(nodes):
        for _ in loader(stream(folder), **on_ray()):
            break
    with nothing_left(nodes):
        left = loader(stream(folder), **on_ray())
        batches = iter(left)
        next(batches)
        left.close()
        with pytest.raises(RuntimeError, match="closed before the end"):
            next(batches)
        del batches


@pytest.mark.slow
def test_a_killed_actor_is_replaced(nodes: Nodes, folder: Path, local: list[Any], tmp_path: Path) -> None:
    ours = loader(stream(folder), **on_ray(), audit=tmp_path)
    batches = []
    for batch in ours:
        batches.append(batch)
        if len(batches) == 5:
            os.kill(nodes.actors()[0]["Pid"], signal.SIGKILL)
    assert same(without_draws(batches), without_draws(local))
    assert ours.statistics.worker_restarts == 1
    assert all(verdict.verdict == "exact" for verdict in al.verify_audit(tmp_path))


def die_at_100(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["number"] == 100:
        os.kill(os.getpid(), signal.SIGKILL)
    return sample


@pytest.mark.slow
def test_an_actor_that_dies_twice_at_one_place_is_an_error(nodes: Nodes, folder: Path) -> None:
    dying = al.from_urls(f"{folder}/2.jsonl").map(die_at_100)
    with (
        nothing_left(nodes),
        pytest.raises(al.WorkerDiedError, match="had replaced died there too") as caught,
    ):
        list(loader(dying, lanes=1, batch_size=30, **on_ray(1)))
    assert (caught.value.worker, caught.value.lane, caught.value.sample) == (0, 0, 0)
    assert caught.value.shard is not None and caught.value.shard.endswith("2.jsonl")
    del caught


def test_a_node_that_is_lost_takes_no_batch_with_it(
    nodes: Nodes, folder: Path, local: list[Any], tmp_path: Path
) -> None:
    check_lost_node(nodes, folder, local, tmp_path, after=6)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("draw", range(10))
def test_a_node_may_be_lost_at_any_moment(
    nodes: Nodes, folder: Path, local: list[Any], tmp_path: Path, draw: int
) -> None:
    rng = random.Random(draw)
    time.sleep(rng.random() / 10)
    check_lost_node(nodes, folder, local, tmp_path, after=rng.randrange(len(local)), pause_s=rng.random() / 5)


def check_lost_node(
    nodes: Nodes, folder: Path, local: list[Any], tmp_path: Path, after: int, pause_s: float = 0.0
) -> None:
    ours = loader(stream(folder), **on_ray(3, num_cpus=0.5), audit=tmp_path, worker_restarts=10)
    batches: list[Any] = []
    for batch in ours:
        if len(batches) == after:
            time.sleep(pause_s)
            lost = nodes.actors()[0]["Address"]["NodeID"]
            nodes.kill(lost)
        batches.append(batch)
    try:
        assert same(without_draws(batches), without_draws(local))
        assert all(verdict.verdict == "exact" for verdict in al.verify_audit(tmp_path))
    finally:
        nodes.add(1)


def wait_at_100(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["number"] == 100:
        time.sleep(60)
    return sample


@pytest.mark.slow
def test_a_wait_that_takes_too_long_tells_where_the_actor_is(nodes: Nodes, folder: Path) -> None:
    waiting = al.from_urls(f"{folder}/2.jsonl").map(wait_at_100)
    with (
        loader(waiting, lanes=1, **on_ray(1), timeout=15) as ours,
        pytest.raises(
            TimeoutError, match=r"worker 0 .a Ray actor, pid .* on node .*its Python stack"
        ) as caught,
    ):
        list(ours)
    assert "in wait_at_100" in str(caught.value)
    assert "of lane 0 and goes on at sample 16 of" in str(caught.value)
    assert not nodes.actors() or _soon(lambda: not nodes.actors())


def _soon(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 30
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_actors_that_find_no_place_are_an_error_that_says_what_they_ask_for(
    nodes: Nodes, folder: Path
) -> None:
    asked = on_ray(1, resources={"tape_drive": 2}, start_timeout_s=1)
    with (
        nothing_left(nodes),
        pytest.raises(RuntimeError, match=r"no place within start_timeout_s=1 s") as caught,
    ):
        list(loader(stream(folder), **asked))
    assert "'tape_drive': 2" in str(caught.value)
    del caught


@pytest.mark.slow
def test_batches_are_made_ahead_as_far_as_they_may(nodes: Nodes, folder: Path, tmp_path: Path) -> None:
    def made(sample: dict[str, Any]) -> dict[str, Any]:
        with open(tmp_path / "made", "a") as file:
            file.write(f"{sample['number']}\n")
        return sample

    def count() -> int:
        path = tmp_path / "made"
        return len(path.read_text().split()) if path.exists() else 0

    ahead = al.from_urls(f"{folder}/0.jsonl").map(made)
    options = {"lanes": 1, "batch_size": 4, **on_ray(1)}
    with loader(ahead, **options, prefetch_factor=3) as ours:
        batches = iter(ours)
        next(batches)
        assert _soon(lambda: count() >= 16)
        time.sleep(0.3)
        assert count() <= 16 + 4, "three ahead of the one received, and the map's own block"
    (tmp_path / "made").unlink()
    with loader(ahead, **options, ahead=0) as ours:
        batches = iter(ours)
        next(batches)
        time.sleep(0.3)
        assert count() == 4, "made when they are asked for"
        next(batches)
        assert count() == 8


def test_an_actor_may_be_waited_for_without_end(nodes: Nodes, folder: Path, local: list[Any]) -> None:
    assert same(list(loader(stream(folder), **on_ray(2, start_timeout_s=math.inf))), local)


def test_a_pool_ends_whole_where_a_lost_actor_was_not_replaced(nodes: Nodes) -> None:
    from asyncloader.ray_workers.pool import RayPool, close_workers

    def job(shared: object) -> Iterator[Any]:
        return ((number, shared) for number in itertools.count())

    shared = (pickle.dumps(None), [])
    with nothing_left(nodes):
        pool = RayPool(
            [job] * 2, al.RayWorkers(2), prefetch=1, prefetch_bytes=1 << 20, grace_s=5.0, shared=shared
        )
        pool.start()
        close_workers(pool.workers[:1], None)  # and then Ray refuses to make another
        pool.close()


def test_map_style_data_is_refused(nodes: Nodes) -> None:
    with pytest.raises(TypeError, match="workers can be given for streams only"):
        al.DataLoader([1, 2, 3], workers=al.RayWorkers(2))


def test_local_workers_beside_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"mutually exclusive with num_workers.*num_workers=3"):
        loader(stream(folder), num_workers=3, workers=al.RayWorkers(2))
    again = loader(stream(folder), num_workers=2, workers=al.RayWorkers(2))  # as Lightning makes it anew
    assert again.num_workers == 2
    with pytest.raises(TypeError, match="workers should be RayWorkers"):
        loader(stream(folder), workers=2)


@pytest.mark.parametrize("wrong", [{"count": 0}, {"num_cpus": -1}, {"num_gpus": "1"}, {"start_timeout_s": 0}])
def test_wrong_numbers_are_told(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} should be"):
        al.RayWorkers(**{"count": 2, **wrong})


def test_without_ray_one_is_told_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncloader.ray_workers.options.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'asyncloader\[ray\]'"):
        loader(stream(folder), workers=al.RayWorkers(2))
