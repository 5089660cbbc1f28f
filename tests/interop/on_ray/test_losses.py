"""An actor or a whole node is lost, and the epoch goes on with the same batches."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import asyncloader as al

from .loaders import die_at_100, loader, on_ray, same, stream, write_shards

pytest.importorskip("ray", reason="ray is in the dependency group 'interop'")

from .clusters import QUIET, Nodes

pytestmark = [pytest.mark.timeout(150), QUIET]

Leaving = Callable[[], AbstractContextManager[None]]

_KILLS = 10


@pytest.mark.slow
def test_a_killed_actor_is_replaced(nodes: Nodes, folder: Path, local: list[Any], tmp_path: Path) -> None:
    ours = loader(stream(folder), **on_ray(), audit=tmp_path)
    batches = []
    for batch in ours:
        batches.append(batch)
        if len(batches) == 5:
            os.kill(nodes.actors()[0]["Pid"], signal.SIGKILL)
    assert same(batches, local)
    assert ours.statistics.worker_restarts == 1
    assert all(verdict.verdict == "exact" for verdict in al.tools.verify_audit(tmp_path))


@pytest.mark.slow
def test_an_actor_that_dies_twice_at_one_place_is_an_error(
    nodes: Nodes, leaving_nothing: Leaving, folder: Path
) -> None:
    dying = al.from_urls(f"{folder}/2.jsonl").map(die_at_100)
    with (
        leaving_nothing(),
        pytest.raises(al.WorkerDiedError, match="the worker before it died there too") as caught,
    ):
        list(loader(dying, lanes=1, batch_size=30, **on_ray(1)))
    assert (caught.value.worker, caught.value.lane, caught.value.sample) == (0, 0, 0)
    assert caught.value.shard is not None and caught.value.shard.endswith("2.jsonl")
    del caught


def test_a_node_that_is_lost_takes_no_batch_with_it(
    nodes: Nodes, folder: Path, local: list[Any], tmp_path: Path
) -> None:
    ours = loader(stream(folder), **on_ray(2, num_cpus=0.5), audit=tmp_path)
    batches: list[Any] = []
    lost = 0
    for batch in ours:
        batches.append(batch)
        if len(batches) == 6:
            actors_on = Counter(actor["Address"]["NodeID"] for actor in nodes.actors())
            node, lost = actors_on.most_common()[-1]  # Ray may have put both on one
            nodes.kill(node)
    assert same(batches, local)
    assert ours.statistics.worker_restarts == lost > 0
    (verdict,) = al.tools.verify_audit(tmp_path)
    assert verdict.verdict == "exact"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_nodes_are_lost_at_random_moments_each_in_another_epoch(
    nodes: Nodes, tmp_path: Path, draw: random.Random
) -> None:
    """Of three nodes, on each of which an actor runs; another one joins when one was lost."""
    nodes.have(3)
    shards, audit = tmp_path / "shards", tmp_path / "audit"
    shards.mkdir()
    write_shards(shards)
    al.build_index(str(shards / "*.jsonl"))  # by which the audit knows how many samples there are
    local = loader(stream(shards), num_workers=2)
    ours = loader(stream(shards), **on_ray(3, num_cpus=0.5), audit=audit, worker_restarts=3)
    restarts = 0
    for epoch in range(_KILLS):
        after = max(0, draw.randrange(-4, 28))
        wait_s = draw.uniform(0, 0.02 if after else 4)
        theirs = [*local]
        batches = [*_losing(nodes, ours, after, wait_s, draw)]
        restarts += ours.statistics.worker_restarts
        verdict = al.tools.verify_audit(audit)[epoch]
        print(
            f"a node lost {wait_s * 1000:.0f} ms behind batch {after} of {len(theirs)}; {verdict}", flush=True
        )
        assert same(batches, theirs), f"epoch {epoch}"
        assert (verdict.verdict, verdict.samples) == ("exact", verdict.expected)
    assert restarts >= _KILLS / 2, "of batches that had yet to be made"


def _losing(nodes: Nodes, ours: al.DataLoader[Any], after: int, wait_s: float, draw: random.Random) -> Any:
    """The batches of a pass; behind so many of them a node is killed while the loop goes on."""

    def lose() -> None:
        time.sleep(wait_s)
        nodes.kill(draw.choice(nodes.ids))
        nodes.have(3, wait=False)

    losing = threading.Thread(target=lose)
    if after == 0:
        losing.start()  # while actors start
    for number, batch in enumerate(ours, 1):
        yield batch
        if number == after:
            losing.start()
        time.sleep(0.01)  # of training
    losing.join()
