"""Images that shards of MDS and LitData hold, as Pillow has them; imported where the first one is.

Files of images are opened, and not decoded: Pillow does that when their pixels are read, as it does for
readers that use the shards' own library.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

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


# Pillow picks the reader by content, and some readers run other programs (EPS runs Ghostscript).
_IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "PPM")


@contextmanager
def open_image(content: bytes, otherwise: str) -> Iterator[Any]:
    """An image that can be converted to 8 bits a channel without a loss.

    Args:
        content: Of its file.
        otherwise: What to do about one that cannot, for messages.

    Raises:
        ImportError: Pillow is not installed.
        ValueError: It has more bits.
        Exception: What Pillow raises of an image that is damaged, or too large.
    """
    with _pillow().open(io.BytesIO(content), formats=_IMAGE_FORMATS) as image:
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
    """``(3, H, W) uint8`` in RGB, as LitData has it; a JPEG turned as its Exif says."""
    with open_image(content, "read its bytes with decode=False") as image:
        from PIL import ImageOps

        upright = ImageOps.exif_transpose(image) if image.format == "JPEG" else image
        return np.array(upright.convert("RGB")).transpose(2, 0, 1).copy()


def decode_tiff(content: bytes) -> NDArray[Any]:
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
    array: NDArray[Any] = tifffile.imread(io.BytesIO(content))
    return array
