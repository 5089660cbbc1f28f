"""Two ranks, under torchrun and as it starts them: each reads its part, and they stay in step in training."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from corpus import Corpus
from programs import Programs

import asyncloader as al
from asyncloader import testing
from asyncloader.cli import main

from .harness import python

_BEGIN = """
import json, os, sys
import torch
import asyncloader as al

folder, workers, *urls = sys.argv[1:]
recipe = al.from_urls(urls).select_columns("key", "number").shuffle(5)
"""

# Only the environment tells the rank: torch.distributed is not even imported.
_BY_ENVIRONMENT = (
    _BEGIN
    + """
loader = al.DataLoader(recipe, 2, num_workers=int(workers))
keys = [key for batch in loader for key in batch["key"]]
assert not torch.distributed.is_initialized()
"""
)

# The process group tells it, whatever the environment says meanwhile.
_BY_PROCESS_GROUP = (
    _BEGIN
    + """
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
del os.environ["RANK"], os.environ["WORLD_SIZE"]
loader = al.DataLoader(recipe, 2, num_workers=int(workers), uneven="ignore")
keys = [key for batch in loader for key in batch["key"]]
os.environ["RANK"] = str(rank)
torch.distributed.destroy_process_group()
"""
)

_TRAIN = (
    _BEGIN
    + """
torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.linspace(0, 1, 20).unsqueeze(1)

def loss_of(x):
    return torch.nn.functional.mse_loss(model(x), 3 * x)

before = loss_of(x).item()
keys = []
# Shards of a web server, of which nobody knows that they are of one length.
with al.DataLoader(recipe, 2, num_workers=int(workers), lanes=2, uneven="stop") as loader:
    for epoch in range(4):
        for batch in loader:
            if epoch == 0:
                keys += batch["key"]
            loss = loss_of(batch["number"].float().unsqueeze(1) / 400)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
assert loss_of(x).item() < before
weights = [torch.zeros(2) for _ in range(2)]
mine = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
torch.distributed.all_gather(weights, mine)
assert torch.equal(*weights), "the ranks trained the same model"
# In torch's order: what uses the group goes before the group, and no rank before the others are there. A
# group that is torn down under a live DDP model now and then aborts its process at exit.
torch.distributed.barrier()
del loss, optimizer, model
torch.distributed.destroy_process_group()
"""
)

_END = """
with open(f"{folder}/{os.environ['RANK']}.json", "w") as file:
    json.dump(keys, file)
"""


# A process that has trained under DDP over gloo is now and then aborted by torch's own threads while the
# interpreter is taken down ("terminate called without an active exception"), after all of this is done.
_LEAVE = """
os._exit(0)
"""


def torchrun(script: Path, *arguments: object) -> None:
    run = launched(2, script, *arguments)
    assert run.returncode == 0, run.stderr


def launched(ranks: int, script: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1")
    # torchrun itself warns; the ranks are other processes, which take every warning for an error.
    launcher = ("-W", "default", "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), *meeting)
    return python(*launcher, script, *map(str, arguments))


@pytest.fixture
def ranks(programs: Programs) -> Callable[..., None]:
    """Starts two ranks as torchrun does."""

    def ranks(script: Path, *arguments: object) -> None:
        for run in programs.run_ranks(2, script, *arguments):
            assert run.returncode == 0, run.stderr

    return ranks


def keys_by_rank(
    start: Callable[..., None], program: str, folder: Path, *arguments: object
) -> list[list[str]]:
    """The keys that each of two ranks wrote down."""
    script = folder / "train.py"
    script.write_text(program + _END + (_LEAVE if program is _TRAIN else ""))
    start(script, folder, *arguments)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_under_torchrun_two_ranks_read_the_dataset_exactly_once(
    workers: int, tmp_path: Path, make_corpus: Callable[..., Corpus], served: testing.Server
) -> None:
    corpus = make_corpus("jsonl")
    parts = keys_by_rank(torchrun, _BY_ENVIRONMENT, tmp_path, workers, *corpus.urls(served))
    assert all(parts)
    assert sorted(parts[0] + parts[1]) == corpus.keys


# Without workers a group's ranks train below.
def test_the_ranks_of_a_process_group_read_the_dataset_exactly_once(
    tmp_path: Path,
    make_corpus: Callable[..., Corpus],
    served: testing.Server,
    ranks: Callable[..., None],
) -> None:
    corpus = make_corpus("jsonl")
    parts = keys_by_rank(ranks, _BY_PROCESS_GROUP, tmp_path, 2, *corpus.urls(served))
    assert all(parts)
    assert sorted(parts[0] + parts[1]) == corpus.keys


def test_a_model_trains_under_ddp_over_four_epochs(
    tmp_path: Path,
    make_corpus: Callable[..., Corpus],
    served: testing.Server,
    ranks: Callable[..., None],
) -> None:
    # Shards of one length, since gradients are averaged in each step, and all samples are to be seen.
    corpus = make_corpus("jsonl", (5, 5, 5, 5))
    parts = keys_by_rank(ranks, _TRAIN, tmp_path, 0, *corpus.urls(served))
    assert sorted(parts[0] + parts[1]) == corpus.keys


_DEFAULTS = """
import json, sys, time
from pathlib import Path

import torch.distributed as dist
import asyncloader as al

folder = Path(sys.argv[1])
dist.init_process_group("gloo")
loader = al.DataLoader(al.from_urls(str(folder / "shards" / "*.jsonl")), 8, audit=folder / "audit")
numbers, raised = [], None
try:
    for batch in loader:
        numbers += batch["n"].tolist()
except al.errors.RanksError as error:
    raised = error
(folder / f"{dist.get_rank()}.json").write_text(json.dumps({"numbers": numbers, "error": str(raised or "")}))
# torchrun ends the others as soon as it sees that one has failed.
until = time.monotonic() + 60
while len(list(folder.glob("*.json"))) < 4 and time.monotonic() < until:
    time.sleep(0.05)
if raised is not None:
    raise raised
dist.destroy_process_group()
"""


@pytest.mark.programs
@pytest.mark.parametrize(
    ("lines", "is_read"),
    [((13, 250, 7, 99, 180, 42, 311, 64), False), ((350, 300, 250, 200, 200, 150, 100, 50), True)],
    ids=["unequal", "equal by size"],
)
def test_with_all_defaults_four_ranks_deliver_every_sample_or_all_fail(
    lines: tuple[int, ...], is_read: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shards").mkdir()
    for shard, count in enumerate(lines):
        rows = "".join(f'{{"n": {1000 * (shard + 1) + at}}}\n' for at in range(count))
        (tmp_path / "shards" / f"part-{shard}.jsonl").write_text(rows)
    (tmp_path / "train.py").write_text(_DEFAULTS)
    run = launched(4, tmp_path / "train.py", tmp_path)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    assert [bool(rank["error"]) for rank in ranks] == [not is_read] * 4, run.stderr
    assert (run.returncode == 0) == is_read, run.stderr
    delivered = [number for rank in ranks for number in rank["numbers"]]
    assert len(delivered) == len(set(delivered)) == (sum(lines) if is_read else 0)
    assert (main(["audit", str(tmp_path / "audit")]) == 0) == is_read
    if is_read:
        (verdict,) = al.tools.verify_audit(tmp_path / "audit")
        assert (verdict.verdict, verdict.samples) == ("exact", sum(lines))
