"""Work on data sets outside of a pass: audits proved, shards compared with their index."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from ..shards.index_survey import Verified, open_verifying
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
        urls: As of ``from_urls``. Of a folder, a prefix or a glob, shards that the index lists and that are
            not there are reported too.
        index: Path or URL of the index; None for the one beside the shards, if they are in one folder.
        format: Of shards whose suffix does not tell; as of ``from_urls``.
        delimiter: Of CSV and TSV; as of ``from_urls``.
        storage_options: As of ``from_urls``.
        concurrency: How many shards are read at a time; as of ``build_index``.

    Returns:
        A result for each shard; ``wrong`` is empty for a sound one.

    Raises:
        TypeError: ``urls`` holds something else than strings and paths.
        ValueError: No shard, names that do not fit, no index, or ``concurrency`` below 1.
        StoreError: A listing or the index cannot be read.
        FormatError: The index is not sound.
    """
    with open_verifying(
        urls,
        index=index,
        format=format,
        delimiter=delimiter,
        storage_options=storage_options,
        concurrency=concurrency,
    ) as verifying:
        return [*verifying.each]
