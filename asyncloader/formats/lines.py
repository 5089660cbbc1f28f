"""Shards of lines: plain text, and what splits lines for JSON Lines as well, in C.

Neither format has an end marker, so a shard cut between two lines looks whole from here; that the
body had its full length is for the store to check.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, ClassVar

from ..blocks import Block, OffsetTrail, Rows
from ..errors import FormatError
from ._push import LFS_POINTER, MAX_BLOCK_SAMPLES, PushDecoder, describe_bytes
from .decoder import PassOver

__all__ = ["LineDecoder", "TextDecoder", "excerpt"]

_BOM = b"\xef\xbb\xbf"
# A chunk becomes samples window by window: parsed JSON takes some six times the room of its text, and what is
# handed on before more is parsed stays in the processor's cache (a sixth less time for lists of numbers).
_WINDOW_BYTES = 128 << 10
_EXCERPT_BYTES = 60
# How a page begins that a server sends in the place of a file.
_PAGES = (b"<!doctype html", b"<html")


class LineDecoder(PushDecoder):
    """Split into lines at ``\\n``; the subclass makes the samples.

    Args:
        start_sample: Index in the shard of the first sample to come.
        start_byte: Offset of the first byte that will be fed, taken from a trail together with
            ``start_sample``.
        max_line_bytes: Longest line held. The default of 256 MiB is far above any record seen in
            practice, and keeps a shard that is not of lines at all from filling the memory.
        pass_over: Called for each line that is no sample, with what would be raised for it; the line keeps
            its index. None: it is raised.

    Raises:
        ValueError: A negative argument.
    """

    # Whether blank lines are samples.
    _blanks_count: ClassVar[bool]

    def __init__(
        self,
        *,
        start_sample: int = 0,
        start_byte: int = 0,
        max_line_bytes: int = 256 << 20,
        pass_over: PassOver | None = None,
    ) -> None:
        super().__init__()
        if min(start_sample, start_byte, max_line_bytes) < 0:
            raise ValueError("start_sample, start_byte and max_line_bytes must be 0 or more")
        self._index = start_sample
        # The line after the last block; not known if blank ones may be before the start.
        known = self._blanks_count or not (start_sample or start_byte)
        self._line = start_sample + 1 if known else None
        self._blanks: dict[int, int] = {}
        self._at = start_byte  # offset of the line that is open
        self._max_line_bytes = max_line_bytes
        self._pass_over = pass_over
        self._open: list[bytes | memoryview] = []
        self._open_bytes = 0
        self._samples: list[Any] = []
        self._ends: list[int] = []
        #: The shard is none of lines: an error of all of it, of which no line is passed over.
        self._is_foreign = False

    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]:
        try:
            for at in range(0, len(chunk), _WINDOW_BYTES):
                yield from self._decode_window(bytes(chunk[at : at + _WINDOW_BYTES]))
                yield from self._take()
        except FormatError as error:
            yield from self._take()
            raise self._locate(error) from error.__cause__

    def _decode_window(self, window: bytes) -> Iterator[Block]:
        first = window.find(b"\n") + 1
        if not first:
            self._hold(memoryview(window))
            return
        self._hold(memoryview(window)[: first - 1])
        last = window.rfind(b"\n") + 1
        run = b"".join([*self._open, memoryview(window)[first - 1 : last - 1]])
        self._open = []
        self._open_bytes = 0
        yield from self._add_run(run)
        if last < len(window):
            self._hold(memoryview(window)[last:])

    def _hold(self, piece: memoryview) -> None:
        self._open_bytes += len(piece)
        if self._open_bytes > self._max_line_bytes:
            raise self._too_long()
        # Views cost more than what they point at, if that is little.
        self._open.append(piece if len(piece) > 512 else bytes(piece))

    def _too_long(self) -> FormatError:
        return FormatError(f"a line of more than max_line_bytes={self._max_line_bytes}")

    def _decode_end(self) -> Iterator[Block]:
        line = b"".join(self._open)
        try:
            if line and not (self._at == 0 and line == _BOM):
                yield from self._add([line], newline=0)
        except FormatError as error:
            hint = "; it is the last line and has no newline, so the shard may be truncated"
            error.args = (f"{error.args[0]}{hint}",)
            raise self._locate(error) from error.__cause__
        yield from self._take()

    def _add_run(self, run: bytes) -> Iterator[Block]:
        """Whole lines in a row, without the newline of the last; a subclass may know a shorter way."""
        return self._add(run.split(b"\n"))

    def _add(self, lines: list[bytes], newline: int = 1) -> Iterator[Block]:
        if self._at == 0 and lines[0].startswith(_BOM):
            self._at = len(_BOM)
            lines[0] = lines[0][len(_BOM) :]
        limit = self._max_line_bytes
        for start in range(0, len(lines), MAX_BLOCK_SAMPLES):
            run = lines[start : start + MAX_BLOCK_SAMPLES]
            lengths = list(map(len, run))
            whole = len(run)
            if max(lengths) > limit:
                whole = next(place for place, length in enumerate(lengths) if length > limit)
            # The lengths with their newlines, summed up from where the first line begins.
            ends = [end + place * newline for place, end in enumerate(accumulate(lengths, initial=self._at))]
            yield from self._parse_all(run[:whole], ends[1 : whole + 1])
            if whole < len(run):
                raise self._too_long()
            if len(self._samples) >= MAX_BLOCK_SAMPLES:
                yield from self._take()

    def _parse_all(self, lines: list[bytes], ends: list[int]) -> Iterator[Block]:
        """Parse lines, and pass over those that are at fault if somebody takes note of them."""
        while lines:
            try:
                self._parse(lines, ends)
                return
            except FormatError as error:
                if self._pass_over is None or self._is_foreign:
                    raise
                bad = bisect_right(ends, self._at)  # it begins where the line before it has ended
                self._locate(error)
                yield from self._take()
                self._pass_over(error)
                self._index += 1
                self._line = None if self._line is None else self._line + 1
                self._at = ends[bad]
                lines, ends = lines[bad + 1 :], ends[bad + 1 :]

    @abstractmethod
    def _parse(self, lines: list[bytes], ends: list[int]) -> None:
        """Append samples and ends; ``_at`` is the offset of the line at fault if it raises."""

    def _locate(self, error: FormatError) -> FormatError:
        if error.offset is None:
            error.offset = self._at
        error.sample = self._index + len(self._samples)
        return error

    def _take(self) -> Iterator[Block]:
        if self._samples:
            samples, ends = self._samples, self._ends
            self._samples, self._ends = [], []
            yield Rows(samples, self._follow(ends))

    def _follow(self, ends: list[int]) -> OffsetTrail:
        """The trail of the samples that come next, which stop at ``ends``."""
        trail = OffsetTrail(self._index, ends, self._line, self._blanks)
        self._index += len(ends)
        if self._line is not None:
            self._line += len(ends) + sum(self._blanks.values())
        self._blanks = {}
        return trail


def excerpt(line: bytes, at: int = 0) -> str:
    start = max(at - _EXCERPT_BYTES // 2, 0)
    return repr(line[start : start + _EXCERPT_BYTES])


class TextDecoder(LineDecoder):
    """Decode UTF-8 text: each line, blank ones too, is ``{"__key__": str(index), "text": line}``.

    Lines end with ``\\n``, or ``\\r\\n``; other separators that :meth:`str.splitlines` knows stay in the
    text. The last line may lack its end; a byte order mark at the start is dropped. A shard whose first line
    is that of a web page, or of a pointer of Git LFS, is none of text.

    Args:
        start_sample: Index in the shard of the first sample to come.
        start_byte: Offset of the first byte that will be fed, taken from a trail together with
            ``start_sample``.
        max_line_bytes: Longest line held; 256 MiB, see the module's splitter.

    Raises:
        ValueError: A negative argument.
    """

    _blanks_count = True

    def _parse(self, lines: list[bytes], ends: list[int]) -> None:
        samples = self._samples
        index = self._index + len(samples)
        if not index and lines and _is_no_text(lines[0]):
            self._is_foreign = True
            raise FormatError(f"text: expected lines of text{describe_bytes(lines[0])}")
        for line, end in zip(lines, ends, strict=True):
            try:
                text = str(line, "utf-8")
            except UnicodeDecodeError as error:
                fault = FormatError(
                    f"text: invalid UTF-8 at byte {error.start} of the line: "
                    f"{excerpt(line, error.start)}{describe_bytes(line)}"
                )
                fault.offset = self._at + error.start
                raise fault from error
            if text.endswith("\r"):
                text = text[:-1]
            samples.append({"__key__": str(index), "text": text})
            index += 1
            self._ends.append(end)
            self._at = end


def _is_no_text(line: bytes) -> bool:
    """Whether a first line is of what lies in the place of a text, rather than of one."""
    start = line[:64].lstrip()
    return start.startswith(LFS_POINTER) or start.lower().startswith(_PAGES)
