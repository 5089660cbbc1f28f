"""From the bytes of a shard to its blocks: as far as they are wanted, by the shard's name, and ahead."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from .._flow.budget import Claim
from .._flow.channel import EndOfChannel
from .._flow.producer import Producer
from ..blocks import Block, Columns, Rows
from ..formats.decoder import Decoder
from ..ops.op import Blocks
from ..ops.skips import Attempts
from ..sizes import bytes_of
from ..types import Buffer

__all__ = ["Reading", "decode_ahead", "decoded", "up_to", "with_url"]

# Of blocks that wait, and of the one in the making: one of the largest, some ten of token ids.
_AHEAD_BYTES = 8 << 20

# More than this part of what a lane may have is not worth it: it is better read ahead.
_MOST_SHARE = 1 / 8


def decoded(open_decoder: Callable[[], Decoder], watched: Iterator[Buffer], close: bytes) -> Blocks:
    """What the bytes of a shard are, from the first sample that is wanted on."""
    decoder: Decoder | None = None
    for chunk in watched:
        decoder = decoder or open_decoder()
        yield from decoder.feed(chunk)
        del chunk
    decoder = decoder or open_decoder()
    if close:
        yield from decoder.feed(close)
    yield from decoder.finish()


def up_to(stop: int | None, blocks: Blocks) -> Blocks:
    """The blocks up to a sample of their shard; closes them there."""
    with closing(blocks):
        for block in blocks:
            if stop is None or block.trail.place(len(block) - 1).sample < stop - 1:
                yield block
                continue
            wanted = bisect_left(range(len(block)), stop, key=lambda index: block.trail.place(index).sample)
            if wanted:
                yield block.part(0, wanted)
            return


def with_url(block: Block, url: str) -> Block:
    """Name the shard in samples that have a key; other JSON objects stay the user's."""
    if isinstance(block, Rows):  # columns have no keys
        for sample in block.samples:  # each for itself: where a block ends depends on how the bytes came
            if "__key__" in sample:
                sample["__url__"] = url
    return block


@dataclass(slots=True)
class Reading:
    """Where a lane is in its pieces.

    Attributes:
        attempts: Counts what is skipped; None where every error is raised.
        nth: Number of the piece.
        sample: Index in the shard of the sample that comes next, as far as that is of use.
    """

    attempts: Attempts | None
    nth: int
    sample: int = 0

    def entries(self, block: Block) -> dict[str, Any]:
        """What positions of the next block say of the piece."""
        if self.attempts is None:
            return {"shard": self.nth}
        self.attempts.good(len(block))
        self.sample = block.trail.place(len(block) - 1).sample + 1
        return {"shard": self.nth, **self.attempts.entries()}


def decode_ahead(blocks: Blocks, claim: Claim, wake: Callable[[], None]) -> Blocks:
    """The same blocks, decoded on a thread of their own while those before become batches.

    Or decoded as they are asked for, where memory is short. It pays for decoders that release the
    interpreter's lock, as pyarrow's do: others only change places with the thread that they are to relieve.

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
