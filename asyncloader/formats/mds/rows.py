"""How shards of MDS are opened: by a plan, from front to back, and compressed as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from ...types import Planning, Unpacked
from .._open import SniffingDecoder
from ..columnar.footers import Footers
from ..columnar.selection import EVERYTHING, Selection
from ..compression import CompressedDecoder
from ..decoder import Decoder
from ..offsets.decoder import Kind, TableDecoder
from ..offsets.packed import Check, UnpackingDecoder
from ..offsets.plan import plan_samples
from ..snappy import SnappyDecoder
from .config import open_mds

__all__ = ["COMPRESSIONS", "open_mds_decoder", "open_packed_mds", "plan_mds"]


def _sniffed(inner: Decoder, check: Check) -> Decoder:
    # A server may unpack what it sends. Never for shards that are not compressed by their name: one of
    # 559,903 samples begins as gzip does.
    return SniffingDecoder(lambda: inner, check)


def _brotli(inner: Decoder, check: Check) -> Decoder:
    return CompressedDecoder(inner, "brotli", check)


def _snappy(inner: Decoder, check: Check) -> Decoder:
    return SnappyDecoder(inner)  # which bounds what it makes by itself


#: By the end of a file's name, which is also how an index names it: what reads it.
COMPRESSIONS: Mapping[str, Callable[[Decoder, Check], Decoder]] = MappingProxyType(
    {
        "br": _brotli,
        "bz2": _sniffed,
        "gz": _sniffed,
        "snappy": _snappy,
        "zstd": _sniffed,
    }
)


def plan_mds(
    *,
    start_sample: int = 0,
    stop_sample: int | None = None,
    selection: Selection,
    footers: Footers | None = None,
) -> Planning | None:
    """Plan what to read of an uncompressed shard; see ``offsets.plan``."""
    return plan_samples(_kind(selection), start_sample=start_sample, stop_sample=stop_sample, footers=footers)


def open_mds_decoder(
    *, start_sample: int = 0, selection: Selection = EVERYTHING, **options: Any
) -> TableDecoder:
    """A decoder of a shard from front to back; see ``offsets.decoder``."""
    return TableDecoder(_kind(selection), start_sample=start_sample, **options)


def open_packed_mds(family: str, *, unpacked: Unpacked | None = None, **options: Any) -> Decoder:
    """The same of a shard that is compressed as a whole.

    Args:
        family: A key of ``COMPRESSIONS``.
        unpacked: What it should become, if an index says so.
        options: Of ``open_mds_decoder``.
    """
    return UnpackingDecoder("mds", COMPRESSIONS[family], open_mds_decoder(**options), unpacked)


def _kind(selection: Selection) -> Kind:
    return Kind("mds", partial(open_mds, selection=selection))
