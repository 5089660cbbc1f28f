"""Two ranks train on the CPU: by hand, with Fabric, and with accelerate."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from programs import Programs

from .points import COUNT

_BEGIN = """
import json, os, sys, warnings
from pathlib import Path

warnings.simplefilter("ignore")
import torch

sys.path.insert(0, sys.argv[1])
from interop.points import KINDS, Points, loss_of
import asyncloader as al

folder, kinds = Path(sys.argv[2]), sys.argv[3:]
rank = int(os.environ["RANK"])
found = {}
(folder / str(rank)).mkdir()


def make(kind, workers):
    # Each rank has shards of its own folder, without an index.
    options = {"lanes": 4, "uneven": "stop"} if kind.startswith("from") else {}
    return KINDS[kind](folder / str(rank), workers, **options)


def train(name, loader, model, optimizer, backward, begin_epoch=lambda epoch: None):
    epochs, losses = [], []
    for epoch in range(3):
        begin_epoch(epoch)
        epochs.append([])
        for batch in loader:
            epochs[-1] += batch["number"].tolist()
            loss = loss_of(model, batch)
            optimizer.zero_grad()
            backward(loss)
            optimizer.step()
            losses.append(loss.item())
    weights = [torch.zeros(2) for _ in range(2)]
    mine = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    torch.distributed.all_gather(weights, mine)
    assert torch.equal(*weights), "the ranks trained the same model"
    found[name] = epochs, losses


def make_net():
    torch.manual_seed(0)
    net = torch.nn.Linear(1, 1)
    return net, torch.optim.SGD(net.parameters(), lr=0.2)
"""

_END = """
(folder / f"{rank}.json").write_text(json.dumps(found))
torch.distributed.destroy_process_group()
"""

_BY_HAND = """
torch.distributed.init_process_group("gloo")
for kind in kinds:
    for workers in (0, 2):
        net, optimizer = make_net()
        model = torch.nn.parallel.DistributedDataParallel(net)
        if kind == "map style":
            sampler = torch.utils.data.DistributedSampler(Points())
            loader = al.DataLoader(Points(), 4, sampler=sampler, num_workers=workers)
            begin_epoch = sampler.set_epoch
        else:
            loader = make(kind, workers)
            begin_epoch = loader.set_epoch
        train(f"{kind}, {workers} workers", loader, model, optimizer, torch.Tensor.backward, begin_epoch)
"""

_FABRIC = """
import lightning
fabric = lightning.Fabric(accelerator="cpu", strategy="ddp", devices=2)
fabric.launch()
for kind in kinds:
    model, optimizer = fabric.setup(*make_net())
    loader = fabric.setup_dataloaders(make(kind, 2))
    train(kind, loader, model, optimizer, fabric.backward)
"""

_ACCELERATE = """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
assert accelerator.num_processes == 2
for kind in kinds:
    model, optimizer, loader = accelerator.prepare(*make_net(), make(kind, 2))
    train(kind, loader, model, optimizer, accelerator.backward)
"""


def assert_ranks_train(
    programs: Programs, program: str, kinds: list[str], names: list[str], folder: Path
) -> None:
    """Run ``program`` on two ranks: together they see every sample once per epoch, and the loss falls."""
    script = folder / "train.py"
    script.write_text(_BEGIN + program + _END)
    # The libraries warn of what is no business of ours.
    for run in programs.run_ranks(2, script, Path(__file__).parents[1], folder, *kinds, strict=False):
        assert run.returncode == 0, run.stderr
    ranks = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    assert list(ranks[0]) == names
    for name in names:
        parts = [rank[name] for rank in ranks]
        for first, second in zip(parts[0][0], parts[1][0], strict=True):
            assert len(first) == len(second) == COUNT // 2
            assert sorted(first + second) == list(range(COUNT)), name
        if name.startswith(("map", "async", "from_urls")):  # those that shuffle
            assert parts[0][0][0] != parts[0][0][1]
        steps = COUNT // 2 // 4
        assert sum(parts[0][1][-steps:]) < sum(parts[0][1][:steps]) / 2, name


def test_a_plain_loop_trains_under_ddp(tmp_path: Path, programs: Programs) -> None:
    kinds = ["map style", "from_urls", "from_iterable"]
    names = [f"{kind}, {workers} workers" for kind in kinds for workers in (0, 2)]
    assert_ranks_train(programs, _BY_HAND, kinds, names, tmp_path)


@pytest.mark.skipif(
    not importlib.util.find_spec("lightning"), reason="lightning is in the dependency group 'interop'"
)
def test_fabric_deals_map_style_datasets_and_leaves_streams_to_themselves(
    tmp_path: Path, programs: Programs
) -> None:
    kinds = ["map style", "async map style", "from_urls"]
    assert_ranks_train(programs, _FABRIC, kinds, kinds, tmp_path)


@pytest.mark.skipif(
    not importlib.util.find_spec("accelerate"), reason="accelerate is in the dependency group 'interop'"
)
def test_accelerate_deals_map_style_datasets_and_leaves_streams_to_themselves(
    tmp_path: Path, programs: Programs
) -> None:
    kinds = ["map style", "from_urls", "from_iterable"]
    assert_ranks_train(programs, _ACCELERATE, kinds, kinds, tmp_path)
