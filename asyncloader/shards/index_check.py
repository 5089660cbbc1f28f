"""Check a shard, while it is read, against its index and its store."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from ..blocks import Block, Trail
from ..errors import FormatError, StoreError
from ..formats.digest import Verifier, extra_of
from ..plan.pieces import Cut
from ..stores.lookahead import ShardRead
from ..types import Buffer, Unpacked
from .expectations import Expected


@dataclass(frozen=True)
class FolderIndex:
    """An index of shards: ours, or the ``index.json`` of a folder that another library has written.

    Attributes:
        url: Where it is. Empty for ours, because several of them may be read.
        schema: The fields of its shards, where their format needs it; else None.
        may_lack_tables: Whether its lengths may leave out the table of offsets at the beginning of a shard: 8
            bytes and 4 for each sample. An older LitData (such as 0.2.30) counted the bytes of samples alone.
        name: For messages.
        advice: What to do about a shard that differs.
    """

    url: str = field(repr=False)
    schema: Any = None
    may_lack_tables: bool = False
    name: str = "index.json"
    advice: str = "restore the shard, or, if it was replaced on purpose, write a new index of the data set"

    def unpacked_of(self, expected: Expected | None) -> Unpacked | None:
        """What a shard should become by decompression, if it is compressed as a whole."""
        if expected is None or expected.unpacked is None:
            return None
        return expected.unpacked._replace(or_bytes=self.or_bytes(expected.unpacked.size_bytes, expected))

    def lengths_of(self, expected: Expected) -> tuple[int | None, ...]:
        """The lengths that a shard may have, if the index has one."""
        assert expected.size_bytes is not None
        return expected.size_bytes, self.or_bytes(expected.size_bytes, expected)

    def or_bytes(self, size_bytes: int, expected: Expected) -> int | None:
        """The length with the table, if the one in the index may lack it."""
        if not self.may_lack_tables or expected.samples is None:
            return None
        return size_bytes + 4 * (expected.samples + 2)


#: An index of ours.
INDEX = FolderIndex(
    "",
    name="the index",
    advice="restore the shard, or, if it was replaced on purpose, update its entry with asyncloader index",
)


#: All of a shard.
ALL = Cut()


class ShardCheck:
    """Checks a shard while it is read: first its length, at the end its bytes and samples.

    Runs on the decoding thread, since a digest takes too long for the event loop.

    Args:
        shard: Its URL, redacted.
        expected: Its entry in the index; None without one.
        cut: What is read of it. A digest is verified only if that is all.
        counts: Whether all samples pass ``count``.
        index: The index that has the entry.
    """

    def __init__(
        self,
        shard: str,
        expected: Expected | None,
        cut: Cut = ALL,
        *,
        counts: bool = True,
        index: FolderIndex = INDEX,
    ) -> None:
        self._shard = shard
        self._expected = expected
        self._stop = cut.stop
        self._start_byte = self._offset = cut.byte
        self._verifier: Verifier | None = None
        self._samples = cut.first
        self._counts = counts
        self._is_empty = False
        self._index = index
        self._who, self._advice = index.name, index.advice
        # Each offset is checked by the lane that reads the sample before it. So all lanes together check
        # every offset, and no sample between two lanes is lost unnoticed.
        offsets = () if expected is None else expected.offsets or ()
        self._offsets = deque(offset for offset in offsets if offset[0] > self._samples)

    def add(self, shard: ShardRead, chunk: Buffer) -> None:
        """Check the next bytes of the shard; what is known of it before them, if they are its first.

        Raises:
            StoreError: Its length or a digest is not as expected.
        """
        if self._verifier is None:
            self._verifier = self._open(shard)
        self._verifier.update(chunk)
        self._offset += len(chunk)

    def end(self, shard: ShardRead) -> None:
        """After the last byte.

        Raises:
            StoreError: See ``add``.
            FormatError: What the shard says of its samples is not as expected.
        """
        verifier, layout = self._verifier or self._open(shard), shard.layout
        self._is_empty = layout is None and not self._offset
        if layout is None and self._stop is None:
            self._check_size(self._offset)
        elif layout is not None and layout.samples is not None:
            self._check_samples(layout.samples)
            self._counts = False
        verifier.check(self._shard)

    @property
    def is_empty_unpromised(self) -> bool:
        """Whether the shard has no byte, and no index says so; known after ``end``."""
        return self._is_empty and (self._expected is None or self._expected.size_bytes is None)

    def count(self, block: Block) -> None:
        """Count the samples of ``block``.

        Raises:
            FormatError: One of them does not end where the index says.
        """
        self._samples += len(block)
        if self._offsets:
            self._check_offsets(block.trail, len(block))

    def _check_offsets(self, trail: Trail, count: int) -> None:
        """Check the places of a block's samples against the offsets within it."""
        last = trail.place(count - 1).sample
        while self._offsets and self._offsets[0][0] <= last + 1:
            sample, byte = self._offsets.popleft()
            index = bisect_left(range(count), sample - 1, key=lambda index: trail.place(index).sample)
            if trail.place(index).sample == sample - 1:
                found = trail.after(index)[0].get("byte", byte)
                if found != byte:
                    raise FormatError(
                        f"{self._who} promises that sample {sample} of this shard begins at byte {byte}, "
                        f"found it at byte {found}; {self._advice}",
                        shard=self._shard,
                        sample=sample,
                        offset=found,
                    )

    def passed_over(self) -> None:
        """Count a sample that does not decode."""
        self._samples += 1

    def finish(self) -> None:
        """After the last sample.

        Raises:
            FormatError: There were more or fewer than expected.
        """
        if self._counts and self._stop is None:
            self._check_samples(self._samples)
        elif self._counts and self._samples != self._stop:
            raise FormatError(
                f"{self._who} promises samples up to {self._stop} here, found them up to {self._samples}; "
                f"{self._advice}",
                shard=self._shard,
            )

    def _check_samples(self, samples: int) -> None:
        wanted = None if self._expected is None else self._expected.samples
        if wanted is not None and samples != wanted:
            raise FormatError(
                f"{self._who} promises {wanted} samples of this shard, found {samples}; {self._advice}",
                shard=self._shard,
            )

    def _open(self, shard: ShardRead) -> Verifier:
        """Check what is known before the first byte is used."""
        if shard.length is not None:
            self._check_size(shard.length)
        promised = {} if self._expected is None else self._expected.digests
        for algorithm in promised.keys() & shard.digests.keys():
            if promised[algorithm] != shard.digests[algorithm]:
                raise StoreError(
                    f"{self._who} promises the {algorithm} {promised[algorithm].hex()} of this shard, the "
                    f"store {shard.digests[algorithm].hex()}; {self._advice}",
                    shard=self._shard,
                )
        if self._start_byte or self._stop is not None or shard.layout is not None:
            return Verifier({})
        # A store's digest is of what it stores, an index's of what was written. Checking the latter covers
        # both.
        verifier = Verifier(promised or shard.digests)
        if promised and verifier.algorithm is None:
            raise ImportError(
                f"{self._who} promises only the {' and '.join(promised)} of {self._shard}, which needs a "
                f"package: pip install asyncloader[{extra_of(promised)}]"
            )
        return verifier

    def _check_size(self, size_bytes: int) -> None:
        expected = self._expected
        if expected is None or expected.size_bytes is None:
            return
        if size_bytes not in self._index.lengths_of(expected):
            raise StoreError(
                f"{self._who} promises {expected.size_bytes} bytes of this shard, found {size_bytes}; "
                f"{self._advice}",
                shard=self._shard,
            )
