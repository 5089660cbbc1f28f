"""What shards are made of: samples by number, counted over all sources in their order."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

__all__ = ["Material", "Part", "Version"]


class Version(NamedTuple):
    """A source as it is now; a tuple of JSON values.

    Attributes:
        name: Its URL or path as it may be shown.
        size_bytes: None if not told.
        version: What its store calls this version of it; None if it has no such name.
    """

    name: str
    size_bytes: int | None
    version: str | None


class Part(Protocol):
    """Some of the material, which travels to the process that makes shards of it."""

    def samples(self) -> Generator[tuple[dict[str, Any], object], None, None]:
        """Its samples with where each is from, in order. Closing it stops the reading."""
        ...


class Material(Protocol):
    """All of it."""

    @property
    def versions(self) -> Sequence[Version]:
        """What it is made of, as it is now."""
        ...

    @property
    def size_bytes(self) -> int:
        """Of all sources, as stored."""
        ...

    def part(self, first: int, stop: int) -> Part:
        """Samples ``first`` up to ``stop``."""
        ...

    def in_vain(self, first: int) -> int:
        """How many samples have to be read before sample ``first``, if reading begins there."""
        ...

    def prove(self, read: Iterable[tuple[int, int]]) -> None:
        """Hold each source against what is promised of it, and against what it was when it was asked for.

        Args:
            read: The parts that were read in one go, each from a sample up to another. A source that is in
                one of them as a whole was held against its digest there, and is not read again.

        Raises:
            StoreError: One is damaged, or was changed meanwhile.
        """
        ...

    def describe(self) -> Mapping[str, Any]:
        """What two runs must agree in beside the versions, as JSON values."""
        ...
