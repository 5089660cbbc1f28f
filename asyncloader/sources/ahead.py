"""Blocks decoded on a thread of their own, while those before them become batches.

It pays for decoders that release the interpreter's lock, as pyarrow's do: others only change places with the
thread that they are to relieve.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing

from .._flow.budget import Claim
from .._flow.channel import EndOfChannel
from .._flow.producer import Producer
from ..blocks import Block, Columns
from ..ops.op import Blocks
from ..sizes import bytes_of

__all__ = ["decode_ahead"]

# Of blocks that wait, and of the one in the making: one of the largest, some ten of token ids.
_AHEAD_BYTES = 8 << 20

# More than this part of what a lane may have is not worth it: it is better read ahead.
_MOST_SHARE = 1 / 8


def decode_ahead(blocks: Blocks, claim: Claim, wake: Callable[[], None]) -> Blocks:
    """The same blocks, the next of which are decoded ahead; or as they are asked for, where memory is short.

    Args:
        blocks: Pulled and closed on a thread.
        claim: To take the memory from, for nothing else; closed in the end.
        wake: Makes ``blocks`` end soon wherever it waits; called from another thread, before it is closed.
    """
    if not claim.set_aside(_AHEAD_BYTES, _MOST_SHARE):
        claim.close()
        with closing(blocks):
            yield from blocks
        return
    producer = Producer(lambda: _costs_of(blocks), _AHEAD_BYTES, on_close=wake, name="asyncloader-decoder")
    with closing(claim), closing(producer):
        producer.start()
        while True:
            try:
                made = [producer.receive()]
            except EndOfChannel:
                return
            yield made.pop()  # nothing here holds it meanwhile


def _costs_of(blocks: Blocks) -> Generator[tuple[Block, int], None, None]:
    """Each block with the bytes that it holds."""
    with closing(blocks):
        for block in blocks:
            yield block, bytes_of(dict(block.fields)) if isinstance(block, Columns) else 0
            del block
