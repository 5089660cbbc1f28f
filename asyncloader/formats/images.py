"""Images that shards of MDS and LitData hold, as Pillow has them; imported where the first one is.

Files of images are opened, and not decoded: Pillow does that when their pixels are read, as it does for
readers that use the shards' own library.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import Any

__all__ = ["raw"]


# Columns of JPEG and PNG hold whatever their writer was given as bytes. Of other formats Pillow starts
# programs, or follows what they refer to. Those of the second row are only looked for where it is none of the
# first: Pillow imports all that it has for them.
_COMMON = ("JPEG", "PNG", "GIF", "BMP")
_OTHERS = ("WEBP", "TIFF")

# Of images without a pixel: Pillow takes eight bytes for each row, whatever is in it.
_MOST_EMPTY_SIDE = 64

# How many bytes a row takes of each mode, by how many pixels wide it is.
_BYTES_PER_PIXEL = {
    **dict.fromkeys(("L", "P"), 1),
    **dict.fromkeys(("LA", "La", "PA", "I;16", "I;16L", "I;16B", "I;16N"), 2),
    **dict.fromkeys(("RGB", "YCbCr", "LAB", "HSV"), 3),
    **dict.fromkeys(("RGBA", "RGBa", "RGBX", "CMYK", "I", "F"), 4),
}


def raw(content: bytes) -> Any:
    """An image as its pixels: width, height, length of the mode, mode, pixels.

    Raises:
        ValueError: They are not as many as the image claims.
    """
    if len(content) < 12:
        raise ValueError("it ends within the size of the image")
    width, height, mode_bytes = struct.unpack_from("<III", content)
    mode = str(content[12 : 12 + mode_bytes], "utf-8")
    pixels = content[12 + mode_bytes :]
    if mode == "1":
        wanted = (width + 7) // 8 * height
    elif mode in _BYTES_PER_PIXEL:
        wanted = width * height * _BYTES_PER_PIXEL[mode]
    else:
        raise ValueError(f"no image has the mode {mode[:20]!r}")
    if wanted != len(pixels):  # else Pillow makes room for what is claimed
        raise ValueError(
            f"an image of {width} x {height} pixels in {mode} takes {wanted} bytes, found {len(pixels)}"
        )
    if not wanted and max(width, height) > _MOST_EMPTY_SIDE:
        raise ValueError(f"an image of {width} x {height} has no pixel")
    return _pillow().frombytes(mode, (width, height), pixels)


def encoded(content: bytes) -> Any:
    """An image as a file; its pixels are decoded when somebody looks at them.

    Raises:
        ValueError: It is none that is read.
    """
    pillow = _pillow()
    try:
        try:
            return pillow.open(io.BytesIO(content), formats=_COMMON)
        except pillow.UnidentifiedImageError:
            pillow.init()
            others = [name for name in _OTHERS if name in pillow.OPEN]
            return pillow.open(io.BytesIO(content), formats=others)
    except Exception as error:  # of what is damaged, each of Pillow's readers raises what it likes
        raise ValueError(f"no image of {', '.join((*_COMMON, *_OTHERS))}") from error


def listed(make: Callable[[bytes], Any], content: bytes) -> list[Any]:
    """A list: four bytes that say nothing, how many, how long each is, and all of them end to end.

    Raises:
        ValueError: The lengths do not add up.
    """
    return [make(item) for item in _items(content, 4)]


def jpeg_array(make: Callable[[bytes], Any], content: bytes) -> list[Any]:
    """Images: how many, how long each is, and all of them end to end.

    Raises:
        ValueError: The lengths do not add up, or there is none.
    """
    items = _items(content, 0)
    if not items:
        raise ValueError("it has no image")
    return [make(item) for item in items]


def _items(content: bytes, at: int) -> list[bytes]:
    if len(content) < at + 4:
        raise ValueError("it ends before the number of its items")
    (count,) = struct.unpack_from("<I", content, at)
    at += 4
    if count > (len(content) - at) // 4:
        raise ValueError(f"it claims {count} items, more than it has room for")
    lengths = struct.unpack_from(f"<{count}I", content, at)
    at += 4 * count
    if at + sum(lengths) != len(content):
        raise ValueError(
            f"its {count} items take {sum(lengths)} bytes by their lengths, found {len(content) - at}"
        )
    items = []
    for length in lengths:
        items.append(content[at : at + length])
        at += length
    return items


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("images of MDS are read with Pillow: pip install asyncloader[images]") from error
    return Image
