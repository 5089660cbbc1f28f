"""What a simulated pass is of: shards, a link, work for each sample, processes, and who takes the batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import NamedTuple

from ..plan.lanes import check_ranks, choose_lanes
from ..plan.memory import DEFAULT_LIMIT_BYTES
from ..plan.topology import World
from ..quantity import as_counts

__all__ = ["Link", "Operator", "Setting", "ShardSize"]

# Above any link: so that what is not limited is computed as the rest.
_NO_LIMIT_BYTES_S = 1e13


class ShardSize(NamedTuple):
    """A shard, as far as time goes.

    Attributes:
        size_bytes: As stored.
        samples: How many it has, all taken to be equal.
    """

    size_bytes: int
    samples: int


@dataclass(frozen=True)
class Link:
    """What is between the machine and the store.

    Attributes:
        first_byte_s: Seconds from a request to the first byte of its answer.
        connection_bytes_s: The most that one answer is sent at.
        machine_bytes_s: The most that all answers to a machine are sent at, which they share evenly.
    """

    first_byte_s: float = 0.0
    connection_bytes_s: float = _NO_LIMIT_BYTES_S
    machine_bytes_s: float = _NO_LIMIT_BYTES_S

    def __post_init__(self) -> None:
        _check_seconds(self, "first_byte_s")
        for name in ("connection_bytes_s", "machine_bytes_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} should be more than 0 bytes/s, but got {getattr(self, name)}")


@dataclass(frozen=True)
class Operator:
    """A function that is called with each sample.

    Attributes:
        sample_s: Seconds of a call.
        concurrency: How many calls at a time, of functions that wait or release the interpreter's lock.
        name: As it is called where it limits.
    """

    sample_s: float
    concurrency: int = 1
    name: str = "map"

    def __post_init__(self) -> None:
        _check_seconds(self, "sample_s")
        as_counts(self, "concurrency")


@dataclass(frozen=True)
class Setting:
    """A pass to simulate. Times are in seconds, sizes in bytes; the defaults are those of a loader.

    Attributes:
        shards: In the order given.
        link: To the store.
        ranks: How many train together, in step.
        ranks_per_machine: How many of them share the link of a machine.
        num_workers: Processes of each rank that make batches; 0 for a thread.
        lanes: How many; None for one for each worker of each rank.
        is_indexed: Whether lanes are cut equal to the sample, by an index.
        seed: Draws the order of shards; None for the order given.
        window: Of a shuffle of samples; 0 for none.
        decode_s: Seconds that a sample takes to be decoded, on one processor.
        operators: What is called with each sample then.
        collate_s: Seconds to make a batch of its samples.
        decoded_bytes: Size of a sample in a batch; None for as much as it has in its shard.
        batch_size: Samples of a batch.
        drop_last: Whether a lane leaves out a last batch that is short.
        prefetch_factor: Batches that each worker makes ahead.
        memory_limit: Bytes that a rank may hold in flight and ahead.
        step_s: Seconds that the consumer works on a batch.

    Raises:
        ValueError: A number that is out of its range, lanes that do not fit the ranks, or ranks that would
            get nothing.
    """

    shards: Sequence[ShardSize]
    link: Link = field(default_factory=Link)
    ranks: int = 1
    ranks_per_machine: int = 1
    num_workers: int = 0
    lanes: int | None = None
    is_indexed: bool = False
    seed: int | None = None
    window: int = 0
    decode_s: float = 0.0
    operators: Sequence[Operator] = ()
    collate_s: float = 0.0
    decoded_bytes: float | None = None
    batch_size: int = 1
    drop_last: bool = False
    prefetch_factor: int = 2
    memory_limit: int = DEFAULT_LIMIT_BYTES
    step_s: float = 0.0

    def __post_init__(self) -> None:
        as_counts(self, "ranks", "ranks_per_machine", "batch_size", "prefetch_factor", "memory_limit")
        _check_seconds(self, "decode_s", "collate_s", "step_s")
        for name in ("num_workers", "window"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} should be 0 or more, but got {name}={getattr(self, name)}")
        if not self.shards or min(map(min, self.shards)) < 0:
            raise ValueError(
                "shards should be at least one, each of 0 or more bytes and samples, but got "
                f"{list(self.shards[:3])}"
            )
        choose_lanes(self.lanes, World(0, self.ranks), self.num_workers)
        count = self.samples if self.is_indexed else len(self.shards)
        check_ranks(count, World(0, self.ranks), "samples" if self.is_indexed else "shards")

    @cached_property
    def samples(self) -> int:
        """Of all shards."""
        return sum(shard.samples for shard in self.shards)

    @cached_property
    def size_bytes(self) -> int:
        """Of all shards, as stored."""
        return sum(shard.size_bytes for shard in self.shards)

    @cached_property
    def lane_count(self) -> int:
        """How many lanes there are."""
        return choose_lanes(self.lanes, World(0, self.ranks), self.num_workers)

    @cached_property
    def batch_bytes(self) -> float:
        """Of a full batch."""
        sample_bytes = self.decoded_bytes
        if sample_bytes is None:
            sample_bytes = self.size_bytes / max(self.samples, 1)
        return sample_bytes * self.batch_size


def _check_seconds(options: Link | Operator | Setting, *names: str) -> None:
    assert {*names} <= {option.name for option in fields(options)}
    for name in names:
        seconds = getattr(options, name)
        if not 0 <= seconds < math.inf:
            raise ValueError(f"{name} should be 0 or more seconds, but got {name}={seconds}")
