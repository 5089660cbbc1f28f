"""However a pass by Ray actors ends, and however its program does, nothing of it is left on the cluster."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from programs import Programs

import asyncloader as al

from .keeper import descendants
from .loaders import loader, logged, on_ray, same, soon, stream, with_context

pytest.importorskip("ray", reason="ray is in the dependency group 'interop'")

from .clusters import QUIET, Nodes, connect

pytestmark = [pytest.mark.timeout(150), QUIET]

Leaving = Callable[[], AbstractContextManager[None]]


def test_a_loop_that_is_left_leaves_nothing_on_the_cluster(
    nodes: Nodes, leaving_nothing: Leaving, folder: Path
) -> None:
    with leaving_nothing():
        for _ in loader(stream(folder), **on_ray()):
            break


@pytest.mark.slow
def test_a_loader_that_is_closed_or_forgotten_leaves_nothing_either(
    nodes: Nodes, leaving_nothing: Leaving, folder: Path
) -> None:
    with leaving_nothing():
        left = loader(stream(folder), **on_ray())
        batches = iter(left)
        next(batches)
        left.close()
        with pytest.raises(RuntimeError, match="closed before the end"):
            next(batches)
        del batches
    with leaving_nothing():
        batches = iter(loader(stream(folder), **on_ray()))
        next(batches)
        del batches
        gc.collect()
    with leaving_nothing(), pytest.raises(LookupError, match="of the loop") as caught:
        for _ in loader(stream(folder), **on_ray()):
            raise LookupError("of the loop")
    del caught


@pytest.mark.slow
def test_actors_that_are_kept_end_with_the_connection_to_ray(
    nodes: Nodes, folder: Path, local: list[Any]
) -> None:
    import ray

    ours = loader(stream(folder), **on_ray(), persistent_workers=True)
    assert same([*ours], local)
    ray.shutdown()
    ours.close()
    assert not ray.is_initialized(), "nothing of Ray is started to end what has ended"
    connect(nodes)
    ours.set_epoch(0)
    assert same([*ours], local)
    ray.shutdown()
    connect(nodes)
    ours.set_epoch(0)
    assert same([*ours], local), "by new actors"
    assert ours.statistics.worker_restarts == 0
    ours.close()
    assert soon(lambda: not nodes.actors())


@pytest.mark.slow
def test_a_pool_ends_whole_where_a_lost_actor_was_not_replaced(
    nodes: Nodes, leaving_nothing: Leaving
) -> None:
    from asyncloader.observe.stopwatch import Stopwatch
    from asyncloader.workers.by_value import dumps_with_modules
    from asyncloader.workers.ray.actor import Bench
    from asyncloader.workers.ray.pool import RayPool
    from asyncloader.workers.worker import Work

    def job(number: int, given: object) -> Work:
        return Work(((each, given) for each in itertools.count()), Stopwatch())

    with leaving_nothing():
        pool = RayPool(
            dumps_with_modules(job)[:2],
            [None] * 2,
            Bench(al.RayWorkers(2), keeps=False),
            prefetch=1,
            prefetch_bytes=1 << 20,
            grace_s=5.0,
        )
        pool.start()
        pool.workers[0].let_go()
        pool.workers[0].kill()
        pool.workers[0].bury()  # and then Ray refuses to make another
        pool.close()


def test_contexts_are_left_when_the_loop_is_left(
    nodes: Nodes, leaving_nothing: Leaving, folder: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    recipe = al.from_urls(f"{folder}/*.jsonl").map(with_context, context=logged(log, leaving_s=0.2))
    with leaving_nothing():
        for batch in loader(recipe, collate_fn=None, **on_ray()):
            assert all(batch["is_there"])
            break
        written = sorted(log.read_text().split()[::2])
    # The other actor may not have entered it yet.
    assert written in (["entered", "left"], ["entered", "entered", "left", "left"])


@pytest.mark.slow
def test_a_context_that_takes_too_long_to_leave_does_not_keep_its_actor(
    nodes: Nodes, leaving_nothing: Leaving, folder: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    recipe = al.from_urls(f"{folder}/*.jsonl").map(with_context, context=logged(log, leaving_s=60))
    with leaving_nothing():
        ours = loader(recipe, collate_fn=None, **on_ray(1))
        next(iter(ours))
        began_s = time.monotonic()
        ours.close()
        assert time.monotonic() - began_s < 10
    assert "left" not in log.read_text()


@pytest.mark.slow
def test_no_actor_is_left_by_a_program_whatever_ends_it(
    nodes: Nodes, programs: Programs, folder: Path
) -> None:
    ways = {"a return": 0, "an error": 1, "an exit with a loop open": 0, "a kill": -signal.SIGKILL}
    told = {"RAY_ADDRESS": nodes.address}

    def run(how: str) -> subprocess.CompletedProcess[str]:
        script = Path(__file__).with_name("left_half_way.py")
        return programs.run(script, folder, how, more=told, strict=False)

    with ThreadPoolExecutor(len(ways)) as together:
        ended = dict(zip(ways, together.map(run, ways), strict=True))
    for how, status in ways.items():
        assert ended[how].returncode == status, (how, ended[how])
        assert "a batch has come" in ended[how].stdout, (how, ended[how])
    assert "LookupError: of the loop" in ended["an error"].stderr
    assert "Traceback" not in ended["a return"].stderr + ended["an exit with a loop open"].stderr
    assert soon(lambda: not nodes.actors())


_HOLDS_A_CLUSTER = """
import time
from interop.on_ray.clusters import open_cluster

with open_cluster() as nodes:
    print(nodes.address, flush=True)
    time.sleep(100)
"""


@pytest.mark.slow
def test_a_killed_test_leaves_no_process_of_its_cluster(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDS_A_CLUSTER],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert holder.stdout is not None
    with holder.stdout as printed:
        assert b":" in printed.readline(), "the address of its head"
        left = descendants(holder.pid)
        assert len(left) >= 3, "the keeper, and what the head has: one process knows the nodes, one is a node"
        holder.kill()
        holder.wait()
    # Each is its parent's to wait for, and nobody's who is not there: a zombie has ended.
    assert soon(lambda: not any(_runs(pid) for pid in left))


def _runs(pid: int) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
