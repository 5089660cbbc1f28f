"""What a loader of a stream asks for, with the defaults that streams have."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from ..ops.batching import Batching, FixedSize, Single
from ..ops.map import AsyncMap
from ..ops.op import shown
from ..ops.skips import SkipErrors
from ..options import memory_bytes
from ..plan.memory import DEFAULT_LIMIT_BYTES
from ..plan.topology import World, process_group
from ..processors import usable_processors
from ..program_settings import read_settings
from ..report import Setup
from ..run.workers import WorkerSetting
from ..sources.components import Recipe, leaves_of
from ..sources.shards import Shards
from ..stores.urls import scheme_of
from ..torch_kind.adapt import is_async, is_iterable
from ..torch_kind.timing import stage_of
from .kind import Loader

__all__ = [
    "batching_of",
    "budget_of",
    "check_world",
    "memory_of",
    "setup_of",
    "setup_of_torch",
    "told_once",
    "worker_setting",
]

# As many as accidents explain. Workers that die again and again have a reason, such as too little memory.
_RESTARTS = 3


def batching_of(loader: Loader[Any]) -> Batching:
    """What makes its batches."""
    if loader.batching is not None:
        return loader.batching
    return Single() if loader.batch_size is None else FixedSize(loader.batch_size, loader.drop_last)


def memory_of(loader: Loader[Any]) -> int:
    """How many bytes it may hold; raises as ``memory_bytes``."""
    return DEFAULT_LIMIT_BYTES if loader.memory_limit is None else memory_bytes(loader.memory_limit)


def worker_setting(loader: Loader[Any], base_seed: int) -> WorkerSetting:
    """What each of its worker processes is to the user's code."""
    return WorkerSetting(
        loader.num_workers,
        base_seed,
        loader.worker_init_fn,
        prefetch=loader.prefetch_factor or 1,
        restarts=_RESTARTS if loader.worker_restarts is None else loader.worker_restarts,
        in_order=loader.in_order,
        program=read_settings(),
        start_timeout_s=float(loader.timeout) or None,
    )


def budget_of(loader: Loader[Any]) -> SkipErrors | None:
    """How much it may skip; None if every error is raised.

    Raises:
        ValueError: It says something else.
    """
    asked = loader.on_error
    if isinstance(asked, SkipErrors):
        return asked
    if asked != "raise":
        raise ValueError(f'on_error should be "raise" or al.SkipErrors(...), but got on_error={asked!r}')
    return None


def told_once(budget: SkipErrors | None, world: World) -> SkipErrors | None:
    """The same, of replicas with dead letters in the first alone: all skip the same."""
    if budget is None or world.replica == 0:
        return budget
    return replace(budget, dead_letters=None)


def check_world(loader: Loader[Any], mine: World) -> None:
    """Refuse to read for another rank than was known when the loader was made."""
    group = process_group(sys.modules)
    if loader.rank is not None or loader.mesh is not None or group is None:
        return
    if World(*group) != mine:
        raise RuntimeError(
            f"this loader was made for rank {mine.rank} of {mine.size}, but the process "
            f"group says rank {group[0]} of {group[1]}: samples would be read twice. Make the loader "
            "after torch.distributed.init_process_group(), or pass rank= and world_size="
        )


def setup_of(loader: Loader[Any], recipe: Recipe, world: World) -> Setup:
    """What advice on its passes has to go by."""
    shards = [source for source in leaves_of(recipe) if isinstance(source, Shards)]
    return Setup(
        num_workers=loader.num_workers,
        in_order=loader.in_order,
        concurrency={shown(op): op.concurrency for op in recipe.all_ops if hasattr(op, "concurrency")},
        coroutines=[shown(op) for op in recipe.all_ops if isinstance(op, AsyncMap)],
        processors=usable_processors(),
        caches=any(source.access.cache is not None for source in shards),
        is_local=all(scheme_of(url).is_local for source in shards for url in source.urls[:1]),
        is_indexed=bool(shards) and all(source.is_indexed for source in shards),
        has_ranks=world.processes > 1,
        on_cluster=loader.workers is not None,
    )


def setup_of_torch(loader: Loader[Any], dataset: Any) -> Setup:
    """Likewise, of a dataset that torch's loop reads."""
    return Setup(
        num_workers=loader.num_workers,
        in_order=loader.in_order,
        concurrency={},
        coroutines=[stage_of(dataset)] if is_async(dataset) else [],
        processors=usable_processors(),
        caches=False,
        is_local=True,
        is_indexed=False,
        has_ranks=False,
        style="iterable" if is_iterable(dataset) else "map",
        keeps_workers=loader.persistent_workers or not loader.num_workers,
    )
