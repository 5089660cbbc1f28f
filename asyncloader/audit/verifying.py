"""Merges the audits of all ranks and restarts into a verdict for each epoch."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace

from ..manifest.lookup import Entries, open_local_manifest
from .contents import Contents, Part
from .reading import Pass, read_audits
from .verdict import EpochVerdict, judge_epoch

__all__ = ["verify_audit"]


def verify_audit(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    epoch: int | None = None,
    manifest: str | os.PathLike[str] | None = None,
    left_out: bool = False,
) -> list[EpochVerdict]:
    """Prove from what all ranks recorded that each epoch delivered each sample once, or say what is wrong.

    Files of all ranks and of all restarts are merged: what a killed run delivered after the state that the
    next one went on from came again, and counts once.

    Args:
        paths: The folder that ``DataLoader(audit=...)`` was given; several where ranks wrote to disks of
            their own.
        epoch: The one to look at; all of them if None. The last one of a training that runs is unfinished.
        manifest: Path of the manifest of the shards, for audits of a time when there was none beside them.
        left_out: Whether to name each run of samples that operators have left out, in
            ``EpochVerdict.left_out_samples``; a filter of many samples may have made millions.

    Returns:
        A verdict for each epoch that a loader began, those of one recipe together.

    Raises:
        ValueError: There is no audit, or none of this epoch; a file is nothing of an audit's, or that of its
            contents, which rank 0 writes, is not among them.
        FormatError: The manifest is not sound.
        OSError: A file cannot be read.
    """
    places = [paths] if isinstance(paths, str | os.PathLike) else [*paths]
    verdicts = []
    for name, audited in sorted(read_audits(places).items()):
        if audited.contents is None:
            raise ValueError(
                f"there is no {name}.json beside the audit, which rank 0 writes; give its folder too"
            )
        contents = audited.contents if manifest is None else _counted(audited.contents, os.fspath(manifest))
        by_epoch: dict[int, list[Pass]] = {}
        for each in audited.passes:
            by_epoch.setdefault(each.begin.epoch, []).append(each)
        verdicts += [
            judge_epoch(name, number, contents, passes, left_out=left_out)
            for number, passes in sorted(by_epoch.items())
            if epoch in (None, number)
        ]
    if not verdicts:
        raise ValueError(f"there is no audit of epoch {epoch}")
    return verdicts


def _counted(contents: Contents, manifest: str) -> Contents:
    with open_local_manifest(manifest) as file:
        if file is None:
            raise ValueError(f"there is no manifest {manifest!r}")
        entries = Entries(manifest, file)
    return replace(contents, parts=[_counted_part(part, entries) for part in contents.parts])


def _counted_part(part: Part, entries: Entries) -> Part:
    if part.shards is None or part.samples is None:
        return part
    found = entries.of(part.shards)
    counts = [
        counted if count is None else count
        for count, counted in zip(part.samples, found.counts(), strict=True)
    ]
    return replace(part, samples=counts)
