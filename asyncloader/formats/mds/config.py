"""The columns of a shard, as the JSON behind its table tells them, and those of them that are wanted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...blocks import Column
from ...errors import FormatError
from ..columnar.selection import Selection, missing_column
from ..offsets.fields import field_edges
from .encodings import MOST_BYTES, Encoding, encoding_of

__all__ = ["MdsSamples", "check_columns", "open_mds"]

_VERSION = 2


@dataclass(frozen=True)
class MdsSamples:
    """What the samples of one shard are; see ``offsets.decoder.Samples``.

    Attributes:
        sizes: How many bytes a value of each column has; None where samples tell it.
        wanted: Of the columns that become fields: name, number, and how it is read.
    """

    sizes: Sequence[int | None]
    wanted: Sequence[tuple[str, int, Encoding]]

    def decode(self, run: bytes | memoryview, bounds: NDArray[np.int64]) -> Mapping[str, Column]:
        edges = field_edges("mds", run, bounds, self.sizes)
        fields = {}
        for name, number, encoding in self.wanted:
            try:
                fields[name] = encoding.decode(run, edges[number], edges[number + 1])
            except (ValueError, ArithmeticError, RecursionError) as error:
                how = error.args[0] if isinstance(error, FormatError) else str(error)
                raise FormatError(f"mds: column {name!r} ({encoding.name}) cannot be read: {how}") from error
        return fields


def open_mds(header: bytes, *, selection: Selection) -> MdsSamples:
    """The samples of a shard.

    Args:
        header: What is between its table and the first sample.
        selection: Which columns are wanted.

    Raises:
        FormatError: It is no description of MDS, of another version, has columns in an encoding that is not
            known or not read, or lacks one that is wanted.
    """
    try:
        config = json.loads(str(header, "utf-8"))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"mds: damaged: behind the table should be JSON: {error}") from error
    if not isinstance(config, dict):
        raise FormatError("mds: damaged: behind the table should be a JSON object")
    return check_columns(config, selection)


def check_columns(config: Mapping[str, Any], selection: Selection) -> MdsSamples:
    """The samples of shards that are described so, in the index or in themselves.

    Raises:
        FormatError: As of ``open_mds``.
    """
    if (found := config.get("version"), config.get("format")) != (_VERSION, "mds"):
        raise FormatError(
            f"mds: expected format 'mds', version {_VERSION}, found {config.get('format')!r}, {found!r}"
        )
    names, encodings, sizes = (config.get(f"column_{what}", ()) for what in ("names", "encodings", "sizes"))
    if not (_is_list_of(names, str) and _is_list_of(encodings, str) and _is_list_of(sizes, int | None)):
        raise FormatError("mds: damaged: column_names, column_encodings and column_sizes should be lists")
    if not len(names) == len(encodings) == len(sizes) == len({*names}) or not names:
        raise FormatError(
            "mds: damaged: names, encodings and sizes of the columns are not as many, or a name is twice"
        )
    if not all(size is None or 0 <= size <= MOST_BYTES for size in sizes):
        raise FormatError(f"mds: damaged: sizes of the columns should be of 0 to {MOST_BYTES} bytes")
    numbers = {name: number for number, name in enumerate(names)}
    wanted = []
    for name in names if selection.columns is None else selection.columns:
        if name not in numbers:
            raise FormatError(missing_column("columns", name, names))
        encoding, size = encoding_of(encodings[numbers[name]], name, selection.decode), sizes[numbers[name]]
        if encoding.size != (size or None):
            raise FormatError(
                f"mds: damaged: column {name!r} ({encoding.name}) should have {encoding.size} bytes, found "
                f"{size}"
            )
        wanted.append((name, numbers[name], encoding))
    return MdsSamples([size or None for size in sizes], wanted)


def _is_list_of(found: object, kind: Any) -> bool:
    return isinstance(found, list) and all(
        isinstance(each, kind) and type(each) is not bool for each in found
    )
