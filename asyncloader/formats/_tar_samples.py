"""From members to samples: adjacent members that share a key are one sample (WebDataset layout)."""

from __future__ import annotations

from ..blocks import Block, OffsetTrail, Rows
from ..errors import FormatError
from ..types import Sample
from ._push import MAX_BLOCK_BYTES, MAX_BLOCK_SAMPLES
from ._tar_header import BLOCK
from ._tar_sparse import SparsePlan

__all__ = ["SampleGroups"]

# Holes cost the attacker nothing: 1 KiB of headers may claim terabytes. No training sample is known
# to be sparse by more than this.
_MAX_HOLE_BYTES = 256 << 20


class SampleGroups:
    """The open sample, and the complete ones that wait to be taken as a block.

    Args:
        first: Index in the shard of the first sample to come.
        max_bytes: Most bytes that one sample may hold, headers counted in.
    """

    __slots__ = (
        "_block_bytes", "_ends", "_first", "_hole_bytes", "_key", "_max_bytes", "_sample",
        "_sample_bytes", "_samples", "ended", "full", "header_offset", "restartable",
    )  # fmt: skip

    def __init__(self, first: int, max_bytes: int) -> None:
        self.header_offset = 0
        self.ended = False
        self.restartable = True
        self.full = False
        self._first = first
        self._max_bytes = max_bytes
        self._samples: list[Sample] = []
        self._ends: list[int] = []
        self._block_bytes = 0
        self._key: str | None = None
        self._sample: Sample = {}
        self._sample_bytes = 0
        self._hole_bytes = 0

    @property
    def index(self) -> int:
        """Index in the shard of the sample being read."""
        return self._first + len(self._samples)

    @property
    def sample_bytes(self) -> int:
        """Of the open sample, with the member that was opened last and all headers."""
        return self._sample_bytes

    def open_field(self, name: str, begin: int, size: int, plan: SparsePlan | None) -> str | None:
        """Start a member; the field it fills, or None if its name is no sample's.

        Args:
            name: The member's path.
            begin: Offset of its first header, extensions included.
            size: Stored length of its body in bytes.
            plan: How it unfolds, if it is sparse.

        Raises:
            FormatError: The field is there already, or the sample gets too long.
        """
        start = name.rfind("/") + 1
        dot = name.find(".", start)
        if dot <= start or dot == len(name) - 1:
            return None
        key = name[:dot]
        field = name[dot + 1 :].lower()
        if key != self._key:
            self.close_sample(begin)
            self._key = key
            self._sample = {"__key__": key}
        if field in self._sample:
            raise FormatError(f"tar: duplicate field {field!r} in sample {key!r}")
        if plan is not None:
            self._hole_bytes += max(plan.real_size - size, 0)
            size = max(plan.real_size, size)
        self._sample_bytes += size + BLOCK
        if self._sample_bytes > self._max_bytes or self._hole_bytes > _MAX_HOLE_BYTES:
            self._refuse(name, size)
        return field

    def _refuse(self, name: str, size: int) -> None:
        if self._hole_bytes > _MAX_HOLE_BYTES:
            raise FormatError(f"tar: sparse {name!r} adds more than {_MAX_HOLE_BYTES} bytes of zeros")
        raise FormatError(
            f"tar: {name!r} of {size} bytes brings its sample over max_member_bytes={self._max_bytes}"
        )

    def put(self, field: str, body: bytes) -> None:
        """Fill a field of the open sample."""
        self._sample[field] = body

    def close_sample(self, end: int) -> None:
        """Complete the open sample, if there is one; a decoder started at ``end`` goes on after it."""
        if self._key is None:
            return
        self._samples.append(self._sample)
        self._ends.append(end)
        self._block_bytes += self._sample_bytes
        self._key = None
        self._sample_bytes = 0
        self._hole_bytes = 0
        if self._block_bytes >= MAX_BLOCK_BYTES or len(self._samples) >= MAX_BLOCK_SAMPLES:
            self.full = True

    def take_block(self) -> Block | None:
        """The complete samples as a block, or None if there are none."""
        if not self._samples:
            return None
        block = Rows(self._samples, OffsetTrail(self._first, self._ends if self.restartable else None))
        self._first += len(self._samples)
        self._samples = []
        self._ends = []
        self._block_bytes = 0
        self.full = False
        return block
