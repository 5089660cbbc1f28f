"""Four processes as two ranks of two replicas, by torch's mesh: in step, and never with different batches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from programs import Programs

import asyncloader as al

_PROGRAM = """
import json, os, sys, warnings
from datetime import timedelta
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
import asyncloader as al

folder, layout = Path(sys.argv[1]), sys.argv[2].split(",")
dist.init_process_group("gloo", timeout=timedelta(seconds=20))
process = dist.get_rank()
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=layout)
SIZES = (9, 4, 6, 5)
told = {"process": process}


def numbers(topology):
    for shard in topology.split(range(len(SIZES))):
        yield from ({"number": shard * 100 + sample} for sample in range(SIZES[shard]))


def loader_of(recipe=al.from_iterable(numbers).shuffle(8, seed=0), **options):
    return al.DataLoader(recipe, 2, mesh=mesh["dp"], lanes=4, **options)


def read(loader, most=None):
    numbers = []
    for batch in islice(loader, most):
        dist.all_reduce(torch.ones(1))  # which one that takes fewer steps would leave waiting
        numbers.append(batch["number"].tolist())
    return numbers


loader = loader_of(audit=folder / "audit", uneven="pad")
told["repr"], told["read"] = repr(loader), read(loader)
with warnings.catch_warnings(record=True):
    warnings.simplefilter("always")
    loader = loader_of()
    told["stopped"] = len(read(loader))
    told["steps"] = loader.statistics.epoch_batches

# A checkpoint of all processes, and one process in another.
loader = loader_of(uneven="pad")
told["before"] = read(loader, 2)
dcp.save({"loader": loader}, checkpoint_id=folder / "checkpoint")
loader.close()
resumed = loader_of(uneven="pad")
dcp.load({"loader": resumed}, checkpoint_id=folder / "checkpoint")
told["after"] = read(resumed)

# One replica that skips what the others read: as one does whose shard is gone.
odd = loader_of(al.from_iterable(numbers).filter(lambda sample: process != 3 or sample["number"] != 101))
try:
    read_alone = [batch["number"].tolist() for batch in odd]
except al.errors.RanksError as error:
    told["error"] = str(error)

print(json.dumps(told), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("layout", ["dp,tp", pytest.param("pp,dp", marks=pytest.mark.slow)])
def test_replicas_of_a_mesh_are_in_step_and_ranks_share_the_data(
    layout: str, tmp_path: Path, programs: Programs
) -> None:
    script = tmp_path / "program.py"
    script.write_text(_PROGRAM)
    ran = programs.run_ranks(4, script, tmp_path, layout, timeout=100, strict=False)
    assert [each.returncode for each in ran] == [0] * 4, [each.stderr[-2000:] for each in ran]
    told = [json.loads(each.stdout) for each in ran]
    ranks = [process // 2 if layout == "dp,tp" else process % 2 for process in range(4)]
    replicas = [process % 2 if layout == "dp,tp" else process // 2 for process in range(4)]
    for process, each in enumerate(told):
        by = "(mesh dimension dp)"
        assert f"rank {ranks[process]} of 2, replica {replicas[process]} of 2 {by}" in each["repr"]
        same = told[ranks.index(ranks[process])]
        assert {**each, "process": 0, "repr": "", "error": ""} == {
            **same,
            "process": 0,
            "repr": "",
            "error": "",
        }
        assert each["before"] + each["after"] == each["read"]
        assert each["stopped"] == each["steps"] <= len(each["read"])
    read = [number for process in (0, ranks.index(1)) for batch in told[process]["read"] for number in batch]
    assert sorted(read) == [shard * 100 + at for shard, size in enumerate((9, 4, 6, 5)) for at in range(size)]
    (verdict,) = al.tools.verify_audit(tmp_path / "audit")
    assert (verdict.verdict, verdict.samples) == ("exact", 24)
    # Whoever differs, or shares a rank with it, is told why; the others that somebody has left.
    errors = [each["error"] for each in told]
    assert any("but they differ at step" in error for error in errors)
    assert all("but they differ at step" in error or "has left the epoch" in error for error in errors)
