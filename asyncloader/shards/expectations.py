"""What is expected of shards: an object for one, columns for many, so that a million are a few arrays.

The object of one of many is made on access. Code that needs one value of all, such as the numbers of samples,
uses the column.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..blocks import offsets_of
from ..formats.digest import ALGORITHMS
from ..types import Unpacked

Offsets: TypeAlias = tuple[tuple[int, int], ...]
"""Where a decoder may begin inside of a shard: pairs of a number of samples and the byte behind them."""

Rows: TypeAlias = npt.NDArray[np.int64]
"""Numbers of rows, ``(rows,) int64``."""

_Int64: TypeAlias = npt.NDArray[np.int64]
_Uint8: TypeAlias = npt.NDArray[np.uint8]

_SIZE_BYTES = 8

# Lines of the digest that are made at once: few enough to stay in the processor's cache.
_RUN = 4096


class Known:
    """Bits for what an entry contains, and for a missing length; 0 for a shard without an entry."""

    ENTRY, SAMPLES, SHA256, CRC32C, OFFSETS, HASHED, NO_SIZE, UNPACKED = (1 << bit for bit in range(8))


@dataclass(frozen=True, slots=True)
class Expected:
    """What one shard should be.

    Attributes:
        size_bytes: Length as stored, compressed if it is; None if not known. Every index of ours knows it.
        samples: How many samples it holds; None if that is not known.
        sha256: Of the stored bytes; None if not known.
        crc32c: Of the stored bytes, big-endian; None if not known.
        offsets: Where a decoder may begin inside of it, empty where its format cannot; None if unknown.
        hashed: Another digest of the stored bytes: its algorithm, one of those in ``digest``, and its value.
            Our indexes have none; those of other libraries may.
        unpacked: What it becomes when it is decompressed; None if unknown, as in our indexes.
    """

    size_bytes: int | None
    samples: int | None = None
    sha256: bytes | None = None
    crc32c: bytes | None = None
    offsets: Offsets | None = None
    hashed: tuple[str, bytes] | None = None
    unpacked: Unpacked | None = None

    @property
    def is_indexed(self) -> bool:
        """Whether lanes can be cut inside of the shard by it."""
        return self.samples is not None and self.offsets is not None

    @property
    def digests(self) -> dict[str, bytes]:
        """The digests that are known, by algorithm."""
        known = [("sha256", self.sha256), ("crc32c", self.crc32c)]
        ours = {algorithm: digest for algorithm, digest in known if digest is not None}
        return ours if self.hashed is None else {self.hashed[0]: self.hashed[1], **ours}


@dataclass(frozen=True, eq=False, repr=False)
class Expectations:
    """What is expected of each shard, None for one without an entry.

    An unknown value of a shard is 0 in its column.

    Args:
        known: Which of the others are known of each shard, bits of ``Known``: ``(shards,) uint8``.
        size_bytes: ``(shards,) int64``.
        samples: ``(shards,) int64``.
        sha256: ``(shards, 32) uint8``.
        crc32c: ``(shards, 4) uint8``.
        hashed: The number of another algorithm among those of ``digest``, how long its digest is, the digest,
            and zeros: ``(shards, n) uint8``, and n is 0 where no shard has one.
        unpacked: How long the shard is when it is decompressed, in 8 bytes, and a digest of that as
            ``hashed`` has them: ``(shards, n) uint8``, and n is 0 where no shard has one.
        offsets: Those of all shards, each a sample and a byte: ``(offsets, 2) int64``.
        begins: Where in ``offsets`` those of each shard begin, and where the last ones end:
            ``(shards + 1,) int64``.
    """

    known: _Uint8
    size_bytes: _Int64
    samples: _Int64
    sha256: _Uint8
    crc32c: _Uint8
    hashed: _Uint8
    unpacked: _Uint8
    offsets: _Int64
    begins: _Int64

    @classmethod
    def of(cls, expected: Iterable[Expected | None] = ()) -> Expectations:
        """The columns of these."""
        each = [*expected]

        def column(name: str) -> list[Any]:
            return [getattr(one, name, None) for one in each]

        offsets = [one or () for one in column("offsets")]
        return cls(
            known=np.array([*map(_bits, each)], np.uint8),
            size_bytes=np.array([size or 0 for size in column("size_bytes")], np.int64),
            samples=np.array([samples or 0 for samples in column("samples")], np.int64),
            sha256=_rows([digest or b"" for digest in column("sha256")], 32),
            crc32c=_rows([digest or b"" for digest in column("crc32c")], 4),
            hashed=_rows([*map(_hashed_row, column("hashed"))]),
            unpacked=_rows([*map(_unpacked_row, column("unpacked"))]),
            offsets=np.array([*chain.from_iterable(offsets)], np.int64).reshape(-1, 2),
            begins=offsets_of([*map(len, offsets)]),
        )

    @classmethod
    def join(cls, parts: Iterable[Expectations]) -> Expectations:
        """All parts, one after the other."""
        nothing = cls.of()
        columns = {field.name: np.array(getattr(nothing, field.name)) for field in fields(cls)}
        used = {name: len(column) for name, column in columns.items()}
        for part in parts:
            for name, column in columns.items():
                begin = used[name]
                piece = part.begins[1:] + column[begin - 1] if name == "begins" else getattr(part, name)
                used[name] = end = begin + len(piece)
                # In place, which moves pages rather than holding two copies: a million shards are 80 MB. A
                # quarter more than is needed: a move for each part took a fifth of the time.
                if end > len(column):
                    column.resize((end + end // 4, *column.shape[1:]), refcheck=False)
                column[begin:end] = piece
        for name, column in columns.items():
            column.resize((used[name], *column.shape[1:]), refcheck=False)
        return cls(**columns)

    @classmethod
    def placed(cls, count: int, parts: list[tuple[Rows, Expectations]]) -> Expectations:
        """Those of ``count`` shards, each from one of several parts; empty if no part has an entry.

        Args:
            count: How many shards there are.
            parts: Numbers of shards, and what is expected of each. A later part overrides an earlier one.
        """
        rows = np.full(count, -1, np.int64)
        first = 0
        for numbers, _ in parts:
            rows[numbers] = np.arange(first, first + len(numbers))
            first += len(numbers)
        joined = parts[0][1] if len(parts) == 1 else cls.join(part for _, part in parts)
        return joined.take(rows) if joined.count_of() else cls.of()

    def take(self, rows: Rows) -> Expectations:
        """Those of some shards, in the order of ``rows``; None for a row of -1."""
        if len(rows) == len(self) and (rows == np.arange(len(self))).all():
            return self
        if not len(self):
            return Expectations.of([None] * len(rows))
        there = rows >= 0
        counts = np.diff(self.begins)[rows] * there
        begins = offsets_of(counts)
        # For each offset, how far it moves.
        moves = np.repeat(self.begins[rows] - begins[:-1], counts)
        columns = {name: getattr(self, name)[rows] for name in _FIXED}
        for column in columns.values():
            column[~there] = 0
        return Expectations(**columns, offsets=self.offsets[moves + np.arange(len(moves))], begins=begins)

    def __len__(self) -> int:
        return len(self.known)

    def __getitem__(self, index: int) -> Expected | None:
        return self._at(range(len(self))[index])

    def __iter__(self) -> Iterator[Expected | None]:
        return map(self._at, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Expectations):
            return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in self.__dict__)
        return tuple(self) == other if isinstance(other, tuple) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # arrays have none

    def count_of(self, bits: int = Known.ENTRY) -> int:
        """For how many shards all of these bits are known."""
        return int(np.count_nonzero(self.known & bits == bits))

    @property
    def is_indexed(self) -> bool:
        """Whether lanes can be cut inside of every shard by it."""
        return 0 < len(self) == self.count_of(Known.SAMPLES | Known.OFFSETS)

    def counts(self) -> list[int | None]:
        """The number of samples of each shard, None where it is not known."""
        rows = zip(self.known.tolist(), self.samples.tolist(), strict=True)
        return [samples if known & Known.SAMPLES else None for known, samples in rows]

    def digest(self) -> str:
        """Distinguishes these shards, in a saved state, from others with the same names."""
        digest = hashlib.sha256()
        for first in range(0, len(self), _RUN):
            run = slice(first, first + _RUN)
            known, sizes = self.known[run], self.size_bytes[run].tolist()
            contents = self._hex(self.sha256[run])
            if not (known & Known.SHA256).all():
                # Only one digest each: an index that gains another one describes the same shards.
                other = [row.tobytes().hex() for row in self.hashed[run]]
                rows = zip(known.tolist(), contents, self._hex(self.crc32c[run]), other, strict=True)
                contents = [_first_of(bits, *digests) for bits, *digests in rows]
            lines: Iterable[str] = map("%d %s\n".__mod__, zip(sizes, contents, strict=True))
            if not known.all():
                lines = (line if bits else "\n" for bits, line in zip(known.tolist(), lines, strict=True))
            digest.update("".join(lines).encode())
        return digest.hexdigest()

    @staticmethod
    def _hex(digests: _Uint8) -> list[str]:
        return digests.tobytes().hex("\n", digests.shape[1]).split("\n")

    def _at(self, shard: int) -> Expected | None:
        known = int(self.known[shard])
        if not known:
            return None
        first, stop = self.begins[shard : shard + 2].tolist()
        return Expected(
            None if known & Known.NO_SIZE else int(self.size_bytes[shard]),
            int(self.samples[shard]) if known & Known.SAMPLES else None,
            self.sha256[shard].tobytes() if known & Known.SHA256 else None,
            self.crc32c[shard].tobytes() if known & Known.CRC32C else None,
            tuple(map(tuple, self.offsets[first:stop].tolist())) if known & Known.OFFSETS else None,
            _hashed_at(self.hashed[shard].tobytes()) if known & Known.HASHED else None,
            _unpacked_at(self.unpacked[shard].tobytes()) if known & Known.UNPACKED else None,
        )


_FIXED = ("known", "size_bytes", "samples", "sha256", "crc32c", "hashed", "unpacked")


def _bits(expected: Expected | None) -> int:
    if expected is None:
        return 0
    values = {
        Known.SAMPLES: expected.samples,
        Known.SHA256: expected.sha256,
        Known.CRC32C: expected.crc32c,
        Known.OFFSETS: expected.offsets,
        Known.HASHED: expected.hashed,
        Known.UNPACKED: expected.unpacked,
    }
    no_size = Known.NO_SIZE if expected.size_bytes is None else 0
    return Known.ENTRY | no_size | sum(bit for bit, value in values.items() if value is not None)


def _first_of(bits: int, sha256: str, crc32c: str, hashed: str) -> str:
    """The first digest that is known."""
    found = {Known.SHA256: sha256, Known.CRC32C: crc32c, Known.HASHED: hashed}
    return next((digest for bit, digest in found.items() if bits & bit), "")


def _hashed_row(one: tuple[str, bytes] | None) -> bytes:
    return b"" if one is None else bytes([ALGORITHMS.index(one[0]), len(one[1])]) + one[1]


def _unpacked_row(one: Unpacked | None) -> bytes:
    return b"" if one is None else one.size_bytes.to_bytes(_SIZE_BYTES, "little") + _hashed_row(one.hashed)


def _rows(rows: Sequence[bytes], width: int | None = None) -> _Uint8:
    """Rows of one width, by default of the longest, with zeros behind those that are shorter."""
    width = max(map(len, rows), default=0) if width is None else width
    packed = b"".join(row.ljust(width, b"\0") for row in rows)
    return np.frombuffer(packed, np.uint8).reshape(len(rows), width)


def _hashed_at(row: bytes) -> tuple[str, bytes]:
    return ALGORITHMS[row[0]], row[2 : 2 + row[1]]


def _unpacked_at(row: bytes) -> Unpacked:
    size, rest = row[:_SIZE_BYTES], row[_SIZE_BYTES:]
    # A digest has a byte at least.
    return Unpacked(int.from_bytes(size, "little"), _hashed_at(rest) if any(rest[1:2]) else None)
