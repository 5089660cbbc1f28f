"""Samples decoded as their bytes come, many at a time.

Where a sample does not decode, the run that it is in is halved until it stands alone: those before it are
handed out, and whoever passes over it loses no other one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...blocks import Block, Column, Columns, OffsetTrail, Rows
from ...errors import FormatError
from .._push import MAX_BLOCK_BYTES, MAX_BLOCK_SAMPLES, PushDecoder
from ..decoder import PassOver
from .table import Table, TableHead

__all__ = ["Kind", "Samples", "SamplesDecoder", "TableDecoder", "open_samples"]

# Samples of so many bytes on average are decoded from where they were read. Smaller ones are copied behind
# the beginning of their first one, which the chunk before had: that costs less than a block of its own for
# it. So does it where all that was read is no more than that: of pieces of a local file.
_LARGE_BYTES = 16 << 10
_COPIED_BYTES = 512 << 10


class Samples(Protocol):
    """What the bytes of the samples of one shard mean."""

    def decode(self, run: bytes | memoryview, bounds: NDArray[np.int64]) -> Mapping[str, Column] | list[Any]:
        """The columns of some samples, or the samples themselves.

        Args:
            run: Bytes, of which what is made of them may keep hold; or a view of memory that is used again.
            bounds: Where in ``run`` each sample begins, and where the last one ends: ``(n + 1,) int64``, all
                of them within ``run``, and rising.

        Raises:
            FormatError: One of the samples cannot be read. Which one is found out by the caller.
        """
        ...


@dataclass(frozen=True)
class Kind:
    """A format of shards with a table.

    Attributes:
        name: For messages.
        open_samples: Makes of what is between the table and the first sample, empty where there is nothing,
            what decodes the shard's samples. Raises FormatError.
    """

    name: str
    open_samples: Callable[[bytes], Samples]


class SamplesDecoder(PushDecoder):
    """Decode samples whose places are known; fed the bytes from the first one to the last one.

    Args:
        name: Of the format, for messages.
        samples: Decodes them.
        bounds: Where in the shard each of them begins, and where the last one ends: ``(n + 1,) int64``.
        first: Index in the shard of the first one.
        pass_over: Called for samples that do not decode; None to raise.
    """

    def __init__(
        self,
        name: str,
        samples: Samples,
        bounds: NDArray[np.int64],
        first: int,
        *,
        pass_over: PassOver | None = None,
    ) -> None:
        super().__init__()
        self._name = name
        self._samples = samples
        self._bounds = bounds
        self._first = first
        self._pass_over = pass_over
        self._done = 0  # samples that were decoded
        self._fed = int(bounds[0])  # offset in the shard of the next byte
        self._held: list[bytes | memoryview] = []  # the beginning of the next sample

    @property
    def sample(self) -> int | None:
        """Index in the shard of the sample that is read next; None behind the last one."""
        return self._first + self._done if self._done + 1 < len(self._bounds) else None

    @property
    def held_bytes(self) -> int:
        """How much of that sample has come."""
        return self._fed - int(self._bounds[self._done])

    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]:
        begin, bounds = self._fed, self._bounds
        if len(chunk) > (left := int(bounds[-1]) - begin):
            yield from self._decode(chunk[:left])
            raise FormatError(
                f"{self._name}: damaged: there are bytes behind the last sample, which the table ends at "
                f"byte {bounds[-1]}",
                offset=int(bounds[-1]),
            )
        self._fed += len(chunk)
        first, stop = self._done, int(bounds.searchsorted(self._fed, "right")) - 1
        if stop == first:
            self._hold(chunk)
            return
        behind = int(bounds[stop]) - begin
        if self._held:
            # How much of the chunk belongs to those that are put together with what is held.
            is_large = len(chunk) > max(_COPIED_BYTES, _LARGE_BYTES * (stop - first))
            joined = first + 1 if is_large else stop
            held = b"".join((*self._held, chunk[: int(bounds[joined]) - begin]))
            self._held.clear()
            # As a view: who keeps one of several large samples is not to keep the others too.
            yield from self._decode_run(memoryview(held), int(bounds[first]), first, joined)
            first = joined
        yield from self._decode_run(chunk, begin, first, stop)
        self._done = stop
        if behind < len(chunk):
            self._hold(chunk[behind:])

    def _decode_end(self) -> Iterator[Block]:
        yield from self._decode(b"")  # samples without a byte
        if self._done + 1 < len(self._bounds):
            raise FormatError(
                f"{self._name}: truncated within a sample, which should end at "
                f"byte {self._bounds[self._done + 1]}",
                offset=self._fed,
                sample=self._first + self._done,
            )

    def _hold(self, piece: bytes | memoryview) -> None:
        # A large view pins what it was cut from, instead of being copied now and again in the join. A small
        # one is copied at once, so that it does not keep a buffer of megabytes.
        self._held.append(piece if len(piece) >= _LARGE_BYTES else bytes(piece))

    def _decode_run(self, run: bytes | memoryview, begin: int, first: int, stop: int) -> Iterator[Block]:
        """The blocks of samples ``first`` up to ``stop``, from bytes that begin at ``begin`` in the shard."""
        while first < stop:
            most = int(self._bounds.searchsorted(self._bounds[first] + MAX_BLOCK_BYTES, "right")) - 1
            end = min(max(most, first + 1), first + MAX_BLOCK_SAMPLES, stop)
            yield from self._decode_block(run, begin, first, end)
            first = end

    def _decode_block(self, run: bytes | memoryview, begin: int, first: int, stop: int) -> Iterator[Block]:
        try:
            decoded = self._samples.decode(run, self._bounds[first : stop + 1] - begin)
        except FormatError as error:
            if stop - first == 1:
                error.sample, error.offset = self._first + first, int(self._bounds[first])
                if self._pass_over is None:
                    raise
                self._pass_over(error)
                return
        else:
            trail = OffsetTrail(self._first + first, None)
            yield Rows(decoded, trail) if isinstance(decoded, list) else Columns(decoded, trail)
            return
        middle = (first + stop) // 2
        yield from self._decode_block(run, begin, first, middle)
        yield from self._decode_block(run, begin, middle, stop)


class TableDecoder(PushDecoder):
    """Decode a shard from front to back.

    Args:
        kind: Of the shard.
        start_sample: Samples before the first one that is wanted, which are not decoded.
        pass_over: Called for samples that do not decode; None to raise.
    """

    def __init__(self, kind: Kind, *, start_sample: int = 0, pass_over: PassOver | None = None) -> None:
        super().__init__()
        self._kind = kind
        self._start = start_sample
        self._pass_over = pass_over
        self._head = TableHead(kind.name)
        self._to_pass = 0  # bytes of the samples before
        self._inner: SamplesDecoder | None = None

    @property
    def has_table(self) -> bool:
        """Whether the table has come."""
        return self._inner is not None

    @property
    def held_bytes(self) -> int:
        """How much has come of the table, or of the sample that is read next."""
        return self._head.held_bytes if self._inner is None else self._inner.held_bytes

    @property
    def sample(self) -> int | None:
        """Index in the shard of the sample that is read next; None before all that are wanted, and behind."""
        return None if self._inner is None or self._to_pass else self._inner.sample

    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]:
        if self._inner is None:
            table, chunk = self._head.take(chunk)
            if table is None:
                return
            self._inner = self._open(table)
        passed = min(self._to_pass, len(chunk))
        self._to_pass -= passed
        if passed < len(chunk):
            yield from self._inner.feed(chunk[passed:] if passed else chunk)

    def _decode_end(self) -> Iterator[Block]:
        if self._inner is None:
            raise self._head.truncated()
        yield from self._inner.finish()

    def _open(self, table: Table) -> SamplesDecoder:
        bounds = table.bounds
        self._to_pass = int(bounds[min(self._start, table.samples)]) - int(bounds[0])
        return open_samples(self._kind, table, self._start, table.samples, self._pass_over)


def open_samples(
    kind: Kind, table: Table, first: int, stop: int, pass_over: PassOver | None = None
) -> SamplesDecoder:
    """The decoder of samples ``first`` up to ``stop`` of a shard.

    Raises:
        FormatError: The shard has fewer, or its header is not sound.
    """
    if first > table.samples:
        raise FormatError(
            f"expected at least {first} samples, as many come before those to read or were read from it "
            f"before; found {table.samples}: the shard has changed"
        )
    bounds = table.bounds[first : stop + 1].astype(np.int64)
    return SamplesDecoder(kind.name, kind.open_samples(table.header), bounds, first, pass_over=pass_over)
