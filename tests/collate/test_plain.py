"""Without torch a batch is collated as torch does it, or left to it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.blocks import memory as tensors
from asyncloader.blocks.memory import StandIn
from asyncloader.collate import default
from asyncloader.collate.default import collate_plain

DTYPES = "?bBhHiIlLefdFD"

numbers = st.one_of(
    st.booleans(), st.integers(-(1 << 70), 1 << 70), st.integers(-9, 9), st.floats(), st.none()
)
arrays = st.builds(
    lambda char, shape: np.arange(int(np.prod(shape))).reshape(shape).astype(char),
    st.sampled_from([*DTYPES, "q", "Q", ">i4", "g", "M8[s]", "U3"]),
    st.sampled_from([(), (0,), (2,), (2, 3)]),
)
leaves = st.one_of(numbers, st.text(max_size=2), st.binary(max_size=2), arrays)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.tuples(inner, inner),
        st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    ),
    max_leaves=5,
)


@pytest.fixture(autouse=True, scope="module")
def without_torch() -> Any:
    """Make stand-ins, as where nobody has imported it."""
    patch = pytest.MonkeyPatch()
    for module in (tensors, default):
        patch.setattr(module, "may_stand_in", lambda: True)
    yield
    patch.undo()


def with_tensors(value: Any) -> Any:
    if isinstance(value, StandIn):
        return torch.from_numpy(value.array)
    if isinstance(value, dict):
        return {name: with_tensors(inner) for name, inner in value.items()}
    return type(value)(map(with_tensors, value)) if isinstance(value, list | tuple) else value


def alike(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one.nan_to_num(7), other.nan_to_num(7))
    if isinstance(one, dict):
        return list(one) == list(other) and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


@given(st.lists(values, min_size=1, max_size=3) | values.map(lambda value: [value, value]))
def test_it_is_torchs_batch_or_none(batch: list[Any]) -> None:
    made = collate_plain(batch)
    if made is not NotImplemented:
        assert alike(with_tensors(made), torch.utils.data.default_collate(batch))


@pytest.mark.parametrize("char", DTYPES)
def test_arrays_of_numbers_need_no_torch(char: str) -> None:
    made = collate_plain([{"x": np.ones((2, 3), char)}] * 2)
    assert made["x"].array.shape == (2, 2, 3) and made["x"].array.dtype == char


@pytest.mark.parametrize("char", sorted({*DTYPES} - {np.dtype(np.uint64).char}))
def test_scalars_of_numpy_need_no_torch(char: str) -> None:
    batch = list(np.array([1, 0, 1], char))
    made = collate_plain(batch)
    assert alike(with_tensors(made), torch.utils.data.default_collate(batch))


@pytest.mark.parametrize(
    "batch",
    [
        [1, 2.0],
        [1, True],
        [1 << 63],
        [None],
        [{"x": 1, "y": 2}, {"x": 1}],
        [[1], [1, 2]],
        [np.ones(2), np.ones(3)],
        [np.ones(2, ">f4")],
        [np.ones(2, "g")],
        [np.ones(2, np.ulonglong)],
        [np.float32(1), np.float64(1)],
        [np.uint64(1)],
        [np.longdouble(1)],
        [np.timedelta64(1)],
    ],
    ids=str,
)
def test_what_torch_may_see_otherwise_is_left_to_it(batch: list[Any]) -> None:
    assert collate_plain(batch) is NotImplemented
