"""Train on ranks that have different numbers of samples: those that run dry go on with empty batches.

    torchrun --nproc-per-node 2 examples/uneven_ranks.py

Without a policy the rank that ends first would leave the others waiting in their next collective call.
"""

import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import asyncloader as al
from asyncloader.plan.topology import Topology

SIZES = (40, 7, 25)  # samples of each shard


def make_points(topology: Topology) -> Any:
    for shard in topology.split(range(len(SIZES))):
        for number in range(SIZES[shard]):
            x = number / SIZES[shard]
            yield {"x": torch.tensor([x]), "y": torch.tensor([3 * x])}


if "RANK" not in os.environ:
    sys.exit("run it with torchrun: torchrun --nproc-per-node 2 examples/uneven_ranks.py")
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = al.DataLoader(al.from_iterable(make_points), batch_size=4, uneven="pad")

counts = torch.zeros(3, dtype=torch.int64)  # steps, samples, empty batches
for _ in range(2):
    for batch in loader:
        loss = nn.functional.mse_loss(model(batch["x"]), batch["y"], reduction="sum")
        loss = loss / max(len(batch["x"]), 1)  # a mean over no samples would be NaN
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        counts += torch.tensor([1, len(batch["x"]), al.is_empty(batch)])

everybody = [torch.zeros_like(counts) for _ in range(dist.get_world_size())]
dist.all_gather(everybody, counts)
if dist.get_rank() == 0:
    for rank, (steps, samples, empty) in enumerate(torch.stack(everybody).tolist()):
        print(f"rank {rank}: {steps} steps, {samples} samples, {empty} empty batches")
dist.barrier()
dist.destroy_process_group()
