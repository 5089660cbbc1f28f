"""Batches without rows: of the structure of others, and told from them."""

from __future__ import annotations

import base64
import pickle
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch

import asyncloader as al
from asyncloader.collate.empty import empty_from_text, empty_like, empty_to_text
from asyncloader.pipeline.pack import PackedCollate

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


# --- sent to a rank that never had a batch ---


class Fields(dict[str, Any]):
    """A mapping of the user's own."""


def test_it_comes_back_as_it_was_from_a_text() -> None:
    batch = {
        "x": torch.empty(0, 3, dtype=torch.bfloat16),
        "rows": torch.tensor([[0, 7]], dtype=torch.int32),
        "one": torch.tensor(True),
        "y": np.empty((0, 2), "<u2"),
        "half": np.zeros((), np.float16),
        "waves": torch.zeros((), dtype=torch.complex64),
        "records": np.zeros(0, [("a", "<i4"), ("b", "<f8", (2,)), ("c", "O")]),
        "record": np.zeros((), [("a", "<i4"), ("b", "<f8", (2,))]),
        **{
            f"of {kind}": np.empty((0, 1), kind)
            for kind in ("O", "M8[D]", "m8[s]", "S3", "V4", "c16", "<U2", ">f4")
        },
        "day": np.zeros((), "M8[D]"),
        "pair": Pair(torch.empty(0), []),
        "own": Fields(text="", raw=b"\x00", none=None),
        3: (0, 0.0, [True, []]),
    }
    back = empty_from_text(empty_to_text(batch))
    assert list(back) == list(batch)
    for name in ("x", "rows", "one", "waves"):
        assert back[name].dtype == batch[name].dtype and torch.equal(back[name], batch[name])
    for name, array in batch.items():
        if isinstance(array, np.ndarray):
            assert back[name].dtype == array.dtype and back[name].shape == array.shape
            assert np.array_equal(back[name], array)
    assert isinstance(back["pair"], Pair) and back["pair"].y == [] and len(back["pair"].x) == 0
    assert type(back["own"]) is Fields and back["own"] == batch["own"]
    assert back[3] == batch[3] and type(back[3]) is tuple
    back["rows"] += 1  # it is memory of its own


@pytest.mark.parametrize("value", [{1}, np.array([None])])
def test_what_cannot_be_sent_is_an_error_that_says_what_to_do(value: Any) -> None:
    with pytest.raises(TypeError, match=r"found a \w+, which uneven=\"pad\" cannot send .* method empty"):
        empty_to_text({"x": value})


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        base64.b64encode(pickle.dumps([])).decode(),
        '{"tuple": [["subprocess", "Popen"], ["ls"]]}',
        '{"fields": [["os", "system"], []]}',
        '{"tuple": [["nowhere", "Known"], []]}',
        '{"tensor": ["nn", [0], "cpu", ""]}',
        '{"tensor": ["int64", [3], "cpu", "AAAA"]}',
        '{"tensor": ["int64", [3], "cpu", ""]}',
        '{"array": ["\'<i8\'", [3], ""]}',
        '{"array": ["\'|O\'", [1], "AAAAAAAAAAA="]}',
        '{"array": ["open(0)", [0], ""]}',
        '{"array": ["(", [0], ""]}',
        '{"a": 1, "b": 2}',
    ],
)
def test_a_text_of_somebody_else_s_runs_nothing_and_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected an empty batch of another rank"):
        empty_from_text(text)
