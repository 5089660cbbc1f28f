"""Which jobs can do without torch, told by what they are made of."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch

import asyncloader as al
from asyncloader.loader.workers import expected_modules
from asyncloader.pipeline.dataset import stages_of

SHARDS = al.from_urls("/nowhere/shard-{0..3}.jsonl", format="jsonl").shuffle(10, seed=0)


def by_value(function: Any) -> Any:
    """As if the main module had it."""
    function.__module__ = "__main__"
    return function


def plain(sample: dict[str, Any]) -> dict[str, Any]:
    import json

    return {**sample, "x": np.asarray(json.loads("1"))}


def of_a_module(sample: Any) -> Any:
    """What else its module does is not known."""
    return sample


def imports_torch(sample: Any) -> Any:
    def inside() -> Any:
        import torch.nn.functional as F

        return F

    return inside


def uses_torch(sample: Any) -> Any:
    return torch.ones(1)


def uses_ours(sample: Any) -> Any:
    return al.get_worker_info()


def imports_other(sample: Any) -> Any:
    import hypothesis

    return hypothesis


class Padded(al.Pad):
    pass


@pytest.mark.parametrize(
    ("recipe", "functions", "needs_torch"),
    [
        (SHARDS, (al.default_collate, None), False),
        (SHARDS, (torch.utils.data.default_collate, None), True),
        (SHARDS, (al.default_convert, None), True),
        (SHARDS, (list, None), False),
        (SHARDS, (al.Pad({"x": 0}), None), False),
        (SHARDS, (al.Pad({"x": 0}, collate_fn=by_value(lambda rows: {})), None), True),
        (SHARDS, (Padded({"x": 0}), None), True),
        (SHARDS.map(by_value(plain)), (al.default_collate, None), False),
        (SHARDS.map(of_a_module), (al.default_collate, None), True),
        (SHARDS.map(lambda sample: {**sample}), (al.default_collate, None), False),  # goes by value
        (SHARDS.map(by_value(uses_torch)), (al.default_collate, None), True),
        (SHARDS.map(by_value(imports_torch)), (al.default_collate, None), True),
        (SHARDS.map(by_value(imports_other)), (al.default_collate, None), True),
        (SHARDS.map(by_value(uses_ours)), (al.default_collate, None), True),
        (SHARDS.map(functools.partial(by_value(plain))), (al.default_collate, by_value(uses_torch)), True),
        (al.from_iterable(lambda topology: topology.split(range(9))), (al.default_collate, None), True),
        (al.mix([SHARDS, SHARDS]), (al.default_collate, None), False),
        (al.mix([SHARDS, SHARDS.map(by_value(uses_torch))]), (al.default_collate, None), True),
    ],
)
def test_torch_is_left_out_where_nothing_can_want_it(recipe: Any, functions: Any, needs_torch: bool) -> None:
    assert ("torch" in expected_modules(stages_of(recipe), *functions)) is needs_torch


@pytest.mark.parametrize(
    ("url", "client"),
    [
        ("http://h/x.tar", "http.client"),
        ("hf://datasets/o/n/x.parquet", "http.client"),
        ("s3://b/x.tar", "objects.store"),
        ("x.tar", "local"),
    ],
)
def test_the_client_of_the_store_is_imported_once_for_all_workers(url: str, client: str) -> None:
    module = f"asyncloader.stores.{client}"
    assert module in expected_modules(stages_of(al.from_urls(url, index=None)), al.default_collate)
    assert (module in expected_modules(stages_of(SHARDS), al.default_collate)) is (client == "local")


def test_what_cannot_be_sent_is_not_said_before_workers_start() -> None:
    import threading

    recipe = SHARDS.map(functools.partial(by_value(plain), lock=threading.Lock()))
    assert expected_modules(stages_of(recipe), al.default_collate)
