"""``asyncloader head``: show the first samples of shards."""

from __future__ import annotations

import argparse
import json
import warnings
from codecs import getincrementaldecoder
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from io import BytesIO
from typing import Any

import numpy as np

from ..blocks import Ragged, bytes_of
from ..errors import FormatError
from ..formats.npy import parse_header
from ..quantity import bytes_text as size_of
from ..quantity import clip
from .arguments import add_columns, add_shards, open_dataset
from .printing import counted, print_json, print_lines, print_table

# Previews of values: kind, dtype, shape, size, beginning. Pure; nothing is decoded. An image is recognized
# by its header if Pillow is installed; otherwise it is bytes.

# A line of a terminal, behind the name of the field.
_MOST_CHARACTERS = 60
# Values of a sequence, and bytes of a text, to look at: as many as fit in a line.
_MOST_VALUES = 8
_MOST_BYTES = 4 * _MOST_CHARACTERS

_IMAGES = ("JPEG", "PNG", "GIF", "WEBP", "BMP")


def image_of(content: bytes) -> tuple[str, int, int] | None:
    """What image some bytes are, by their header.

    Returns:
        ``jpeg``, ``png``, ``gif``, ``webp`` or ``bmp``, with width and height in pixels as stored, whatever
        the camera has noted about turning it. None if the bytes are no image or cut, and without Pillow.
    """
    try:
        from PIL import Image as pillow

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about its size, which is not going to be decoded
            with pillow.open(BytesIO(content), formats=_IMAGES) as image:
                return str(image.format).lower(), *image.size
    except Exception:  # Pillow raises many types for bytes that are not an image
        return None


@dataclass(frozen=True)
class Preview:
    """A description of a field's value.

    Attributes:
        kind: ``bytes``, ``text``, ``array``, ``list``, ``object``, ``number``, ``bool``, ``null``; that of
            an image; ``npy``; otherwise the name of the type.
        dtype: Of an array, or the common type of a list's values, such as ``int``; otherwise None.
        shape: Of an array; height and width of an image; the length of a list or an object; otherwise None.
        size_bytes: Of the value, without containers, as in ``Statistics.size_bytes``.
        beginning: Its first values or characters, in a line; empty for an image and other bytes.
    """

    kind: str
    dtype: str | None
    shape: tuple[int, ...] | None
    size_bytes: int
    beginning: str


def preview_sample(sample: Any) -> dict[str, Preview]:
    """A preview of each field; a sample that is not a mapping is one field with an empty name.

    Names may contain control characters: print them with ``printable``.
    """
    fields = sample if isinstance(sample, Mapping) else {"": sample}
    return {str(name): preview_field(value) for name, value in fields.items()}


def preview_field(value: Any) -> Preview:
    """A preview of one value. Nothing is decoded: an image is recognized by its header."""
    if isinstance(value, bytes | bytearray | memoryview):
        return _of_bytes(bytes(value))
    size = bytes_of(value)
    if isinstance(value, str):
        return Preview("text", None, None, len(value.encode(errors="replace")), _clip(value))
    if isinstance(value, bool | np.bool_):
        return Preview("bool", None, None, size, str(bool(value)).lower())
    if isinstance(value, int | float | np.number):
        return Preview("number", _dtype_of(value), None, size, str(value))
    if value is None:
        return Preview("null", None, None, 0, "null")
    if isinstance(value, np.ndarray):
        return Preview("array", str(value.dtype), value.shape, value.nbytes, _listed(value.reshape(-1)))
    if isinstance(value, Ragged):
        value = value.tolist()
    if isinstance(value, list | tuple):
        dtypes = {_dtype_of(each) for each in value}
        dtype = dtypes.pop() if len(dtypes) == 1 else None
        return Preview("list", dtype, (len(value),), size, _listed(value))
    if isinstance(value, Mapping):
        return Preview("object", None, (len(value),), size, _clip(_json(dict(value))))
    return Preview(type(value).__name__, None, None, size, _clip(str(value)))


def _of_bytes(content: bytes) -> Preview:
    size = len(content)
    if (image := image_of(content)) is not None:
        kind, width, height = image
        return Preview(kind, None, (height, width), size, "")
    with suppress(FormatError):
        header = parse_header(content, "npy")
        return Preview("npy", str(header.dtype), header.shape, size, "")
    text = _text_of(content[:_MOST_BYTES], whole=size <= _MOST_BYTES)
    return Preview("bytes", None, None, size, "" if text is None else _clip(text))


def _text_of(content: bytes, *, whole: bool) -> str | None:
    """The text at the beginning of bytes; None if they are not text. The last character may be cut."""
    try:
        text = getincrementaldecoder("utf-8")().decode(content, whole)
    except UnicodeDecodeError:
        return None
    return text if all(each.isprintable() or each.isspace() for each in text) else None


def _dtype_of(value: Any) -> str | None:
    if isinstance(value, np.generic):
        return str(value.dtype)
    if isinstance(value, bool):
        return "bool"
    return type(value).__name__ if isinstance(value, int | float | str) else None


def _listed(values: Any) -> str:
    first = [each.item() if isinstance(each, np.generic) else each for each in values[:_MOST_VALUES]]
    inside = ", ".join(_json(each) for each in first)
    return _clip(f"[{inside}{', ...' if len(values) > len(first) else ''}]")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=lambda other: f"<{type(other).__name__}>")


def _clip(text: str) -> str:
    return clip(text, _MOST_CHARACTERS)


HELP = (
    "Show the first samples: the kind, dtype, shape, size and first values of each field, as it is stored. "
    "Fields are not decoded."
)

# Kinds whose size is not shown.
_WITHOUT_KIND = ("number", "bool", "null")
# Characters of a field's name in the table; in JSON it is complete.
_MOST_OF_NAME = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shards(parser)
    parser.add_argument(
        "-n", "--samples", type=int, default=3, metavar="N", help="number of samples (default: 3)"
    )
    add_columns(parser)


def run(asked: argparse.Namespace) -> int:
    dataset = open_dataset(asked)
    samples = [preview_sample(sample) for sample in dataset.head(asked.samples)]
    if asked.json:
        print_json({"samples": [_as_json(sample) for sample in samples]})
        return 0
    for number, sample in enumerate(samples):
        if number:
            print_lines("")
        print_lines(f"sample {number}")
        print_table(map(_row, sample.items()), right=[2])
    if not samples:
        print_lines("no samples")
    return 0


def _row(field: tuple[str, Preview]) -> tuple[str, ...]:
    name, preview = field
    return f"  {clip(name, _MOST_OF_NAME)}", _kind(preview), _size(preview), preview.beginning


def _as_json(sample: Mapping[str, Preview]) -> dict[str, Any]:
    return {name: asdict(preview) for name, preview in sample.items()}


def _kind(preview: Preview) -> str:
    """Such as ``jpeg 640x480``, ``float32 (3, 4)``, ``list of 12 int``."""
    shape: Sequence[int] = preview.shape or ()
    if preview.kind == "array":
        return f"{preview.dtype} {tuple(shape)}"
    if preview.kind == "npy":
        return f"npy {preview.dtype} {tuple(shape)}"
    if preview.kind == "list":
        return f"list of {shape[0]} {preview.dtype or 'values'}"
    if preview.kind == "object":
        return f"object of {counted(shape[0], 'field')}"
    if len(shape) == 2:
        return f"{preview.kind} {shape[1]}x{shape[0]}"
    return preview.dtype or preview.kind


def _size(preview: Preview) -> str:
    return "" if preview.kind in _WITHOUT_KIND else size_of(preview.size_bytes)
