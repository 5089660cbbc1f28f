"""Where blocks are cut out of Arrow's batches: by what rows take once they are decoded.

A dictionary holds a value once that any number of rows may have, and so do runs and views: what they take as
they are says nothing about what becomes of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._push import MAX_BLOCK_BYTES, MAX_BLOCK_SAMPLES
from .buffers import integers, is_null, lengths
from .importing import arrow

__all__ = ["cut"]

# Of an entry beside its values.
_ENTRY_BYTES = 16


def cut(table: Any) -> Iterator[tuple[int, int]]:
    """Where each block of a ``pyarrow.RecordBatch`` begins, and how many rows it has.

    Blocks have some MiB, or one row.
    """
    if not len(table):
        return
    if not any(map(_shares, table.schema.types)):
        most = max(1, min(MAX_BLOCK_SAMPLES, len(table) * MAX_BLOCK_BYTES // max(table.nbytes, 1)))
        for at in range(0, len(table), most):
            yield at, min(most, len(table) - at)
        return
    ends = np.cumsum(sum(map(_row_bytes, table.columns)))
    at = 0
    while at < len(table):
        before = ends[at - 1] if at else 0
        fit = int(np.searchsorted(ends, before + MAX_BLOCK_BYTES, "right")) - at
        size = max(1, min(fit, MAX_BLOCK_SAMPLES, len(table) - at))
        yield at, size
        at += size


def _shares(kind: Any) -> bool:
    """Whether several rows may have one value in memory."""
    # By its name: older versions of pyarrow lack the questions.
    if str(kind).startswith(("dictionary<", "run_end_encoded<")) or _is_view(kind):
        return True
    if isinstance(kind, arrow().BaseExtensionType):
        return _shares(kind.storage_type)
    return any(_shares(kind.field(index).type) for index in range(kind.num_fields))


def _is_view(kind: Any) -> bool:
    return "view" in str(kind).partition("<")[0]


def _row_bytes(array: Any) -> NDArray[np.int64]:
    """About how many bytes each row takes when it is decoded."""
    pa = arrow()
    types, kind = pa.types, array.type
    if isinstance(array, pa.ExtensionArray):
        return _row_bytes(array.storage)
    if types.is_dictionary(kind):
        # One more for nulls.
        of_values = np.append(_row_bytes(array.dictionary), 0)
        places = np.where(is_null(array.indices), len(of_values) - 1, integers(array.indices))
        taken: NDArray[np.int64] = of_values[places]
        return taken
    if isinstance(array, pa.RunEndEncodedArray):
        edges = np.clip(integers(array.run_ends).astype(np.int64) - array.offset, 0, len(array))
        return np.repeat(_row_bytes(array.values), np.diff(edges, prepend=0))
    if types.is_struct(kind):
        return sum(map(_row_bytes, array.flatten()), np.zeros(len(array), np.int64))
    if types.is_map(kind):  # pyarrow counts the entries of lists alone
        ends = np.append(0, np.cumsum(_row_bytes(array.keys) + _row_bytes(array.items)))
        of_maps: NDArray[np.int64] = np.diff(ends[integers(array.offsets)])
        return of_maps + _ENTRY_BYTES
    if _is_view(kind) and not hasattr(array, "value_lengths"):  # of strings: each view begins with the length
        sizes = np.frombuffer(array.buffers()[1], np.int32)[array.offset * 4 :: 4][: len(array)]
        return sizes.astype(np.int64) + _ENTRY_BYTES
    if hasattr(array, "value_lengths"):
        of_lists = lengths(array)
        ends = np.append(0, np.cumsum(_row_bytes(array.flatten())))
        stops = np.cumsum(of_lists)
        within: NDArray[np.int64] = ends[stops] - ends[stops - of_lists]
        return within + _ENTRY_BYTES
    if (
        types.is_string(kind)
        or types.is_binary(kind)
        or types.is_large_string(kind)
        or types.is_large_binary(kind)
    ):
        return lengths(array) + _ENTRY_BYTES
    return np.full(len(array), array.nbytes // max(len(array), 1) + 1, np.int64)
