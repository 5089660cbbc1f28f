"""Which epochs a loop may ask for, when it has loaded a position in one."""

from __future__ import annotations

__all__ = ["check_epoch"]


def check_epoch(asked: int, epoch: int, batches: int, length: int | None) -> None:
    """Refuse an epoch that would silently drop a loaded position: a loop that counts anew after a resume.

    Args:
        asked: What ``set_epoch`` was told; another one than ``epoch``.
        epoch: That of the loaded position.
        batches: How many of it were delivered; at least one.
        length: How many it has; None where that is not known, and the next epoch may be right.

    Raises:
        ValueError: The epoch is not over, or another one than the next is asked for.
    """
    if asked == epoch + 1 and (length is None or batches >= length):
        return
    of = "" if length is None else f" of {length}"
    raise ValueError(
        f"the loaded state is in epoch {epoch} behind {batches}{of} batches, but set_epoch({asked}) would "
        f"begin epoch {asked}, so that samples came twice or not at all. Go on with set_epoch({epoch}), or "
        "without it; to begin anew, make a loader and load nothing. A trainer that cannot ask for "
        "len(loader), as transformers' with max_steps, counts from 0 again: give the dataset a length, or "
        "end it with .repeat()"
    )
