"""A stream's lanes are read by Ray actors: same batches, order, state and errors as by local workers."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from programs import Programs

import asyncloader as al

from ..trainings import EXAMPLES
from .loaders import (
    PER_SHARD,
    SHARDS,
    SIZE,
    fail_at_100,
    loader,
    on_ray,
    read,
    same,
    saved,
    see_variable,
    soon,
    stream,
    wait_at_100,
)

pytest.importorskip("ray", reason="ray is in the dependency group 'interop'")

from .clusters import QUIET, Nodes

pytestmark = [pytest.mark.timeout(150), QUIET]

Leaving = Callable[[], AbstractContextManager[None]]


def test_batches_are_those_of_local_workers(
    nodes: Nodes, leaving_nothing: Leaving, folder: Path, local: list[Any], tmp_path: Path
) -> None:
    with leaving_nothing():
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
    assert all(verdict.verdict == "exact" for verdict in al.tools.verify_audit(tmp_path))
    # They lie in the store's memory, and are nobody else's: a loop may write to them, as to any batch.
    batches[0]["image"].mul_(2)
    assert torch.equal(batches[0]["image"], local[0]["image"] * 2)


@pytest.mark.slow
async def test_asynchronous_loops_get_them_too(nodes: Nodes, folder: Path, local: list[Any]) -> None:
    assert same([batch async for batch in loader(stream(folder), **on_ray())], local)


@pytest.mark.slow
async def test_waits_that_are_cancelled_lose_none(nodes: Nodes, folder: Path, local: list[Any]) -> None:
    batches, got, gave_up = aiter(loader(stream(folder), **on_ray())), [], 0
    while True:
        try:
            async with asyncio.timeout(0.01):
                got.append(await anext(batches))
        except TimeoutError:
            gave_up += 1
        except StopAsyncIteration:
            break
    assert same(got, local) and gave_up


@pytest.mark.slow
def test_states_go_from_local_workers_to_actors_and_back(
    nodes: Nodes, folder: Path, local: list[Any]
) -> None:
    batches, state = read(folder, None, 7, num_workers=3)
    more, state = read(folder, state, 8, **on_ray())
    rest, _ = read(folder, state, None, num_workers=1)
    assert same([*batches, *more, *rest], local)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_is_resumed_after_every_third_batch(nodes: Nodes, folder: Path, local: list[Any]) -> None:
    batches, states = [], {}
    with loader(stream(folder), **on_ray(), persistent_workers=True) as ours:
        for batch in ours:
            batches.append(batch)
            if len(batches) % 3 == 1:
                states[len(batches)] = saved(ours)
        assert len(states) == 10
        for after, state in states.items():
            ours.load_state_dict(state)
            assert same([*batches[:after], *ours], local), after


def test_what_user_code_raises_is_raised_with_its_type_and_place(
    nodes: Nodes, leaving_nothing: Leaving, folder: Path
) -> None:
    failing = al.from_urls(f"{folder}/*.jsonl").map(fail_at_100)
    with leaving_nothing(), pytest.raises(LookupError, match="no such picture") as caught:
        list(loader(failing, **on_ray()))
    notes = "\n".join(caught.value.__notes__)
    assert "in map(fail_at_100) of sample 20" in notes
    assert "in lane 1 of 4, rank 0, epoch 0" in notes
    assert "in worker 1 (pid " in notes and " on node " in notes
    assert notes.count("File ") == 1, "frames begin with the user's own"
    del caught


@pytest.mark.slow
def test_all_batches_before_an_error_come_although_small_ones_are_sent_together(
    nodes: Nodes, folder: Path
) -> None:
    failing = al.from_urls(f"{folder}/*.jsonl").map(fail_at_100)

    def before_the_error(**workers: Any) -> list[Any]:
        batches = []
        with pytest.raises(LookupError, match="no such picture"):
            for batch in loader(failing, lanes=1, batch_size=3, prefetch_factor=16, **workers):
                batches.append(batch)
        return batches

    assert same(before_the_error(**on_ray(1)), before_the_error(num_workers=1))


@pytest.mark.slow
def test_an_actor_may_be_waited_for_without_end(nodes: Nodes, folder: Path, local: list[Any]) -> None:
    assert same(list(loader(stream(folder), **on_ray(2, start_timeout_s=math.inf))), local)


@pytest.mark.slow
def test_a_wait_that_takes_too_long_tells_where_the_actor_is(nodes: Nodes, folder: Path) -> None:
    waiting = al.from_urls(f"{folder}/2.jsonl").map(wait_at_100)
    received = 0
    with (
        loader(waiting, lanes=1, **on_ray(1), timeout=15) as ours,
        pytest.raises(
            TimeoutError, match=r"worker 0 .a Ray actor, pid .* on node .*its Python stack"
        ) as caught,
    ):
        for _ in ours:
            received += 1
    assert "in wait_at_100" in str(caught.value)
    assert f"of lane 0 and continues at sample {received * SIZE} of" in str(caught.value)
    assert soon(lambda: not nodes.actors())


def test_actors_that_find_no_place_are_an_error_that_says_what_they_ask_for(
    nodes: Nodes, leaving_nothing: Leaving, folder: Path
) -> None:
    environment = {"env_vars": {"SEEN_BY_ACTORS": "by none"}}
    asked = on_ray(1, resources={"tape_drive": 2}, runtime_env=environment, start_timeout_s=1)
    with (
        leaving_nothing(),
        pytest.raises(RuntimeError, match=r"no place within start_timeout_s=1 s") as caught,
    ):
        list(loader(stream(folder), **asked))
    assert "'tape_drive': 2" in str(caught.value)
    assert str(caught.value).endswith("; or no process could be started in its runtime_env")
    del caught


@pytest.mark.slow
def test_actors_find_the_runtime_environment_that_they_were_asked_for_with(
    nodes: Nodes, folder: Path
) -> None:
    seeing = al.from_urls(f"{folder}/*.jsonl").map(see_variable)
    environment = {"env_vars": {"SEEN_BY_ACTORS": "by this one"}}
    batches = list(loader(seeing, collate_fn=None, **on_ray(runtime_env=environment)))
    assert {word for batch in batches for word in batch["seen"]} == {"by this one"}


@pytest.mark.slow
def test_a_runtime_environment_that_cannot_be_made_is_an_error_that_says_so(
    nodes: Nodes, leaving_nothing: Leaving, folder: Path
) -> None:
    unknown = {"py_modules": ["gcs://_ray_pkg_0123456789abcdef.zip"]}
    with (
        leaving_nothing(),
        pytest.raises(RuntimeError, match=r"could not be started.*Ray says:.*89abcdef.zip") as caught,
    ):
        list(loader(stream(folder), **on_ray(1, runtime_env=unknown)))
    del caught


@pytest.mark.slow
def test_persistent_actors_work_for_one_pass_after_the_other(
    nodes: Nodes, leaving_nothing: Leaving, folder: Path, local: list[Any]
) -> None:
    def pids() -> set[int]:
        return {actor["Pid"] for actor in nodes.actors()}

    theirs = loader(stream(folder), num_workers=2)
    with leaving_nothing():
        ours = loader(stream(folder), **on_ray(), persistent_workers=True)
        assert same([*ours], [*theirs])
        kept = pids()
        assert len(kept) == 2
        for left in (ours, theirs):
            for _ in left:
                break
        assert same([*ours], [*theirs])
        assert pids() == kept
        os.kill(min(kept), signal.SIGKILL)
        assert same([*ours], [*theirs])
        assert len(pids()) == 2 and pids() & kept
        assert ours.statistics.worker_restarts == 0, "it was lost between two passes"
        ours.close()
        assert soon(lambda: not pids())
        gc.disable()
        try:
            list(islice(ours, 2))  # one from each: an actor that may still have to start is not kept
            assert soon(lambda: len(pids()) == 2)
            del ours
            assert soon(lambda: not pids()), "they hold processors that another loader may ask for"
        finally:
            gc.enable()


@pytest.mark.slow
def test_batches_are_made_ahead_as_far_as_they_may(nodes: Nodes, folder: Path, tmp_path: Path) -> None:
    def collate(samples: list[Any]) -> list[Any]:
        with open(tmp_path / "made", "a") as file:
            file.write("a batch\n")
        return samples

    def made() -> int:
        path = tmp_path / "made"
        return len(path.read_text().splitlines()) if path.exists() else 0

    ahead = al.from_urls(f"{folder}/0.jsonl")
    options = {"lanes": 1, "batch_size": 4, "collate_fn": collate, **on_ray(1)}
    with loader(ahead, **options, prefetch_factor=3) as ours:
        batches = iter(ours)
        next(batches)
        assert soon(lambda: made() >= 4)
        time.sleep(0.3)
        assert made() == 4, "three ahead of the one received"


def test_the_example_gives_the_same_by_actors(cluster: Nodes, programs: Programs) -> None:
    cluster.have(2)
    run = programs.run(
        EXAMPLES / "ray_workers.py", more={"RAY_ADDRESS": cluster.address}, strict=False, one_output=True
    )
    told = r"^20 batches by Ray actors, the same as by local workers: True$"
    assert run.returncode == 0 and re.search(told, run.stdout, re.MULTILINE), run.stdout


# --- what needs no cluster ---


def test_map_style_data_is_refused() -> None:
    with pytest.raises(TypeError, match="workers can be given for streams only"):
        al.DataLoader([1, 2, 3], workers=al.RayWorkers(2))


def test_another_number_of_workers_beside_is_refused_and_the_same_is_theirs(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"mutually exclusive with another num_workers.*num_workers=3"):
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
    monkeypatch.setattr("asyncloader.workers.ray.options.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'asyncloader\[ray\]'"):
        loader(stream(folder), workers=al.RayWorkers(2))
