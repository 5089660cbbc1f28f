"""From a sample's bytes to values, by the last extension of the field's name; never by pickle.

A field with an unknown extension stays ``bytes``, and so do ``pkl``, ``pyd``, ``pickle``, ``pt`` and
``pth``: unpickling runs whatever code the shard's author put there. Who trusts the shard may name a
handler for them. ``npz`` stays too: it is a zip, of unbounded ratio.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..errors import FormatError
from ..types import Sample

if TYPE_CHECKING:
    import numpy

__all__ = ["Handler", "decode_sample", "default_handlers", "handlers_with", "open_image"]

Handler = Callable[[bytes], Any]

# Pillow picks the reader by content, and some readers run other programs (EPS runs Ghostscript).
_IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "PPM")


def _decode_text(body: bytes) -> str:
    return str(body, "utf-8")


def _decode_npy(body: bytes) -> numpy.ndarray[Any, Any]:
    """A writable array of the stored shape and dtype."""
    import numpy
    from numpy.lib import format as npy

    file = io.BytesIO(body)
    version = npy.read_magic(file)
    if version == (1, 0):
        shape, fortran_order, dtype = npy.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, fortran_order, dtype = npy.read_array_header_2_0(file)
    else:
        raise ValueError(f"npy version {version} is not read, only 1.0 and 2.0")
    if dtype.hasobject:
        raise ValueError("an array of Python objects is a pickle, and pickles are not read; store numbers")
    # Not numpy's read_array: it allocates what the header claims before it looks at the length.
    count = 1
    for length in shape:
        count *= length
    start = file.tell()
    if min(shape, default=0) < 0 or count * dtype.itemsize != len(body) - start:
        raise ValueError(f"shape {shape} of {dtype} does not fit the {len(body) - start} bytes there are")
    if count and not dtype.itemsize and dtype.kind in "SU":  # numpy.zeros would make place for a character
        raise ValueError(f"shape {shape} of texts without a character")
    if count == 0 or dtype.itemsize == 0:  # numpy.frombuffer refuses an empty buffer
        return numpy.zeros(shape, dtype, order="F" if fortran_order else "C")
    flat = numpy.frombuffer(body, dtype, count, start)
    return flat.reshape(shape, order="F" if fortran_order else "C").copy(order="K")


def _decode_image(body: bytes) -> numpy.ndarray[Any, Any]:
    """``(H, W, 3) uint8`` in RGB; no alpha; of an animation the first frame."""
    import numpy

    with open_image(body, "name a handler of your own") as image:
        return numpy.array(image.convert("RGB"))


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
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("decoding images needs Pillow: pip install asyncloader[images]") from error
    with Image.open(io.BytesIO(content), formats=_IMAGE_FORMATS) as image:
        if image.mode.startswith(("I", "F")):  # Pillow would clip, not scale
            raise ValueError(f"mode {image.mode} has more than 8 bits a channel; {otherwise}")
        yield image


# How the files begin that images are; of WebP what stands behind the length.
_IMAGE_SIGNATURES = (
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF8", "gif"),
    (b"BM", "bmp"),
)


def _extension_of(content: bytes, path: object) -> str:
    """What a file is: an image by its first bytes, whatever its name says, else what its name ends with."""
    for signature, extension in _IMAGE_SIGNATURES:
        if content.startswith(signature):
            return extension
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "webp"
    return path.rpartition(".")[2].lower() if isinstance(path, str) else ""


_IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "ppm")

default_handlers: Mapping[str, Handler] = MappingProxyType(
    {
        "json": json.loads,
        "txt": _decode_text,
        "text": _decode_text,
        "cls": int,
        "index": int,
        "count": int,
        "npy": _decode_npy,
        **dict.fromkeys(_IMAGE_EXTENSIONS, _decode_image),
    }
)
# The parts of a file in a field, as Hugging Face's data sets have them.
_FILE = {"bytes", "path"}
_OWN_HANDLERS = tuple(default_handlers.values())


def handlers_with(more: Mapping[str, Handler] | None) -> Mapping[str, Handler]:
    """The usual handlers by extension, with others added, in place of those of the same name.

    Raises:
        TypeError: They are no mapping, or something else than functions by extension.
    """
    if more is not None and not isinstance(more, Mapping):
        raise TypeError(
            f"decode should get a mapping of functions by extension, but got {type(more).__name__}: "
            f"{more!r}; write .decode() for RGB arrays of images, or .decode({{'jpg': fn}}) with a "
            "function that makes of the bytes what you want"
        )
    for extension, handler in (more or {}).items():
        if not isinstance(extension, str) or not callable(handler):
            raise TypeError(f"decode should get functions by extension, but got {extension!r}: {handler!r}")
    return {**default_handlers, **(more or {})}


def decode_sample(sample: Sample, handlers: Mapping[str, Handler] = default_handlers) -> Sample:
    """Decode the fields of a tar sample.

    Args:
        sample: Fields of ``bytes``, or of files, ``{"bytes": ..., "path": ...}`` with or without the path,
            which go by what their bytes begin with, or by the extension of their path. Others stay, and so do
            those that start with ``__``.
        handlers: By last extension of the field's name (``seg.png``: ``png``), in lower case. The
            default reads json, txt and text (``str``), cls, index and count (``int``), npy
            (``ndarray`` of the stored shape and dtype), and jpg, jpeg, png, webp, bmp, gif and ppm
            (``(H, W, 3) uint8`` RGB, without alpha). ``{**default_handlers, "wav": f}`` adds one.

    Returns:
        A new dict with the same keys in the same order.

    Raises:
        FormatError: A default handler cannot decode a field; the message names field and key.
        Exception: What a handler of the user's raises, with field and key as a note.
        ImportError: A package that a handler needs is not installed.
    """
    decoded = {}
    for field, value in sample.items():
        handler, content = None, value
        if type(value) is bytes:
            if not field.startswith("__"):
                handler = handlers.get(field.rpartition(".")[2])
        elif type(value) is dict and type(value.get("bytes")) is bytes and value.keys() <= _FILE:
            content = value["bytes"]
            handler = handlers.get(_extension_of(content, value.get("path")))
        decoded[field] = value if handler is None else _decode_field(handler, field, content, sample)
    return decoded


def _decode_field(handler: Handler, field: str, value: bytes, sample: Sample) -> Any:
    try:
        return handler(value)
    except (ImportError, MemoryError):
        raise
    except Exception as error:
        where = f"field {field!r} of sample {sample.get('__key__')!r}"
        if handler not in _OWN_HANDLERS:
            error.add_note(f"while decoding {where}")
            raise
        raise FormatError(f"{where} cannot be decoded: {type(error).__name__}: {error}") from error
