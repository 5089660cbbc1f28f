"""Pads sequences of unequal length to the longest of their batch.

``Pad`` is a ``collate_fn``. It is frozen and picklable, so it can be sent to the workers with the dataset.
``PadField`` is how one field is padded. ``PadLongest`` is the default ``collate_fn`` of batching by length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from ..blocks import Column, Ragged, take_of
from ..blocks.memory import tensor_of
from ..quantity import as_counts
from .default import collate_columns, default_collate
from .fault import entry, fill_advice, standing_for
from .ragged import (
    Overflow,
    Piece,
    Side,
    bound,
    exact_cast,
    exact_fill,
    is_number,
    lay,
    lay_runs,
    real_mask,
    to_pieces,
)

if TYPE_CHECKING:
    import torch


class PadOptions(TypedDict, total=False):
    """Options of one padded field; see ``PadField``."""

    value: float
    side: Side
    multiple_of: int
    max_length: int | None
    overflow: Overflow
    dtype: Any


@dataclass(frozen=True, slots=True)
class PadField:
    """How to pad one field.

    Args:
        value: The padding value. 0, because an embedding with ``padding_idx=0`` and a masked sum both
            want it; ``cross_entropy`` ignores -100 in labels.
        side: The side that is padded. ``"right"``: packing, losses and most encoders expect it;
            ``"left"`` keeps the ends of prompts together for generation.
        multiple_of: Round the width ``T`` up to a multiple of this. 1: no rounding. 8 (fp16) to 64
            fills the tiles of tensor cores. Equal to ``max_length``, every batch gets that width.
        max_length: The longest sequence allowed, in positions; a multiple of ``multiple_of``, so that
            ``T`` never passes it. None: no limit.
        overflow: What to do with a longer sequence. ``"raise"``, since silent loss of data is worse than an
            error; ``"truncate"`` cuts it on the padded side (``"left"`` keeps the end).
        dtype: NumPy or torch dtype of the padded field. None: that of the data, which must be the same
            in all entries of a batch (int64 or float64 for lists, as in ``default_collate``; int64 if
            all the lists are empty). Floats may be rounded to a shorter float type; any other value
            that would not survive raises.

    Raises:
        ValueError: An option is out of range, or ``value`` does not fit ``dtype``.
    """

    value: float = 0
    side: Side = "right"
    multiple_of: int = 1
    max_length: int | None = None
    overflow: Overflow = "raise"
    dtype: Any = None

    def with_options(self, name: str, given: object) -> PadField:
        """The same with the options, or the padding value, for the field ``name``."""
        options: Any = given if isinstance(given, Mapping) else {"value": given}
        if unknown := [option for option in options if option not in PadOptions.__annotations__]:
            raise TypeError(
                f"options of the field {name!r} should be among {list(PadOptions.__annotations__)}, but got "
                f"{unknown}"
            )
        return replace(self, **options)

    def __post_init__(self) -> None:
        if not isinstance(self.value, Real | np.bool_):
            raise ValueError(f"padding value should be a number, but got value={self.value!r}")
        if self.side not in ("left", "right"):
            raise ValueError(f"side should be 'left' or 'right', but got side={self.side!r}")
        if self.overflow not in ("raise", "truncate"):
            raise ValueError(f"overflow should be 'raise' or 'truncate', but got overflow={self.overflow!r}")
        as_counts(self, "multiple_of", "max_length")
        if self.max_length is not None and self.max_length % self.multiple_of:
            raise ValueError(
                f"max_length should be a multiple of multiple_of={self.multiple_of}, "
                f"but got max_length={self.max_length}"
            )
        if self.dtype is not None:
            dtype = _numpy_dtype(self.dtype)
            exact_fill(self.value, dtype)
            object.__setattr__(self, "dtype", dtype)


@dataclass(frozen=True)
class Pad:
    """A ``collate_fn`` that pads the named fields and stacks the others. Samples are mappings.

    Example:
        ```python
        import asyncloader as al

        samples = [{"tokens": [1, 2, 3], "label": 0}, {"tokens": [4], "label": 1}]
        loader = al.DataLoader(samples, batch_size=2, collate_fn=al.Pad({"tokens": 0}))
        batch = next(iter(loader))
        print(batch["tokens"].tolist())  # [[1, 2, 3], [4, 0, 0]]
        print(batch["tokens_lengths"].tolist(), batch["label"].tolist())  # [3, 1] [0, 1]
        ```

    Args:
        fields: The padding value of each field to pad, such as 0 for tokens, which an embedding with
            ``padding_idx=0`` expects, or -100 for labels, which ``cross_entropy`` ignores. Instead of a
            value, a mapping of options for this field: ``value``, ``side``, ``multiple_of``, ``max_length``,
            ``overflow`` and ``dtype``, as in ``{"labels": {"value": -100, "max_length": 512}}``. The field is
            converted to ``dtype``; a value that would change is an error. A field holds one sequence
            ``(T_i, ...)`` per sample: a list of numbers, a NumPy array, a CPU tensor, or bytes (as uint8).
            Dtype and trailing dimensions are the same in the whole batch.
        side: The side to pad, unless a field sets its own; the same holds for the next three options.
            ``"right"`` by default, which packing, losses and most encoders expect. ``"left"`` aligns the ends
            of prompts for generation.
        multiple_of: Round the width ``T`` up to a multiple of this. 1: no rounding. 8 (fp16) to 64 fills the
            tiles of tensor cores. If it equals ``max_length``, every batch has that width.
        max_length: The longest sequence allowed; a multiple of ``multiple_of``, so that ``T`` never exceeds
            it. None: no limit.
        overflow: What to do with a longer sequence. ``"raise"`` by default, since a silent loss of data is
            worse than an error. ``"truncate"`` cuts it on the padded side: ``"left"`` keeps the end.
        mask: Add ``<field>_mask``. False by default, since the lengths say the same in less memory.
        sort_by: One of ``fields``. The batch is sorted by its lengths, longest first, as
            ``pack_padded_sequence`` requires; sequences of equal length keep their order. None: samples keep
            their order.
        collate_fn: A function that gets the samples without the padded fields, and returns a mapping.
            ``default_collate`` by default, so ``__key__`` and ``__url__`` become lists.

    Returns:
        A call with ``B`` samples returns a dict: the other fields as collated, and for each padded field
        ``<field>`` ``(B, T, ...)``, ``<field>_lengths`` ``(B,) int64`` and, with ``mask=True``,
        ``<field>_mask`` ``(B, T) bool``, which is True where data is. ``T`` is the length of the longest
        sequence, rounded up to ``multiple_of``; 0 if all are empty.

    Raises:
        ValueError: At construction: an option is out of range, or names clash. In a call: a field is missing,
            too long or not a sequence of numbers, or its dtypes or trailing dimensions differ; the message
            names the entry and its ``__key__``. Also: a padding value does not fit the dtype, a sample has a
            field with a generated name, or the batch is empty.
        TypeError: A field has an unknown option; or a sample is not a mapping.
    """

    fields: Mapping[str, float | PadOptions]
    side: Side = field(default="right", kw_only=True)
    multiple_of: int = field(default=1, kw_only=True)
    max_length: int | None = field(default=None, kw_only=True)
    overflow: Overflow = field(default="raise", kw_only=True)
    mask: bool = field(default=False, kw_only=True)
    sort_by: str | None = field(default=None, kw_only=True)
    collate_fn: Callable[[list[Any]], Any] = field(default=default_collate, kw_only=True)
    _padding: dict[str, PadField] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.fields, Mapping) or not self.fields:
            raise ValueError(
                f'fields should be a mapping such as {{"tokens": 0}}, but got fields={self.fields!r}'
            )
        shared = PadField(0, self.side, self.multiple_of, self.max_length, self.overflow)
        padding = {name: shared.with_options(name, given) for name, given in self.fields.items()}
        if self.sort_by is not None and self.sort_by not in padding:
            raise ValueError(f"sort_by should be one of {list(padding)}, but got sort_by={self.sort_by!r}")
        object.__setattr__(self, "fields", dict(self.fields))
        object.__setattr__(self, "_padding", padding)
        self._check_names(padding, "fields")

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Make a batch of samples, as described for the class."""
        _check_mappings(samples)
        self._check_names(samples[0], "the samples")
        pieces = {name: _pieces(samples, name, how) for name, how in self._padding.items()}
        if self.sort_by is not None:
            # Sorting the samples, not the batch, also permutes what collate_fn makes of them.
            lengths = np.fromiter(map(len, pieces[self.sort_by]), np.int64)
            order = np.argsort(-lengths, kind="stable").tolist()
            samples = [samples[i] for i in order]
            pieces = {name: [column[i] for i in order] for name, column in pieces.items()}
        batch = self._collate_others(samples)
        for name, how in self._padding.items():
            try:
                padded, lengths = lay(
                    pieces[name], value=how.value, side=how.side, multiple_of=how.multiple_of
                )
            except ValueError as error:
                advice = fill_advice(how.value, pieces[name][0].dtype)
                raise ValueError(f"field {name!r}: {error}; {advice}") from None
            batch |= _padded_entries(name, padded, lengths, how.side, self.mask)
        return batch

    def from_columns(self, fields: Mapping[str, Column]) -> Any:
        """Make the same batch from columns, which is faster; the loader calls it where it can.

        Args:
            fields: A column for each field.

        Returns:
            The batch; ``NotImplemented`` if it can only be made from samples.
        """
        padding = self._padding
        if not padding.keys() <= fields.keys() or not fields.keys().isdisjoint(self._generated()):
            return NotImplemented
        others = {name: column for name, column in fields.items() if name not in padding}
        try:
            runs = {name: _runs_of(fields[name], how) for name, how in padding.items()}
            if self.sort_by is not None:
                order = np.argsort(-runs[self.sort_by].lengths, kind="stable")
                runs = {
                    name: _Runs(each.values, each.starts[order], each.lengths[order])
                    for name, each in runs.items()
                }
                others = {name: take_of(column, order) for name, column in others.items()}
            padded = {
                name: lay_runs(*runs[name], value=how.value, side=how.side, multiple_of=how.multiple_of)
                for name, how in padding.items()
            }
        except ValueError:
            return NotImplemented  # collating the rows names the sample at fault
        collated = collate_columns(self.collate_fn, others) if others else {}
        if not isinstance(collated, Mapping) or not collated.keys().isdisjoint(self._generated()):
            return NotImplemented
        batch = dict(collated)
        for name, how in padding.items():
            batch |= _padded_entries(name, padded[name], runs[name].lengths, how.side, self.mask)
        return batch

    @property
    def does_without_torch(self) -> bool:
        """Whether a batch can be made without torch: no subclass and no user's function is called."""
        return type(self) is Pad and self.collate_fn is default_collate

    def _generated(self) -> list[str]:
        suffixes = ("_lengths", "_mask") if self.mask else ("_lengths",)
        return [name + suffix for name in self._padding for suffix in suffixes]

    def _check_names(self, names: Mapping[str, Any], owner: str) -> None:
        for generated in self._generated():
            if generated in names:
                raise ValueError(
                    f"Pad adds {generated!r} to the batch, but {owner} have a field of that name; rename it"
                )

    def _collate_others(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        padding = self._padding
        if all(name in padding for name in samples[0]):
            return {}
        others = [
            {name: value for name, value in sample.items() if name not in padding} for sample in samples
        ]
        with standing_for(samples, others):
            batch = self.collate_fn(others)
        if not isinstance(batch, Mapping):
            raise TypeError(f"expected a mapping from Pad's collate_fn, found {type(batch).__qualname__}")
        self._check_names(batch, "the collated others")
        return dict(batch)


def _pieces(samples: Sequence[Mapping[str, Any]], name: str, how: PadField) -> list[Piece]:
    def where(index: int) -> str:
        return f"field {name!r}, {entry(samples, index)}"

    try:
        values = [sample[name] for sample in samples]
    except KeyError:
        for index, sample in enumerate(samples):
            if name not in sample:
                found = f"expected the field, found only {list(sample)}; check the names given to Pad"
                raise ValueError(f"{where(index)}: {found}") from None
        raise
    pieces = to_pieces(values, how.dtype, where)
    if how.max_length is None:
        return pieces
    return bound(pieces, how.max_length, how.overflow, how.side, where)


def _check_mappings(samples: Sequence[Any]) -> None:
    if not samples:
        raise ValueError("Pad expected at least one sample, found an empty batch")
    # They are nearly always plain dicts; a set of types avoids an abstract-class check for each.
    if set(map(type, samples)) == {dict}:
        return
    for index, sample in enumerate(samples):
        if not isinstance(sample, Mapping):
            raise TypeError(
                f"Pad expected samples that are mappings, found {type(sample).__qualname__} "
                f"at {entry(samples, index)}; make them dicts with .map, or collate them otherwise"
            )


@dataclass(frozen=True)
class PadLongest:
    """A ``collate_fn``: ``Pad`` if a field holds sequences, ``default_collate`` if it holds their lengths.

    Args:
        field: The name of the field. It is padded with 0.
        multiple_of: Widths are rounded up to a multiple of it.
    """

    field: str
    multiple_of: int = 1

    def __call__(self, samples: Sequence[Any]) -> Any:
        first = samples[0].get(self.field) if samples and isinstance(samples[0], Mapping) else None
        is_number = isinstance(first, Real | np.number) or getattr(first, "ndim", None) == 0
        return self._choose(is_number)(samples)

    def from_columns(self, fields: Mapping[str, Column]) -> Any:
        """The same batch from columns, if the chosen function can make it; otherwise NotImplemented."""
        column = fields.get(self.field)
        return collate_columns(self._choose(isinstance(column, np.ndarray) and column.ndim == 1), fields)

    def _choose(self, is_number: bool) -> Callable[[Any], Any]:
        return default_collate if is_number else Pad({self.field: 0}, multiple_of=self.multiple_of)


# --- columns ---


class _Runs(NamedTuple):
    """``B`` sequences of one array.

    Attributes:
        values: ``(m, ...)`` in the dtype of the padded field, contiguous.
        starts: ``(B,) int64``.
        lengths: ``(B,) int64``.
    """

    values: NDArray[Any]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]


