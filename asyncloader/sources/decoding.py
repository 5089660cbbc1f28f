"""From the bytes of a shard to its blocks: as far as they are wanted, and by the shard's name."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from ..blocks import Block, Rows
from ..formats.decoder import Decoder
from ..ops.op import Blocks
from ..ops.skips import Attempts
from ..types import Buffer

__all__ = ["Reading", "decoded", "up_to", "with_url"]


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
