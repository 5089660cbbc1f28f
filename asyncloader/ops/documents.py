"""Documents: sequences of numbers in one field or several alike, end to end, as packing takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..blocks import Block, Column, Ragged, offsets_of
from ..collate.advice import fill_advice, squeeze_advice
from ..collate.pad_field import PadField
from ..collate.ragged import exact_fill, to_arrays, to_pieces

__all__ = ["DocumentReader", "Documents"]


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents of a block.

    Attributes:
        values: For each field the values of all of them, end to end: ``(m, ...)``.
        offsets: ``(n + 1,) int64``: document ``i`` is ``values[offsets[i]:offsets[i + 1]]`` in each.
    """

    values: tuple[NDArray[Any], ...]
    offsets: NDArray[np.int64]


@dataclass(slots=True)
class DocumentReader:
    """Reads documents out of blocks, and sees to it that those of all blocks are alike.

    Args:
        fields: Which they are: what each is filled up with, and its dtype, None for that of the data.
        most: How many tokens a document may have; None for any number.
    """

    fields: Mapping[str, PadField]
    most: int | None = None
    _seen: dict[str, NDArray[Any]] = field(default_factory=dict)

    def read(self, block: Block) -> Iterator[tuple[Block, Documents]]:
        """The documents of a block: all at once, or one by one up to the first that cannot be packed.

        Raises:
            ValueError: A field is missing, no sequence of numbers, of another length than the first field,
                or of another dtype or trailing dimensions than before; or a document is too long. Says of
                which sample.
        """
        try:
            whole = self._read(block)
        except ValueError:
            # What comes before the bad one is good, and may complete a batch.
            for index in range(len(block)):
                part = block.part(index, index + 1)
                yield part, self._read(part)
            raise
        yield block, whole

    def _read(self, block: Block) -> Documents:

        def where(index: int) -> str:
            return f"field {name!r} of {block.trail.place(index)}"

        values: list[NDArray[Any]] = []
        first: NDArray[np.int64] | None = None
        for name, how in self.fields.items():
            inside, offsets = _end_to_end(_column(block, name), how.dtype, where)
            if first is None:
                first = offsets
            elif (unlike := np.flatnonzero(np.diff(first) != np.diff(offsets))).size:
                at, other = int(unlike[0]), next(iter(self.fields))
                raise ValueError(
                    f"{where(at)}: expected the length {np.diff(first)[at]} of field {other!r}, "
                    f"found {np.diff(offsets)[at]}; fields that are packed together go along token by token"
                )
            values.append(self._like_before(name, inside, lambda: where(0)))
        assert first is not None
        if self.most is not None and (above := np.flatnonzero(np.diff(first) > self.most)).size:
            at = int(above[0])
            raise ValueError(
                f"{where(at)}: expected at most {self.most} tokens, found {np.diff(first)[at]}; filter such "
                "documents out, or cut them with overlong='split' or 'truncate'"
            )
        return Documents(tuple(values), first)

    def _like_before(self, name: str, values: NDArray[Any], where: Callable[[], str]) -> NDArray[Any]:
        """Refuse another dtype than that of the documents before; none at all has no dtype."""
        if not len(values):
            return values
        if name not in self._seen:
            value = self.fields[name].value
            try:
                exact_fill(value, values.dtype)
            except ValueError as error:
                raise ValueError(f"{where()}: {error}; {fill_advice(value, values.dtype)}") from None
            self._seen[name] = np.empty((0, *values.shape[1:]), values.dtype)
        seen = self._seen[name]
        if seen.shape[1:] != values.shape[1:]:
            raise ValueError(
                f"{where()}: expected the shape {_shape_of(seen)} as in the documents before, found "
                f"{values.shape}; only the first dimension may differ{squeeze_advice(values.shape)}"
            )
        if seen.dtype != values.dtype:
            raise ValueError(
                f"{where()}: expected tokens of dtype {seen.dtype} as in the documents before, found "
                f'{values.dtype}; give Pack({{"{name}": {{"dtype": "{seen.dtype}"}}}}), which converts '
                "all of them"
            )
        return values


def _end_to_end(
    column: Column, dtype: Any, where: Callable[[int], str]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """A column of sequences of numbers as one array, of the dtype if given, and their offsets in it."""
    if isinstance(column, np.ndarray) and column.ndim > 1:
        column = Ragged.of(column)
    if isinstance(column, Ragged) and isinstance(column.flat, np.ndarray):
        (values,) = to_pieces([column.flat], dtype, lambda _: where(0))
        return values, column.offsets - column.offsets[0]
    arrays = to_arrays(list(column), where)
    # Without the empty ones, which have no token of any dtype: in a block of their own nothing is held
    # against them either, and what is packed must not depend on how the stream was cut into blocks.
    full = [index for index, array in enumerate(arrays) if len(array)]
    pieces = to_pieces([arrays[index] for index in full], dtype, lambda nth: where(full[nth])) if full else []
    return np.concatenate(pieces or arrays[:1]), offsets_of([len(array) for array in arrays])


def _shape_of(document: NDArray[Any]) -> str:
    """``(T, 80)``: its trailing dimensions behind the one that differs."""
    return f"({', '.join(['T', *map(str, document.shape[1:])])}{',' if document.ndim == 1 else ''})"


def _column(block: Block, name: str) -> Column:
    try:
        return block.column(name)
    except KeyError as error:
        raise ValueError(error.args[0]) from None
    except TypeError:
        kinds = " and ".join(sorted({type(sample).__name__ for sample in block.rows()}))
        raise ValueError(
            f"expected samples that are mappings with a field {name!r}, found {kinds} from "
            f"{block.trail.place(0)} on"
        ) from None
