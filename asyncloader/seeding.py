"""Random numbers in worker processes, seeded as torch's DataLoader seeds its own.

A worker that inherited its parent's generators would augment its samples exactly as the others do.
"""

from __future__ import annotations

import random
from typing import Any

__all__ = ["draw_base_seed", "enter_worker"]


def draw_base_seed(generator: Any) -> int:
    """One int64 of ``generator``, or of torch's default one, as torch draws at each start of an epoch."""
    import torch

    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def enter_worker(worker: int, num_workers: int, base_seed: int, dataset: Any) -> None:
    """Make this process worker ``worker`` to torch: its seeds, and what ``get_worker_info()`` tells."""
    import numpy as np
    import torch
    from torch.utils.data import _utils

    seed = base_seed + worker
    random.seed(seed)
    torch.manual_seed(seed)
    # torch's own derivation: seeding NumPy with `seed` itself would correlate it with the others. It, and
    # the place where get_worker_info() looks, are private, but there is no other way to be a worker.
    np.random.seed(_utils.worker._generate_state(base_seed, worker))  # type: ignore[no-untyped-call]  # torch's
    _utils.worker._worker_info = _utils.worker.WorkerInfo(
        id=worker, num_workers=num_workers, seed=seed, dataset=dataset
    )
