"""Images by their headers."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from asyncloader.cli.head import image_of

KINDS = {
    "jpeg": [{}, {"progressive": True}, {"exif": b"Exif\0\0" + bytes(3000)}],
    "png": [{}],
    "gif": [{}],
    "webp": [{"lossless": True}, {"quality": 50}, {"exif": b"Exif\0\0" + bytes(30)}],
    "bmp": [{}],
}


def encoded(kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (301, 17), (9, 80, 200)).save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("kind", KINDS)
def test_kind_and_size_are_those_that_pillow_has_written(kind: str) -> None:
    for options in KINDS[kind]:
        assert image_of(encoded(kind, **options)) == (kind, 301, 17), options


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_image_is_told_or_is_none_and_never_an_error(kind: str) -> None:
    for options in KINDS[kind]:
        content = encoded(kind, **options)
        for length in range(len(content)):
            assert image_of(content[:length]) in (None, (kind, 301, 17))


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"\xff\xd8", b"\xff\xd8\xff\xe0\0\0" * 3, b"RIFF1234WEBPVP8?"]
)
def test_other_bytes_are_no_image(content: bytes) -> None:
    assert image_of(content) is None
