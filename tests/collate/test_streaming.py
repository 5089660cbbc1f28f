"""How tensors are stacked: in one way where they are small, in another where large, to the same batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from asyncloader.blocks.memory import LEAST_BYTES
from asyncloader.collate.default import default_collate


class Marked(torch.Tensor):
    """A tensor of the user's own type."""


# Of some elements each, which a batch of four has more than LEAST_BYTES of, or far fewer.
FEW, MANY = 8, LEAST_BYTES

MADE = {
    "plain": lambda count: torch.arange(count, dtype=torch.float32),
    "bytes": lambda count: torch.arange(count).to(torch.uint8),
    "without numpy's dtype": lambda count: torch.arange(count).to(torch.bfloat16),
    "with a gradient": lambda count: torch.ones(count, requires_grad=True) * 2,
    "of a subclass": lambda count: torch.ones(count).as_subclass(Marked),
    "channels last": lambda count: torch.rand(1, 4, count // 8, 2).to(memory_format=torch.channels_last)[0],
    "of every second": lambda count: torch.arange(2 * count)[::2],
    "conjugate": lambda count: torch.ones(count, dtype=torch.complex64).conj(),
}


@pytest.mark.parametrize("count", [FEW, MANY])
@pytest.mark.parametrize("name", MADE)
def test_few_and_many_bytes_are_stacked_alike(name: str, count: int) -> None:
    tensors = [MADE[name](count) for _ in range(4)]
    ours, theirs = default_collate(tensors), torch.utils.data.default_collate(tensors)
    assert type(ours) is type(theirs)
    assert (ours.dtype, ours.shape, ours.requires_grad) == (theirs.dtype, theirs.shape, theirs.requires_grad)
    assert torch.equal(ours, theirs)
    assert ours.is_contiguous()
    assert ours.data_ptr() != tensors[0].data_ptr()


@pytest.mark.parametrize("count", [FEW, MANY])
@pytest.mark.parametrize(
    "others",
    [
        lambda count: torch.ones(count + 1),
        lambda count: np.ones(count, np.float32),
        lambda count: torch.ones(count, device="meta"),
        lambda count: torch.ones(count).to_sparse(),
    ],
)
def test_what_torch_refuses_is_refused_by_its_error_however_large(others: Any, count: int) -> None:
    batch = [torch.ones(count), others(count)]
    with pytest.raises(Exception) as theirs:
        torch.utils.data.default_collate(batch)
    with pytest.raises(type(theirs.value)) as ours:
        default_collate(batch)
    assert str(ours.value).splitlines()[0] == str(theirs.value).splitlines()[0]


@pytest.mark.parametrize("count", [FEW, MANY])
def test_dtypes_that_differ_are_promoted_as_torch_does(count: int) -> None:
    batch = [torch.ones(count, dtype=torch.float32), torch.ones(count, dtype=torch.float64)]
    ours, theirs = default_collate(batch), torch.utils.data.default_collate(batch)
    assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)
