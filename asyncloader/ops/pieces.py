"""How much an operator that runs the user's code takes at a time: fewer samples, the larger they become."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..blocks import Block
from ..sizes import bytes_of

__all__ = ["Pieces", "cut", "next_size"]

# What is worked at should stay near the processor, whatever the memory may hold.
_MOST_BYTES = 8 << 20

# Of each piece so many samples are measured, which takes some microseconds.
_MEASURED = 4


# Of calls that take next to nothing, more may be in a piece than otherwise: as many as take so long.
_BRIEF_S = 0.001
_MOST_OF_BRIEF = 8

# Of slow calls fewer are: between pieces, and only there, it is seen that the pass was closed.
_LONG_S = 0.1


def next_size(size: int, most: int, in_a_second: float) -> int:
    """Samples of the piece after one of ``size``: at most twice as many, and of slow calls fewer.

    Args:
        size: Of that piece.
        most: Samples of a piece; of brief calls eight times as many.
        in_a_second: How many calls there are.
    """
    brief = min(_MOST_OF_BRIEF * most, int(_BRIEF_S * in_a_second))
    return max(1, min(max(most, brief), 2 * size, int(_LONG_S * in_a_second)))


def cut(block: Block, most: Callable[[], int]) -> Iterator[Block]:
    """The block in pieces, each of at most ``most()`` samples at the time when it is asked for."""
    start = 0
    while start < len(block):
        stop = min(start + most(), len(block))
        yield block if stop - start == len(block) else block.part(start, stop)
        start = stop


class Pieces:
    """How large pieces may be, by what was made of those before.

    The first piece is one sample, and each next one at most twice the one before: what a function makes is
    not known until it has made it.

    Args:
        most: Samples of a piece; of brief calls eight times as many.
        made_bytes: Bound on what is made and not yet handed on, one piece or many.
    """

    def __init__(self, most: int, made_bytes: int) -> None:
        self._most = most
        self._made_bytes = made_bytes
        self._samples = 1
        # Nothing is known of the first ones: no more of them than are worked at.
        self._sample_bytes = made_bytes + 1
        self._measured = False

    def size(self) -> int:
        """Samples of the next piece."""
        return self._samples

    def measure(self, made: list[Any], took_s: float | None = None) -> None:
        """Learn from the samples that were made of a piece, and from how long that took, if that is known."""
        if not made:
            return
        seen = made[:: -(-len(made) // _MEASURED)]
        sample_bytes = bytes_of(seen) // len(seen)
        if self._measured:  # a large one is remembered for a while, lest the size go up and down with each
            sample_bytes = max(sample_bytes, self._sample_bytes * 7 // 8)
        self._measured, self._sample_bytes = True, sample_bytes
        fit = min(self._made_bytes, _MOST_BYTES) // max(self._sample_bytes, 1)
        if took_s is None:
            self._samples = max(1, min(fit, 2 * self._samples, self._most))
            return
        in_a_second = len(made) / max(took_s, 1e-9)
        self._samples = max(1, min(fit, next_size(self._samples, self._most, in_a_second)))

    def may_hold(self, samples: int) -> bool:
        """Whether so many may be made and not yet handed on, all pieces together."""
        return samples * self._sample_bytes <= self._made_bytes
