"""Merges the audits of all ranks and restarts into a verdict for each epoch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..index.lookup import Entries, has_index_option, read_entries
from ..stores.urls import redact
from .contents import Contents, Part
from .reading import Pass, read_audits
from .verdict import EpochVerdict, judge_epoch

__all__ = ["verify_audit"]


@has_index_option
def verify_audit(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    epoch: int | None = None,
    index: str | os.PathLike[str] | None = None,
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
        index: Path or URL of the index of the shards, for audits of a time when there was none beside
            them. It has to list every shard of a source, and at least one source's.
        storage_options: For an index in a store; as of ``from_urls``.
        left_out: Whether to name each run of samples that operators have left out, in
            ``EpochVerdict.left_out_samples``; a filter of many samples may have made millions.

    Returns:
        A verdict for each epoch that a loader began, those of one recipe together.

    Raises:
        ValueError: There is no audit, or none of this epoch; a file is nothing of an audit's, or that of its
            contents, which rank 0 writes, is not among them. There is no such index, or it is of other
            shards.
        StoreError: The index cannot be read.
        FormatError: The index is not sound.
        OSError: A file cannot be read.
    """
    places = [paths] if isinstance(paths, str | os.PathLike) else [*paths]
    counts = None if index is None else _Counts(read_entries(os.fspath(index), storage_options or {}))
    verdicts = []
    for name, audited in sorted(read_audits(places).items()):
        if audited.contents is None:
            raise ValueError(
                f"there is no {name}.json beside the audit, which rank 0 writes; give its folder too"
            )
        contents = audited.contents if counts is None else counts.added_to(audited.contents)
        by_epoch: dict[int, list[Pass]] = {}
        for each in audited.passes:
            by_epoch.setdefault(each.begin.epoch, []).append(each)
        verdicts += [
            judge_epoch(name, number, contents, passes, left_out=left_out)
            for number, passes in sorted(by_epoch.items())
            if epoch in (None, number)
        ]
    if counts is not None:
        counts.check()
    if not verdicts:
        raise ValueError(f"there is no audit of epoch {epoch}")
    return verdicts


class _Counts:
    """The numbers of samples that an index tells of, for audits that lack them.

    Args:
        entries: The index's.
    """

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._has_matched = False

    def added_to(self, contents: Contents) -> Contents:
        """What is known of a recipe with and by the index.

        Raises:
            ValueError: It lists some of a source's shards and not all, or another number of samples.
        """
        return replace(contents, parts=[self._added_to_part(part) for part in contents.parts])

    def check(self) -> None:
        """After all recipes.

        Raises:
            ValueError: It was of other shards.
        """
        if not self._has_matched:
            raise ValueError(
                f"{self._name} lists none of the shards that the audit is of; name that of these shards. Its "
                "relative names start from where it is, and the audit has paths as the loader was given them"
            )

    def _added_to_part(self, part: Part) -> Part:
        if part.shards is None or part.samples is None or not part.shards:
            return part
        told = self._entries.of(part.shards).counts()
        unlisted = [shard for shard, count in zip(part.shards, told, strict=True) if count is None]
        if len(unlisted) == len(told):  # another source's, or another recipe's
            return part
        self._has_matched = True
        if unlisted:
            raise ValueError(
                f"{self._name} tells no number of samples of {len(unlisted)} of the {len(told)} shards of "
                f"the audit; the first is {unlisted[0]}. Add them with asyncloader index"
            )
        for shard, known, count in zip(part.shards, part.samples, told, strict=True):
            if known is not None and known != count:
                raise ValueError(
                    f"{self._name} tells of {count} samples in {shard}, and the loader knew {known} when it "
                    "recorded the audit: it is of other shards, or of another time"
                )
        return replace(part, samples=told)

    @property
    def _name(self) -> str:
        return f"the index {redact(self._entries.url)}"
