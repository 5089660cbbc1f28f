"""Work on data sets outside of a pass: verify audits, and shards against their index."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from ..shards.index_survey import Verified, open_verifying
from ..shards.names import NamedShards
from .audit import EpochVerdict, Finding, verify_audit

__all__ = ["EpochVerdict", "Finding", "Verified", "verify_audit", "verify_shards"]


def verify_shards(
    urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    index: str | os.PathLike[str] | None = None,
    format: str | None = None,
    delimiter: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    concurrency: int | None = None,
) -> list[Verified]:
    """Read shards and compare each with the index: its length, digests, number of samples and offsets.

    The command ``asyncloader verify`` does the same. Nothing is written.

    Args:
        urls: As for ``from_urls``. For a folder, prefix or glob, shards that the index lists and that are
            missing are reported too.
        index: Path or URL of the index; None for the one beside the shards, if they are in one folder.
        format: Format of shards whose suffix does not show it; as for ``from_urls``.
        delimiter: Of CSV and TSV; as for ``from_urls``.
        storage_options: As for ``from_urls``.
        concurrency: How many shards are read at a time; as for ``build_index``.

    Returns:
        A result for each shard; ``wrong`` is empty for a sound one.

    Raises:
        TypeError: ``urls`` holds something else than strings and paths.
        ValueError: No shard, names that do not fit, no index, or ``concurrency`` below 1.
        StoreError: A listing or the index cannot be read.
        FormatError: The index is not sound.
    """
    named = NamedShards(urls, format, delimiter, storage_options)
    with open_verifying(named, index, concurrency) as verifying:
        return [*verifying.each]
