"""What has to go so that a shard fits; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Demand", "Kept", "choose_victims", "floor_bytes"]

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Kept:
    """A file that could be evicted.

    Attributes:
        name: Its path below the cache's folder.
        size_bytes: Its length.
        used_ns: When it was last used.
        quarantined: It is known to be bad, and only kept to be looked at.
    """

    name: str
    size_bytes: int
    used_ns: int
    quarantined: bool = False


@dataclass(frozen=True, slots=True)
class Demand:
    """What there has to be room for.

    Attributes:
        announced_bytes: Full lengths of all files that are being filled, by all processes.
        unwritten_bytes: How much of that is still to be written.
        limit_bytes: Most that all files may have.
        free_bytes: What the file system has left.
        floor_bytes: What it should have left in the end.
    """

    announced_bytes: int
    unwritten_bytes: int
    limit_bytes: int
    free_bytes: int
    floor_bytes: int


def choose_victims(kept: Sequence[Kept], demand: Demand) -> list[Kept] | None:
    """The files to evict: bad ones first, then those not used for longest, and no more than needed.

    Returns:
        None if there would not be room even with all of them gone; then nothing should be evicted.
    """
    over_limit = sum(file.size_bytes for file in kept) + demand.announced_bytes - demand.limit_bytes
    over_disk = demand.floor_bytes + demand.unwritten_bytes - demand.free_bytes
    missing = max(over_limit, over_disk)
    victims: list[Kept] = []
    for file in sorted(kept, key=lambda file: (not file.quarantined, file.used_ns, file.name)):
        if missing <= 0:
            break
        victims.append(file)
        missing -= file.size_bytes
    return None if missing > 0 else victims


def floor_bytes(file_system_bytes: int) -> int:
    """How much of a file system the cache leaves free: a twentieth, but no more than 1 GiB.

    A twentieth is what file systems themselves keep back from users, since they slow down when full; a GiB
    is enough for the logs and the checkpoint that a training run must be able to write.
    """
    return min(file_system_bytes // 20, _GIB)
