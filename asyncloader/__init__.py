"""Stream training data from HTTP servers, object stores and local disk into PyTorch.

``from_urls`` makes a dataset, ``DataLoader`` runs it. Names are loaded when they are first used, so that
``import asyncloader`` costs nothing: torch alone takes a second. Type checkers read ``__init__.pyi``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# The public names, by the module that each is loaded from.
_PUBLIC = {
    "blocks": "Ragged",
    "collate.default": "default_collate default_convert",
    "collate.empty": "is_empty",
    "collate.pad": "Pad",
    "errors": "Error FormatError StoreError WorkerDiedError",
    "loader.loader": "DataLoader",
    "pipeline.batching": "Buckets TokenBatches",
    "pipeline.calls": "sample_rng sample_seeded",
    "pipeline.dataset": "AsyncIterableDataset concat Dataset from_iterable mix zip_datasets",
    "pipeline.folders": "from_litdata from_mds",
    "pipeline.from_urls": "from_urls",
    "pipeline.hub": "from_hub",
    "pipeline.pack": "Pack",
    "pipeline.skips": "SkipErrors",
    "plan.states": "merge_states",
    "plan.topology": "get_topology",
    "shards.index_building": "build_index",
    "shards.shard_writer": "ShardWriter",
    "stores.store": "NetworkPolicy",
    "tools.convert": "convert",
    "torch_compat.split": "split_iterable",
    "torch_compat.worker_info": "get_worker_info WorkerInfo",
    "workers.ray.options": "RayWorkers",
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names.split()}

# Modules that are available without an import of their own.
_MODULES = ("cache", "errors", "observe", "testing", "tools")

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name not in _HOME:
        from .pipeline.renamed import NAMES

        if name in NAMES:  # not an AttributeError, which "from asyncloader import" would replace
            raise ImportError(f"asyncloader.{name} is now {NAMES[name]}", name=name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
