"""As much of flatbuffers as Arrow's framing takes: a table's numbers, and where its vectors are."""

from __future__ import annotations

import struct

from ...errors import FormatError

__all__ = ["Table"]


class Table:
    """A table of a buffer, whose every offset is checked.

    Args:
        content: The buffer.
        what: It is, for messages.
        at: Where in the buffer stands the offset of the table; the root's by default.

    Raises:
        FormatError: It is no flatbuffer; also from the methods.
    """

    def __init__(self, content: bytes, what: str, at: int = 0) -> None:
        self._content = content
        self._what = what
        self._at = at + self._read("<I", at)
        self._fields = self._at - self._read("<i", self._at)
        self._fields_bytes = self._read("<H", self._fields)

    def number(self, field: int, kind: str) -> int:
        """The number in a field, of a kind as ``struct`` spells it; 0 if the table lacks the field."""
        at = self._place(field)
        return 0 if at is None else self._read(kind, at)

    def table(self, field: int) -> Table | None:
        """The table in a field; None if this one lacks the field."""
        at = self._place(field)
        return None if at is None else Table(self._content, self._what, at)

    def structs(self, field: int, kind: str) -> list[tuple[int, ...]]:
        """The structs in a vector, each of a kind as ``struct`` spells it."""
        at = self._place(field)
        if at is None:
            return []
        vector = at + self._read("<I", at)
        count, size = self._read("<I", vector), struct.calcsize(kind)
        if vector + 4 + count * size > len(self._content):
            raise self._damaged(f"a vector of {count} entries is longer than it")
        return [struct.unpack_from(kind, self._content, vector + 4 + nth * size) for nth in range(count)]

    def _place(self, field: int) -> int | None:
        at = 4 + 2 * field
        inside = self._read("<H", self._fields + at) if at < self._fields_bytes else 0
        return self._at + inside if inside else None

    def _read(self, kind: str, at: int) -> int:
        if not 0 <= at <= len(self._content) - struct.calcsize(kind):
            raise self._damaged(f"an offset points to byte {at} of {len(self._content)}")
        value: int = struct.unpack_from(kind, self._content, at)[0]
        return value

    def _damaged(self, how: str) -> FormatError:
        return FormatError(f"arrow: damaged: {self._what}: {how}")
