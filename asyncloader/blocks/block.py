"""What a block is, whatever it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, Self, TypeAlias

from numpy.typing import NDArray

from .ragged import Ragged
from .trails import Trail

__all__ = ["Block", "Column"]

Column: TypeAlias = NDArray[Any] | Ragged | list[Any]
"""One field of ``n`` samples: an array ``(n, ...)``, sequences of unequal length, or a list of objects."""


class Block(Protocol):
    """A run of consecutive samples, and the trail of their positions.

    ``Rows`` holds one object a sample, ``Columns`` one column a field. What is in a block is never changed:
    parts share it.
    """

    @property
    def trail(self) -> Trail:
        """Where the samples came from, and where their stream goes on."""
        ...

    def __len__(self) -> int: ...

    def part(self, start: int, stop: int) -> Self:
        """The samples from ``start`` up to ``stop``, as in a slice of a list; the trail is theirs."""
        ...

    def take(self, indices: Sequence[int]) -> Self:
        """The samples of these indices, in this order; the trail is theirs."""
        ...

    def follow(self, trail: Trail) -> Self:
        """The same samples on another trail."""
        ...

    def rows(self) -> list[Any]:
        """The samples, an object each. It may be the block's own list, for the caller to read only."""
        ...

    def column(self, name: str) -> Column:
        """One field of all samples.

        Raises:
            KeyError: A sample lacks the field.
        """
        ...
