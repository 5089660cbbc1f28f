"""Runs of JSON lines as columns. Pure.

The parser says where the values are and that they are valid. Lists of integers then become an array straight
from their digits, without an object for each; what else there is, is parsed field by field.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..blocks import Column, IntegerLists, Objects
from ..types import Buffer

__all__ = ["columns_of_lines"]

_JSON: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])

# What a list of integers is written with; a value that has others is parsed as a whole.
_CHARACTERS = b"0123456789-,[] "
_WORD = 8
_MOST_DIGITS = 2 * _WORD  # two words; there are some of 19 that fit int64
_MARGIN = b" " * _MOST_DIGITS


def columns_of_lines(lines: bytes, ends: NDArray[np.int64]) -> Mapping[str, Column] | None:
    """The fields of objects, a line each, whose rows are those that :mod:`json` would have.

    Args:
        lines: Of which each has at least one value, if they are JSON, and none has half of one.
        ends: Where each of them ends, ``(n,) int64``.

    Returns:
        ``IntegerLists`` for fields of nothing but those, ``Objects`` for others. None where rows are made as
        fast, or the fields differ from line to line.

    Raises:
        msgspec.MsgspecError, ValueError, RecursionError: The parser refuses something. :mod:`json` may not.
    """
    if not _has_integer_list(_JSON.decode(lines[: ends[0]])):
        return None
    rows = _FIELDS.decode_lines(lines)
    names = tuple(rows[0])
    # A sample with a key is told its shard, one by one.
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
    """Whether the rest of the lines cannot hold anything that :mod:`json` refuses.

    That is keys, and values of keys that come once more, which were only skipped: in strings what is no UTF-8
    passes unseen, and any integer, where Python converts no more digits than it is told to.
    """
    if not lines.isascii():
        lines.decode()
    between = np.diff(ends, prepend=-1)
    for values in columns:
        between -= np.fromiter(map(len, values), np.int64, len(values))
    return int(between.max()) < sys.int_info.str_digits_check_threshold


def _has_integer_list(sample: Any) -> bool:
    """Whether a sample has what is worth it: objects of other fields are made as fast in rows."""
    values = sample.values() if type(sample) is dict else ()
    return any(type(value) is list and value and type(value[0]) is int for value in values)


def _integer_lists(values: Sequence[Buffer]) -> IntegerLists | None:
    """The column of JSON values that are known to be valid; None if one is no list of integers that fit."""
    text = b"".join([_MARGIN, *values])
    if text.translate(None, _CHARACTERS):
        return None
    characters = np.frombuffer(text, np.uint8)
    opens = np.flatnonzero(characters == ord("["))
    # As many lists as values; and none within another, which has something else than an end before it.
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

    Neighbours are put together to numbers of two digits, these to numbers of four, and these to one of eight:
    Daniel Lemire, "Quickly parsing eight digits" (2018).
    """
    shift = ((_WORD - lengths) * 8).astype(np.uint64)
    words = (words >> shift) << shift  # what is before the digits counts 0, as they themselves do in "0"
    words &= np.uint64(0x0F0F0F0F0F0F0F0F)
    for bits, digits in ((8, 10), (16, 100), (32, 10_000)):
        words *= np.uint64((digits << bits) + 1)
        words >>= np.uint64(bits)
        words &= np.uint64(((1 << 64) - 1) // ((1 << 2 * bits) - 1) * ((1 << bits) - 1))
    return words.view(np.int64)
