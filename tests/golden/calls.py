"""The calls that the frozen cases make. A name of the library that changes is changed here alone."""

from __future__ import annotations

from typing import Any

from asyncloader import (
    Buckets,
    DataLoader,
    Dataset,
    Pack,
    Pad,
    ShardWriter,
    SkipErrors,
    TokenBatches,
    build_index,
    concat,
    from_iterable,
    from_litdata,
    from_mds,
    from_urls,
    merge_states,
    mix,
    zip_datasets,
)
from asyncloader.tools import verify_audit

__all__ = [
    "Buckets",
    "DataLoader",
    "Dataset",
    "Pack",
    "Pad",
    "PadField",
    "ShardWriter",
    "SkipErrors",
    "TokenBatches",
    "build_index",
    "concat",
    "from_iterable",
    "from_litdata",
    "from_mds",
    "from_urls",
    "merge_states",
    "mix",
    "verdict_of",
    "zip_datasets",
]


def PadField(**options: Any) -> dict[str, Any]:  # as the frozen cases call it
    """The options of a padded field."""
    return options


def verdict_of(audit: str) -> dict[str, Any]:
    """What is said of the one epoch of an audit, and the samples that did not come once.

    These are runs of a shard's name, the first sample, and behind the last.
    """
    (verdict,) = verify_audit(audit, left_out=True)
    found = [*verdict.findings, *verdict.left_out_samples]
    return {
        "verdict": verdict.verdict,
        "samples": verdict.samples,
        "open lanes": verdict.open_lanes,
        "found": sorted((run.what, run.shard.rpartition("/")[2], run.first, run.stop) for run in found),
    }
