"""Chunks of tokens: documents end to end, of which each sample is a block, wherever documents begin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...blocks import Column, read_only
from ...errors import FormatError
from .arrays import dtype_numbered, numpy_dtypes, torch_dtypes

__all__ = ["Tokens", "tokens_dtype"]

#: The field that a block of tokens is.
FIELD = "tokens"


def tokens_dtype(leaf: str) -> np.dtype[np.generic]:
    """The dtype of tokens, which a format such as ``no_header_numpy:3`` names.

    Raises:
        FormatError: It names none.
    """
    kind, _, number = leaf.partition(":")
    known = {"no_header_numpy": numpy_dtypes, "no_header_tensor": torch_dtypes}
    if kind not in known:
        raise FormatError(
            "litdata: index.json: tokens should be of no_header_tensor or no_header_numpy, found "
            f"{leaf[:80]!r}"
        )
    return dtype_numbered(kind, number, known[kind])


@dataclass(frozen=True)
class Tokens:
    """Makes columns of blocks; see ``offsets.decoder.Samples``.

    Args:
        dtype: Of the tokens.
        block_size: How many make a sample.
    """

    dtype: np.dtype[np.generic]
    block_size: int

    def decode(self, run: bytes | memoryview, bounds: NDArray[np.int64]) -> Mapping[str, Column]:
        """``tokens``: ``(n, block_size)``, of all blocks one array."""
        count, begin = len(bounds) - 1, int(bounds[0])
        flat = np.frombuffer(run, np.uint8, int(bounds[-1]) - begin, begin)
        tokens = (flat if type(run) is bytes and flat.ctypes.data % 8 == 0 else flat.copy()).view(self.dtype)
        return {FIELD: read_only(tokens.reshape(count, self.block_size))}

    def bounds(self, table: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """Where each block begins, and where the last one ends, of where documents begin: ``(n + 1,) int64``.

        What is left behind the last block is less than one.

        Raises:
            FormatError: The documents are no whole tokens.
        """
        begin, end = int(table[0]), int(table[-1])
        size = self.dtype.itemsize
        if (end - begin) % size:
            raise FormatError(
                f"litdata: damaged: {end - begin} bytes are no whole tokens of {self.dtype}", offset=begin
            )
        block_bytes = size * self.block_size
        return begin + block_bytes * np.arange((end - begin) // block_bytes + 1)
