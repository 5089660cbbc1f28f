"""Lays sequences of unequal length side by side in one array. Pure NumPy.

A *piece* is the sequence of one entry: an array ``(T_i, ...)``. The pieces of a batch have one dtype and the
same trailing dimensions. ``to_pieces`` ensures this, and the other functions rely on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..blocks import Ragged
from ..blocks.memory import filled
from .fault import null_advice, squeeze_advice

Piece: TypeAlias = NDArray[Any]
Side: TypeAlias = Literal["left", "right"]
Overflow: TypeAlias = Literal["raise", "truncate"]
Where: TypeAlias = Callable[[int], str]


def lay(
    pieces: Sequence[Piece], *, value: float = 0, side: Side = "right", multiple_of: int = 1
) -> tuple[Piece, NDArray[np.int64]]:
    """Copy the pieces into the rows of one array, and fill the remaining places.

    One allocation and one slice assignment per piece. Joining the pieces and assigning them through a
    boolean mask, without a Python loop, took 1.6 times as long (64 pieces of about 200 int32).

    Args:
        pieces: ``B`` alike arrays ``(T_i, ...)``, at least one.
        value: The padding value; the pieces' dtype must be able to represent it.
        side: The side on which to fill.
        multiple_of: The width ``T`` is the longest ``T_i`` rounded up to a multiple of this; 0 stays 0.

    Returns:
        ``(B, T, ...)`` in the pieces' dtype (native byte order), and the lengths ``(B,) int64``.

    Raises:
        ValueError: ``value`` does not fit the dtype.
    """
    lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
    padded = filled(*_frame(lengths, pieces[0], value, multiple_of))
    width = padded.shape[1]
    if side == "right":
        for row, piece in zip(padded, pieces, strict=True):
            row[: len(piece)] = piece
    else:
        for row, piece in zip(padded, pieces, strict=True):
            row[width - len(piece) :] = piece
    return padded, lengths


def lay_runs(
    values: Piece,
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    *,
    value: float = 0,
    side: Side = "right",
    multiple_of: int = 1,
) -> Piece:
    """``lay`` for pieces that are runs of one array.

    Runs are copied as bytes. With 64 runs of about 200 int32 this is 1.2 times as fast as NumPy's slice
    assignments, which are twice as fast as an index or a mask for each value. Convert all values to another
    dtype before.

    Args:
        values: ``(m, ...)``, contiguous and in native byte order.
        starts: ``(B,) int64``: where in ``values`` the runs begin, in any order.
        lengths: ``(B,) int64``, at least one.
    """
    padded = filled(*_frame(lengths, values, value, multiple_of))
    first = np.arange(len(lengths)) * padded.shape[1]
    if side == "left":
        first += padded.shape[1] - lengths
    entry_bytes = values.itemsize * math.prod(values.shape[1:])
    edges = [first, first + lengths, starts, starts + lengths]
    target, source = (array.reshape(-1).view(np.uint8).data for array in (padded, values))
    for into, into_stop, start, stop in zip(*[(edge * entry_bytes).tolist() for edge in edges], strict=True):
        target[into:into_stop] = source[start:stop]
    return padded


def _frame(
    lengths: NDArray[np.int64], like: Piece, value: float, multiple_of: int
) -> tuple[tuple[int, ...], Any, np.dtype[Any]]:
    """Shape, padding value and dtype of the padded array."""
    dtype = like.dtype.newbyteorder("=")
    width = -(-int(lengths.max()) // multiple_of) * multiple_of
    return (len(lengths), width, *like.shape[1:]), exact_fill(value, dtype), dtype


def real_mask(lengths: NDArray[np.int64], width: int, side: Side) -> NDArray[np.bool_]:
    """``(B, width) bool``: True where ``lay`` put a piece, False where it padded."""
    columns = np.arange(width)
    if side == "right":
        return columns < lengths[:, None]
    return columns >= width - lengths[:, None]


def bound(pieces: list[Piece], max_length: int, overflow: Overflow, side: Side, where: Where) -> list[Piece]:
    """Refuse or cut the pieces longer than ``max_length``.

    The padded side is cut: the end of a sequence padded on the right, the start of one padded on the left.

    Raises:
        ValueError: A piece is longer and ``overflow`` is ``"raise"``.
    """
    if overflow == "truncate":
        return [piece[:max_length] if side == "right" else piece[-max_length:] for piece in pieces]
    for index, piece in enumerate(pieces):
        if len(piece) > max_length:
            raise ValueError(
                f"{where(index)}: expected at most max_length={max_length}, found length {len(piece)}; "
                f"filter such samples out, or cut them with overflow='truncate'"
            )
    return pieces


def to_pieces(values: Sequence[Any], dtype: np.dtype[Any] | None, where: Where) -> list[Piece]:
    """Turn one field's values, one per entry, into pieces of one dtype and equal trailing dimensions.

    An empty sequence ``(0,)`` takes those of the others, since the dtype of ``np.array([])`` means nothing.

    Args:
        values: Sequences of numbers: lists, arrays, CPU tensors, or bytes, which are ``uint8``.
        dtype: What to convert to; None: the values must agree.
        where: Returns the name of an entry, for errors.

    Raises:
        ValueError: A value is no sequence of numbers, differs from the first one in dtype or trailing
            dimensions, or does not fit ``dtype``.
    """
    pieces = _adopt_empty(values, to_arrays(values, where))
    if dtype is not None:
        pieces = [exact_cast(piece, dtype, partial(where, index)) for index, piece in enumerate(pieces)]
    _check_alike(pieces, where)
    return pieces


def to_arrays(values: Sequence[Any], where: Where) -> list[Piece]:
    """The arrays of ``to_pieces`` before they are made alike: each in its own dtype.

    Raises:
        ValueError: A value is no sequence of numbers.
    """
    pieces = [
        value if type(value) is np.ndarray else _as_array(value, index, where)
        for index, value in enumerate(values)
    ]
    # As in _check_alike: sets first; the loop over entries only names the entry at fault.
    if 0 in {piece.ndim for piece in pieces} or not all(map(is_number, {piece.dtype for piece in pieces})):
        for index, piece in enumerate(pieces):
            if piece.ndim == 0 or not is_number(piece.dtype):
                found = type(values[index]).__qualname__ if piece.ndim == 0 else f"dtype {piece.dtype}"
                advice = null_advice(piece.tolist())
                raise ValueError(
                    f"{where(index)}: expected a sequence of numbers (T, ...), found {found}{advice}"
                )
    return pieces


def is_number(dtype: np.dtype[Any]) -> bool:
    """Whether a tensor can have this dtype: bool, integer, float or complex, but not extended ones."""
    return dtype.kind in "biufc" and dtype.char not in "gG"


def exact_fill(value: float, dtype: np.dtype[Any]) -> Any:
    """``value`` as a scalar of ``dtype``.

    Raises:
        ValueError: An integer or bool dtype cannot represent it, or a float dtype overflows.
    """
    if type(value) is int and value == 0:
        return dtype.type(0)  # the usual padding, without the 5 us of the code below
    try:
        with np.errstate(all="ignore"):
            fill = np.asarray(value).astype(dtype)[()]
        if dtype.kind in "fc":
            fits = bool(np.isfinite(fill)) or not math.isfinite(value)
        else:
            fits = fill.item() == value  # Python compares int with float exactly, NumPy rounds first
    except OverflowError:
        fits = False
    if not fits:
        raise ValueError(f"padding value {value!r} does not fit dtype {dtype}")
    return fill


def _as_array(value: Any, index: int, where: Where) -> Piece:
    if isinstance(value, bytes | bytearray):
        return np.frombuffer(value, np.uint8)
    if isinstance(value, Ragged) and not len(value):
        value = []  # as rows would have it: no sequences share no length
    try:
        # A tensor's own method takes 0.7 us, asarray() 1.2 us. Found by name: this module has no torch.
        return np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    except (ValueError, TypeError, RuntimeError) as error:
        # A ragged list, or a tensor that NumPy cannot read: on a GPU, sparse, with gradients, bfloat16.
        raise ValueError(
            f"{where(index)}: expected a sequence of numbers (T, ...), "
            f"found {type(value).__qualname__} that NumPy cannot read: {error}"
        ) from error


def _adopt_empty(values: Sequence[Any], pieces: list[Piece]) -> list[Piece]:
    """Give pieces of shape ``(0,)`` the dtype and trailing dimensions of the others."""
    if all(piece.shape != (0,) for piece in pieces):
        return pieces
    typed = next((piece for piece in pieces if piece.shape != (0,)), None)
    if typed is None:  # all are empty: the dtype of the first that has one; a list has none
        arrays = zip(values, pieces, strict=True)
        typed = next((piece for value, piece in arrays if not isinstance(value, list | tuple | Ragged)), None)
    like = np.zeros(0, np.int64) if typed is None else typed[:0]
    return [like if piece.shape == (0,) else piece for piece in pieces]


def exact_cast(piece: Piece, dtype: np.dtype[Any], where: Callable[[], str]) -> Piece:
    """Convert. A float may be rounded to a shorter float; any other change of a value is refused.

    Raises:
        ValueError: A value would change, or a complex number would become real, or a real number complex.
    """
    source = piece.dtype
    # NumPy calls int64 to float64 safe, though it rounds beyond 2**53.
    rounds = source.kind in "iu" and dtype.kind in "fc"
    if source == dtype or (np.can_cast(source, dtype, "safe") and not rounds):
        return piece.astype(dtype, copy=False)
    if (source.kind == "c") != (dtype.kind == "c"):
        raise ValueError(f"{where()}: {source} cannot be converted to dtype={dtype}")
    with np.errstate(all="ignore"):
        cast = piece.astype(dtype)
        if dtype.kind in "iu" and source.kind in "iu":
            bounds = np.iinfo(dtype)
            if not piece.size or (piece.min() >= bounds.min and piece.max() <= bounds.max):
                return cast  # the tests below find the same in twice the time
        if dtype.kind in "fc" and source.kind in "fc":
            kept = np.isfinite(cast) | ~np.isfinite(piece)
        else:
            # Neither test is enough: uint8 200 survives the way to int8 and back, and an int64 that
            # float64 has rounded compares equal to it.
            kept = (cast == piece) & (cast.astype(source) == piece)
    if not kept.all():
        raise ValueError(f"{where()}: value {piece[~kept].flat[0]} does not fit dtype={dtype}")
    return cast


def _check_alike(pieces: Sequence[Piece], where: Where) -> None:
    if not pieces:
        raise ValueError("expected at least one sequence, found an empty batch")
    # Two sets for the good case; the loop that finds the entry at fault runs only in the bad one.
    if len({piece.dtype for piece in pieces}) == 1 == len({piece.shape[1:] for piece in pieces}):
        return
    first = pieces[0]
    for index, piece in enumerate(pieces):
        if piece.shape[1:] != first.shape[1:]:
            raise ValueError(
                f"{where(index)}: expected trailing dimensions {list(first.shape[1:])} as at entry 0, "
                f"found {list(piece.shape[1:])}; only the first dimension may differ"
                f"{squeeze_advice(first.shape, piece.shape)}"
            )
        if piece.dtype != first.dtype:
            raise ValueError(
                f"{where(index)}: expected dtype {first.dtype} as at entry 0, found {piece.dtype}; "
                "give the field a dtype, to which all of them are converted"
            )
