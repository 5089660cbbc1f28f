"""Explains why samples do not fit together: which field, at which entries, and what to do.

It runs only after a failure, so a batch that can be made costs nothing. A ``collate_fn`` gets samples and
nothing else; where they came from is kept in a context variable.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import numpy as np

Attempt: TypeAlias = Callable[[Sequence[Any]], object]
Path: TypeAlias = tuple[Any, ...]

_MISSING = object()

# What to do about a value that is None.
_NULLS = (
    "a tensor cannot hold None: replace it in .map, leave such samples out by .filter, or fill nulls where "
    "shards are written (fill_null of pyarrow or polars)"
)


# --- entries of a batch ---


class EntryNames(NamedTuple):
    """What is known of the samples that are collated.

    Attributes:
        samples: The samples.
        place_of: Returns where a sample came from, by its index; None if that is unknown.
        whole: The same samples with all of their fields.
    """

    samples: Sequence[Any]
    place_of: Callable[[int], str] | None
    whole: Sequence[Any]


_names: ContextVar[EntryNames | None] = ContextVar("asyncloader_entries", default=None)


@contextmanager
def naming_entries(samples: Sequence[Any], place_of: Callable[[int], str]) -> Iterator[None]:
    """Set where the samples of a batch came from while it is collated; used only after a failure."""
    token = _names.set(EntryNames(samples, place_of, samples))
    try:
        yield
    finally:
        _names.reset(token)


@contextmanager
def standing_for(samples: Sequence[Any], others: Sequence[Any]) -> Iterator[None]:
    """Set that ``others`` are ``samples`` without some fields, while they are collated."""
    names = _names.get()
    known = names if names is not None and names.samples is samples else EntryNames(samples, None, samples)
    token = _names.set(known._replace(samples=others))
    try:
        yield
    finally:
        _names.reset(token)


def entry(samples: Sequence[Any], index: int) -> str:
    """``entry 3``, with the ``__key__`` and the place of that sample, as far as they are known."""
    return f"entry {_name_entry(samples, index)}"


def _name_entry(samples: Sequence[Any], index: int) -> str:
    sample = samples[index]
    known = []
    if isinstance(sample, Mapping) and (key := sample.get("__key__")) is not None:
        known.append(f"__key__ {key!r}")
    if (place := _place_of(sample, index)) is not None:
        known.append(place)
    return f"{index} ({', '.join(known)})" if known else str(index)


def _place_of(sample: Any, index: int) -> str | None:
    """Where a sample came from; found by identity, since a ``collate_fn`` may select or reorder samples."""
    names = _names.get()
    if names is None or names.place_of is None:
        return None
    samples, place_of = names.samples, names.place_of
    if index < len(samples) and samples[index] is sample:
        return place_of(index)
    same = [nth for nth, other in enumerate(samples) if other is sample]
    return place_of(same[0]) if len(same) == 1 else None


def _whole_of(samples: Sequence[Any]) -> Sequence[Any]:
    """The same samples with all of their fields."""
    names = _names.get()
    return names.whole if names is not None and names.samples is samples else samples


# --- what does not fit ---


def note_field(
    error: Exception, batch: Sequence[Any], attempt: Attempt, leaf_types: tuple[type, ...]
) -> None:
    """Add a note to ``error`` about the field; its message stays, for code that matches it.

    Args:
        error: What collating the batch raised.
        batch: The batch.
        attempt: Collates the values of one field; raises as the whole batch did.
        leaf_types: Types that ``attempt`` takes as a whole, whatever their structure.
    """
    # Samples are the user's objects and may raise anything when they are used again. A failed diagnosis must
    # not replace the error that matters.
    with suppress(Exception):
        error.add_note(_explain(batch, attempt, leaf_types))


def _explain(samples: Sequence[Any], attempt: Attempt, leaf_types: tuple[type, ...]) -> str:
    """One sentence: the field, what is wrong with it and at which entries, what to do."""
    path, values = _descend(samples, attempt, leaf_types, ())
    for index, value in enumerate(values):
        if value is _MISSING:
            return f"{_field(path)} is missing at {entry(samples, index)}; add it in .map"
        unlike = _unlike(values[0], value)
        if unlike is not None:
            wrong, ragged = unlike
            where = f"entries {_name_entry(samples, 0)} and {_name_entry(samples, index)}"
            advice = _pad_advice(path, samples) if ragged else null_advice(values[0], value)
            if not advice and hasattr(value, "shape") and wrong.startswith("shapes"):
                advice = "; make the shapes equal in .map"
            if not advice and _is_sequence(value) and isinstance(_whole_of(samples)[0], Mapping):
                advice = "; leave it out by .select_columns or in .map, or make it one text, as by json.dumps"
            return f"{_field(path)}: {wrong} at {where}{advice}"
    if not path and values[0] is None:
        return "the samples are None: a function of .map has to return the sample that it changes"
    dtype = f" of dtype {values[0].dtype}" if hasattr(values[0], "dtype") else ""
    return f"{_field(path)}: values of type {type(values[0]).__qualname__}{dtype}{_type_advice(values[0])}"


def _descend(
    values: Sequence[Any], attempt: Attempt, leaf_types: tuple[type, ...], path: Path
) -> tuple[Path, Sequence[Any]]:
    """Follow the first field that fails alone, down to the values at fault."""
    for key, inner in () if isinstance(values[0], leaf_types) else _fields(values):
        if any(value is _MISSING for value in inner):
            return (*path, key), inner
        try:
            attempt(inner)
        except Exception:
            return _descend(inner, attempt, leaf_types, (*path, key))
    return path, values


def _fields(values: Sequence[Any]) -> Iterator[tuple[Any, Sequence[Any]]]:
    """The fields of ``values`` in torch's order: by the keys and structure of the first entry."""
    first = values[0]
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


