"""Numbers as people read them, and steps for axes. Pure."""

from __future__ import annotations

import math

__all__ = ["amount", "bytes_text", "percent", "seconds_text", "ticks"]

_PREFIXES = ("", "k", "M", "G", "T")


def amount(value: float, unit: str = "") -> str:
    """Three digits that count, with a prefix: ``1.23 M``, ``480``, ``0.5``."""
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
    """A share of 1."""
    digits = 1 if 0 < abs(share) < 0.0995 else 0
    return f"{share * 100:.{digits}f} %"


def ticks(highest: float, most: int = 4) -> list[float]:
    """Round numbers from 0 to the first that is not below ``highest``, in at most so many steps."""
    if highest <= 0:
        return [0.0, 1.0]
    step = 10 ** math.floor(math.log10(highest / most))
    while step * most < highest * 0.999_999:
        step *= 2.5 if f"{step:e}".startswith("2") else 2
    return [number * step for number in range(math.ceil(highest / step - 1e-6) + 1)]
