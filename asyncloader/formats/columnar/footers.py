"""Footers: found at the end of a shard, read in one request or two, and kept for the next epoch."""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol

from ...errors import FormatError
from ...types import Answer, Span

__all__ = ["Footers", "read_footer"]

# Of the end, asked for in the hope that the footer is in it: a 64th of the shard within these bounds. Footers
# of wide tables and many row groups take a second request.
_LEAST_END_BYTES, _MOST_END_BYTES = 8 << 10, 64 << 10

# Far above the footers of tables with thousands of columns and row groups.
_MOST_FOOTER_BYTES = 256 << 20

_LENGTH_BYTES = 4


class Footers(Protocol):
    """The footers of one shard, by its version."""

    def find(self, version: str, length: int) -> bytes | None:
        """That of this version of the shard, of this length; None if it is not kept."""
        ...

    def keep(self, version: str, length: int, footer: bytes) -> None:
        """Keep a footer, as long as there is room for it."""
        ...


def read_footer(
    name: str, magic: bytes, head: Answer, footers: Footers | None
) -> Generator[Span, Answer, bytes]:
    """Ask for the footer: what is before its length and the magic at the very end.

    Args:
        name: Of the format, for messages.
        magic: That the shard begins and ends with.
        head: The first bytes of the shard.
        footers: Keeps this one, and may have it already.

    Returns:
        The end of the shard, from the first byte of the footer on.

    Raises:
        FormatError: The shard is truncated or damaged.
    """
    version, length = head.version, head.length
    if footers is not None and version is not None and (kept := footers.find(version, length)) is not None:
        return kept
    end = head.content
    if length > len(end):
        begin = length - min(max(length >> 6, _LEAST_END_BYTES), _MOST_END_BYTES)
        end = (yield Span(max(begin, 0), length)).content
    tail_bytes = _LENGTH_BYTES + len(magic)
    if not end.endswith(magic) or length < tail_bytes + len(magic):
        raise FormatError(
            f"{name}: truncated or damaged: expected the magic {magic!r} at the end, found "
            f"{end[-len(magic) :]!r}",
            offset=length,
        )
    footer_bytes = int.from_bytes(end[-tail_bytes : -len(magic)], "little")
    if footer_bytes > length - tail_bytes - len(magic):
        raise FormatError(
            f"{name}: damaged: the footer claims {footer_bytes} bytes, and the whole shard has {length}",
            offset=length,
        )
    if footer_bytes > _MOST_FOOTER_BYTES:
        raise FormatError(
            f"{name}: the footer has {footer_bytes} bytes; at most {_MOST_FOOTER_BYTES} are read",
            offset=length,
        )
    begin = length - tail_bytes - footer_bytes
    if begin < length - len(end):
        end = (yield Span(begin, length - len(end))).content + end
    footer = end[begin - length :]
    if footers is not None and version is not None:
        footers.keep(version, length, footer)
    return footer
