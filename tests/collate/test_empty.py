"""Batches without rows: of the structure of others, and told from them."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch

import asyncloader as al
from asyncloader.collate.empty import empty_like
from asyncloader.collate.packed import PackedCollate

Pair = namedtuple("Pair", "x y")


def test_tensors_and_arrays_lose_their_rows_and_keep_the_rest() -> None:
    batch = {"x": torch.ones(4, 3, dtype=torch.float16), "y": np.ones((4, 2), np.int32), "z": torch.tensor(3)}
    empty = empty_like(batch)
    assert empty["x"].shape == (0, 3) and empty["x"].dtype == torch.float16
    assert empty["y"].shape == (0, 2) and empty["y"].dtype == np.int32
    assert empty["z"].shape == ()


def test_nothing_of_the_batch_is_kept_alive() -> None:
    tensor = torch.ones(1000)
    assert empty_like([tensor])[0].untyped_storage().nbytes() == 0


@pytest.mark.parametrize(
    ("batch", "wanted"),
    [
        (["a", "b"], []),
        ({"key": ["a"], "n": 3, "rate": 0.5, "last": True}, {"key": [], "n": 0, "rate": 0.0, "last": False}),
        ([["a", "b"], ["c", "d"]], [[], []]),
        (("a", None), TypeError),
        ({"x": object()}, TypeError),
    ],
)
def test_lists_and_numbers(batch: Any, wanted: Any) -> None:
    if wanted is TypeError:
        with pytest.raises(TypeError, match="give collate_fn a method empty"):
            empty_like(batch)
    else:
        assert empty_like(batch) == wanted


def test_named_tuples_stay_named() -> None:
    empty = empty_like(Pair(torch.ones(2), ["a", "b"]))
    assert isinstance(empty, Pair) and len(empty.x) == 0 and empty.y == []


def test_a_collate_fn_may_say_how() -> None:
    class Mine:
        def __call__(self, samples: list[Any]) -> Any: ...

        def empty(self, batch: Any) -> str:
            return f"none of {batch}"

    assert empty_like("these", Mine()) == "none of these"


@pytest.mark.parametrize(
    "collate_fn", [al.default_collate, al.Pad({"tokens": 0}), al.Pad({"tokens": 0}, mask=True)]
)
def test_what_the_library_collates_is_told_from_its_empty_like(collate_fn: Any) -> None:
    samples = [{"tokens": torch.arange(3), "label": 1, "name": "a"}] * 2
    batch = collate_fn(samples)
    assert not al.is_empty(batch)
    empty = empty_like(batch, collate_fn)
    assert al.is_empty(empty) and empty.keys() == batch.keys()


def test_packed_blocks_have_no_segment() -> None:
    collate = PackedCollate()
    rows = [{"tokens": np.arange(4), "segment_ids": np.array([0, 0, 1, 1], np.int32)}] * 2
    empty = empty_like(collate(rows), collate)
    assert empty["tokens"].shape == (0, 4)
    assert empty["cu_seqlens"].tolist() == [0] and empty["max_seqlen"] == 0
    assert al.is_empty(empty)


def test_what_has_no_rows_at_all_is_not_empty() -> None:
    assert not al.is_empty(3)
    assert not al.is_empty({"n": 3})
