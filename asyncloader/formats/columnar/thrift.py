"""As much of Thrift's compact protocol as the footer of Parquet takes: structs with some wanted fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

__all__ = ["Compact", "DamagedError"]

_BOOLEANS = (1, 2)
_BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(3, 13)
_INTEGERS = (_I16, _I32, _I64)

# Of what is skipped; Parquet's own structs are nested some five deep.
_MOST_NESTED = 32

Read: TypeAlias = Callable[[int], Any]
"""Reads a value of a type, as the protocol numbers types."""


class DamagedError(Exception):
    """The bytes are not of the protocol, or not what is expected of them."""


class Compact:
    """Reads values one after another.

    Args:
        content: Their bytes. No claim in them is believed beyond the bytes there are.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    @property
    def at(self) -> int:
        """How many bytes were read."""
        return self._at

    def struct(self, wanted: Mapping[int, Read]) -> dict[int, Any]:
        """The wanted fields of a struct, by their numbers, as far as it has them.

        Raises:
            DamagedError: As all methods.
        """
        found = {}
        field = 0
        while kind := self._byte():
            field = field + (kind >> 4) if kind >> 4 else self._zigzag()
            read = wanted.get(field)
            if read is None:
                self._skip(kind & 15, 0)
            else:
                found[field] = read(kind & 15)
        return found

    def number(self, kind: int) -> int:
        """An integer."""
        if kind not in _INTEGERS:
            raise DamagedError(f"expected a number, found type {kind}")
        return self._zigzag()

    def text(self, kind: int) -> str:
        """A text."""
        if kind != _BINARY:
            raise DamagedError(f"expected a text, found type {kind}")
        return str(self._take(self._varint()), "utf-8", "replace")

    def list_of(self, read: Callable[[int], Any]) -> Read:
        """Reads a list, its entries by ``read``."""

        def read_list(kind: int) -> list[Any]:
            if kind != _LIST:
                raise DamagedError(f"expected a list, found type {kind}")
            count, inside = self._list_header()
            return [read(inside) for _ in range(count)]

        return read_list

    def struct_of(self, wanted: Mapping[int, Read]) -> Read:
        """Reads a struct; see ``struct``."""

        def read_struct(kind: int) -> dict[int, Any]:
            if kind != _STRUCT:
                raise DamagedError(f"expected a struct, found type {kind}")
            return self.struct(wanted)

        return read_struct

    def presence(self, kind: int) -> bool:
        """True, of whatever is there."""
        self._skip(kind, 0)
        return True

    def _skip(self, kind: int, depth: int) -> None:
        if depth > _MOST_NESTED:
            raise DamagedError("structs are nested too deep")
        if kind in _INTEGERS:
            self._varint()
        elif kind == _BINARY:
            self._skip_bytes(self._varint())
        elif kind == _STRUCT:
            while inside := self._byte():
                if not inside >> 4:
                    self._varint()
                self._skip(inside & 15, depth + 1)
        elif kind in (_LIST, _SET):
            count, inside = self._list_header()
            self._skip_all(count, (inside,), depth)
        elif kind == _MAP:
            if count := self._varint():
                kinds = self._byte()
                self._skip_all(count, (kinds >> 4, kinds & 15), depth)
        elif kind == _DOUBLE:
            self._skip_bytes(8)
        elif kind == _BYTE:
            self._skip_bytes(1)
        elif kind not in _BOOLEANS:
            raise DamagedError(f"there is no type {kind}")

    def _skip_all(self, count: int, kinds: tuple[int, ...], depth: int) -> None:
        for _ in range(count):
            for kind in kinds:
                # Where it is no field, a boolean takes a byte.
                self._skip(_BYTE if kind in _BOOLEANS else kind, depth + 1)

    def _list_header(self) -> tuple[int, int]:
        header = self._byte()
        count = header >> 4
        return (self._varint() if count == 15 else count), header & 15

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
            if shift > 63:
                raise DamagedError("a number has more than 64 bits")
        return value | byte << shift

    def _byte(self) -> int:
        at = self._at
        if at >= len(self._content):
            raise DamagedError("it ends in the middle of a value")
        self._at = at + 1
        return self._content[at]

    def _take(self, size: int) -> bytes:
        begin = self._at
        self._skip_bytes(size)
        return self._content[begin : self._at]

    def _skip_bytes(self, size: int) -> None:
        self._at += size
        if self._at > len(self._content):
            raise DamagedError("it ends in the middle of a value")
