"""How a tensor lies in memory: its bytes, wherever its dimensions run, and likes of it over them."""

from __future__ import annotations

import pytest
import torch

from asyncloader.blocks.memory import align, as_bytes, dense

LAYOUTS = {
    "contiguous": torch.arange(24.0).reshape(2, 3, 4),
    "transposed": torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1),
    "a slice": torch.arange(48.0).reshape(4, 3, 4)[1:3],
    "with gaps": torch.arange(48.0).reshape(2, 3, 8)[..., ::2],
    "expanded": torch.arange(3.0).expand(4, 3),
    "a number": torch.tensor(7.0),
    "empty": torch.empty(0, 3),
    "conjugate": torch.tensor([1 + 2j, 3 - 4j]).conj(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_tensor_over_the_bytes_of_a_dense_one_equals_it(layout: str) -> None:
    tensor = LAYOUTS[layout]
    plain = dense(tensor)
    assert torch.equal(plain, tensor)
    stored = as_bytes(plain)
    assert stored.dtype == torch.uint8 and stored.shape == (tensor.numel() * tensor.element_size(),)
    like = stored.clone().view(plain.dtype).as_strided(plain.shape, plain.stride())
    assert torch.equal(like, tensor)


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "a slice"])
def test_what_is_dense_is_not_copied(layout: str) -> None:
    tensor = LAYOUTS[layout]
    assert dense(tensor) is tensor
    assert as_bytes(tensor).data_ptr() == tensor.data_ptr()


def test_places_are_multiples_of_a_cache_line() -> None:
    assert [align(offset) for offset in (0, 1, 64, 65)] == [0, 64, 64, 128]
