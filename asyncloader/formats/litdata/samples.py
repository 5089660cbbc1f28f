"""The samples of a chunk: lengths of their values, and the values, end to end."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...blocks import Column, offsets_of
from ...errors import FormatError
from ..compression import Decompressor
from ..offsets.fields import field_edges
from .leaves import leaf_of
from .run import Leaf, Values
from .tree import Tree, column_of

__all__ = ["CompressedSamples", "LitDataSamples", "inflate"]

# As of a page of Parquet.
_MOST_BYTES = 256 << 20
_MOST_RATIO = 100


@dataclass(frozen=True)
class LitDataSamples:
    """Makes the columns of samples; see ``offsets.decoder.Samples``.

    Args:
        tree: How their values nest.
        leaves: The serializer of each value.
        columns: The fields that are wanted, in this order; None for all. Values of others are not looked at.
    """

    tree: Tree
    leaves: tuple[str, ...]
    columns: tuple[str, ...] | None = None

    def decode(self, run: bytes | memoryview, bounds: NDArray[np.int64]) -> Mapping[str, Column]:
        """The columns."""
        edges = field_edges("litdata", run, bounds, (None,) * len(self.leaves))
        lengths = edges[1:] - edges[:-1]
        fields: dict[str, Column] = {}
        for name, tree, first, readers in self._wanted:
            numbers = range(first, first + len(readers))
            values = [
                read(Values(run, edges[number], lengths[number]))
                for number, read in zip(numbers, readers, strict=True)
            ]
            fields[name] = column_of(tree, values, len(bounds) - 1)
        return fields

    @cached_property
    def _wanted(self) -> list[tuple[str, Tree, int, list[Leaf]]]:
        """Of each field that is wanted its tree, the number of its first value, and what reads its values."""
        known: dict[str, tuple[str, Tree, int, list[Leaf]]] = {}
        first = 0
        for name, tree in self.tree.fields:
            leaves = self.leaves[first : first + tree.leaves]
            known[name] = name, tree, first, [*map(leaf_of, leaves)]
            first += tree.leaves
        return [known[name] for name in self.columns or known]


@dataclass(frozen=True)
class CompressedSamples:
    """Samples each of which is a zstd frame by itself."""

    inner: LitDataSamples

    def decode(self, run: bytes | memoryview, bounds: NDArray[np.int64]) -> Mapping[str, Column]:
        """The columns of what they become; of fewer samples at a time where that is much."""
        bodies: list[bytes] = []
        size_bytes = 0
        for start, stop in itertools.pairwise(bounds.tolist()):
            bodies.append(inflate(run[start:stop]))
            size_bytes += len(bodies[-1])
            if size_bytes > _MOST_BYTES and len(bounds) > 2:
                raise FormatError(f"litdata: the samples of a block become more than {_MOST_BYTES} bytes")
        return self.inner.decode(b"".join(bodies), offsets_of([*map(len, bodies)]))


def inflate(content: bytes | memoryview, size: int | None = None) -> bytes:
    """What zstd frames become.

    Args:
        content: The frames.
        size: How many bytes they should become; None if that is not known.

    Raises:
        FormatError: They are damaged, become something of another length, or far too much.
    """
    most = max(_MOST_BYTES, _MOST_RATIO * len(content))
    if size is not None and size > most:
        raise FormatError(
            f"litdata: {len(content)} bytes are to become {size}; at most {most} are decompressed: the chunk "
            "is damaged, or made to use up memory"
        )
    decompressor = Decompressor("zstd")
    pieces: list[bytes] = []
    found = 0
    for piece in _fed(decompressor, content):
        pieces.append(piece)
        found += len(piece)
        if found > (most if size is None else size):
            break
    if found > most or (size is not None and found != size):
        wanted = f"at most {most}" if size is None else f"{size}"
        raise FormatError(
            f"litdata: damaged: {len(content)} bytes of zstd should become {wanted}, found {found} or more"
        )
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _fed(decompressor: Decompressor, content: bytes | memoryview) -> Iterable[bytes]:
    yield from decompressor.feed(content)
    yield from decompressor.finish()
