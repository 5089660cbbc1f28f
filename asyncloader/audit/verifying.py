"""Merges the audits of all ranks and restarts into a verdict for each epoch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..manifest.lookup import Entries, read_entries
from ..stores.urls import redact
from .contents import Part
from .reading import Pass, read_audits
from .verdict import EpochVerdict, judge_epoch

__all__ = ["verify_audit"]


def verify_audit(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    epoch: int | None = None,
    manifest: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    left_out: bool = False,
) -> list[EpochVerdict]:
    """Prove from what all ranks recorded that each epoch delivered each sample once, or say what is wrong.

    Files of all ranks and of all restarts are merged: what a killed run delivered after the state that the
    next one went on from came again, and counts once.

    Args:
        paths: The folder that ``DataLoader(audit=...)`` was given; several where ranks wrote to disks of
            their own.
        epoch: The one to look at; all of them if None. The last one of a training that runs is unfinished.
        manifest: Path or URL of the manifest of the shards, for audits of a time when there was none beside
            them. It has to list every shard of a source, and at least one source's.
        storage_options: For a manifest in a store; as of ``from_urls``.
        left_out: Whether to name each run of samples that operators have left out, in
            ``EpochVerdict.left_out_samples``; a filter of many samples may have made millions.

    Returns:
        A verdict for each epoch that a loader began, those of one recipe together.

    Raises:
        ValueError: There is no audit, or none of this epoch; a file is nothing of an audit's, or that of its
            contents, which rank 0 writes, is not among them. There is no such manifest, or it is of other
            shards.
        StoreError: The manifest cannot be read.
        FormatError: The manifest is not sound.
        OSError: A file cannot be read.
    """
    places = [paths] if isinstance(paths, str | os.PathLike) else [*paths]
    entries = None if manifest is None else read_entries(os.fspath(manifest), storage_options or {})
    has_matched, verdicts = False, []
    for name, audited in sorted(read_audits(places).items()):
        contents = audited.contents
        if contents is None:
            raise ValueError(
                f"expected {name}.json beside the audit, which rank 0 writes, but found none; give its "
                "folder too"
            )
        if entries is not None:
            parts = [_with_counts(part, entries) for part in contents.parts]
            has_matched |= any(part is not None for part in parts)
            known = zip(parts, contents.parts, strict=True)
            contents = replace(contents, parts=[counted or part for counted, part in known])
        by_epoch: dict[int, list[Pass]] = {}
        for each in audited.passes:
            by_epoch.setdefault(each.begin.epoch, []).append(each)
        verdicts += [
            judge_epoch(name, number, contents, passes, left_out=left_out)
            for number, passes in sorted(by_epoch.items())
            if epoch in (None, number)
        ]
    if entries is not None and not has_matched:
        raise ValueError(
            f"{_name_of(entries)} lists none of the shards that the audit is of; name that of these shards. "
            "Its relative names start from where it is, and the audit has paths as the loader was given them"
        )
    if not verdicts:
        raise ValueError(f"there is no audit of epoch {epoch}")
    return verdicts


def _with_counts(part: Part, entries: Entries) -> Part | None:
    """A source with the numbers of samples that a manifest has; None if it is of other shards.

    Raises:
        ValueError: It lists some of the shards and not all, or another number of samples than is known.
    """
    if not part.shards or part.samples is None:
        return None
    counts = entries.of(part.shards).counts()
    unlisted = [shard for shard, count in zip(part.shards, counts, strict=True) if count is None]
    if len(unlisted) == len(counts):  # another source's, or another recipe's
        return None
    if unlisted:
        raise ValueError(
            f"{_name_of(entries)} has no number of samples for {len(unlisted)} of the {len(counts)} shards "
            f"of the audit; the first is {unlisted[0]}. Add them with asyncloader index"
        )
    for shard, known, count in zip(part.shards, part.samples, counts, strict=True):
        if known is not None and known != count:
            raise ValueError(
                f"{_name_of(entries)} has {count} samples in {shard}, and the loader knew {known} when it "
                "recorded the audit: it is of other shards, or of another time"
            )
    return replace(part, samples=counts)


def _name_of(entries: Entries) -> str:
    return f"the manifest {redact(entries.url)}"
