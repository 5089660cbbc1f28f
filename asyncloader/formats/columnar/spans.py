"""Spans of a shard: neighbours merged into one, and a file of those whose bytes are held in memory."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterable, Sequence

from ...types import Span

__all__ = ["HeldSpans", "merge"]

# A gap up to so long is read through, whatever is around it.
_SMALL_GAP_BYTES = 1 << 10

# And one of a quarter of what is wanted around it, but not beyond what a connection brings in some
# milliseconds: it costs less than another request, and of few columns of many, few more bytes are read.
_LARGEST_GAP_BYTES = 256 << 10
_GAP_SHARE = 4


def merge(groups: Iterable[Sequence[Span]]) -> tuple[list[Span], list[int]]:
    """What to request for groups of spans, each needed as a whole, one group after another.

    Args:
        groups: Each in any order; spans may touch and overlap.

    Returns:
        The spans to request, in order, and for each group after how many of their bytes it is complete.
    """
    merged: list[Span] = []
    complete: list[int] = []
    before = 0  # bytes of all merged spans but the last
    wanted = 0  # bytes of the last one that are no gaps
    for group in groups:
        # What was read for a group before this one may be gone: bytes that both want are read twice.
        begin = merged[-1].stop if merged else 0
        for span in sorted(group):
            last = merged[-1] if merged else None
            if last is not None and begin <= span.start <= last.stop + _gap_bytes(wanted, span):
                merged[-1] = Span(last.start, max(last.stop, span.stop))
                wanted += max(0, span.stop - max(last.stop, span.start))
            else:
                before += 0 if last is None else last.stop - last.start
                merged.append(span)
                begin, wanted = span.start, span.stop - span.start
        complete.append(before + merged[-1].stop - merged[-1].start if merged else 0)
    return merged, complete


def _gap_bytes(wanted: int, span: Span) -> int:
    around = wanted + span.stop - span.start
    return max(_SMALL_GAP_BYTES, min(_LARGEST_GAP_BYTES, around // _GAP_SHARE))


class HeldSpans(io.RawIOBase):
    """A file of which only some bytes are there: those fed, until they are dropped.

    Args:
        spans: What will be fed, in this order.
        length: Of the file.
        end: Its last bytes, which are there from the beginning, and stay.
    """

    def __init__(self, spans: Sequence[Span], length: int, end: bytes = b"") -> None:
        super().__init__()
        self._to_come = deque(spans)
        self._length = length
        self._end = end
        # Offset in the file, bytes, and how many bytes had been fed by their end.
        self._pieces: deque[tuple[int, memoryview, int]] = deque()
        self._at = 0
        self.fed = 0

    def feed(self, chunk: bytes | memoryview) -> None:
        """Take in the next bytes of the spans."""
        rest = memoryview(chunk)
        while rest:
            start, stop = self._to_come.popleft()
            here = rest[: stop - start]
            rest = rest[len(here) :]
            if start + len(here) < stop:
                self._to_come.appendleft(Span(start + len(here), stop))
            self.fed += len(here)
            self._pieces.append((start, here, self.fed))

    def drop(self, fed: int) -> None:
        """Let go of what was fed up to there."""
        while self._pieces and self._pieces[0][2] <= fed:
            self._pieces.popleft()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        """The bytes from here on, and fewer than ``size`` where some are not held."""
        stop = self._length if size < 0 else self._at + size
        found: list[bytes | memoryview] = []
        for start, content, _ in (*self._pieces, (self._length - len(self._end), memoryview(self._end), 0)):
            if self._at < stop and start <= self._at < start + len(content):
                begin = self._at - start
                part = content[begin : begin + stop - self._at]
                found.append(part)
                self._at += len(part)
        return b"".join(found)
