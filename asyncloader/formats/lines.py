"""Shards of lines: JSON Lines and plain text, over one splitter that works in C.

Neither format has an end marker, so a shard cut between two lines looks whole from here; that the
body had its full length is for the store to check.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, ClassVar

import msgspec
import numpy as np

from ..blocks import Block, OffsetTrail, Rows
from ..errors import FormatError
from ._push import MAX_BLOCK_SAMPLES, PushDecoder, describe_bytes

__all__ = ["JsonlDecoder", "TextDecoder"]

_BOM = b"\xef\xbb\xbf"
# A chunk becomes samples window by window: parsed JSON takes some six times the room of its text, and what is
# handed on before more is parsed stays in the processor's cache (a sixth less time for lists of numbers).
_WINDOW_BYTES = 128 << 10
_EXCERPT_BYTES = 60
_NEWLINE = ord("\n")
# What it decodes is what json.loads makes of it: integers of any size, floats to the last bit, the last of
# equal keys. (orjson makes floats of integers beyond 64 bit.) What it refuses is json's to judge.
_JSON: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_REFUSALS = (msgspec.MsgspecError, ValueError, RecursionError)  # the first is no ValueError before 0.22
_JSON_NAMES = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}


class _LineDecoder(PushDecoder):
    """Split into lines at ``\\n``; the subclass makes the samples.

    Args:
        start_sample: Index in the shard of the first sample to come.
        start_byte: Offset of the first byte that will be fed, taken from a trail together with
            ``start_sample``.
        max_line_bytes: Longest line held. The default of 256 MiB is far above any record seen in
            practice, and keeps a shard that is not of lines at all from filling the memory.

    Raises:
        ValueError: A negative argument.
    """

    # Whether blank lines are samples.
    _blanks_count: ClassVar[bool]

    def __init__(
        self, *, start_sample: int = 0, start_byte: int = 0, max_line_bytes: int = 256 << 20
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
        self._open: list[bytes | memoryview] = []
        self._open_bytes = 0
        self._samples: list[Any] = []
        self._ends: list[int] = []

    def _decode(self, chunk: bytes) -> Iterator[Block]:
        windows = [chunk]
        if len(chunk) > _WINDOW_BYTES:
            windows = [chunk[at : at + _WINDOW_BYTES] for at in range(0, len(chunk), _WINDOW_BYTES)]
        try:
            for window in windows:
                yield from self._decode_window(window)
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
        line = b"".join(self._open)
        self._open = []
        self._open_bytes = 0
        yield from self._add([line])
        last = window.rfind(b"\n") + 1
        if last > first:
            yield from self._add_run(window[first : last - 1])
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
            self._parse(run[:whole], ends[1 : whole + 1])
            if whole < len(run):
                raise self._too_long()
            if len(self._samples) >= MAX_BLOCK_SAMPLES:
                yield from self._take()

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
            block = Rows(self._samples, OffsetTrail(self._index, self._ends, self._line, self._blanks))
            self._index += len(self._samples)
            if self._line is not None:
                self._line += len(self._samples) + sum(self._blanks.values())
            self._blanks = {}
            self._samples = []
            self._ends = []
            yield block


class JsonlDecoder(_LineDecoder):
    """Decode JSON Lines: each line that is not blank is one JSON object, and that dict the sample.

    Nothing is added to the dict. Lines end with ``\\n`` or ``\\r\\n``, the last one may lack its end;
    a byte order mark at the start is dropped. The values are those of :mod:`json`, ``NaN`` and large
    integers too; what parses them is faster.
    A line with any other JSON value raises: pipelines address samples by field, and a value wrapped
    in a dict of our making would hide that the shard is not what was expected.

    Args:
        start_sample: Index in the shard of the first sample to come.
        start_byte: Offset of the first byte that will be fed, taken from a trail together with
            ``start_sample``.
        max_line_bytes: Longest line held; 256 MiB, see the module's splitter.

    Raises:
        ValueError: A negative argument.
    """

    _blanks_count = False

    def _add_run(self, run: bytes) -> Iterator[Block]:
        samples = self._parse_run(run)
        if samples is None:
            yield from super()._add_run(run)
            return
        ends = self._at + 1 + np.flatnonzero(np.frombuffer(run + b"\n", np.uint8) == _NEWLINE)
        for start in range(0, len(samples), MAX_BLOCK_SAMPLES):
            self._samples += samples[start : start + MAX_BLOCK_SAMPLES]
            self._ends += ends[start : start + MAX_BLOCK_SAMPLES].tolist()
            self._at = self._ends[-1]
            if len(self._samples) >= MAX_BLOCK_SAMPLES:
                yield from self._take()

    def _parse_run(self, run: bytes) -> list[Any] | None:
        """The samples, if one call can tell that each line is one object; else it takes line by line."""
        # To msgspec a newline is a space like any other: it takes a value over two lines, and two on one. But
        # one between "}" and "{" is within no value, which has a comma there, and no newline in its strings.
        # So where there are only these, each line has at least one value, and as many as there are lines are
        # one each.
        newlines = run.count(b"\n")
        if not run.startswith(b"{") or run.count(b"}\n{") != newlines or len(run) > self._max_line_bytes:
            return None
        try:
            samples = _JSON.decode_lines(run)
        except _REFUSALS:
            return None
        return samples if len(samples) == newlines + 1 else None

    def _parse(self, lines: list[bytes], ends: list[int]) -> None:
        append = self._samples.append
        decode = _JSON.decode
        for line, end in zip(lines, ends, strict=True):
            try:
                sample = decode(line)
            except _REFUSALS:
                if not line.strip():
                    self._at = end
                    before = len(self._samples)
                    self._blanks[before] = self._blanks.get(before, 0) + 1
                    continue
                sample = _parse_as_json(line)
            if type(sample) is not dict:
                found = _JSON_NAMES.get(type(sample), "a number")
                raise FormatError(f"jsonl: expected one object per line, found {found}: {_excerpt(line)}")
            append(sample)
            self._ends.append(end)
            self._at = end


def _parse_as_json(line: bytes) -> Any:
    """What msgspec refuses: NaN, Infinity, 1e400 and lone surrogates have a value, all else its error."""
    try:
        # Decoded here: for bytes, json.loads guesses the encoding with slow Python code.
        return json.loads(str(line, "utf-8"))
    except (ValueError, RecursionError) as error:
        error.__context__ = None  # msgspec's refusal, another story of the same
        raise _json_error(line, error) from error


def _json_error(line: bytes, error: Exception) -> FormatError:
    hint = "" if line.lstrip().startswith((b"{", b"[")) else describe_bytes(line)
    if isinstance(error, json.JSONDecodeError):
        column = len(error.doc[: error.pos].encode("utf-8", "surrogatepass"))
        return FormatError(f"jsonl: {error.msg} at byte {column} of the line: {_excerpt(line, column)}{hint}")
    if isinstance(error, UnicodeDecodeError):
        return FormatError(
            f"jsonl: invalid UTF-8 at byte {error.start} of the line: {_excerpt(line, error.start)}{hint}"
        )
    # Nesting that is too deep, or an integer of more digits than Python converts.
    return FormatError(f"jsonl: {error}: {_excerpt(line)}")


def _excerpt(line: bytes, at: int = 0) -> str:
    start = max(at - _EXCERPT_BYTES // 2, 0)
    return repr(line[start : start + _EXCERPT_BYTES])


class TextDecoder(_LineDecoder):
    """Decode UTF-8 text: each line, blank ones too, is ``{"__key__": str(index), "text": line}``.

    Lines end with ``\\n``, or ``\\r\\n``; other separators that :meth:`str.splitlines` knows stay in the
    text. The last line may lack its end; a byte order mark at the start is dropped.

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
        for line, end in zip(lines, ends, strict=True):
            try:
                text = str(line, "utf-8")
            except UnicodeDecodeError as error:
                fault = FormatError(
                    f"text: invalid UTF-8 at byte {error.start} of the line: "
                    f"{_excerpt(line, error.start)}{describe_bytes(line)}"
                )
                fault.offset = self._at + error.start
                raise fault from error
            if text.endswith("\r"):
                text = text[:-1]
            samples.append({"__key__": str(index), "text": text})
            index += 1
            self._ends.append(end)
            self._at = end
