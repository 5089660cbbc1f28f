"""What messages on sequences that cannot be laid side by side advise."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["fill_advice", "squeeze_advice"]


def fill_advice(value: float, dtype: np.dtype[Any]) -> str:
    """What to write where ``value`` does not fit the data's ``dtype``."""
    whole = dtype.kind in "biu" and -(1 << 63) <= value < 1 << 63 and value == int(value)
    wider = "complex128" if dtype.kind == "c" else "int64" if whole else "float64"
    return f'give the field a dtype that holds it, as with PadField(value={value!r}, dtype="{wider}")'


def squeeze_advice(*shapes: tuple[int, ...]) -> str:
    """A clause on sequences that may be wrapped in one more dimension; nothing if none of them is."""
    if not any(len(shape) > 1 and shape[0] == 1 for shape in shapes):
        return ""
    return '; a tokenizer with return_tensors="pt" gives (1, T) for a sequence (T,): squeeze it, as with [0]'
