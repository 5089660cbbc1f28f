"""Which kind of image some bytes are, and how large: by their first bytes, without a decoder.

Layouts are those of the W3C's PNG (the IHDR chunk), ITU T.81 (the frame headers SOF0 to SOF15), GIF89a (the
logical screen), Google's WebP container, and Microsoft's BITMAPFILEHEADER.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

__all__ = ["Image", "image_of"]

# Markers of a JPEG that stand alone, and those of frame headers: SOF0 to SOF15 without DHT, JPG and DAC.
_ALONE = {0x01, *range(0xD0, 0xD9)}
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}


class Image(NamedTuple):
    """An image.

    Attributes:
        kind: ``jpeg``, ``png``, ``gif``, ``webp`` or ``bmp``.
        width: In pixels, as stored: a note of the camera's that it be turned is not heeded.
        height: In pixels.
    """

    kind: str
    width: int
    height: int


def image_of(content: bytes) -> Image | None:
    """The image that some bytes are; None if they are none, or are cut before their size is told."""
    try:
        if content[:8] == b"\x89PNG\r\n\x1a\n" and content[12:16] == b"IHDR":
            return Image("png", *struct.unpack_from(">II", content, 16))
        if content[:2] == b"\xff\xd8":
            return _jpeg(content)
        if content[:6] in (b"GIF87a", b"GIF89a"):
            return Image("gif", *struct.unpack_from("<HH", content, 6))
        if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
            return _webp(content)
        if content[:2] == b"BM" and content[14:18] == b"\x28\0\0\0":
            width, height = struct.unpack_from("<ii", content, 18)
            return Image("bmp", width, abs(height))  # negative: the first row is the top one
    except (struct.error, IndexError):
        pass
    return None


def _jpeg(content: bytes) -> Image | None:
    at = 2
    while content[at] == 0xFF:
        marker = content[at + 1]
        if marker in _FRAMES:
            height, width = struct.unpack_from(">HH", content, at + 5)
            return Image("jpeg", width, height)
        if marker == 0xFF:  # fill bytes may stand before a marker
            at += 1
        elif marker in _ALONE:
            at += 2
        else:
            at += 2 + struct.unpack_from(">H", content, at + 2)[0]
    return None


def _webp(content: bytes) -> Image | None:
    kind = content[12:16]
    if kind == b"VP8X":
        width, height = (int.from_bytes(content[at : at + 3], "little") + 1 for at in (24, 27))
        return Image("webp", width, height) if len(content) >= 30 else None
    if kind == b"VP8L":
        bits = struct.unpack_from("<I", content, 21)[0]
        return Image("webp", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", content, 26)
        return Image("webp", width & 0x3FFF, height & 0x3FFF)
    return None
