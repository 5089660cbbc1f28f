"""What a block is, whatever it is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, Self, TypeAlias

from numpy.typing import NDArray

from .ragged import Ragged
from .trails import Trail

__all__ = ["Block", "Column", "lacks_field"]

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
        """The samples from ``start`` up to ``stop``; the trail is theirs.

        Args:
            start: 0 or more.
            stop: ``start`` or more; beyond the last sample it is the last one.
        """
        ...

    def take(self, indices: Sequence[int]) -> Self:
        """The samples of these indices, in this order; the trail is theirs.

        Args:
            indices: Each from 0 up to the length; one may come more than once.
        """
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
            KeyError: A sample lacks the field; names those that it has.
        """
        ...


def lacks_field(name: str, found: Iterable[object], trail: Trail, index: int) -> KeyError:
    """The error for sample ``index`` of a trail, whose fields are ``found``."""
    return KeyError(f"expected the field {name!r} in {trail.place(index)}, found only {list(found)}")
