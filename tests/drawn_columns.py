"""Hypothesis draws columns of every kind, and blocks of them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st

from asyncloader.blocks import Column, Columns, OffsetTrail, Ragged

__all__ = ["arrays", "column_lists", "columns", "plain", "ragged"]

DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")


@st.composite
def arrays(draw: st.DrawFn, count: int, dtypes: tuple[str, ...] = DTYPES, most_inner: int = 2) -> Any:
    """``(count, ...)``, now and then read-only or a view with strides."""
    inner = draw(st.lists(st.integers(0, 3), max_size=most_inner))
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    size = count * int(np.prod(inner))
    start = draw(st.integers(0, 5))
    array = (np.arange(start, start + size) % 7).astype(dtype).reshape(count, *inner)
    if draw(st.booleans()):
        array = np.repeat(array, 2, axis=0)[::2]
    if draw(st.booleans()):
        array.flags.writeable = False
    return array


@st.composite
def ragged(draw: st.DrawFn, count: int, depth: int = 2, dtypes: tuple[str, ...] = DTYPES) -> Ragged:
    """``count`` sequences, with values before the first and behind the last."""
    lengths = draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    before, behind = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    offsets = np.cumsum([before, *lengths])
    total = int(offsets[-1]) + behind
    kinds = [arrays(total, dtypes, 1), st.just([f"word {index}" for index in range(total)])]
    if depth > 1:
        kinds.append(ragged(total, depth - 1, dtypes))
    return Ragged(draw(st.one_of(kinds)), offsets)


def columns_of_kinds(count: int) -> st.SearchStrategy[Column]:
    lists = st.lists(
        st.one_of(st.text("abc", max_size=3), st.binary(max_size=3)), min_size=count, max_size=count
    )
    return st.one_of(arrays(count), ragged(count), lists)


@st.composite
def columns(draw: st.DrawFn, count: int | None = None, first: int = 0) -> Columns:
    """A block of up to a dozen samples with one to three fields."""
    if count is None:
        count = draw(st.integers(0, 12))
    names = draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True))
    fields = {name: draw(columns_of_kinds(count)) for name in names}
    return Columns(fields, OffsetTrail(first, None))


@st.composite
def column_lists(draw: st.DrawFn) -> list[Columns]:
    """One block of columns, cut into several; none of them is empty."""
    whole = draw(columns(draw(st.integers(1, 12))))
    edges = sorted(draw(st.sets(st.integers(1, max(1, len(whole) - 1)), max_size=3)))
    edges = [0, *(edge for edge in edges if edge < len(whole)), len(whole)]
    return [whole.part(start, stop) for start, stop in pairwise(edges)]


def plain(value: Any) -> Any:
    """A value as Python objects and dtypes, so that two can be compared exactly."""
    if isinstance(value, Ragged):
        return ("Ragged", [plain(sequence) for sequence in value])
    if isinstance(value, np.ndarray | np.generic):
        return (value.dtype.str, value.shape, value.tolist())
    if isinstance(value, list):
        return [plain(element) for element in value]
    if isinstance(value, dict):
        return {name: plain(field) for name, field in value.items()}
    return value
