"""Values of the serializer ``json``: lists and dicts in a compact form, or JSON as older chunks have it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from struct import Struct, error
from types import MappingProxyType
from typing import Any

import numpy as np

__all__ = ["decode_json"]

_COUNT, _INT, _FLOAT = Struct("<I"), Struct("<q"), Struct("<d")

# What the first byte says a value is. JSON itself begins with a character above these.
_JSON, _TEXTS, _INTS, _FLOATS, _BOOLS, _DICT, _RECORDS, _TEXT, _ONE_INT, _ONE_FLOAT, _BOOL, _NONE = range(12)
_LAST_TAG = 0x20
_RECORD_KINDS = MappingProxyType({0x10: _NONE, 0x11: _TEXT, 0x12: _ONE_INT, 0x13: _ONE_FLOAT, 0x14: _BOOL})

_MOST_DEPTH = 64


def decode_json(content: bytes) -> Any:
    """The value: dicts, lists, strings, ints, floats, bools and None.

    Raises:
        ValueError: It is damaged.
    """
    if not content or content[0] > _LAST_TAG:
        return json.loads(content)
    reader = _Reader(content)
    try:
        value = reader.value(0)
    except (error, IndexError) as cause:
        raise ValueError("a list or dict is truncated") from cause
    if reader.at != len(content):
        raise ValueError(f"a list or dict ends {len(content) - reader.at} bytes before its value does")
    return value


class _Reader:
    """Reads one value from front to back."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.at = 0

    def value(self, depth: int) -> Any:
        if depth > _MOST_DEPTH:
            raise ValueError(f"a list or dict nests deeper than {_MOST_DEPTH}")
        tag = self._byte()
        if tag == _DICT:
            return {self._text(): self.value(depth + 1) for _ in range(self._count(5))}
        read = _READ.get(tag)
        if read is None:
            raise ValueError(f"a list or dict of the unknown kind {tag}")
        return read(self)

    def _byte(self) -> int:
        self.at += 1
        return self._content[self.at - 1]

    def _unpack(self, form: Struct) -> Any:
        self.at += form.size
        return form.unpack_from(self._content, self.at - form.size)[0]

    def _count(self, least_bytes: int) -> int:
        """How many entries come, of so many bytes at least: not more than there is room for."""
        count: int = self._unpack(_COUNT)
        if count * least_bytes > len(self._content) - self.at:
            raise ValueError(
                f"{count} entries do not fit into the {len(self._content) - self.at} bytes there are"
            )
        return count

    def _take(self, size: int) -> bytes:
        if size > len(self._content) - self.at:
            raise ValueError(f"expected {size} bytes more, found {len(self._content) - self.at}")
        self.at += size
        return self._content[self.at - size : self.at]

    def _text(self) -> str:
        return str(self._take(self._unpack(_COUNT)), "utf-8")

    def _json(self) -> Any:
        return json.loads(self._take(self._unpack(_COUNT)))

    def _texts(self) -> list[str]:
        return [self._text() for _ in range(self._count(4))]

    def _numbers(self, dtype: str) -> list[Any]:
        numbers: list[Any] = np.frombuffer(self._take(8 * self._count(8)), dtype).tolist()
        return numbers

    def _bools(self) -> list[bool]:
        return [byte != 0 for byte in self._take(self._count(1))]

    def _records(self) -> list[dict[str, Any]]:
        count, names = self._unpack(_COUNT), self._count(4)
        keys = [self._text() for _ in range(names)]
        if count * len(keys) > len(self._content) - self.at or (count and not keys):
            raise ValueError(
                f"{count} records do not fit into the {len(self._content) - self.at} bytes there are"
            )
        return [{key: self._of_record() for key in keys} for _ in range(count)]

    def _of_record(self) -> Any:
        tag = self._byte()
        if tag not in _RECORD_KINDS:
            raise ValueError(f"a record holds a value of the unknown kind {tag}")
        return _READ[_RECORD_KINDS[tag]](self)


_READ: Mapping[int, Callable[[_Reader], Any]] = MappingProxyType(
    {
        _JSON: _Reader._json,
        _TEXTS: _Reader._texts,
        _INTS: lambda reader: reader._numbers("<i8"),
        _FLOATS: lambda reader: reader._numbers("<f8"),
        _BOOLS: _Reader._bools,
        _RECORDS: _Reader._records,
        _TEXT: _Reader._text,
        _ONE_INT: lambda reader: reader._unpack(_INT),
        _ONE_FLOAT: lambda reader: reader._unpack(_FLOAT),
        _BOOL: lambda reader: reader._byte() != 0,
        _NONE: lambda reader: None,
    }
)
