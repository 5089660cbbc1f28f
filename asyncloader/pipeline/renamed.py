"""Names that have changed, and habits of other libraries: what to write instead. Used only for errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar, cast

_F = TypeVar("_F", bound=Callable[..., Any])

#: Names that ``asyncloader`` had, and where they are now.
NAMES: Mapping[str, str] = {
    **{name: f"asyncloader.tools.{name}" for name in ("EpochVerdict", "Finding", "verify_audit")},
    **{name: f"asyncloader.observe.{name}" for name in ("Metrics", "Report", "Statistics")},
    **{name: f"asyncloader.errors.{name}" for name in ("RanksError", "SkipBudgetError")},
    "PadField": 'a mapping of options, as in Pad({"tokens": {"value": 0, "max_length": 512}})',
    "Receipt": "part of loader.statistics",
    "Skip": "SkipErrors",
    "Topology": "asyncloader.plan.topology.Topology",
    "Converted": "asyncloader.tools.convert.Converted",
    "WrittenShard": "asyncloader.shards.shard_writer.WrittenShard",
    "pack": "convert, which takes a folder of files too",
    "sample_seed": 'sample_rng(library="torch") or sample_rng(library="random")',
    "split": "split_iterable",
    "verify_cache": "asyncloader.cache.verify_cache",
    "zip": "zip_datasets",
}

#: Methods of other libraries' pipelines, or of earlier versions.
OPERATORS: Mapping[str, str] = {
    **dict.fromkeys(("batch", "batched"), "the loader makes batches: DataLoader(ds, batch_size=32)"),
    "cache": 'from_urls(urls, cache_dir="/a/folder") keeps whole shards on disk',
    "collate": "the loader collates: DataLoader(ds, batch_size=32, collate_fn=function)",
    "prefetch": "the loader always reads ahead: DataLoader(ds, prefetch_factor=4, memory_limit=...)",
    "select": '.select_columns("jpg", "cls") keeps these fields of each sample; .filter(function) keeps the '
    "samples for which function(sample) is true",
    "to_tuple": '.select_columns("jpg", "cls") keeps fields, and .map(lambda sample: tuple(sample.values())) '
    "makes tuples of them",
}

#: Options of ``DataLoader`` that were removed.
LOADER_OPTIONS: Mapping[str, str] = {
    "ahead": "prefetch_factor=, the number of batches that are made ahead",
    "replicate": "rank=rank // n and world_size=world_size // n, where n consecutive ranks read the same",
}

#: Options of functions that take an index, as they were called before.
INDEX_OPTIONS: Mapping[str, str] = {"manifest": "index="}

#: Attributes of ``DataLoader`` that were removed.
LOADER_ATTRIBUTES: Mapping[str, str] = {
    "receipt": "loader.statistics has what the latest pass delivered, and what it was expected to",
}


def missing(owner: object, whose: str, name: str, table: Mapping[str, str]) -> AttributeError:
    """The error for an attribute that ``owner`` lacks, with the advice of a table."""
    advice = f": {table[name]}" if name in table else ""
    return AttributeError(f"{whose} has no {name!r}{advice}", name=name, obj=owner)


def with_advice(table: Mapping[str, str]) -> Callable[[_F], _F]:
    """A decorator: the error for a removed option says what to write instead."""

    def decorate(function: _F) -> _F:
        @wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            for name in kwargs.keys() & table.keys():
                shown = function.__qualname__.removesuffix(".__init__")
                raise TypeError(f"{shown} has no argument {name!r}: write {table[name]}")
            return function(*args, **kwargs)

        return cast(_F, checked)

    return decorate
