"""Shards of lines: plain text, and JSON Lines as rows or columns.

Neither format has an end marker, so a shard that was cut between two lines looks whole here; the store
checks that the body had its full length.
"""

from __future__ import annotations

import json
import sys
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..blocks import Block, Column, Columns, IntegerLists, Objects, OffsetTrail, Rows
from ..errors import FormatError
from ..types import Buffer
from .compression import open_stream
from .decoder import LFS_POINTER, MAX_BLOCK_SAMPLES, Decoder, PassOver, ShardSpec, describe_bytes

_BOM = b"\xef\xbb\xbf"
# A chunk becomes samples window by window: parsed JSON takes some six times the memory of its text, and
# samples that are returned before more are parsed stay in the processor's cache (a sixth less time for lists
# of numbers).
_WINDOW_BYTES = 128 << 10
_EXCERPT_BYTES = 60
# The beginning of a page that a server sends instead of a file.
_PAGES = (b"<!doctype html", b"<html")


class LineDecoder(Decoder):
    """Split into lines at ``\\n``; the subclass makes the samples.

    Args:
        start_sample: Index in the shard of the first sample to come.
        start_byte: Offset of the first byte that will be fed, taken from a trail together with
            ``start_sample``.
        pass_over: Called for each line that is no sample, with the error that would be raised; the line keeps
            its index. None: the error is raised.
    """

    #: Far above any record seen in practice; keeps a shard without lines from filling the memory. More than a
    #: window, so that only the open line can be longer.
    most_line_bytes: ClassVar[int] = 256 << 20

    # Whether blank lines are samples.
    _blanks_count: ClassVar[bool]

    def __init__(
        self,
        *,
        start_sample: int = 0,
        start_byte: int = 0,
        pass_over: PassOver | None = None,
    ) -> None:
        self._index = start_sample
        # The line after the last block; unknown if blank lines may be before the start.
        known = self._blanks_count or not (start_sample or start_byte)
        self._line = start_sample + 1 if known else None
        self._blanks: dict[int, int] = {}
        self._at = start_byte  # offset of the line that is open
        self._pass_over = pass_over
        self._open: list[bytes | memoryview] = []
        self._open_bytes = 0
        self._samples: list[Any] = []
        self._ends: list[int] = []
        # The shard has no lines at all: its error is always raised, and no line is passed over.
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
        if self._open_bytes > self.most_line_bytes:
            raise FormatError(f"a line of more than {self.most_line_bytes} bytes")
        # A view takes more memory than few bytes do.
        self._open.append(piece if len(piece) > 512 else bytes(piece))

    def finish(self) -> Iterator[Block]:
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
        """Add complete lines, without the newline of the last; a subclass may have a faster way."""
        return self._add(run.split(b"\n"))

    def _add(self, lines: list[bytes], newline: int = 1) -> Iterator[Block]:
        if self._at == 0 and lines[0].startswith(_BOM):
            self._at = len(_BOM)
            lines[0] = lines[0][len(_BOM) :]
        for start in range(0, len(lines), MAX_BLOCK_SAMPLES):
            run = lines[start : start + MAX_BLOCK_SAMPLES]
            # Where each line ends with its newline, from the beginning of the first one.
            lengths = accumulate(map(len, run), initial=self._at)
            ends = [end + place * newline for place, end in enumerate(lengths)]
            yield from self._parse_all(run, ends[1:])
            if len(self._samples) >= MAX_BLOCK_SAMPLES:
                yield from self._take()

    def _parse_all(self, lines: list[bytes], ends: list[int]) -> Iterator[Block]:
        """Parse lines, and pass over those that are no samples if ``pass_over`` records them."""
        while lines:
            try:
                self._parse(lines, ends)
                return
            except FormatError as error:
                if self._pass_over is None or self._is_foreign:
                    raise
                bad = bisect_right(ends, self._at)  # it begins where the line before it ends
                self._locate(error)
                yield from self._take()
                self._pass_over(error)
                self._index += 1
                self._line = None if self._line is None else self._line + 1
                self._at = ends[bad]
                lines, ends = lines[bad + 1 :], ends[bad + 1 :]

    @abstractmethod
    def _parse(self, lines: list[bytes], ends: list[int]) -> None:
        """Append samples and ends; if it raises, ``_at`` is the offset of the line at fault."""

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
        """The trail of the next samples, which end at ``ends``."""
        trail = OffsetTrail(self._index, ends, self._line, self._blanks)
        self._index += len(ends)
        if self._line is not None:
            self._line += len(ends) + sum(self._blanks.values())
        self._blanks = {}
        return trail


