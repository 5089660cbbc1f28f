"""Says which field of which samples a failed collation is about.

Runs only once something has failed, so the successful path pays nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from .advice import null_advice, odd_lists_advice, type_advice
from .entries import name_entry, whole_of

__all__ = ["entry", "explain"]

Attempt: TypeAlias = Callable[[Sequence[Any]], object]
Leaf: TypeAlias = Callable[[Any], bool]
Path: TypeAlias = tuple[Any, ...]

_MISSING = object()


def entry(samples: Sequence[Any], index: int) -> str:
    """``entry 3``, with what else is known of the sample."""
    return f"entry {name_entry(samples, index)}"


def explain(samples: Sequence[Any], attempt: Attempt, is_leaf: Leaf) -> str:
    """One sentence: the field, what is wrong with it and at which entries, what to do.

    Args:
        samples: The batch that failed.
        attempt: Collates the values of one field; raises as the whole batch did.
        is_leaf: True for a value that ``attempt`` takes as a whole, whatever its structure.
    """
    path, values = _descend(samples, attempt, is_leaf, ())
    for index, value in enumerate(values):
        if value is _MISSING:
            return f"{_field(path)} is missing at {entry(samples, index)}"
        unlike = _unlike(values[0], value)
        if unlike is not None:
            wrong, ragged = unlike
            where = f"entries {name_entry(samples, 0)} and {name_entry(samples, index)}"
            advice = _advice(path, samples) if ragged else null_advice(values[0], value)
            if not advice and _is_sequence(value) and isinstance(whole_of(samples)[0], Mapping):
                advice = odd_lists_advice()
            return f"{_field(path)}: {wrong} at {where}{advice}"
    dtype = f" of dtype {values[0].dtype}" if hasattr(values[0], "dtype") else ""
    return f"{_field(path)}: values of type {type(values[0]).__qualname__}{dtype}{type_advice(values[0])}"


def _descend(
    values: Sequence[Any], attempt: Attempt, is_leaf: Leaf, path: Path
) -> tuple[Path, Sequence[Any]]:
    """Follow the first field that fails by itself, down to the values that are at fault."""
    for key, inner in _fields(values, is_leaf):
        if any(value is _MISSING for value in inner):
            return (*path, key), inner
        try:
            attempt(inner)
        except Exception:
            return _descend(inner, attempt, is_leaf, (*path, key))
    return path, values


def _fields(values: Sequence[Any], is_leaf: Leaf) -> Iterator[tuple[Any, Sequence[Any]]]:
    """The fields of ``values`` as torch walks them: keys and structure of the first entry."""
    first = values[0]
    if is_leaf(first):
        return
    if all(isinstance(value, Mapping) for value in values):
        for key in first:
            yield key, [value.get(key, _MISSING) for value in values]
    elif all(_is_sequence(value) and len(value) == len(first) for value in values):
        names = getattr(first, "_fields", range(len(first)))
        yield from zip(names, zip(*values, strict=True), strict=True)


def _unlike(first: Any, value: Any) -> tuple[str, bool] | None:
    """How ``value`` differs from ``first``, and whether padding would help; None if it does not."""
    if hasattr(first, "shape") and hasattr(value, "shape"):
        one, other = list(first.shape), list(value.shape)
        if one != other:
            return f"shapes {one} and {other}", bool(one and other) and one[1:] == other[1:]
    elif _is_sequence(first) and _is_sequence(value) and len(first) != len(value):
        numbers = all(isinstance(number, int | float) for number in (*first, *value))
        return f"lengths {len(first)} and {len(value)}", numbers
    if type(value) is not type(first):
        return f"types {type(first).__qualname__} and {type(value).__qualname__}", False
    if getattr(value, "dtype", None) != getattr(first, "dtype", None):
        return f"dtypes {first.dtype} and {value.dtype}", False
    return None


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _field(path: Path) -> str:
    if not path:
        return "the samples themselves"
    return f"field {path[0]!r}" + "".join(f"[{key!r}]" for key in path[1:])


def _advice(path: Path, samples: Sequence[Any]) -> str:
    """Pad takes fields of the sample only, so there is nothing to advise for what lies deeper.

    All ragged fields are named, and those that a Pad has taken out already: the one advised takes its place.
    """
    whole = whole_of(samples)
    if len(path) != 1 or not isinstance(path[0], str) or not isinstance(whole[0], Mapping):
        return ""
    names = [name for name in whole[0] if name not in samples[0] or _is_ragged(whole, name)]
    fills = ", ".join(f'"{name}": 0' for name in names)
    return f"; collate_fn=al.Pad({{{fills}}}) pads {'it' if len(names) == 1 else 'them'}"


def _is_ragged(samples: Sequence[Any], name: Any) -> bool:
    first, *others = [sample[name] for sample in samples if name in sample]
    return any(unlike[1] for other in others if (unlike := _unlike(first, other)) is not None)
