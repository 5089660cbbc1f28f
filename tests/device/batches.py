"""Tensors of every kind a batch may hold."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
]


def random_tensor(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """Random bits, but for booleans."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    size = torch.empty(0, dtype=dtype).element_size()
    count = torch.Size(shape).numel()
    raw = torch.randint(0, 256, (count * size,), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


def same(left: Tensor, right: Tensor) -> bool:
    """Equal to the last bit: a NaN is equal to itself."""
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        return False
    bits = [
        tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1).view(torch.uint8)
        for tensor in (left, right)
    ]
    return torch.equal(*bits)
