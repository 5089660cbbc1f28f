from __future__ import annotations

from typing import Any

import pytest
import torch
from batches import DTYPES, random_tensor, same
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.blocks.memory import as_bytes
from asyncloader.device.carriers import LARGE_BYTES, make_parcels

SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)
LARGE = LARGE_BYTES // 4  # float32 elements


def packed(leaves: list[Any]) -> list[Any]:
    """The leaves after a journey through buffers of their own."""
    parcels, _ = make_parcels(leaves, lambda _: False)
    result = list(leaves)
    for parcel in parcels:
        buffer = torch.full((parcel.size_bytes,), 0xEE, dtype=torch.uint8)
        parcel.write(buffer)
        parcel.lay_over(buffer, result)
    return result


@given(st.lists(st.tuples(st.sampled_from(DTYPES), SHAPES, st.integers(0, 9)), max_size=12))
def test_every_dtype_and_shape_arrives_as_it_was(kinds: list[tuple[torch.dtype, Any, int]]) -> None:
    tensors = [random_tensor(*kind) for kind in kinds]
    for old, new in zip(tensors, packed(tensors), strict=True):
        assert same(old, new)
        assert (new is old) == (old.numel() == 0)
        assert new.data_ptr() % 16 == 0


@given(st.lists(st.integers(1, 6), min_size=2, max_size=4), st.data())
def test_dense_tensors_keep_their_strides(shape: list[int], drawn: st.DataObject) -> None:
    order = drawn.draw(st.permutations(range(len(shape))))
    old = random_tensor(torch.float32, tuple(shape)).permute(order)
    (new,) = packed([old])
    assert same(old, new) and new.stride() == old.stride()


def test_what_is_not_dense_becomes_contiguous() -> None:
    base = random_tensor(torch.int16, (8, 8))
    olds = [base[::2], base[:, 1:3], base.expand(3, 8, 8), torch.tensor(7).expand(5)]
    for old, new in zip(olds, packed(olds), strict=True):
        assert same(old, new) and new.is_contiguous()


def test_slice_of_a_storage_takes_only_its_own_bytes() -> None:
    rows = random_tensor(torch.float32, (1000, 4))
    parcels, _ = make_parcels([rows[10:12]], lambda _: False)
    assert [parcel.size_bytes for parcel in parcels] == [64]  # 32, rounded up
    assert same(packed([rows[10:12]])[0], rows[10:12])


def test_pending_conjugation_and_negation_are_carried_out() -> None:
    number = torch.tensor([1 + 2j])
    olds = [number.conj(), number.conj().imag]
    assert olds[0].is_conj() and olds[1].is_neg()
    for old, new in zip(olds, packed(olds), strict=True):
        assert torch.equal(old, new) and not new.is_conj() and not new.is_neg()


def test_small_tensors_share_a_buffer_and_large_ones_do_not() -> None:
    leaves = [torch.zeros(1), torch.zeros(LARGE), torch.zeros(2), torch.zeros(LARGE)]
    parcels, others = make_parcels(leaves, lambda _: False)
    indices = [[piece.index for piece in parcel.pieces] for parcel in parcels]
    assert indices == [[1], [3], [0, 2]] and others == []


def test_keeping_a_label_does_not_keep_the_images() -> None:
    _, label = packed([torch.zeros(LARGE), torch.zeros(8)])
    assert label.untyped_storage().nbytes() < LARGE_BYTES


def test_only_large_tensors_are_asked_whether_they_are_pinned() -> None:
    asked: list[int] = []

    def is_pinned(tensor: torch.Tensor) -> bool:
        asked.append(tensor.numel())
        return True

    parcels, _ = make_parcels([torch.zeros(1), torch.zeros(LARGE)], is_pinned)
    assert asked == [LARGE] and [parcel.pinned for parcel in parcels] == [True, False]


def test_writing_in_place_does_not_disturb_the_others_gradients() -> None:
    noise, features = packed([torch.zeros(4), torch.ones(4)])
    weight = torch.ones(4, requires_grad=True)
    loss = (weight * features).sum()
    noise.add_(1)
    loss.backward()
    assert weight.grad is not None and weight.grad.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    "leaf",
    [
        torch.zeros(3, requires_grad=True),
        torch.zeros(3).to_sparse(),
        torch.nn.Parameter(torch.zeros(3)),
        torch.zeros(0, 4),
        torch.zeros(3, device="meta"),
        "text",
    ],
    ids=["gradient", "sparse", "parameter", "empty", "device", "text"],
)
def test_what_is_no_plain_tensor_in_host_memory_is_left_out(leaf: Any) -> None:
    parcels, others = make_parcels([torch.zeros(1), leaf], lambda _: False)
    assert len(parcels) == 1 and others == [1]


def test_bytes_of_a_dense_tensor_are_its_memory() -> None:
    rows = random_tensor(torch.bfloat16, (6, 4))
    part = rows[2:4].t()
    raw = as_bytes(part)
    assert (
        raw.data_ptr() == part.data_ptr() and raw.tolist() == rows[2:4].reshape(-1).view(torch.uint8).tolist()
    )
