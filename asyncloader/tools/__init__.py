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
        urls: Shards, as for ``from_urls``. For a folder, prefix or glob, the result also has the shards that
            the index lists and that are missing.
        index: Path or URL of the index. None: the one beside the shards, if they are in one folder.
        format: Format of the shards, as for ``from_urls``.
        delimiter: The character that separates the fields of CSV and TSV, as for ``from_urls``.
        storage_options: Endpoint, credentials and headers, as for ``from_urls``.
        concurrency: The most shards that are read at a time, as for ``build_index``.

    Returns:
        A result for each shard. Its ``wrong`` is empty if the shard is as the index says.

    Raises:
        TypeError: ``urls`` has something other than strings and paths.
        ValueError: There is no shard or no index, names do not fit, or ``concurrency`` is below 1.
        StoreError: A listing or the index cannot be read.
        FormatError: The index is damaged.
    """
    named = NamedShards(urls, format, delimiter, storage_options)
    with open_verifying(named, index, concurrency) as verifying:
        return [*verifying.each]
