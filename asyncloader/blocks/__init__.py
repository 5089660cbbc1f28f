"""Blocks: runs of consecutive samples, as rows or as columns, with a trail of their positions.

``block`` says what every block can do, ``rows`` and ``columns`` are the two kinds, ``ragged`` is a column of
sequences, ``nulls`` one with values missing, ``parsed`` those of text, ``trails`` remember where samples came
from, ``joining`` makes one block of several, and ``making`` columns of rows.
"""

from __future__ import annotations

from .block import Block, Column
from .columns import Columns, take_of
from .joining import Gather, join
from .making import array_of, column_of, columns_of
from .nulls import WithNulls
from .parsed import IntegerLists, Objects
from .ragged import Ragged, offsets_of, read_only
from .rows import Rows
from .trails import JoinedTrail, NestedTrail, OffsetTrail, PickedTrail, Place, SourceTrail, Trail

__all__ = [
    "Block",
    "Column",
    "Columns",
    "Gather",
    "IntegerLists",
    "JoinedTrail",
    "NestedTrail",
    "Objects",
    "OffsetTrail",
    "PickedTrail",
    "Place",
    "Ragged",
    "Rows",
    "SourceTrail",
    "Trail",
    "WithNulls",
    "array_of",
    "column_of",
    "columns_of",
    "join",
    "offsets_of",
    "read_only",
    "take_of",
]
