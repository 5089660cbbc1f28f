"""Stream training data from HTTP servers, object stores and local disk into PyTorch.

``from_urls`` makes a recipe, ``DataLoader`` runs it. Names are loaded when they are first used, so that
``import asyncloader`` costs nothing: torch alone takes a second.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .audit.verdict import EpochVerdict, Finding
    from .audit.verifying import verify_audit
    from .blocks import Ragged
    from .cache.audit import verify_cache
    from .collate import Pad, PadField, default_collate, default_convert, is_empty
    from .converting.convert import Converted, convert, pack
    from .dataset import Dataset
    from .errors import FormatError, RanksError, SkipBudgetError, StoreError, WorkerDiedError
    from .foreign.hub import from_hub
    from .foreign.litdata import from_litdata
    from .foreign.mds import from_mds
    from .index.building import build_index
    from .loader import DataLoader
    from .metrics import Metrics
    from .mixtures import concat, mix
    from .mixtures import zip as zip
    from .ops.buckets import Buckets
    from .ops.draws import sample_rng, sample_seed
    from .ops.pack import Pack
    from .ops.skips import Skip
    from .ops.token_batches import TokenBatches
    from .plan.states import merge_states
    from .plan.topology import Topology, get_topology
    from .ray_workers import RayWorkers
    from .recipes import AsyncIterableDataset, from_iterable, from_urls
    from .report import Report
    from .statistics import Receipt, Statistics
    from .stores.policy import NetworkPolicy
    from .torch_kind.split import split
    from .torch_kind.worker_info import WorkerInfo, get_worker_info
    from .writer import ShardWriter, WrittenShard

__version__ = "0.1.0"

__all__ = [
    "AsyncIterableDataset",
    "Buckets",
    "Converted",
    "DataLoader",
    "Dataset",
    "EpochVerdict",
    "Finding",
    "FormatError",
    "Metrics",
    "NetworkPolicy",
    "Pack",
    "Pad",
    "PadField",
    "Ragged",
    "RanksError",
    "RayWorkers",
    "Receipt",
    "Report",
    "ShardWriter",
    "Skip",
    "SkipBudgetError",
    "Statistics",
    "StoreError",
    "TokenBatches",
    "Topology",
    "WorkerDiedError",
    "WorkerInfo",
    "WrittenShard",
    "build_index",
    "concat",
    "convert",
    "default_collate",
    "default_convert",
    "from_hub",
    "from_iterable",
    "from_litdata",
    "from_mds",
    "from_urls",
    "get_topology",
    "get_worker_info",
    "is_empty",
    "merge_states",
    "mix",
    "pack",
    "sample_rng",
    "sample_seed",
    "split",
    "verify_audit",
    "verify_cache",
]
# Without "zip": whoever imports * must not lose Python's own.

_HOME = {
    "AsyncIterableDataset": "recipes",
    "Buckets": "ops.buckets",
    "Converted": "converting.convert",
    "DataLoader": "loader",
    "Dataset": "dataset",
    "EpochVerdict": "audit.verdict",
    "Finding": "audit.verdict",
    "FormatError": "errors",
    "Metrics": "metrics",
    "NetworkPolicy": "stores.policy",
    "Pack": "ops.pack",
    "Pad": "collate",
    "PadField": "collate",
    "Ragged": "blocks",
    "RanksError": "errors",
    "RayWorkers": "ray_workers",
    "Receipt": "statistics",
    "Report": "report",
    "ShardWriter": "writer",
    "Skip": "ops.skips",
    "SkipBudgetError": "errors",
    "Statistics": "statistics",
    "StoreError": "errors",
    "TokenBatches": "ops.token_batches",
    "Topology": "plan.topology",
    "WorkerDiedError": "errors",
    "WorkerInfo": "torch_kind.worker_info",
    "WrittenShard": "writer",
    "build_index": "index.building",
    "concat": "mixtures",
    "convert": "converting.convert",
    "default_collate": "collate",
    "default_convert": "collate",
    "from_hub": "foreign.hub",
    "from_iterable": "recipes",
    "from_litdata": "foreign.litdata",
    "from_mds": "foreign.mds",
    "from_urls": "recipes",
    "get_topology": "plan.topology",
    "get_worker_info": "torch_kind.worker_info",
    "is_empty": "collate",
    "merge_states": "plan.states",
    "mix": "mixtures",
    "pack": "converting.convert",
    "sample_rng": "ops.draws",
    "sample_seed": "ops.draws",
    "split": "torch_kind.split",
    "verify_audit": "audit.verifying",
    "verify_cache": "cache.audit",
    "zip": "mixtures",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