def _runs_of(column: Column, how: PadField) -> _Runs:
    """A column's sequences, converted and cut as ``how`` says.

    Raises:
        ValueError: They cannot be padded so.
    """
    if isinstance(column, list) or (isinstance(column, Ragged) and isinstance(column.values, list)):
        column = to_pieces(list(column), None, str)  # such as bytes, which are uint8
    elif isinstance(column, np.ndarray) and column.ndim == 1:
        raise ValueError("expected sequences, found numbers")
    sequences = column if isinstance(column, Ragged) else Ragged.of(column)
    values = sequences.flat
    if not isinstance(values, np.ndarray) or not is_number(values.dtype):
        raise ValueError("expected sequences of numbers")
    dtype = values.dtype.newbyteorder("=") if how.dtype is None else how.dtype
    if values.dtype != dtype:
        values = exact_cast(values, dtype, lambda: "a column")
    values = np.ascontiguousarray(values)
    starts, lengths = sequences.offsets[:-1] - sequences.offsets[0], sequences.lengths
    if how.max_length is not None:
        bounded = np.minimum(lengths, how.max_length)
        if how.overflow == "raise" and (bounded < lengths).any():
            raise ValueError("a sequence is too long")
        if how.side == "left":
            starts = starts + lengths - bounded
        lengths = bounded
    return _Runs(values, starts, lengths)


# --- rows and columns ---


def _padded_entries(
    name: str, padded: NDArray[Any], lengths: NDArray[np.int64], side: Side, mask: bool
) -> dict[str, torch.Tensor]:
    """The entries of one padded field in a batch: ``name``, ``name_lengths`` and perhaps ``name_mask``."""
    entries = {name: tensor_of(padded), f"{name}_lengths": tensor_of(lengths)}
    if mask:
        entries[f"{name}_mask"] = tensor_of(real_mask(lengths, padded.shape[1], side))
    return entries


def _numpy_dtype(given: Any) -> np.dtype[Any]:
    """The ``np.dtype`` that is given in any form, also as ``torch.int64``."""
    try:
        dtype = np.dtype(str(given).removeprefix("torch.") if str(given).startswith("torch.") else given)
    except TypeError:
        dtype = np.dtype(object)
    if not is_number(dtype):
        raise ValueError(
            f"dtype should be a number type that NumPy and torch share, but got dtype={given!r}; "
            f"pad in one of those and convert the batch"
        )
    return dtype.newbyteorder("=")
