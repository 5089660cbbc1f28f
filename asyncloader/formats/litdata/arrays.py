"""Arrays and tensors: with a header of dtype and shape each, or without, where the index has the dtype.

The dtypes have numbers, which never change: they are in every chunk.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import partial
from math import prod
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...blocks import Column, Ragged, offsets_of
from ...errors import FormatError
from .run import Leaf, Values

__all__ = ["flat_array", "flat_dtype", "flat_dtypes", "header_array", "numpy_dtypes", "torch_dtypes"]

Dtypes: TypeAlias = Mapping[int, np.dtype[np.generic]]

_NAMES = "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128 bool"
numpy_dtypes: Dtypes = MappingProxyType(
    {number: np.dtype(name) for number, name in enumerate(_NAMES.split())}
)
# Some twice, since torch has two names for them; 10 is bfloat16, which their writer cannot write.
_TORCH = {
    "float32": (0, 1),
    "float64": (2, 3),
    "complex64": (4, 5),
    "complex128": (6, 7),
    "float16": (8, 9),
    "uint8": (11,),
    "int8": (12,),
    "int16": (13, 14),
    "int32": (15, 16),
    "int64": (17, 18),
    "bool": (19,),
    "uint16": (20,),
}
torch_dtypes: Dtypes = MappingProxyType(
    {number: np.dtype(name) for name, numbers in _TORCH.items() for number in numbers}
)

#: Of serializers of arrays without a header: their names end with the number.
flat_dtypes = MappingProxyType({"no_header_numpy": numpy_dtypes, "no_header_tensor": torch_dtypes})

_MOST_DIMENSIONS = 32
# Of a block's 1,024 arrays, of 16 bytes a value, as many bytes as NumPy counts.
_MOST_VALUES = 1 << 48


def flat_array(dtype: np.dtype[np.generic]) -> Leaf:
    """Reads arrays of one dimension: nothing but their values."""
    return partial(_flat, dtype)


def _flat(dtype: np.dtype[np.generic], values: Values) -> Column:
    lengths = values.lengths
    values.check(lengths % dtype.itemsize == 0, f"whole values of {dtype}")
    if len(lengths) and (lengths == lengths[0]).all():
        flat = values.gather(int(lengths[0])).reshape(-1)
    else:
        flat = values.joined()
    return Ragged.over(_typed(flat, dtype), offsets_of(lengths // dtype.itemsize))


def _typed(flat: NDArray[np.uint8], dtype: np.dtype[np.generic]) -> NDArray[Any]:
    # Bytes other than 0 and 1 are no bools to NumPy, and what it makes of them is not defined.
    return flat != 0 if dtype == np.bool_ else flat.view(dtype)


def header_array(byte_order: str, dtypes: Dtypes) -> Leaf:
    """Reads arrays that begin with the number of their dtype, of their dimensions, and these.

    Args:
        byte_order: Of the header: ``"<"`` or ``">"``, which may be ``"<"`` all the same. The values are
            little-endian.
        dtypes: By number.
    """
    return partial(_with_headers, byte_order, dtypes)


def _with_headers(byte_order: str, dtypes: Dtypes, values: Values) -> Column:
    if not len(values):
        return []
    run = values.run
    starts, lengths = values.starts.tolist(), values.lengths.tolist()
    dtype, shape = _header(byte_order, dtypes, run[starts[0] : starts[0] + lengths[0]])
    header_bytes = 8 + 4 * len(shape)
    if (values.lengths == lengths[0]).all():
        headers = values.gather(header_bytes)
        if (headers == headers[0]).all():
            flat = values.gather(lengths[0] - header_bytes, header_bytes).reshape(-1)
            return _typed(flat, dtype).reshape(len(values), *shape)
    arrays = []
    for start, length in zip(starts, lengths, strict=True):
        content = run[start : start + length]
        dtype, shape = _header(byte_order, dtypes, content)
        flat = np.frombuffer(content, np.uint8)[8 + 4 * len(shape) :].copy()
        arrays.append(_typed(flat, dtype).reshape(shape))
    return arrays


def _header(
    byte_order: str, dtypes: Dtypes, content: bytes | memoryview
) -> tuple[np.dtype[np.generic], tuple[int, ...]]:
    """Dtype and shape of an array, held against its length."""
    try:
        number, dimensions = struct.unpack_from(f"{byte_order}II", content)
        if dimensions > _MOST_DIMENSIONS and byte_order == ">":
            # As older releases have written tensors. No number is small in both orders.
            byte_order = "<"
            number, dimensions = struct.unpack_from("<II", content)
        if dimensions > _MOST_DIMENSIONS:
            raise FormatError(
                f"litdata: damaged: an array of {dimensions} dimensions, at most {_MOST_DIMENSIONS}"
            )
        shape = struct.unpack_from(f"{byte_order}{dimensions}I", content, 8)
    except struct.error as error:
        raise FormatError(f"litdata: damaged: {len(content)} bytes are no array with a header") from error
    dtype = dtypes.get(number)
    if dtype is None:
        raise FormatError(f"litdata: damaged: there is no dtype with the number {number}")
    wanted = 8 + 4 * dimensions + dtype.itemsize * prod(shape)
    # NumPy has no room for more, not even where another dimension is 0.
    if prod(max(size, 1) for size in shape) > _MOST_VALUES:
        raise FormatError(f"litdata: damaged: no array has the shape {shape}")
    if wanted != len(content):
        raise FormatError(
            f"litdata: damaged: an array {shape} of {dtype} takes {wanted} bytes, found {len(content)}"
        )
    return dtype, shape


def flat_dtype(name: str) -> np.dtype[np.generic]:
    """The dtype that such a format names, as ``no_header_numpy:3``.

    Raises:
        FormatError: It names none.
    """
    kind, _, number = name.partition(":")
    known = {str(key): dtype for key, dtype in flat_dtypes.get(kind, {}).items()}
    if number not in known:
        raise FormatError(
            f"litdata: index.json: config.data_format: expected {' or '.join(flat_dtypes)} with the number "
            f"of a dtype, found {name[:80]!r}"
        )
    return known[number]
