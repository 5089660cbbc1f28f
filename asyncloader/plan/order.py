"""Permutations that are the same on every machine and with every version of every library."""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt

__all__ = ["draw_order", "draw_words", "permutation"]

# SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
# NumPy's and Python's own shuffles do not promise the same order from one release to the next, and a
# saved position must mean the same samples for as long as the file exists.
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def permutation(n: int, *key: int) -> list[int]:
    """A permutation of ``range(n)`` drawn by ``key``.

    Each index gets a 64-bit SplitMix64 word of the stream that ``key`` seeds; sorting the words
    (stably, so that even a collision has one order) gives the permutation.

    Args:
        n: How many indices.
        key: Integers that name the draw, such as ``(seed, epoch)``; negative ones are fine.
    """
    return cast("list[int]", draw_order(n, *key).tolist())


def draw_order(n: int, *key: int) -> npt.NDArray[np.int64]:
    """``permutation`` as an array, for whoever wants a part of it: ``(n,) int64``."""
    return np.argsort(draw_words(n, *key), kind="stable")


def draw_words(n: int, *key: int) -> npt.NDArray[np.uint64]:
    """The first words of the stream that ``key`` seeds, one as likely as another: ``(n,) uint64``."""
    state = np.zeros(1, np.uint64)
    for part in (*key, len(key)):
        word = np.array([part & 0xFFFF_FFFF_FFFF_FFFF], np.uint64)
        state = _mix(state ^ _mix(word + _GAMMA))
    return _mix(state + _GAMMA * np.arange(1, n + 1, dtype=np.uint64))


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))
