"""What the bytes of a value are, by the name of its serializer, which ``data_format`` of an index has.

``int``, ``float`` and ``bool`` are arrays, ``str`` and ``text`` strings, ``json`` what JSON has, arrays and
tensors NumPy's, ``pil`` images Pillow's. Media are the bytes of their file; ``media`` decodes images of them.
Nothing is unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...blocks import Column
from ...errors import FormatError
from ..mds.images import raw as raw_image
from .arrays import flat_array, flat_dtype, flat_dtypes, header_array, numpy_dtypes, torch_dtypes
from .json_values import decode_json
from .run import Leaf, Values, rows_of

__all__ = ["leaf_of"]


def _number(dtype: str, values: Values) -> Column:
    size = np.dtype(dtype).itemsize
    values.check(values.lengths == size, f"{size} bytes")
    numbers: NDArray[Any] = values.gather(size).view(np.dtype(dtype))[:, 0]
    return numbers


def _flags(values: Values) -> Column:
    values.check(values.lengths == 1, "1 byte")
    flags: NDArray[np.bool_] = values.gather(1)[:, 0] != 0
    return flags


def _texts(values: Values) -> Column:
    return rows_of(values, _text)


def _text(content: bytes) -> str:
    return str(content, "utf-8")


_LEAVES: Mapping[str, Leaf] = MappingProxyType(
    {
        "int": partial(_number, "<i8"),
        "float": partial(_number, "<f8"),
        "bool": _flags,
        "str": _texts,
        "text": _texts,
        "json": partial(rows_of, decode=decode_json),
        "pil": partial(rows_of, decode=raw_image),
        "numpy": header_array("<", numpy_dtypes),
        "tensor": header_array(">", torch_dtypes),
        **dict.fromkeys(
            [
                "bytes",
                "file",
                "jpeg",
                "jpeg_array",
                "image",
                "tifffile",
                "tiff",
                "video",
                "audio",
                "nifti",
                "mesh",
                "pdf",
            ],
            Values.bytes,
        ),
    }
)

# Those that run whatever code a chunk's author has put into it.
_PICKLES = ("pickle", "graph")


def leaf_of(name: str) -> Leaf:
    """What reads values of a serializer.

    Args:
        name: As ``data_format`` has it, with a parameter behind a colon: ``"file:mp3"``,
            ``"no_header_tensor:17"``.

    Raises:
        FormatError: It holds pickles, or is not known.
    """
    kind = name.partition(":")[0]
    if kind in _PICKLES:
        raise FormatError(
            f"litdata: samples hold values of the serializer {kind!r}, which are pickles: reading them would "
            "run whatever code is in the chunks; write the chunks anew with values that have a serializer "
            "(arrays, numbers, strings, bytes, lists and dicts of such)"
        )
    if kind in flat_dtypes:
        return flat_array(flat_dtype(name))
    if kind not in _LEAVES:
        raise FormatError(
            f"litdata: expected values of one of the serializers {', '.join((*_LEAVES, *flat_dtypes))}, "
            f"found {kind[:80]!r}; write the chunks anew without a serializer of your own"
        )
    return _LEAVES[kind]
