"""``torch.distributed.checkpoint`` saves and loads a loader as it does a model: one entry for each rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from programs import Programs
from torch.distributed.checkpoint.stateful import Stateful

import asyncloader as al

COUNT, LANES = 120, 4


@pytest.fixture
def shards(tmp_path: Path) -> str:
    with al.ShardWriter(tmp_path / "shard-{}.jsonl", samples_per_shard=COUNT // 8) as writer:
        for number in range(COUNT):
            writer.write({"number": number})
    return str(tmp_path / "shard-{0..7}.jsonl")


def make(shards: str, *ops: Any, **options: Any) -> al.DataLoader[Any]:
    recipe = al.from_urls(shards).shuffle(4)
    for op in ops:
        recipe = recipe.map(op)
    return al.DataLoader(recipe, 3, **{"lanes": LANES, **options})


def numbers(loader: Any) -> list[list[int]]:
    return [batch["number"].tolist() for batch in loader]


def after(loader: al.DataLoader[Any], batches: int) -> Any:
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    return iterator


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_loader_is_stateful_and_comes_back_from_a_checkpoint(shards: str, tmp_path: Path) -> None:
    loader = make(shards)
    assert isinstance(loader, Stateful)
    iterator = after(loader, 7)
    dcp.save({"loader": loader}, checkpoint_id=tmp_path / "checkpoint", no_dist=True)
    resumed = make(shards)
    dcp.load({"loader": resumed}, checkpoint_id=tmp_path / "checkpoint", no_dist=True)
    assert numbers(resumed) == numbers(iterator)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_checkpoint_of_another_recipe_is_refused(shards: str, tmp_path: Path) -> None:
    # It loads what the target has keys for: of two operators the target, which has one, would see one.
    loader = make(shards, dict, dict)
    after(loader, 2).close()
    dcp.save({"loader": loader}, checkpoint_id=tmp_path / "checkpoint", no_dist=True)
    other = make(shards, dict)
    with pytest.raises(ValueError, match=r"  ops: saved "):
        dcp.load({"loader": other}, checkpoint_id=tmp_path / "checkpoint", no_dist=True)


def test_a_state_comes_back_from_torch_save(shards: str, tmp_path: Path) -> None:
    loader = make(shards)
    iterator = after(loader, 7)
    torch.save({"loader": loader.state_dict()}, tmp_path / "state.pt")
    resumed = make(shards)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True)["loader"])
    assert numbers(resumed) == numbers(iterator)


_PROGRAM = """
import json, os, sys
import torch
import torch.distributed as dist
import asyncloader as al

shards, folder, examples = sys.argv[1:]
sys.path.insert(0, examples)
import distributed_checkpoint as example

checkpoint = folder + "/checkpoint"

def in_world(name, size, work):
    children = []
    for rank in range(size):
        child = os.fork()
        if not child:
            status = 1
            try:
                meeting = f"file://{folder}/{name}"
                dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
                loader = al.DataLoader(al.from_urls(shards).shuffle(4), 3, lanes=4)
                came = work(loader)
                open(f"{folder}/{name}-{rank}.json", "w").write(json.dumps(came))
                loader.close()
                dist.barrier()
                dist.destroy_process_group()
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0

def save(loader):
    came = []
    for step, batch in enumerate(loader, 1):
        came.append(batch["number"].tolist())
        if step == 5:
            example.save(checkpoint, torch.nn.Linear(1, 1), loader)
    return came

def resume(loader):
    example.load(checkpoint, torch.nn.Linear(1, 1), loader)
    return [batch["number"].tolist() for batch in loader]

def resume_in_another_world(loader):
    example.load_in_any_world(checkpoint, torch.nn.Linear(1, 1), loader)
    return [batch["number"].tolist() for batch in loader]

def resume_carelessly(loader):
    try:
        example.load(checkpoint, torch.nn.Linear(1, 1), loader)
    except Exception as error:
        return str(error)

in_world("save", 2, save)
in_world("resume", 2, resume)
in_world("alone", 1, resume_in_another_world)
in_world("careless", 1, resume_carelessly)
"""


def test_ranks_come_back_each_to_its_own_lanes_and_any_world_to_all(
    shards: str, tmp_path: Path, programs: Programs
) -> None:
    examples = Path(__file__).parents[2] / "examples"
    script = tmp_path / "train.py"
    script.write_text(_PROGRAM)
    run = programs.run(script, shards, tmp_path, examples, strict=False)
    assert run.returncode == 0, run.stderr

    def told(name: str, size: int) -> list[Any]:
        return [json.loads((tmp_path / f"{name}-{rank}.json").read_text()) for rank in range(size)]

    whole = told("save", 2)
    assert told("resume", 2) == [rank[5:] for rank in whole]
    done = [number for rank in whole for batch in rank[:5] for number in batch]
    rest = [number for batch in told("alone", 1)[0] for number in batch]
    assert sorted(done + rest) == list(range(COUNT))
    (refusal,) = told("careless", 1)
    assert "asyncloader.merge_states() makes of those of all 2 one that loads here" in refusal
