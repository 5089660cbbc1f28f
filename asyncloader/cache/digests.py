"""Digests of whole shards, worked out as their bytes go by; pure."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from typing import Protocol

from ..types import Buffer

__all__ = ["Hasher", "Hashers"]


class Hasher(Protocol):
    """As hashlib's."""

    def update(self, chunk: Buffer, /) -> None: ...
    def digest(self) -> bytes: ...


class _Crc32:
    def __init__(self) -> None:
        self._value = 0

    def update(self, chunk: Buffer) -> None:
        self._value = zlib.crc32(chunk, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "big")


class Hashers:
    """The sha256 of a shard, and whatever else its store promises of it.

    Args:
        promised: By algorithm, as in ``Body``.

    Attributes:
        unknown: Promises that cannot be compared here, for want of the algorithm.
    """

    def __init__(self, promised: Mapping[str, bytes]) -> None:
        self._promised = promised
        self._sha256 = hashlib.sha256()
        self._hashers: dict[str, Hasher] = {"sha256": self._sha256}
        self.unknown: dict[str, bytes] = {}
        for name, digest in promised.items():
            if name == "crc32":
                self._hashers[name] = _Crc32()
            elif name in hashlib.algorithms_guaranteed and not name.startswith("shake_"):
                # Against damage on the way, not against forgers: hence md5 where a policy forbids it.
                self._hashers.setdefault(name, hashlib.new(name, usedforsecurity=False))
            else:
                self.unknown[name] = digest

    def update(self, chunk: Buffer) -> None:
        for hasher in self._hashers.values():
            hasher.update(chunk)

    @property
    def sha256(self) -> bytes:
        return self._sha256.digest()

    def broken_promise(self) -> str | None:
        """What does not agree, in words; None if all does."""
        for name, hasher in self._hashers.items():
            if name in self._promised and hasher.digest() != self._promised[name]:
                return f"{name} {self._promised[name].hex()} was promised, but it is {hasher.digest().hex()}"
        return None
