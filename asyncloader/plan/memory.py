"""How the memory of a rank is divided: bytes on their way, what operators make of them, batches ahead."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["BATCHES_AHEAD", "DEFAULT_LIMIT_BYTES", "MemoryShares", "share_memory", "share_with_operators"]

# A cap: three quarters of it in flight are, at 200 ms and 40 MB/s a connection, what one process can decode
# (the workload "distance" of tests/benchmarks/against_peers.py). Where less is of use, less is taken.
DEFAULT_LIMIT_BYTES = 1 << 30

#: Batches made ahead of the consumer without workers: two to hand over at once, one in the making.
BATCHES_AHEAD = 3


class MemoryShares(NamedTuple):
    """Bounds on what all processes of a rank hold together.

    Attributes:
        read_bytes: Requested and not yet decoded, and made by operators and not yet handed on.
        batch_bytes: Batches made and not yet received.
        pinned_bytes: Batches in pinned memory, where there are any.
    """

    read_bytes: int
    batch_bytes: int
    pinned_bytes: int


def share_memory(limit_bytes: int, *, pins: bool) -> MemoryShares:
    """A quarter each for batches made and for those pinned, if any are; the rest for bytes to be decoded.

    Args:
        limit_bytes: Of the rank.
        pins: Whether batches are pinned.
    """
    quarter = limit_bytes // 4
    return MemoryShares(quarter * (2 if pins else 3), quarter, quarter)


def share_with_operators(read_bytes: int, makers: int) -> tuple[int, int]:
    """What of ``read_bytes`` is for bytes on their way, and what for operators that make samples: a third.

    Args:
        read_bytes: Of a process.
        makers: How many such operators there are.
    """
    made_bytes = read_bytes // 3 if makers else 0
    return read_bytes - made_bytes, made_bytes
