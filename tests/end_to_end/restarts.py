"""A run on two ranks that is broken off, and goes on alone from an earlier state."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncloader as al

__all__ = ["judged", "restart_alone"]


def judged(audit: Path, **options: Any) -> al.tools.EpochVerdict:
    """The verdict on the one epoch of an audit."""
    (verdict,) = al.tools.verify_audit(audit, **options)
    return verdict


def restart_alone(
    make: Callable[[int, int], al.DataLoader[Any]], audit: Path, after: int
) -> al.tools.EpochVerdict:
    """The verdict on an epoch of which some batches came twice, since their state was lost.

    Args:
        make: A loader of a rank of so many, recorded in ``audit``.
        audit: Where to.
        after: Batches of each rank before the state that the epoch goes on from.
    """
    ranks = [make(rank, 2) for rank in range(2)]
    passes = [iter(loader) for loader in ranks]
    for each in passes * after:
        next(each)
    state = al.merge_states([loader.state_dict() for loader in ranks])
    for each in passes:
        next(each, None)  # delivered, and lost with the weights
    for loader in ranks:
        loader.close()
    assert judged(audit).verdict == "unfinished"
    with make(0, 1) as alone:
        alone.load_state_dict(json.loads(json.dumps(state)))
        for _ in alone:
            pass
    return judged(audit)
