from __future__ import annotations

import gc
import weakref
from contextlib import closing
from typing import Any

import numpy as np
import pytest

import asyncloader as al
from asyncloader.blocks import Columns, OffsetTrail, Ragged
from asyncloader.flow.engine import Engine
from asyncloader.pipeline.lane import START

from .running import lane_of


@pytest.mark.parametrize(
    "batching",
    [
        al.TokenBatches(max_tokens=10, pool=6),
        al.Buckets(bounds=[9], batch_sizes=[4, 4], pool=6),
        al.Pack(length=7, batch_size=4, pool=6),
    ],
    ids=lambda batching: type(batching).__name__,
)
def test_a_pool_is_let_go_of_before_the_next_one_fills(batching: Any, engine: Engine) -> None:
    pools: list[weakref.ref[Any]] = []

    def upstream(*_: Any) -> Any:
        for number in range(6):
            gc.collect()
            assert [ref() for ref in pools] == [None] * number
            values = np.arange(30)
            pools.append(weakref.ref(values))
            yield Columns({"tokens": Ragged(values, np.arange(0, 31, 5))}, OffsetTrail(6 * number, None))
            del values

    with closing(batching.open(upstream, START, lane_of(engine))) as batches:
        for batch in batches:
            del batch
