"""Numbers of bytes as people write them; pure."""

from __future__ import annotations

import re
from decimal import Decimal

__all__ = ["parse_bytes"]

_TEXT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(?:([kmgtp])(i?))?b\s*", re.IGNORECASE | re.ASCII)


def parse_bytes(name: str, value: object) -> int:
    """The number of bytes that an option means.

    Args:
        name: The option's, for messages.
        value: An int; or a number with its unit, in powers of 1000 (``"10GB"``, ``"1.5 MB"``) or of 1024
            (``"1 GiB"``), upper or lower case.

    Raises:
        TypeError: Neither an int nor a text.
        ValueError: A text that is no such number.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise TypeError(
            f"{name} should be a number of bytes, as an int or as a text such as '10GB' or '512 MiB', "
            f"but got {name}={value!r}"
        )
    found = _TEXT.fullmatch(value)
    if found is None:
        raise ValueError(
            f"{name} should be a number with its unit, B, kB, MB, GB, TB, PB (powers of 1000) or KiB, MiB, "
            f"GiB, TiB, PiB (powers of 1024), such as '10GB' or '1.5 GiB', but got {name}={value!r}"
        )
    number, prefix, binary = found.groups()
    base = 1024 if binary else 1000
    return int(Decimal(number) * base ** (" kmgtp".index((prefix or " ").lower())))