# --- advice: clauses at the end of messages, or "" ---


def _pad_advice(path: Path, samples: Sequence[Any]) -> str:
    """Advice to pad. There is none for nested fields, since Pad takes only fields of the sample itself.

    All ragged fields are named, and those that a Pad pads already, since the advised Pad replaces it.
    """
    whole = _whole_of(samples)
    if len(path) != 1 or not isinstance(path[0], str) or not isinstance(whole[0], Mapping):
        return ""
    names = [name for name in whole[0] if name not in samples[0] or _is_ragged(whole, name)]
    fills = ", ".join(f'"{name}": 0' for name in names)
    return f"; collate_fn=al.Pad({{{fills}}}) pads {'it' if len(names) == 1 else 'them'}"


def _is_ragged(samples: Sequence[Any], name: Any) -> bool:
    first, *others = [sample[name] for sample in samples if name in sample]
    return any(unlike[1] for other in others if (unlike := _unlike(first, other)) is not None)


def fill_advice(value: float, dtype: np.dtype[Any]) -> str:
    """Advice for a padding value that does not fit the data's ``dtype``."""
    whole = dtype.kind in "biu" and -(1 << 63) <= value < 1 << 63 and value == int(value)
    wider = "complex128" if dtype.kind == "c" else "int64" if whole else "float64"
    return f'give the field a dtype that holds it, as with {{"value": {value!r}, "dtype": "{wider}"}}'


def null_advice(*values: Any) -> str:
    """Advice if one of the values is a null, or a list that holds one."""
    for value in values:
        # By identity: an array would be compared value by value.
        held = [each is None for each in value] if isinstance(value, list | tuple) else []
        if value is None or any(held):
            return (f" (a null at place {held.index(True)})" if held else "") + f"; {_NULLS}"
    return ""


def _type_advice(value: Any) -> str:
    """Advice for a value whose type has no place in a batch."""
    if any((kind.__module__, kind.__name__) == ("PIL.Image", "Image") for kind in type(value).__mro__):
        return "; make an array of the image in .map, as with np.asarray(image)"
    if inspect.iscoroutine(value):
        return "; it was never awaited: pass the async def function itself to .map, or await it in one"
    if inspect.isgenerator(value):
        return "; a function with yield makes many values: .map takes one that returns a sample"
    return null_advice(value) or "; make numbers or text of it in .map, or pass a collate_fn"


def squeeze_advice(*shapes: tuple[int, ...]) -> str:
    """Advice for sequences that may have one more dimension."""
    if not any(len(shape) > 1 and shape[0] == 1 for shape in shapes):
        return ""
    return (
        '; a tokenizer with return_tensors="pt" returns (1, T) for a sequence (T,): squeeze it, as with [0]'
    )
