"""What training libraries probe a loader for: Lightning's ``isinstance``, accelerate's mark."""

from __future__ import annotations

import sys

import torch.utils.data

from .dataset import Dataset
from .kinds.kind import Loader
from .plan.topology import process_group, resolve_world
from .recipes import AsyncIterableDataset
from .torch_kind.adapt import torch_reads

__all__ = ["accelerate_keeps"]

# Libraries ask this before they give a loader another sampler (Lightning), or deal it to ranks themselves.
# Registered, since the recipe itself must not need torch.
torch.utils.data.IterableDataset.register(Dataset)
torch.utils.data.IterableDataset.register(AsyncIterableDataset)


def accelerate_keeps(loader: Loader[object], torchs_loop: bool) -> bool:
    """Whether accelerate's ``prepare`` must hand on the loader as it is, as if it had prepared it itself.

    Otherwise it makes torch's own loader anew from the dataset, which cannot read all that ours can. A
    stream deals itself to the ranks, and moves its batches with ``device=``.

    Raises:
        RuntimeError: It can do neither, since the dataset is one that torch's loader cannot read and that
            nobody has dealt to the ranks.
    """
    if not torchs_loop:
        return True
    if torch_reads(loader.dataset):
        return False
    world = resolve_world(None, None, lambda: process_group(sys.modules), {})
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    if world.size > 1 and not isinstance(sampler, torch.utils.data.DistributedSampler):
        raise RuntimeError(
            f"accelerate cannot deal a {type(loader.dataset).__name__} to {world.size} ranks, since it "
            "would read it with torch's own loader, which does not know datasets of this kind. Give the "
            "DataLoader a DistributedSampler, or load a stream (from_urls, from_iterable)"
        )
    return True
