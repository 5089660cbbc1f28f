"""Many texts in one array, each made when it is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ..texts import Texts

__all__ = ["PackedTexts", "cut"]


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
        encoded = [text.encode(errors="surrogatepass") for text in texts]
        begins = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(text) for text in encoded], out=begins[1:])
        return cls(np.frombuffer(b"".join(encoded), np.uint8), begins)

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

    def __iter__(self) -> Iterator[str]:
        return map(self.at, range(len(self)))


def cut(
    text: npt.NDArray[np.uint8], firsts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Stretches of a text one behind the other, and where each begins there and the last one ends."""
    begins = np.zeros(len(firsts) + 1, np.int64)
    np.cumsum(stops - firsts, out=begins[1:])
    if len(firsts) and (firsts[1:] == stops[:-1]).all():
        return text[firsts[0] : stops[-1]], begins
    return text[np.repeat(firsts - begins[:-1], stops - firsts) + np.arange(begins[-1])], begins
