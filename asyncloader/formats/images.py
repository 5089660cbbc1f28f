"""Images in shards of MDS and LitData, as Pillow's images; Pillow is imported with the first one.

Image files are opened, not decoded: Pillow decodes them when their pixels are read, as it also does for the
libraries that wrote the shards.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Columns of JPEG and PNG hold whatever bytes their writer was given. For some other formats Pillow starts
# programs, or follows references. For the last two it imports all its plugins, if it is none of the others.
_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF")

# For images without a pixel: Pillow allocates eight bytes for each row, even of no pixels.
_MOST_EMPTY_SIDE = 64

# How many bytes a pixel takes in each mode.
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
    if wanted != len(pixels):  # otherwise Pillow allocates what is claimed
        raise ValueError(
            f"an image of {width} x {height} pixels in {mode} takes {wanted} bytes, found {len(pixels)}"
        )
    if not wanted and max(width, height) > _MOST_EMPTY_SIDE:
        raise ValueError(f"an image of {width} x {height} has no pixel")
    return _pillow().frombytes(mode, (width, height), pixels)


def encoded(content: bytes) -> Any:
    """An image file; its pixels are decoded when they are read.

    Raises:
        ValueError: It has no supported format.
    """
    pillow = _pillow()
    try:
        return pillow.open(io.BytesIO(content), formats=_FORMATS)
    except Exception as error:  # Pillow's readers raise any type for damaged files
        raise ValueError(f"no image of {', '.join(_FORMATS)}") from error


def listed(make: Callable[[bytes], Any], content: bytes) -> list[Any]:
    """A list: four unused bytes, the number of items, their lengths, and the items end to end.

    Raises:
        ValueError: The lengths do not add up.
    """
    return [make(item) for item in _items(content, 4)]


def jpeg_array(make: Callable[[bytes], Any], content: bytes) -> list[Any]:
    """Images: their number, their lengths, and the images end to end.

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


# Pillow chooses the reader by content, and some readers run other programs (EPS runs Ghostscript).
_IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "PPM")


@contextmanager
def open_image(content: bytes, otherwise: str) -> Iterator[Any]:
    """An image that can be converted to 8 bits a channel without a loss.

    Args:
        content: The content of its file.
        otherwise: What to do about an image with more bits, for messages.

    Raises:
        ImportError: Pillow is not installed.
        ValueError: It has more bits, or no supported format.
        Exception: What Pillow raises for a damaged or too large image.
    """
    pillow = _pillow()
    try:
        opened = pillow.open(io.BytesIO(content), formats=_IMAGE_FORMATS)
    except pillow.UnidentifiedImageError as error:  # Pillow's message has the address of the buffer
        what = f"{len(content)} bytes that begin with {content[:8]!r}" if content else "0 bytes"
        raise ValueError(f"no image of {', '.join(_IMAGE_FORMATS)}, but {what}") from error
    with opened as image:
        if image.mode.startswith(("I", "F")):  # Pillow would clip, not scale
            raise ValueError(f"mode {image.mode} has more than 8 bits a channel; {otherwise}")
        yield image


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("decoding images needs Pillow: pip install asyncloader[images]") from error
    return Image


def decode_image(content: bytes) -> NDArray[Any]:
    """``(3, H, W) uint8`` in RGB, as LitData decodes it; a JPEG is turned by its Exif orientation."""
    with open_image(content, "read its bytes with decode=False") as image:
        from PIL import ImageOps

        upright = ImageOps.exif_transpose(image) if image.format == "JPEG" else image
        return np.array(upright.convert("RGB")).transpose(2, 0, 1).copy()


def decode_tiff(content: bytes) -> NDArray[Any]:
    """The array that ``tifffile.imread`` reads.

    Raises:
        ImportError: tifffile is not installed.
        Exception: What tifffile raises for a damaged image.
    """
    try:
        import tifffile
    except ImportError as cause:
        raise ImportError(
            "decoding TIFF images needs tifffile: pip install tifffile; or read their bytes with decode=False"
        ) from cause
    array: NDArray[Any] = tifffile.imread(io.BytesIO(content))
    return array
