"""Files of media that are values, decoded: images to the arrays that LitData's own reader has.

What the files hold is decoded one sample at a time, apart from the reading, so that it can be done on
threads.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...errors import FormatError
from ..fields import open_image
from .tree import Tree

__all__ = ["MediaDecoder", "decoder_of"]

_Array: TypeAlias = NDArray[Any]
_Decode: TypeAlias = Callable[[Any], Any]


def decode_image(content: bytes) -> _Array:
    """``(3, H, W) uint8`` in RGB, as LitData has it; a JPEG turned as its Exif says."""
    with open_image(content, "read its bytes with decode=False") as image:
        from PIL import ImageOps

        upright = ImageOps.exif_transpose(image) if image.format == "JPEG" else image
        return np.array(upright.convert("RGB")).transpose(2, 0, 1).copy()


def decode_images(content: bytes) -> list[_Array]:
    """A list of what ``decode_image`` makes of several.

    Raises:
        ValueError: Their number and sizes do not fit the bytes there are.
    """
    count = int.from_bytes(content[:4], "little")
    begin = 4 + 4 * count
    if not count > 0 or begin > len(content):
        raise ValueError(f"{count} images do not fit into {len(content)} bytes")
    ends = begin + np.cumsum(np.frombuffer(content[4:begin], "<u4"), dtype=np.int64)
    if ends[-1] != len(content):
        raise ValueError(f"{count} images are to end at byte {ends[-1]} of {len(content)}")
    starts = [begin, *ends[:-1].tolist()]
    return [decode_image(content[start:end]) for start, end in zip(starts, ends.tolist(), strict=True)]


def decode_tiff(content: bytes) -> _Array:
    """What ``tifffile.imread`` reads.

    Raises:
        ImportError: tifffile is not installed.
        Exception: What it raises of an image that is damaged.
    """
    try:
        import tifffile
    except ImportError as cause:
        raise ImportError(
            "decoding TIFF images needs tifffile: pip install tifffile; or read their bytes with decode=False"
        ) from cause
    array: _Array = tifffile.imread(io.BytesIO(content))
    return array


_DECODE: Mapping[str, Callable[[bytes], Any]] = MappingProxyType(
    {
        "jpeg": decode_image,
        "image": decode_image,
        "jpeg_array": decode_images,
        "tifffile": decode_tiff,
        "tiff": decode_tiff,
    }
)


class MediaDecoder:
    """Decodes the images of a sample, wherever they nest in it.

    Args:
        tree: Of the samples.
        leaves: The serializer of each value.
        columns: The fields that samples have; None for all.
    """

    def __init__(self, tree: Tree, leaves: tuple[str, ...], columns: tuple[str, ...] | None) -> None:
        rest = iter(leaves)
        found = [(name, _decode_of(child, rest)) for name, child in tree.fields]
        # Only those with images in them, each with the function that makes it anew.
        self._decode = {
            name: decode
            for name, decode in found
            if decode is not None and (columns is None or name in columns)
        }

    @property
    def fields(self) -> tuple[str, ...]:
        """Those with images in them."""
        return tuple(self._decode)

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """A new sample with the same fields.

        Raises:
            FormatError: One does not decode; the message names the field.
            ImportError: A package is not installed.
        """
        decoded = dict(sample)
        for name, decode in self._decode.items():
            try:
                decoded[name] = decode(sample[name])
            except (ImportError, MemoryError):
                raise
            except Exception as cause:
                what = f"{type(cause).__name__}: {cause}"
                raise FormatError(f"litdata: field {name!r} cannot be decoded: {what}") from cause
        return decoded


def decoder_of(
    tree: Tree, leaves: tuple[str, ...], columns: tuple[str, ...] | None = None
) -> MediaDecoder | None:
    """What decodes the images of samples; None if they have none."""
    decoder = MediaDecoder(tree, leaves, columns)
    return decoder if decoder.fields else None


def _decode_of(tree: Tree, leaves: Iterator[str]) -> _Decode | None:
    """What makes a value of a sample anew; None where it holds no image."""
    if tree.kind == "leaf":
        decode = _DECODE.get(next(leaves).partition(":")[0])
        return None if decode is None else partial(_decode_bytes, decode)
    children = [_decode_of(child, leaves) for child in tree.children]
    if not any(children):
        return None
    return partial(_decode_dict if tree.kind == "dict" else _decode_sequence, children)


def _decode_bytes(decode: _Decode, value: Any) -> Any:
    # Rows of Arrow hold what the writer was given: of an image its path, of which nothing is opened.
    return decode(value) if isinstance(value, bytes) else value


def _decode_dict(children: Sequence[_Decode | None], value: Mapping[str, Any]) -> dict[str, Any]:
    entries = zip(value.items(), children, strict=True)
    return {name: entry if decode is None else decode(entry) for (name, entry), decode in entries}


def _decode_sequence(children: Sequence[_Decode | None], value: Sequence[Any]) -> Any:
    decoded = [
        entry if decode is None else decode(entry) for entry, decode in zip(value, children, strict=True)
    ]
    return tuple(decoded) if isinstance(value, tuple) else decoded
