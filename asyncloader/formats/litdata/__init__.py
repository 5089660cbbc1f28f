"""Chunks of LitData, which ``optimize`` writes: what they hold is in their ``index.json``, and not in them.

``index`` reads that, ``plan`` tells the kinds of chunks apart: samples behind a table (``samples``, over
``formats.offsets``), tokens (``tokens``), runs of samples that are compressed (``framed``), and rows of Arrow
(``footer``). ``tree`` is how values nest in a sample, ``leaves`` has a row for each serializer. What is
decoded is what litdata 0.2.76 decodes, by its source and its output; pickles are not read.
"""

from __future__ import annotations

from .index import Chunk, Index, Schema, parse_index
from .media import MediaDecoder, decoder_of
from .plan import open_litdata_decoder, plan_litdata

__all__ = [
    "Chunk",
    "Index",
    "MediaDecoder",
    "Schema",
    "decoder_of",
    "open_litdata_decoder",
    "parse_index",
    "plan_litdata",
]
