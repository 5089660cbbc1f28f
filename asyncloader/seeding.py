"""Random numbers in worker processes, seeded as torch's DataLoader seeds its own.

A worker that inherited its parent's generators would augment its samples exactly as the others do.
"""

from __future__ import annotations

import random
from typing import Any

from .tensors import when_torch_is_here

__all__ = ["draw_base_seed", "seed_worker"]


def draw_base_seed(generator: Any, again: bool = False) -> int:
    """One int64 of ``generator``, or of torch's default one, as torch draws at each start of an epoch.

    Args:
        generator: A ``torch.Generator``, or None.
        again: Whether that was done for this epoch, which goes on now: the generator is then left where it
            was. A trainer has set it to where it stood behind the last batch, and a model with dropout draws
            from it next.
    """
    import torch

    drawn_from = torch.default_generator if generator is None else generator
    before = drawn_from.get_state()
    seed = int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
    if again:
        drawn_from.set_state(before)
    return seed


def seed_worker(worker: int, base_seed: int) -> int:
    """Seed Python's, torch's and NumPy's generators of this process; returns the worker's seed.

    torch's when it is imported, if it is not yet.
    """
    import numpy as np

    def seed_torch() -> None:
        import torch

        torch.manual_seed(seed)

    seed = base_seed + worker
    random.seed(seed)
    when_torch_is_here(seed_torch)
    # By the sequence that torch has rebuilt: with torch's own seed NumPy's numbers would correlate with its.
    entropy = [worker, base_seed & 0xFFFF_FFFF, base_seed >> 32, 0]
    np.random.seed(np.random.SeedSequence(entropy).generate_state(4))
    return seed
