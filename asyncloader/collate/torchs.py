"""torch's own part of collation, which comes with torch, and so not before a batch needs it."""

from __future__ import annotations

from functools import cache
from types import ModuleType

__all__ = ["torchs"]


@cache
def torchs() -> ModuleType:
    """``torch_private``; looked up once: to import from it in each call took a fifth of a small batch."""
    # torch first, by itself: what waits for it needs ours whole, which goes by it.
    import torch  # noqa: F401

    from .. import torch_private

    return torch_private
