"""What a file of a pass may hold beside its events, as far as it is read again: types and bounds. Pure.

The file may come from anybody, so that no number may be without a bound, and none be missing.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

__all__ = ["VERSION", "Told"]

VERSION = 1

_Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Seconds = Annotated[float, Meta(ge=0, le=1e10)]
_Share = Annotated[float, Meta(ge=0, le=1)]

# From a microsecond to three hundred years, in bins of ``Latencies``.
_Bin = Annotated[int, Meta(ge=-120, le=200)]


class Network(msgspec.Struct):
    requests: _Count
    retries: _Count
    throttled: _Count
    hedges: _Count


class Maker(msgspec.Struct):
    worker: _Count
    stages_s: dict[str, _Seconds]


class Statistics(msgspec.Struct):
    batches: _Count
    samples: _Count
    size_bytes: _Count
    elapsed_s: _Seconds
    first_batch_s: _Seconds | None
    network: Network
    worker_restarts: _Count
    skipped: _Count
    makers: list[Maker]


class Report(msgspec.Struct):
    lines: tuple[str, str, str]
    wait_share: _Share


class Series(msgspec.Struct):
    bin_s: Annotated[float, Meta(ge=1e-3, le=1e10)]
    rows: dict[str, list[Annotated[float, Meta(ge=0, le=1e20)]]]


class Latency(msgspec.Struct):
    bins_per_decade: Literal[20]
    bins: dict[_Bin, _Count]
    count: _Count
    p50_s: Annotated[float, Meta(gt=1e-7, le=1e10)] | None
    p95_s: Annotated[float, Meta(gt=1e-7, le=1e10)] | None
    p99_s: Annotated[float, Meta(gt=1e-7, le=1e10)] | None

    def __post_init__(self) -> None:
        has_all = None not in (self.p50_s, self.p95_s, self.p99_s)
        if sum(self.bins.values()) != self.count or has_all != bool(self.count):
            raise ValueError("count does not go with bins and percentiles")


class Dropped(msgspec.Struct):
    slices: _Count
    seconds: _Seconds
    flights: _Count
    marks: _Count


class Told(msgspec.Struct):
    """All that the page and the command read."""

    version: Literal[1]
    loader: str
    rank: _Count
    world_size: _Count
    num_workers: _Count
    epoch: _Count | None
    passes: _Count
    began_unix_s: _Seconds
    statistics: Statistics
    report: Report
    series: Series
    latency: Latency
    dropped: Dropped
    # Of which the first releases said nothing.
    replica: _Count = 0
    replicas: _Count = 1
