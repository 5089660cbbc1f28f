"""How many bytes a batch holds, for budgets and statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["bytes_of"]


def bytes_of(batch: Any) -> int:
    """Bytes of the tensors, arrays and byte strings in nested containers; what else is there counts 0.

    Text, numbers and the containers themselves are small beside them, and measuring them would cost
    more than it tells.
    """
    if isinstance(batch, bytes | bytearray | memoryview | str):
        return len(batch)
    size = getattr(batch, "nbytes", None)
    if isinstance(size, int):
        return size
    if isinstance(batch, Mapping):
        return sum(map(bytes_of, batch.values()))
    if isinstance(batch, list | tuple):
        return sum(map(bytes_of, batch))
    return 0