def _excerpt(line: bytes, at: int = 0) -> str:
    start = max(at - _EXCERPT_BYTES // 2, 0)
    return repr(line[start : start + _EXCERPT_BYTES])


def invalid_text(name: str, line: bytes, error: UnicodeDecodeError, hint: str) -> FormatError:
    """The error for a line of format ``name`` that is not UTF-8."""
    where = f"{name}: invalid UTF-8 at byte {error.start} of the line"
    return FormatError(f"{where}: {_excerpt(line, error.start)}{hint}")


class TextDecoder(LineDecoder):
    """Decode UTF-8 text: each line, blank ones too, is ``{"__key__": str(index), "text": line}``.

    Lines end with ``\\n``, or ``\\r\\n``; other separators that :meth:`str.splitlines` knows stay in the
    text. The last line may lack its end; a byte order mark at the start is dropped. A shard whose first line
    is that of a web page, or of a pointer of Git LFS, is an error.

    Args:
        start_sample: Index in the shard of the first sample to come.
        start_byte: Offset of the first byte that will be fed, taken from a trail together with
            ``start_sample``.
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
                fault = invalid_text("text", line, error, describe_bytes(line))
                fault.offset = self._at + error.start
                raise fault from error
            if text.endswith("\r"):
                text = text[:-1]
            samples.append({"__key__": str(index), "text": text})
            index += 1
            self._ends.append(end)
            self._at = end


def _is_no_text(line: bytes) -> bool:
    """Whether a first line shows that something else than text is there."""
    start = line[:64].lstrip()
    return start.startswith(LFS_POINTER) or start.lower().startswith(_PAGES)


# It decodes to the same values as json.loads: integers of any size, floats to the last bit, the last of equal
# keys. (orjson makes floats of integers beyond 64 bits.) What it refuses is given to json.
_JSON: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])

# The characters of a list of integers; a value with others is parsed as a whole.
_CHARACTERS = b"0123456789-,[] "
_WORD = 8
_MOST_DIGITS = 2 * _WORD  # two words; there are some of 19 that fit int64
_MARGIN = b" " * _MOST_DIGITS


def columns_of_lines(lines: bytes, ends: NDArray[np.int64]) -> Mapping[str, Column] | None:
    """The fields of objects, a line each, whose rows are those of :mod:`json`.

    Args:
        lines: If they are JSON, each line has at least one value, and no value is on two lines.
        ends: Where each line ends, ``(n,) int64``.

    Returns:
        ``IntegerLists`` for fields of integer lists only, ``Objects`` for others. None if rows are as fast,
        or the fields differ from line to line.

    Raises:
        msgspec.MsgspecError, ValueError, RecursionError: The parser refuses something. :mod:`json` may not.
    """
    if not _has_integer_list(_JSON.decode(lines[: ends[0]])):
        return None
    rows = _FIELDS.decode_lines(lines)
    names = tuple(rows[0])
    # Samples with a key get the URL of their shard one by one, as rows.
    if len(rows) != len(ends) or set(map(tuple, rows)) != {names} or "__key__" in names:
        return None
    columns: list[list[Any]] = [[row[name] for row in rows] for name in names]
    if not _are_all_seen(lines, ends, columns):
        return None
    fields: dict[str, Column] = {}
    for name, values in zip(names, columns, strict=True):
        lists = _integer_lists(values)
        fields[name] = Objects(_JSON.decode(b"[%b]" % b",".join(values))) if lists is None else lists
    return fields


def _are_all_seen(lines: bytes, ends: NDArray[np.int64], columns: Sequence[Sequence[Buffer]]) -> bool:
    """Whether the other parts of the lines cannot hold anything that :mod:`json` refuses.

    These are keys, and values of keys that were repeated, which the parser only skips: it does not check
    strings for UTF-8, nor integers for the number of digits that Python converts.
    """
    if not lines.isascii():
        lines.decode()
    between = np.diff(ends, prepend=-1)
    for values in columns:
        between -= np.fromiter(map(len, values), np.int64, len(values))
    return int(between.max()) < sys.int_info.str_digits_check_threshold


def _has_integer_list(sample: Any) -> bool:
    """Whether a sample has a list of integers; without one, rows are as fast."""
    values = sample.values() if type(sample) is dict else ()
    return any(type(value) is list and value and type(value[0]) is int for value in values)


def _integer_lists(values: Sequence[Buffer]) -> IntegerLists | None:
    """The column of valid JSON values; None if one is no list of integers, or an integer is too long."""
    text = b"".join([_MARGIN, *values])
    if text.translate(None, _CHARACTERS):
        return None
    characters = np.frombuffer(text, np.uint8)
    opens = np.flatnonzero(characters == ord("["))
    # Each value is one list: none is within another, where something else than an end would stand before it.
    if len(opens) != len(values) or (characters[opens[1:] - 1] != ord("]")).any():
        return None
    is_digit = (characters ^ ord("0")) < 10
    edges = np.flatnonzero(is_digit[1:] != is_digit[:-1])
    before, last = edges[::2], edges[1::2]
    lengths = last - before
    longest = int(lengths.max(initial=0))
    if longest > _MOST_DIGITS:
        return None
    words: NDArray[np.uint64] = np.ndarray(len(text) - _WORD + 1, "<u8", text, strides=(1,))
    numbers = _read(words[last - (_WORD - 1)], np.minimum(lengths, _WORD))
    if longest > _WORD:
        more = np.maximum(lengths - _WORD, 0)
        numbers += _read(words[last - (_MOST_DIGITS - 1)], more) * 10**_WORD
    if b"-" in text:
        numbers[characters[before] == ord("-")] *= -1
    return IntegerLists.over(numbers, np.append(np.searchsorted(before, opens), len(numbers)))


def _read(words: NDArray[np.uint64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers whose digits are the last ``lengths`` characters of words of eight, the first one lowest.

    Neighbours are combined to numbers of two digits, these to numbers of four, and these to one of eight:
    Daniel Lemire, "Quickly parsing eight digits" (2018).
    """
    shift = ((_WORD - lengths) * 8).astype(np.uint64)
    words = (words >> shift) << shift  # characters before the digits count as 0
    words &= np.uint64(0x0F0F0F0F0F0F0F0F)
    for bits, digits in ((8, 10), (16, 100), (32, 10_000)):
        words *= np.uint64((digits << bits) + 1)
        words >>= np.uint64(bits)
        words &= np.uint64(((1 << 64) - 1) // ((1 << 2 * bits) - 1) * ((1 << bits) - 1))
    return words.view(np.int64)


_NEWLINE, _OPEN, _CLOSE = b"\n{}"
_REFUSALS = (msgspec.MsgspecError, ValueError, RecursionError)  # the first is no ValueError before 0.22
_JSON_NAMES = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}


class JsonlDecoder(LineDecoder):
    """Decode JSON Lines: each line that is not blank is one JSON object, and that dict the sample.

    Nothing is added to the dict. Lines end with ``\\n`` or ``\\r\\n``, the last one may lack its end;
    a byte order mark at the start is dropped. The values are those of :mod:`json`, with ``NaN`` and large
    integers, but the parser is faster. A line with any other JSON value raises: pipelines address samples
    by field, and wrapping such a value in a dict would hide that the shard is not what was expected.

    Args:
        start_sample: Index in the shard of the first sample to come.
        start_byte: Offset of the first byte that will be fed, taken from a trail together with
            ``start_sample``.
        columns: Make columns if they are faster than rows. Rows that are made of them are the same, but
            slower.

    Raises:
        ValueError: An argument is negative.
    """

    _blanks_count = False

    def __init__(self, *, columns: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self._columns = columns

    def _add_run(self, run: bytes) -> Iterator[Block]:
        # To msgspec a newline is a space: it accepts a value on two lines, and two values on one. But a
        # newline between "}" and "{" is never within a value, which has a comma there, and no newline in its
        # strings. So if all newlines are like this, each line has at least one value; and if there are as
        # many values as lines, each line has one.
        parsed = None
        if run.startswith(b"{"):
            characters = np.frombuffer(run + b"\n", np.uint8)
            line_ends = np.flatnonzero(characters == _NEWLINE)
            inner = line_ends[:-1]
            if (characters[inner - 1] == _CLOSE).all() and (characters[inner + 1] == _OPEN).all():
                parsed = self._parse_run(run, line_ends)
        if parsed is None:
            yield from super()._add_run(run)
            return
        ends = (self._at + 1 + line_ends).tolist()
        if isinstance(parsed, Mapping):
            yield from self._take()
            self._at = ends[-1]
            yield Columns(parsed, self._follow(ends))
            return
        for start in range(0, len(parsed), MAX_BLOCK_SAMPLES):
            self._samples += parsed[start : start + MAX_BLOCK_SAMPLES]
            self._ends += ends[start : start + MAX_BLOCK_SAMPLES]
            self._at = self._ends[-1]
            if len(self._samples) >= MAX_BLOCK_SAMPLES:
                yield from self._take()

    def _parse_run(self, run: bytes, line_ends: NDArray[np.int64]) -> list[Any] | Mapping[str, Column] | None:
        """Samples or columns, if one call shows that each line is one object; otherwise None."""
        try:
            if self._columns and (columns := columns_of_lines(run, line_ends)) is not None:
                return columns
            samples = _JSON.decode_lines(run)
        except _REFUSALS:
            return None
        return samples if len(samples) == len(line_ends) else None

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
    """The value that msgspec refuses: of NaN, Infinity, 1e400 and lone surrogates; others raise."""
    try:
        # json.loads would guess the encoding of bytes with slow Python code.
        return json.loads(str(line, "utf-8"))
    except (ValueError, RecursionError) as error:
        error.__context__ = None  # msgspec's error about the same line
        raise _json_error(line, error) from error


def _json_error(line: bytes, error: Exception) -> FormatError:
    hint = "" if line.lstrip().startswith((b"{", b"[")) else describe_bytes(line)
    hint = hint or "; correct the line, or skip such lines by on_error=al.SkipErrors(...)"
    if isinstance(error, json.JSONDecodeError):
        column = len(error.doc[: error.pos].encode("utf-8", "surrogatepass"))
        return FormatError(f"jsonl: {error.msg} at byte {column} of the line: {_excerpt(line, column)}{hint}")
    if isinstance(error, UnicodeDecodeError):
        return invalid_text("jsonl", line, error, hint)
    # The nesting is too deep, or an integer has more digits than Python converts.
    return FormatError(f"jsonl: {error}: {_excerpt(line)}")


def open_text(spec: ShardSpec) -> Decoder:
    """The decoder of a shard of text, compressed or not."""
    return open_stream(spec, partial(TextDecoder, pass_over=spec.pass_over))


def open_jsonl(spec: ShardSpec) -> Decoder:
    """The decoder of a shard of JSON Lines, compressed or not."""
    return open_stream(spec, partial(JsonlDecoder, columns=spec.columns, pass_over=spec.pass_over))
