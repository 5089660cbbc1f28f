"""Running digests of shards, and the choice of the cheapest among several that were promised.

Each of them detects what transport and disks do to bytes; so only the time that it takes matters.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from ..errors import StoreError
from ..types import Buffer

# The cheapest first, measured in chunks of 2 MiB on one core of an AMD EPYC with SHA extensions (Python
# 3.11.7, OpenSSL 3, zlib 1.3, google-crc32c 1.9.0, xxhash 4.1.0), on a busy machine: xxh128 33 GB/s, xxh3_64
# 32, crc32c 18, xxh64 8.4, xxh32 2.2, crc32 1.9, sha1 1.3, sha256 and sha224 1.2, sha512, sha384 and md5 0.5,
# blake2b 0.4, the following ones less. Without SHA extensions the order of sha1 to md5 differs, with md5
# before sha512. All of them release the GIL.
ALGORITHMS = (
    *("xxh128", "xxh3_128", "xxh3_64", "crc32c", "xxh64", "xxh32", "crc32"),
    *("sha1", "sha256", "sha224", "sha512", "sha384", "md5"),
    *("blake2b", "blake2s", "sha3_224", "sha3_256", "sha3_384", "sha3_512"),
)

# The digests that need a package, and the extra that installs it.
_EXTRAS = {"crc32c": "checksums", **dict.fromkeys(("xxh128", "xxh3_128", "xxh3_64", "xxh64", "xxh32"), "mds")}


class Digest(Protocol):
    """A digest that is being computed, such as hashlib's objects."""

    def update(self, chunk: Buffer, /) -> None:
        """Add the next bytes."""
        ...

    def digest(self) -> bytes:
        """The digest of all bytes so far."""
        ...


def open_digest(algorithm: str) -> Digest | None:
    """A new digest, or None if this installation cannot compute it.

    Args:
        algorithm: A name in ``ALGORITHMS``; another one can never be computed.
    """
    if algorithm not in ALGORITHMS:
        return None
    if algorithm == "crc32":
        return _Crc(zlib.crc32)
    if algorithm == "crc32c":
        module = crc32c_in_c()
        return module and _Crc(lambda chunk, value: module.extend(value, bytes(chunk)))
    try:
        if algorithm.startswith("xxh"):
            import xxhash

            digest: Digest = getattr(xxhash, algorithm)()
            return digest
        # Not for security: a system that forbids md5 for security still allows it for checksums.
        return hashlib.new(algorithm, usedforsecurity=False)
    except (ImportError, ValueError):
        return None


def extra_of(algorithms: Iterable[str]) -> str:
    """The extra of this package that installs what computes one of these, for messages."""
    return next((_EXTRAS[algorithm] for algorithm in algorithms if algorithm in _EXTRAS), "checksums")


class Verifier:
    """Checks the bytes of a whole shard with a digest that was promised.

    Args:
        promised: Digests by algorithm. The cheapest one that can be computed here is verified; nothing is
            verified if there is none.

    Attributes:
        algorithm: The algorithm that is verified; None if none is.
    """

    def __init__(self, promised: Mapping[str, bytes]) -> None:
        self.algorithm: str | None = None
        self._digest: Digest | None = None
        for algorithm in filter(promised.__contains__, ALGORITHMS):
            self._digest = open_digest(algorithm)
            if self._digest is not None:
                self.algorithm = algorithm
                self._promised = promised[algorithm]
                break

    def update(self, chunk: Buffer) -> None:
        """Add the next bytes of the shard."""
        if self._digest is not None:
            self._digest.update(chunk)

    def check(self, shard: str) -> None:
        """Compare, after the last byte.

        Args:
            shard: Its URL as it may be shown.

        Raises:
            StoreError: The bytes have another digest.
        """
        if self._digest is not None and (found := self._digest.digest()) != self._promised:
            raise StoreError(
                f"the bytes of this shard have the {self.algorithm} {found.hex()}, but "
                f"{self._promised.hex()} was promised: they were damaged on their way or where they are "
                "stored, or replaced. Read it again; if that fails too, restore the shard, or, if it was "
                "replaced on purpose, make a new index",
                shard=shard,
            )


class _Crc:
    """A checksum of 32 bits; ``extend`` computes it of one more chunk and the checksum of those before."""

    def __init__(self, extend: Callable[[Buffer, int], int]) -> None:
        self._extend = extend
        self._value = 0

    def update(self, chunk: Buffer, /) -> None:
        self._value = self._extend(chunk, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "big")


def crc32c_in_c() -> Any:
    """The module ``google_crc32c``; None if it is not installed, or has only its fallback in Python.

    The fallback does some MB/s: the next algorithm is cheaper.
    """
    try:
        import google_crc32c
    except ImportError:
        return None
    return google_crc32c if google_crc32c.implementation == "c" else None
