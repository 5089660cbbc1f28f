"""Blocks: runs of consecutive samples, as rows or as columns, with a trail of their positions.

``block`` has both kinds of blocks, ``columns`` what a column may be, ``trails`` where samples came from.
"""

from __future__ import annotations

from .block import Block, Columns, Gather, Rows, columns_of, join
from .columns import (
    Column,
    IntegerLists,
    Objects,
    Ragged,
    WithNulls,
    array_of,
    column_of,
    offsets_of,
    read_only,
    take_of,
)
from .trails import (
    MOST_TABLES,
    Indices,
    JoinedTrail,
    NestedTrail,
    OffsetTrail,
    Origin,
    OriginTable,
    OuterTrail,
    PickedTrail,
    Place,
    Provenance,
    References,
    Referred,
    SourceTrail,
    Tables,
    Trail,
    joined,
    resolve,
    runs_on,
)

__all__ = [
    "MOST_TABLES",
    "Block",
    "Column",
    "Columns",
    "Gather",
    "Indices",
    "IntegerLists",
    "JoinedTrail",
    "NestedTrail",
    "Objects",
    "OffsetTrail",
    "Origin",
    "OriginTable",
    "OuterTrail",
    "PickedTrail",
    "Place",
    "Provenance",
    "Ragged",
    "References",
    "Referred",
    "Rows",
    "SourceTrail",
    "Tables",
    "Trail",
    "WithNulls",
    "array_of",
    "column_of",
    "columns_of",
    "join",
    "joined",
    "offsets_of",
    "read_only",
    "resolve",
    "runs_on",
    "take_of",
]
