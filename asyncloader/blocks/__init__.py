"""Blocks: runs of consecutive samples, as rows or as columns, with a trail of their positions.

``block`` says what every block can do, ``rows`` and ``columns`` are the two kinds, ``ragged`` is a column of
sequences, ``nulls`` one with values missing, ``parsed`` those of text, ``trails`` and ``regrouped`` remember
where samples came from, ``provenance`` and ``references`` are what these tell of many at once, ``joining``
makes one block of several, and ``making`` columns of rows.
"""

from __future__ import annotations

from .block import Block, Column
from .columns import Columns, take_of
from .joining import Gather, join
from .making import array_of, column_of, columns_of
from .nulls import WithNulls
from .parsed import IntegerLists, Objects
from .provenance import Indices, Origin, Provenance, joined
from .ragged import Ragged, offsets_of, read_only
from .references import MOST_TABLES, References, Table, Tables, resolve
from .regrouped import JoinedTrail, PickedTrail, runs_on
from .rows import Rows
from .trails import NestedTrail, OffsetTrail, OuterTrail, Place, Referred, SourceTrail, Trail

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
    "OuterTrail",
    "PickedTrail",
    "Place",
    "Provenance",
    "Ragged",
    "References",
    "Referred",
    "Rows",
    "SourceTrail",
    "Table",
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
