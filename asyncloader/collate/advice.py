"""What messages on sequences that cannot be laid side by side advise."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

__all__ = ["fill_advice", "null_advice", "odd_lists_advice", "squeeze_advice", "type_advice"]

#: What to do about a value that is None.
_NULLS = (
    "a null has no place in a tensor: give it a value in .map, or leave such samples out by .filter, or by "
    "filters= of Parquet and Arrow; or fill it where shards are written, by fill_null of pyarrow or polars"
)


def fill_advice(value: float, dtype: np.dtype[Any]) -> str:
    """What to write where ``value`` does not fit the data's ``dtype``."""
    whole = dtype.kind in "biu" and -(1 << 63) <= value < 1 << 63 and value == int(value)
    wider = "complex128" if dtype.kind == "c" else "int64" if whole else "float64"
    return f'give the field a dtype that holds it, as with {{"value": {value!r}, "dtype": "{wider}"}}'


def null_advice(*values: Any) -> str:
    """A clause on nulls, if a value is one or a list that holds one; nothing elsewhere."""
    for value in values:
        # By identity: an array would be compared value by value.
        held = [each is None for each in value] if isinstance(value, list | tuple) else []
        if value is None or any(held):
            return (f" (a null at place {held.index(True)})" if held else "") + f"; {_NULLS}"
    return ""


def type_advice(value: Any) -> str:
    """A clause on a value of a type that has no place in a batch; nothing if there is nothing to be said."""
    if any((kind.__module__, kind.__name__) == ("PIL.Image", "Image") for kind in type(value).__mro__):
        return "; make an array of the image in .map, as with np.asarray(image)"
    if inspect.iscoroutine(value):
        return "; nobody awaited it: give .map the async def function itself, or await it in one"
    if inspect.isgenerator(value):
        return "; a function with yield gives many: .map takes one that returns a sample"
    return null_advice(value)


def odd_lists_advice() -> str:
    """A clause on lists of unequal lengths that no padding helps, such as tags."""
    return "; leave it out by .select_columns or in .map, or make it one text there, as with json.dumps"


def squeeze_advice(*shapes: tuple[int, ...]) -> str:
    """A clause on sequences that may be wrapped in one more dimension; nothing if none of them is."""
    if not any(len(shape) > 1 and shape[0] == 1 for shape in shapes):
        return ""
    return '; a tokenizer with return_tensors="pt" gives (1, T) for a sequence (T,): squeeze it, as with [0]'
