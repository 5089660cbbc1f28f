"""Blocks: runs of consecutive samples, as rows or as columns, with a trail of their positions.

``block`` has both kinds of blocks, ``columns`` the kinds of columns, ``trails`` where samples came from.
"""

from __future__ import annotations

from .block import Block as Block
from .block import Columns as Columns
from .block import Gather as Gather
from .block import Rows as Rows
from .block import bytes_of as bytes_of
from .block import columns_of as columns_of
from .block import join as join
from .columns import Column as Column
from .columns import IntegerLists as IntegerLists
from .columns import Objects as Objects
from .columns import Ragged as Ragged
from .columns import WithNulls as WithNulls
from .columns import array_of as array_of
from .columns import column_of as column_of
from .columns import offsets_of as offsets_of
from .columns import read_only as read_only
from .columns import take_of as take_of
from .trails import Indices as Indices
from .trails import OffsetTrail as OffsetTrail
from .trails import Origin as Origin
from .trails import Origins as Origins
from .trails import Place as Place
from .trails import Trail as Trail
from .trails import join_origins as join_origins
from .trails import origins_of as origins_of
