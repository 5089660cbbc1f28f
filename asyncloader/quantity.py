"""Numbers as people give and read them: integers of any library, bytes and times with their unit; pure."""

from __future__ import annotations

import math
import re
from dataclasses import fields
from decimal import Decimal
from numbers import Integral
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_TEXT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(?:([kmgtp])(i?))?b\s*", re.IGNORECASE | re.ASCII)
_TIME = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(us|ms|s|min|h|d|w)\s*", re.ASCII)
_SECONDS = {
    "us": Decimal("1e-6"),
    "ms": Decimal("1e-3"),
    "s": Decimal(1),
    "min": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
    "w": Decimal(604800),
}

_PREFIXES = ("", "k", "M", "G", "T")


def as_whole(value: object) -> int | None:
    """A whole number, also of NumPy, as Python's int, which a saved state can hold; otherwise None.

    True and False are no numbers here, since an option that needs a number got them by mistake.
    """
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else None


def as_count(name: str, value: object, least: int = 1) -> int:
    """A whole number of 1 or more, or of 0 or more, as Python's int.

    Args:
        name: The option's, for messages.
        value: Its value.
        least: 1 or 0.

    Raises:
        ValueError: The value is no such number.
    """
    count = as_whole(value)
    if count is None or count < least:
        kind = "a positive" if least else "0 or a positive"
        raise ValueError(f"{name} should be {kind} integer value, but got {name}={value!r}")
    return count


def as_counts(options: DataclassInstance, *names: str) -> None:
    """Check counts of a frozen dataclass, and convert them to Python's ints.

    Args:
        options: The dataclass.
        names: Of the fields; one may be None if that is its default.

    Raises:
        ValueError: A value is no whole number of 1 or more.
    """
    optional = {option.name for option in fields(options) if option.default is None}
    for name in names:
        count = getattr(options, name)
        if count is not None or name not in optional:
            object.__setattr__(options, name, as_count(name, count))


def parse_bytes(name: str, value: object) -> int:
    """The number of bytes that an option means.

    Args:
        name: The option's, for messages.
        value: A whole number; or a number with its unit, in powers of 1000 (``"10GB"``, ``"1.5 MB"``) or of
            1024 (``"1 GiB"``), upper or lower case.

    Raises:
        TypeError: Neither an int nor a text.
        ValueError: The text is no such number.
    """
    if (size := as_whole(value)) is not None:
        return size
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


def parse_rate(name: str, value: str) -> float:
    """Bytes per second: a number of bytes with its unit, per second, such as ``"40MB/s"``.

    Args:
        name: The option's, for messages.
        value: Its value.

    Raises:
        ValueError: The value is no such text, or 0.
    """
    size, slash, second = value.rpartition("/")
    try:
        rate = parse_bytes(name, size) if slash and second.strip() == "s" else 0
    except ValueError:
        rate = 0
    if not rate:
        raise ValueError(
            f"{name} should be a number of bytes a second, such as '40MB/s' or '1.5 GiB/s', "
            f"but got {name}={value!r}"
        )
    return rate


def parse_seconds(name: str, value: str) -> float:
    """A time with its unit, such as ``"50ms"`` or ``"7d"``, in seconds.

    Args:
        name: The option's, for messages.
        value: Its value.

    Raises:
        ValueError: The value is no such text.
    """
    found = _TIME.fullmatch(value)
    if found is None:
        raise ValueError(
            f"{name} should be a time with its unit, us, ms, s, min, h, d or w, such as '50ms' or '7d', "
            f"but got {name}={value!r}"
        )
    return float(Decimal(found[1]) * _SECONDS[found[2]])


def amount(value: float, unit: str = "") -> str:
    """Up to three significant digits, with a prefix: ``1.23 M``, ``480``, ``0.5``."""
    power = 0
    while abs(value) >= 999.5 and power < len(_PREFIXES) - 1:
        value, power = value / 1000, power + 1
    digits = 0 if abs(value) >= 99.5 else 1 if abs(value) >= 9.95 else 2
    text = f"{value:.{digits}f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return " ".join(part for part in (text, f"{_PREFIXES[power]}{unit}") if part)


def bytes_text(value: float) -> str:
    """Bytes, in decimal units."""
    return amount(value, "B")


def seconds_text(value: float) -> str:
    """A time: ``250 ms``, ``3.2 s``, ``12 min``, ``1.5 h``."""
    if value == 0:
        return "0 s"
    if value < 1e-3:
        return amount(value * 1e6, "µs")
    if value < 0.9995:
        return amount(value * 1e3, "ms")
    if value < 120:
        return amount(value, "s")
    return amount(value / 60, "min") if value < 7200 else amount(value / 3600, "h")


def percent(share: float) -> str:
    """A share of 1, as per cent."""
    digits = 1 if 0 < abs(share) < 0.0995 else 0
    return f"{share * 100:.{digits}f} %"


def ticks(highest: float, most: int = 4) -> list[float]:
    """Round numbers from 0 to the first that is not below ``highest``, in at most ``most`` steps."""
    if highest <= 0:
        return [0.0, 1.0]
    step = 10 ** math.floor(math.log10(highest / most))
    while step * most < highest * 0.999_999:
        step *= 2.5 if f"{step:e}".startswith("2") else 2
    return [number * step for number in range(math.ceil(highest / step - 1e-6) + 1)]


# --- texts from shards, file names and servers, as a terminal may show them ---


def printable(text: str) -> str:
    """The text in one line, with control characters escaped, since shards and their names are not trusted.

    Characters that cannot be shown are escaped too, such as the half of a surrogate pair that represents an
    invalid byte of a file's name, which Python would refuse to print.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def clip(text: str, most: int) -> str:
    """A text in one line of at most ``most`` characters; a longer one is cut and ends with ``...``."""
    text = printable(text[: most + 1])
    return text if len(text) <= most else text[: most - 3] + "..."
