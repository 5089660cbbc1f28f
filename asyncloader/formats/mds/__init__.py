"""Shards of MosaicML's ``streaming``: MDS, version 2.

Behind the table of each shard (``formats.offsets``) is JSON that says which columns there are and how their
values are encoded. ``config`` reads it, ``encodings`` has a row for each encoding, ``arrays`` and ``images``
those that take more than a line. What is decoded is what ``streaming`` 0.13 decodes, by its source and its
output; pickles are not read.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ...types import Planning
from ..columnar.footers import Footers
from ..columnar.selection import EVERYTHING, Selection
from ..decoder import Decoder
from ..offsets.decoder import Kind, TableDecoder
from ..offsets.plan import plan_samples
from .config import open_mds

__all__ = ["open_mds_decoder", "plan_mds"]


def plan_mds(
    *,
    start_sample: int = 0,
    stop_sample: int | None = None,
    selection: Selection,
    footers: Footers | None = None,
) -> Planning | None:
    """Plan what to read of an uncompressed shard; see ``offsets.plan``."""
    return plan_samples(_kind(selection), start_sample=start_sample, stop_sample=stop_sample, footers=footers)


def open_mds_decoder(*, start_sample: int = 0, selection: Selection = EVERYTHING, **options: Any) -> Decoder:
    """A decoder of a shard from front to back; see ``offsets.decoder``."""
    return TableDecoder(_kind(selection), start_sample=start_sample, **options)


def _kind(selection: Selection) -> Kind:
    return Kind("mds", partial(open_mds, selection=selection))
