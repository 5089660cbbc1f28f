"""Random numbers in worker processes, seeded as torch's DataLoader seeds its own.

A worker that inherited its parent's generators would augment its samples exactly as the others do.
"""

from __future__ import annotations

import random
from typing import Any

__all__ = ["draw_base_seed", "seed_worker"]


def draw_base_seed(generator: Any) -> int:
    """One int64 of ``generator``, or of torch's default one, as torch draws at each start of an epoch."""
    import torch

    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def seed_worker(worker: int, base_seed: int) -> int:
    """Seed Python's, torch's and NumPy's generators of this process; returns the worker's seed."""
    import numpy as np
    import torch

    from .torch_private import numpy_seed

    seed = base_seed + worker
    random.seed(seed)
    torch.manual_seed(seed)
    np.random.seed(numpy_seed(base_seed, worker))
    return seed
