"""What a row of the table of formats says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from ..types import Planning
from .decoder import Decoder

__all__ = ["Format"]


class Format(NamedTuple):
    """A row of the table.

    Attributes:
        decoder: Makes a decoder from ``start_sample`` and ``start_byte``; None for a format with a plan
            alone.
        suffixes: Endings of the file names, in lower case; a compression's suffix may follow.
        short_suffixes: Endings that stand for format and compression at once, with the compression.
        plan: Makes a plan from the arguments of ``open_plan``, or None where all of a shard is better read
            from front to back; None for a format that always is.
        close: What a decoder is fed in place of the samples that follow, to hand out the last one before
            them.
        columns: Makes a decoder, likewise, for those who have a use for columns; None if there is none.
        passes_over: Whether the decoder can go on behind a sample that does not decode.
        selects: Whether it has columns of which some can be chosen. A decoder of such a format is told them,
            and begins at ``start_sample`` by itself. What is compressed as a whole has a row of its own.
        by_arrow: Whether pyarrow decodes it: its rows can be filtered, and the interpreter's lock is let go.
        by_index: Whether shards are read by what an index beside them says of their samples: decoder and plan
            are told that as ``schema``.
        unpacks: Whether shards may be compressed as a whole, and an index say what they become: decoder and
            plan are told that as ``unpacked``.
        delimits: Whether a character separates fields, which the decoder may be told as ``delimiter``.
        may_be_empty: Whether a shard of no bytes is one without samples, rather than a truncated one.
        reopens: Whether a plan reads no more than a part of a group of samples before those that are wanted.
    """

    decoder: Callable[..., Decoder] | None
    suffixes: tuple[str, ...]
    short_suffixes: Mapping[str, str] = MappingProxyType({})
    plan: Callable[..., Planning | None] | None = None
    close: bytes = b""
    columns: Callable[..., Decoder] | None = None
    passes_over: bool = False
    selects: bool = False
    by_arrow: bool = False
    by_index: bool = False
    unpacks: bool = False
    delimits: bool = False
    may_be_empty: bool = False
    reopens: bool = False
