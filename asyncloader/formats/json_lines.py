"""Shards of JSON Lines: an object a line, as ``json`` would have it.

Asked for columns, it makes them of lines with lists of integers, if those of a run are alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..blocks import Block, Column, Columns
from ..errors import FormatError
from ._json_columns import columns_of_lines
from ._push import MAX_BLOCK_SAMPLES, describe_bytes
from .lines import LineDecoder, excerpt

__all__ = ["JsonlDecoder"]

_NEWLINE, _OPEN, _CLOSE = b"\n{}"
# What it decodes is what json.loads makes of it: integers of any size, floats to the last bit, the last of
# equal keys. (orjson makes floats of integers beyond 64 bit.) What it refuses is json's to judge.
_JSON: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_REFUSALS = (msgspec.MsgspecError, ValueError, RecursionError)  # the first is no ValueError before 0.22
_JSON_NAMES = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}


class JsonlDecoder(LineDecoder):
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
        columns: Make columns where they are had for less than rows. Those who need rows after all get the
            same ones, at a higher price.

    Raises:
        ValueError: A negative argument.
    """

    _blanks_count = False

    def __init__(self, *, columns: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self._columns = columns

    def _add_run(self, run: bytes) -> Iterator[Block]:
        # To msgspec a newline is a space like any other: it takes a value over two lines, and two on one. But
        # one between "}" and "{" is within no value, which has a comma there, and no newline in its strings.
        # So where there are only these, each line has at least one value, and as many as there are lines are
        # one each.
        parsed = None
        if run.startswith(b"{") and len(run) <= self._max_line_bytes:
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
        """Samples or columns, if one call can tell that each line is one object; None if it takes more."""
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
                raise FormatError(f"jsonl: expected one object per line, found {found}: {excerpt(line)}")
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
        return FormatError(f"jsonl: {error.msg} at byte {column} of the line: {excerpt(line, column)}{hint}")
    if isinstance(error, UnicodeDecodeError):
        return FormatError(
            f"jsonl: invalid UTF-8 at byte {error.start} of the line: {excerpt(line, error.start)}{hint}"
        )
    # Nesting that is too deep, or an integer of more digits than Python converts.
    return FormatError(f"jsonl: {error}: {excerpt(line)}")
