"""torchdata's StatefulDataLoader over the dataset that `over_torch` reads, which has a state too."""

from __future__ import annotations

from typing import Any

from torchdata.stateful_dataloader import StatefulDataLoader

from .given import BATCH, Source, keep
from .over_torch import Shards, read_bodies

__all__ = ["tar"]


def tar(source: Source) -> Any:
    dataset = Shards(source.urls, read_bodies)
    return StatefulDataLoader(dataset, BATCH, num_workers=source.workers, collate_fn=keep)
