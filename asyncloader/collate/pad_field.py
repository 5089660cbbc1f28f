"""How ``Pad`` pads one field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from ..quantity import as_counts
from ..tensors import tensor_of
from .ragged import Overflow, Side, exact_fill, is_number, real_mask

if TYPE_CHECKING:
    import torch

__all__ = ["PadField", "PadOptions", "padded_entries"]


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
        value: What to fill with. 0, because an embedding with ``padding_idx=0`` and a masked sum both
            want it; -100 is what ``cross_entropy`` ignores in labels.
        side: The side on which to fill. ``"right"``: packing, losses and most encoders expect it;
            ``"left"`` keeps the ends of prompts together for generation.
        multiple_of: Round the width ``T`` up to a multiple of this. 1: no rounding. 8 (fp16) to 64
            fills the tiles of tensor cores. Equal to ``max_length``, every batch gets that width.
        max_length: The longest sequence allowed, in positions; a multiple of ``multiple_of``, so that
            ``T`` never passes it. None: no limit.
        overflow: What to do with a longer one. ``"raise"``, since data lost silently is worse than an
            error; ``"truncate"`` cuts it on the padded side (``"left"`` keeps the end).
        dtype: NumPy or torch dtype of the padded field. None: that of the data, which must be the same
            in all entries of a batch (int64 or float64 for lists, as in ``default_collate``; int64 if
            all the lists are empty). Floats may be rounded to a shorter float type; any other value
            that would not survive raises.

    Raises:
        ValueError: An option out of range, or a ``value`` that does not fit ``dtype``.
    """

    value: float = 0
    side: Side = "right"
    multiple_of: int = 1
    max_length: int | None = None
    overflow: Overflow = "raise"
    dtype: Any = None

    def with_options(self, name: str, given: object) -> PadField:
        """The same with the options, or the value, that are given for the field ``name``."""
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


def padded_entries(
    name: str, padded: NDArray[Any], lengths: NDArray[np.int64], side: Side, mask: bool
) -> dict[str, torch.Tensor]:
    """What a batch has of one padded field: ``name``, ``name_lengths`` and, if asked for, ``name_mask``."""
    entries = {name: tensor_of(padded), f"{name}_lengths": tensor_of(lengths)}
    if mask:
        entries[f"{name}_mask"] = tensor_of(real_mask(lengths, padded.shape[1], side))
    return entries


def _numpy_dtype(given: Any) -> np.dtype[Any]:
    """``np.dtype`` of whatever names one, ``torch.int64`` included."""
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
