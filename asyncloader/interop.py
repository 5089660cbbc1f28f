"""What training libraries probe a loader for: Lightning's ``isinstance``, accelerate's mark."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable

import torch.utils.data

from .dataset import Dataset
from .kinds.kind import Loader
from .plan.topology import process_group, resolve_world
from .recipes import AsyncIterableDataset
from .torch_kind.adapt import torch_reads

__all__ = ["accelerate_keeps", "find_reader_ahead"]

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


#: Where Lightning has what reads one batch ahead of the training step, by the name that it was installed by.
_FETCHERS = ("lightning.pytorch.loops.fetchers", "pytorch_lightning.loops.fetchers")

#: How far up from ``iter(loader)`` it is: its own loop over several loaders lies in between.
_FRAMES = 10


def find_reader_ahead() -> Callable[[], bool] | None:
    """Whether Lightning's ``Trainer``, if that iterates the loader here, has a batch in hand and not used it.

    Of a loader without a length it reads one batch ahead, to know which is the last, and saves the loader's
    state with that batch in hand: a resumed run would miss it. Nothing that is public tells a loader so.

    Returns:
        To be asked when a state is saved; None if nobody reads ahead.
    """
    modules = {name for name in _FETCHERS if name in sys.modules}
    frame = sys._getframe(1) if modules else None
    for _ in range(_FRAMES):
        if frame is None:
            return None
        # Only of a frame of theirs: one that was asked for its variables keeps what they hold until it ends,
        # also what the program has deleted meanwhile.
        if (module := frame.f_globals.get("__name__")) in modules:
            reader = frame.f_locals.get("self")
            if isinstance(reader, getattr(sys.modules[module], "_PrefetchDataFetcher", ())):
                held = weakref.ref(reader)
                return lambda: bool(getattr(held(), "batches", ()))
        frame = frame.f_back
    return None
