"""What a rank holds in memory, and the most that it ever was."""

from __future__ import annotations

__all__ = ["Held", "Holding"]


class Holding:
    """All that the processes of a rank hold together.

    Attributes:
        most_bytes: At any time so far.
    """

    def __init__(self) -> None:
        self._bytes = 0.0
        self.most_bytes = 0.0

    def change(self, size: float) -> None:
        """So many bytes more, or fewer."""
        self._bytes += size
        self.most_bytes = max(self.most_bytes, self._bytes)


class Held:
    """What one of them holds.

    Args:
        holding: Of the rank.
    """

    def __init__(self, holding: Holding) -> None:
        self._holding = holding
        self._bytes = 0.0

    def now(self, size: float) -> None:
        """It is so many bytes from now on."""
        if size != self._bytes:
            self._holding.change(size - self._bytes)
            self._bytes = size
