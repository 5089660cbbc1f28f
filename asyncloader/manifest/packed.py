"""Many texts in one array, each made when it is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, pairwise

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from ..texts import Texts

__all__ = ["PackedTexts", "cut"]

# Texts that are made at once: they stay in the processor's cache.
_RUN = 4096

# Longer ones, of which a run would take some MiB, are not compared without making them.
_MOST_COMPARED_BYTES = 512


class PackedTexts(Texts):
    """Texts that lie one behind the other.

    Args:
        encoded: All of them in UTF-8, ``(bytes,) uint8``.
        begins: Where each begins in it, and where the last one ends, ``(texts + 1,) int64``.
    """

    def __init__(self, encoded: npt.NDArray[np.uint8], begins: npt.NDArray[np.int64]) -> None:
        self._encoded = encoded
        self._begins = begins

    @classmethod
    def of(cls, texts: Iterable[str]) -> PackedTexts:
        """The same texts, packed."""
        rest = iter(texts)
        return cls.join([_packed(run) for run in iter(lambda: [*islice(rest, _RUN)], [])])

    @classmethod
    def join(cls, parts: Sequence[PackedTexts]) -> PackedTexts:
        """The texts of all parts, one part after the other."""
        lengths = np.concatenate([[0], *(np.diff(part._begins) for part in parts)]).astype(np.int64)
        encoded = np.concatenate([np.zeros(0, np.uint8), *(part._encoded for part in parts)])
        return cls(encoded, np.cumsum(lengths))

    def __len__(self) -> int:
        return len(self._begins) - 1

    def at(self, index: int) -> str:
        first, stop = self._begins[index : index + 2].tolist()
        return str(self._encoded.data[first:stop], "utf-8", "surrogatepass")

    def contain(self, piece: str) -> bool:
        """Whether ``piece`` may be in one of them: in all of them, one behind the other, it is."""
        return piece.encode() in self._encoded.data.tobytes()

    def take(self, rows: npt.NDArray[np.int64]) -> list[str]:
        """Some of them, faster than one by one."""
        encoded, begins = cut(self._encoded, self._begins[rows], self._begins[rows + 1])
        held = encoded.tobytes()
        cuts = pairwise(begins.tolist())
        if held.isascii():
            text = held.decode()
            return [text[first:stop] for first, stop in cuts]
        return [held[first:stop].decode(errors="surrogatepass") for first, stop in cuts]

    def stand_at(self, first: int, texts: Sequence[str]) -> bool:
        """Whether these are the texts from row ``first`` on; mostly told without making any of them."""
        begins = self._begins[first : first + len(texts) + 1]
        if len(begins) <= len(texts):
            return False
        joined = "".join(texts)
        if not joined.isascii():
            return self.take(np.arange(first, first + len(texts))) == texts
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        held = self._encoded.data[int(begins[0]) : int(begins[-1])]
        return held == joined.encode() and bool((np.diff(begins) == lengths).all())

    def is_rising(self) -> bool:
        """Whether each text is above the one before it; False also where that is not easily told."""
        last = ""
        for first in range(0, len(self), _RUN):
            begins = self._begins[first : first + _RUN + 1]
            widths = np.diff(begins)
            width = int(widths.max())
            if not 0 < width <= _MOST_COMPARED_BYTES or self.at(first) <= last:
                return False
            # With zeros behind them they are in the order of texts, but that those which end with zeros
            # may be taken for equal.
            filled = np.zeros((len(widths), width), np.uint8)
            filled[np.arange(width) < widths[:, None]] = self._encoded[begins[0] : begins[-1]]
            rows = filled.view(f"S{width}").ravel()
            if not (rows[:-1] < rows[1:]).all():
                return False
            last = self.at(first + len(widths) - 1)
        return True

    def __iter__(self) -> Iterator[str]:
        runs = (np.arange(first, min(first + _RUN, len(self))) for first in range(0, len(self), _RUN))
        return chain.from_iterable(map(self.take, runs))


def _packed(texts: Sequence[str]) -> PackedTexts:
    joined = "".join(texts)
    each = texts if joined.isascii() else [text.encode(errors="surrogatepass") for text in texts]
    begins = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, each), np.int64, len(texts)), out=begins[1:])
    return PackedTexts(np.frombuffer(joined.encode(errors="surrogatepass"), np.uint8), begins)


def cut(
    text: npt.NDArray[np.uint8], firsts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Stretches of a text one behind the other, and where each begins there and the last one ends."""
    begins = np.zeros(len(firsts) + 1, np.int64)
    widths = stops - firsts
    np.cumsum(widths, out=begins[1:])
    if len(firsts) and (firsts[1:] == stops[:-1]).all():
        return text[firsts[0] : stops[-1]], begins
    if len(firsts) and widths[0] > 0 and (widths == widths[0]).all():
        # Each is copied as a whole, where one byte after another takes ten times as long.
        return sliding_window_view(text, int(widths[0]))[firsts].ravel(), begins
    return text[np.repeat(firsts - begins[:-1], stops - firsts) + np.arange(begins[-1])], begins
