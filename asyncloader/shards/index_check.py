"""One reading of a shard, held against what its index and its store promise."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..blocks import Block, Trail
from ..errors import FormatError, StoreError
from ..flow.channel import EndOfChannel
from ..formats.digest import Verifier, extra_of
from ..stores.reading import ShardChunks
from ..types import Buffer, Position, Unpacked
from .expectations import Expected


class Teller(NamedTuple):
    """Who promises what a shard is.

    Attributes:
        name: For messages.
        advice: What to do where a shard is something else.
        may_lack_tables: Whether the lengths may be those of samples alone, without the table of where they
            are that a shard begins with: 4 bytes for each sample and 8.
    """

    name: str
    advice: str
    may_lack_tables: bool = False

    def unpacked_of(self, expected: Expected | None) -> Unpacked | None:
        """What a shard should become, if it is compressed as a whole."""
        if expected is None or expected.unpacked is None:
            return None
        length = self.or_bytes(expected.unpacked.size_bytes, expected)
        return expected.unpacked._replace(or_bytes=length)

    def lengths_of(self, expected: Expected) -> tuple[int | None, ...]:
        """Those that a shard may have; its length is promised."""
        assert expected.size_bytes is not None
        return expected.size_bytes, self.or_bytes(expected.size_bytes, expected)

    def or_bytes(self, size_bytes: int, expected: Expected) -> int | None:
        """Another length that a shard may have for a length that is promised."""
        if not self.may_lack_tables or expected.samples is None:
            return None
        return size_bytes + 4 * (expected.samples + 2)


INDEX = Teller(
    "the index",
    "restore the shard, or, if it was replaced on purpose, make its entry anew with asyncloader index",
)
#: Of a data set that another library has written.
FOREIGN_INDEX = Teller(
    "index.json", "restore the shard, or, if it was replaced on purpose, write the index of the data set anew"
)

#: Of one that an older LitData may have written (0.2.30 did), which counted the bytes of samples alone.
OLDER_FOREIGN_INDEX = FOREIGN_INDEX._replace(may_lack_tables=True)


@dataclass(frozen=True)
class FolderIndex:
    """The ``index.json`` of a folder that another library has written, which tells of the shards in it.

    Attributes:
        url: Where it is.
        schema: What it says that they hold, where their format is read by that; else None.
        teller: For what is promised in it.
    """

    url: str = field(repr=False)
    schema: Any = None
    teller: Teller = FOREIGN_INDEX


def teller_of(index: FolderIndex | None) -> Teller:
    """Who promises what shards are: another library's index, or, where there is none, ours."""
    return INDEX if index is None else index.teller


class ShardCheck:
    """Checks a shard while it is read: length first, bytes and samples at the end.

    Runs on the decoding thread, since a digest takes longer than the event loop can spare.

    Args:
        shard: Its URL as it may be shown.
        expected: Its index's entry, None if it has none.
        start: The position that it is read from. A digest is verified only if that is the first byte, and all
            bytes are read.
        stop: Index behind the last sample that is read, where that is not the shard's last one.
        counts: Whether all samples come, so that they are to be counted.
        index: Whose the entry is, where it is not an index's.
    """

    def __init__(
        self,
        shard: str,
        expected: Expected | None,
        start: Position,
        *,
        stop: int | None = None,
        counts: bool = True,
        index: FolderIndex | None = None,
    ) -> None:
        self._shard = shard
        self._expected = expected
        self._stop = stop
        self._start_byte: int = start.get("byte", 0)
        self._samples: int = start.get("sample", 0)
        self._counts = counts
        self._is_empty = False
        self._teller = teller = teller_of(index)
        self._who, self._advice = teller.name, teller.advice
        # Of them all, each is passed by whoever reads the sample before it: so what an index says of where
        # samples are is proved by all lanes together, and none is lost between two of them unheard.
        offsets = () if expected is None else expected.offsets or ()
        self._offsets = deque(offset for offset in offsets if offset[0] > self._samples)

    def watch(self, chunks: ShardChunks) -> Iterator[Buffer]:
        """Pass the shard's bytes on.

        Raises:
            StoreError: Its length or a digest is not the promised one. The length is known before the
                first byte is passed on, unless the server did not tell it.
        """
        verifier: Verifier | None = None
        offset = self._start_byte
        ended = False
        while not ended:
            try:
                chunk: Buffer = chunks.receive()
            except EndOfChannel:
                ended = True
            if verifier is None:
                verifier = self._open(chunks)
            if not ended:
                verifier.update(chunk)
                offset += len(chunk)
                yield chunk
                del chunk  # its memory is lent, and may be of use for what is waited for
        self._is_empty = chunks.layout is None and not offset
        if chunks.layout is None and self._stop is None:
            self._check_size(offset)
        elif chunks.layout is not None and chunks.layout.samples is not None:
            self._check_samples(chunks.layout.samples)
            self._counts = False
        assert verifier is not None
        verifier.check(self._shard)

    @property
    def is_empty_unpromised(self) -> bool:
        """Whether the shard has no byte, and nobody has said that it has none; known when all was watched."""
        return self._is_empty and (self._expected is None or self._expected.size_bytes is None)

    def count(self, block: Block) -> Block:
        """Count the samples of ``block``, and pass it on.

        Raises:
            FormatError: One of them does not end where the index says.
        """
        self._samples += len(block)
        if self._offsets:
            self._check_offsets(block.trail, len(block))
        return block

    def _check_offsets(self, trail: Trail, count: int) -> None:
        """Hold the places of samples against the offsets that are passed with a block of so many."""
        last = trail.place(count - 1).sample
        while self._offsets and self._offsets[0][0] <= last + 1:
            sample, byte = self._offsets.popleft()
            index = bisect_left(range(count), sample - 1, key=lambda index: trail.place(index).sample)
            if trail.place(index).sample == sample - 1:
                found = trail.after(index).get("byte", byte)
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
            FormatError: There were more or fewer than promised.
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

    def _open(self, chunks: ShardChunks) -> Verifier:
        """Check what is known before the first byte is looked at."""
        if chunks.total is not None:
            self._check_size(chunks.total)
        promised = {} if self._expected is None else self._expected.digests
        for algorithm in promised.keys() & chunks.digests.keys():
            if promised[algorithm] != chunks.digests[algorithm]:
                raise StoreError(
                    f"{self._who} promises the {algorithm} {promised[algorithm].hex()} of this shard, the "
                    f"store {chunks.digests[algorithm].hex()}; {self._advice}",
                    shard=self._shard,
                )
        if self._start_byte or self._stop is not None or chunks.layout is not None:
            return Verifier({})
        # A store vouches for what it has, an index for what was written: who proves the latter has proved
        # the former.
        verifier = Verifier(promised or chunks.digests)
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
        if size_bytes not in self._teller.lengths_of(expected):
            raise StoreError(
                f"{self._who} promises {expected.size_bytes} bytes of this shard, found {size_bytes}; "
                f"{self._advice}",
                shard=self._shard,
            )
