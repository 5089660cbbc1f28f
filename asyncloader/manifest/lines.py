"""Manifests as they are written: a line for each shard, read into columns many lines at a time. Pure.

What is read here is what ``format_manifest`` writes, byte by byte but for the values; whatever else the JSON
of a manifest may be is for ``entries`` to read, and to say what is wrong with it. So each step gives None as
soon as anything is otherwise, and none has anything to tell.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from .expectations import Expectations, Known
from .packed import PackedTexts, cut

__all__ = ["read_lines"]

_Int64: TypeAlias = npt.NDArray[np.int64]
_Uint8: TypeAlias = npt.NDArray[np.uint8]

# In this order, as far as they are there; and how many quotes there are of each.
_QUOTES = {"name": 4, "size_bytes": 2, "samples": 2, "sha256": 4, "crc32c": 4, "offsets": 2}
_BITS = {"samples": Known.SAMPLES, "sha256": Known.SHA256, "crc32c": Known.CRC32C, "offsets": Known.OFFSETS}
_BYTES = {"sha256": 32, "crc32c": 4}

# What stands before the first quote of a line.
_BEFORE = b"  {"

_MOST_DIGITS = 18  # of what surely fits in 63 bits

# What stands before the path of a name that is a URL.
_SCHEME = re.compile(rb"(?m)^.*?://(?=.)")
_MOST_NAME_BYTES = 4096  # at most as many characters


def read_lines(lines: bytes) -> tuple[PackedTexts, Expectations] | None:
    """The names and entries of some lines.

    Args:
        lines: Whole ones, each of which ends with a comma.

    Returns:
        None if any line is not written as ``format_manifest`` does, with what the first one has.
    """
    keys = _keys_of(lines[: lines.find(b"\n") + 1])
    if keys is None:
        return None
    text = np.frombuffer(lines, np.uint8)
    quotes = np.flatnonzero(text == ord('"'))
    quotes_per_line = sum(map(_QUOTES.__getitem__, keys))
    if len(quotes) % quotes_per_line:
        return None
    try:
        return _Lines(text, quotes.reshape(-1, quotes_per_line)).read(keys)
    except _Otherwise:
        return None


class _Otherwise(Exception):
    """A line is not as it is written here."""


def _keys_of(line: bytes) -> list[str] | None:
    try:
        entry = json.loads(line.strip().removesuffix(b","))
    except ValueError:
        return None
    if not isinstance(entry, dict):
        return None
    keys = [*entry]
    good = keys == [key for key in _QUOTES if key in entry] and keys[:2] == ["name", "size_bytes"]
    return keys if good else None


@dataclass
class _Lines:
    """Lines that have the same keys.

    Attributes:
        text: All of them, ``(bytes,) uint8``.
        quotes: Where the quotes of each line are, ``(lines, quotes) int64``.
    """

    text: _Uint8
    quotes: _Int64

    @cached_property
    def ends(self) -> _Int64:
        """Where the break of each line should be, by the quotes of the next one: ``(lines,) int64``."""
        return np.append(self.quotes[1:, 0] - len(_BEFORE) - 1, len(self.text) - 1)

    def read(self, keys: list[str]) -> tuple[PackedTexts, Expectations]:
        # Every byte of a line is held against what it should be, from here to its end.
        at, before = self.quotes[:, 0] - len(_BEFORE), _BEFORE
        if at[0] != 0:
            raise _Otherwise
        places: dict[str, tuple[_Int64, _Int64]] = {}
        seen = 0
        for key in keys:
            seen += _QUOTES[key]
            opening = before + b'"%s": %s' % (key.encode(), b'"' * (_QUOTES[key] == 4))
            self._expect(at, opening)
            if _QUOTES[key] == 4:
                stop = self.quotes[:, seen - 1]
                places[key], at = (at + len(opening), stop), stop + 1
            else:
                stop = self.ends - 2 if key == keys[-1] else self.quotes[:, seen] - 2
                places[key], at = (at + len(opening), stop), stop
            before = b", "
        if (at != self.ends - 2).any():
            raise _Otherwise
        self._expect(at, b"},\n")
        return self._names(*places["name"]), self._expectations(places)

    def _expectations(self, places: dict[str, tuple[_Int64, _Int64]]) -> Expectations:
        none = np.zeros(len(self.ends), np.int64)
        known = Known.ENTRY | sum(bit for key, bit in _BITS.items() if key in places)
        sizes = _numbers(self.text, *places["size_bytes"])
        samples = _numbers(self.text, *places["samples"]) if "samples" in places else none
        digests = {
            key: self._digests(*places[key], width)
            if key in places
            else np.zeros((len(none), width), np.uint8)
            for key, width in _BYTES.items()
        }
        offsets, begins = np.zeros((0, 2), np.int64), np.zeros(len(none) + 1, np.int64)
        if "offsets" in places:
            offsets, begins = self._offsets(*places["offsets"])
            _check_rising(offsets, begins, np.column_stack([samples, sizes]))
        return Expectations(
            np.full(len(none), known, np.uint8),
            sizes,
            samples,
            **digests,
            hashed=np.zeros((len(none), 0), np.uint8),
            unpacked=np.zeros((len(none), 0), np.uint8),
            offsets=offsets,
            begins=begins,
        )

    def _expect(self, at: _Int64, wanted: bytes) -> None:
        """In each line, from ``at`` on."""
        if _windows(self.text, at, len(wanted)).tobytes() != wanted * len(at):
            raise _Otherwise

    def _names(self, firsts: _Int64, stops: _Int64) -> PackedTexts:
        names, begins = cut(self.text, firsts, stops)
        # With breaks between them, which no name has here.
        encoded = np.insert(names, begins, ord("\n")).tobytes()
        odd = (stops - firsts).max() > _MOST_NAME_BYTES or (names < 32).any() or b"\\" in encoded
        if odd or _has_dots(_SCHEME.sub(b"", encoded) if b"://" in encoded else encoded):
            raise _Otherwise
        try:
            encoded.decode()
        except UnicodeDecodeError:
            raise _Otherwise from None
        return PackedTexts(names, begins)

    def _digests(self, firsts: _Int64, stops: _Int64, width: int) -> _Uint8:
        if (stops - firsts != 2 * width).any():
            raise _Otherwise
        try:
            digests = bytes.fromhex(_windows(self.text, firsts, 2 * width).tobytes().decode())
        except ValueError:
            raise _Otherwise from None
        if len(digests) != len(firsts) * width:
            raise _Otherwise  # of spaces
        return np.frombuffer(digests, np.uint8).reshape(-1, width)

    def _offsets(self, firsts: _Int64, stops: _Int64) -> tuple[_Int64, _Int64]:
        """The pairs of all lines, and where those of each begin."""
        text, begins = cut(self.text, firsts, stops)
        if (np.diff(begins) < 2).any():
            raise _Otherwise
        is_digit = (text >= ord("0")) & (text <= ord("9"))
        is_first = is_digit & ~np.concatenate([[False], is_digit[:-1]])
        # A list begins with one bracket, and each of its pairs with another one.
        pairs = np.add.reduceat(text == ord("["), begins[:-1], dtype=np.int64) - 1
        if (pairs < 0).any():
            raise _Otherwise
        # With one digit for each number the text of a list is told by its length.
        short = np.where(is_digit, ord("0"), text)[is_first | ~is_digit]
        shapes = {count: b"[%s]" % b", ".join([b"[0, 0]"] * count) for count in set(pairs.tolist())}
        if short.tobytes() != b"".join(map(shapes.__getitem__, pairs.tolist())):
            raise _Otherwise
        is_last = is_digit & ~np.concatenate([is_digit[1:], [False]])
        padded = np.concatenate([np.zeros(_MOST_DIGITS, np.uint8), text])
        first, last = (np.flatnonzero(ends) + _MOST_DIGITS for ends in (is_first, is_last))
        numbers = _numbers(padded, first, last + 1)
        return numbers.reshape(-1, 2), np.concatenate([[0], np.cumsum(pairs)])


def _windows(text: _Uint8, at: _Int64, width: int) -> npt.NDArray[np.bytes_]:
    """So many bytes from each place on."""
    places = len(text) - width + 1
    if places < 1 or (len(at) and not 0 <= at.min() <= at.max() < places):
        raise _Otherwise
    return np.ndarray(places, f"S{width}", text, strides=(1,))[at]


def _numbers(text: _Uint8, firsts: _Int64, stops: _Int64) -> _Int64:
    """What stands there in decimal; before each of them stand ``_MOST_DIGITS`` bytes, of whatever."""
    widths = stops - firsts
    if not len(widths):
        return widths
    most = int(widths.max())
    if widths.min() < 1 or most > _MOST_DIGITS or ((text[firsts] == ord("0")) & (widths > 1)).any():
        raise _Otherwise
    digits = _windows(text, stops - most, most).view(np.uint8).reshape(-1, most) - np.uint8(ord("0"))
    digits *= np.arange(most, 0, -1) <= widths[:, None]  # not what is before them
    if (digits > 9).any():
        raise _Otherwise
    return digits @ 10 ** np.arange(most - 1, -1, -1)


def _has_dots(names: bytes) -> bool:
    """Whether a segment of a name is empty, or none but to say where it is; with breaks around the names."""
    segments = names.replace(b"/", b"\n")
    return any(segment in segments for segment in (b"\n\n", b"\n.\n", b"\n..\n"))


def _check_rising(offsets: _Int64, begins: _Int64, ends: _Int64) -> None:
    """Each is above the one before it, or the beginning of its shard, and below the end of that."""
    before = np.concatenate([np.zeros((1, 2), np.int64), offsets[:-1]])[: len(offsets)]
    counts = np.diff(begins)
    before[begins[:-1][counts > 0]] = 0
    if not ((before < offsets) & (offsets < np.repeat(ends, counts, axis=0))).all():
        raise _Otherwise
