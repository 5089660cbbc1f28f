"""The encodings of MDS by name: what the bytes of a column's values are."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from math import prod
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...blocks import Column, Objects
from ...errors import FormatError
from ..offsets.values import values_of
from . import images
from .arrays import DTYPES, arrays_of, fixed_of

__all__ = ["MOST_BYTES", "Encoding", "Places", "encoding_of"]

Places: TypeAlias = NDArray[np.int64]
"""Where in a run each value begins, or where it ends: ``(n,) int64``."""

# What it decodes is what json.loads makes of it; what it refuses is json's to judge.
_JSON: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


class Encoding(NamedTuple):
    """How the values of a column are read.

    Attributes:
        name: As shards name it.
        size: Bytes of each value; None if they have unequal lengths.
        decode: Makes the column of a run, and of where its values begin and end. Raises ValueError.
    """

    name: str
    size: int | None
    decode: Callable[[bytes | memoryview, Places, Places], Column]


def encoding_of(name: str, column: str, decode: bool = True) -> Encoding:
    """The encoding of a column.

    Args:
        name: As the shard has it.
        column: For messages.
        decode: Whether images are opened, of those that are files.

    Raises:
        FormatError: It is not known, or may run anything.
    """
    why = "it is not known"
    try:
        if (found := _find(name, decode)) is not None:
            return found
    except ValueError as error:
        why = str(error)
    if name == "pkl":
        why = (
            "a pickle may run any code when it is read, so none is. Name the other columns with columns=, or "
            "write the data set again with that column as json, bytes or ndarray"
        )
    raise FormatError(f"mds: column {column!r} has the encoding {name[:80]!r}, which is not read: {why}")


def _find(name: str, decode: bool) -> Encoding | None:
    kind, _, config = name.partition(":")
    if kind == "ndarray":
        return _ndarray(name, config)
    if kind in _SCALARS and not config:
        dtype = np.dtype(kind).newbyteorder("<")
        return Encoding(name, dtype.itemsize, partial(fixed_of, dtype, ()))
    if name == "int":
        return Encoding(name, 8, _integers)
    make = (_VARIABLE if decode else _VARIABLE | _FILES).get(name)
    return None if make is None else Encoding(name, None, make)


_SCALARS = frozenset(DTYPES.values())
_SHAPE = re.compile(r"[1-9]\d{0,9}(,[1-9]\d{0,9})*")
#: No shard is longer, so no value of it.
MOST_BYTES = 1 << 32


def _ndarray(name: str, config: str) -> Encoding:
    """Those with a dtype and a shape, a dtype alone, or neither of them in the name."""
    kind, _, shape_text = config.partition(":")
    if kind and kind not in _SCALARS:
        raise ValueError(f"{kind[:80]!r} is not one of {', '.join(DTYPES.values())}")
    dtype = np.dtype(kind).newbyteorder("<") if kind else None
    if not shape_text:
        return Encoding(name, None, partial(arrays_of, dtype))
    if dtype is None or _SHAPE.fullmatch(shape_text) is None:
        raise ValueError(f"{shape_text[:80]!r} behind {kind!r} is not a shape")
    shape = tuple(map(int, shape_text.split(",")))
    if len(shape) > _MOST_AXES or (size := prod(shape) * dtype.itemsize) > MOST_BYTES:
        raise ValueError(f"{shape_text[:80]} is larger than any shard")
    return Encoding(name, size, partial(fixed_of, dtype, shape))


_MOST_AXES = 63  # more are not written


def _integers(run: bytes | memoryview, starts: Places, stops: Places) -> Column:
    # Python's own, as the shards' library has them.
    return Objects(fixed_of(np.dtype("<i8"), (), run, starts, stops).tolist())


def _each(make: Callable[[bytes], Any], run: bytes | memoryview, starts: Places, stops: Places) -> Column:
    return Objects(map(make, values_of(run, starts, stops)))


def _texts(run: bytes | memoryview, starts: Places, stops: Places) -> Column:
    edges = zip(starts.tolist(), stops.tolist(), strict=True)
    return [str(run[start:stop], "utf-8") for start, stop in edges]


def _decimal(text: bytes) -> Decimal:
    return Decimal(str(text, "utf-8"))


def _json(text: bytes) -> Any:
    try:
        return _JSON.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return json.loads(str(text, "utf-8"))


_VARIABLE: dict[str, Callable[[bytes | memoryview, Places, Places], Column]] = {
    "bytes": values_of,
    "str": _texts,
    "str_int": partial(_each, lambda text: int(str(text, "utf-8"))),
    "str_float": partial(_each, lambda text: float(str(text, "utf-8"))),
    "str_decimal": partial(_each, _decimal),
    "json": partial(_each, _json),
    "pil": partial(_each, images.raw),
    "jpeg": partial(_each, images.encoded),
    "png": partial(_each, images.encoded),
    "jpegarray": partial(_each, partial(images.jpeg_array, images.encoded)),
    "jpeg_array": partial(_each, partial(images.jpeg_array, images.encoded)),
    "list[pil]": partial(_each, partial(images.listed, images.raw)),
    "list[jpeg]": partial(_each, partial(images.listed, images.encoded)),
    "list[png]": partial(_each, partial(images.listed, images.encoded)),
}
# Of images that are files, their bytes; pixels alone are no file.
_FILES: dict[str, Callable[[bytes | memoryview, Places, Places], Column]] = {
    **dict.fromkeys(("jpeg", "png"), values_of),
    **dict.fromkeys(("jpegarray", "jpeg_array"), partial(_each, partial(images.jpeg_array, bytes))),
    **dict.fromkeys(("list[jpeg]", "list[png]"), partial(_each, partial(images.listed, bytes))),
}
