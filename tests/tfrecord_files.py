"""TFRecord and ``tf.train.Example`` by their definitions; shares nothing with what reads them."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["crc32c", "example", "feature", "field", "masked", "record"]


def crc32c(content: bytes) -> int:
    """A bit at a time, as RFC 3720 defines it."""
    register = 0xFFFFFFFF
    for byte in content:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def masked(content: bytes) -> bytes:
    crc = crc32c(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def record(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    return length + masked(length) + content + masked(content)


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, body: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(body)) + body


def feature(values: Sequence[Any], packed: bool = True) -> bytes:
    if not values or isinstance(values[0], bytes):
        return field(1, b"".join(field(1, value) for value in values))
    number, kind = (2, b"\x0d") if isinstance(values[0], float) else (3, b"\x08")
    encoded = [struct.pack("<f", each) if number == 2 else varint(each) for each in values]
    return field(number, field(1, b"".join(encoded)) if packed else b"".join(kind + each for each in encoded))


def example(fields: Mapping[str, Sequence[Any]], packed: bool = True) -> bytes:
    entries = (
        field(1, field(1, name.encode()) + field(2, feature(values, packed)))
        for name, values in fields.items()
    )
    return field(1, b"".join(entries))
