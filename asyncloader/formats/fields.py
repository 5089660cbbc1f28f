"""The fields of samples: from their bytes to values by the last extension of their names, and back.

A field with an unknown extension stays ``bytes``, and so do ``pkl``, ``pyd``, ``pickle``, ``pt`` and
``pth``: unpickling runs whatever code the author of the shard put there. Users who trust the shard may name a
handler for them. ``npz`` stays too: it is a zip, with an unbounded ratio. What is written reads back as the
same samples; a name or value that would not is refused.
"""

from __future__ import annotations

import io
import json
import math
import operator
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from ..errors import FormatError
from ..types import Sample
from .images import open_image
from .npy import parse_header
from .tar_layout import BLOCK

Handler = Callable[[bytes], Any]


def _decode_text(body: bytes) -> str:
    return str(body, "utf-8")


def _decode_npy(body: bytes) -> NDArray[Any]:
    """A writable array of the stored shape and dtype."""
    header = parse_header(body, "npy")
    dtype, shape = header.dtype, header.shape
    order: Literal["C", "F"] = "F" if header.by_columns else "C"
    count, found = math.prod(shape), len(body) - header.size_bytes
    # NumPy's read_array allocates what the header claims before it checks the length. For texts without a
    # character it would allocate one.
    if header.body_bytes != found or (count and not dtype.itemsize and dtype.kind in "SU"):
        raise ValueError(f"shape {shape} of {dtype} does not fit the {found} bytes there are")
    if not found:  # numpy.frombuffer refuses an empty buffer
        return np.zeros(shape, dtype, order=order)
    flat = np.frombuffer(body, dtype, count, header.size_bytes)
    return flat.reshape(shape, order=order).copy(order="K")


def _decode_image(body: bytes) -> NDArray[Any]:
    """``(H, W, 3) uint8`` in RGB; no alpha; of an animation the first frame."""
    with open_image(body, "name a handler of your own") as image:
        return np.array(image.convert("RGB"))


# The first bytes of image files.
_IMAGE_SIGNATURES = (
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF8", "gif"),
    (b"BM", "bmp"),
)


def _extension_of(content: bytes, path: object) -> str:
    """The extension of a file: of an image by its first bytes, otherwise by its name."""
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
# The parts of a file in a field of Hugging Face's data sets.
_FILE = {"bytes", "path"}
_OWN_HANDLERS = tuple(default_handlers.values())


def handlers_with(more: Mapping[str, Handler] | None) -> Mapping[str, Handler]:
    """The default handlers by extension, and others that are added or replace them.

    Raises:
        TypeError: They are no mapping of functions by extension.
    """
    if more is not None and not isinstance(more, Mapping):
        raise TypeError(
            f"decode should get a mapping of functions by extension, but got {type(more).__name__}: "
            f"{more!r}; write .decode() for RGB arrays of images, or .decode({{'jpg': fn}}) with a "
            "function of your own that takes the bytes"
        )
    for extension, handler in (more or {}).items():
        if not isinstance(extension, str) or not callable(handler):
            raise TypeError(f"decode should get functions by extension, but got {extension!r}: {handler!r}")
    return {**default_handlers, **(more or {})}


def decode_sample(sample: Sample, handlers: Mapping[str, Handler] = default_handlers) -> Sample:
    """Decode the fields of a tar sample.

    Args:
        sample: Fields of ``bytes``, or of files, ``{"bytes": ..., "path": ...}`` with or without the path.
            The first bytes of a file, or the extension of its path, decide how it is decoded. Other fields
            stay as they are, and so do those whose names start with ``__``.
        handlers: By last extension of the field's name (``seg.png``: ``png``), in lower case. The
            default reads json, txt and text (``str``), cls, index and count (``int``), npy
            (``ndarray`` of the stored shape and dtype), and jpg, jpeg, png, webp, bmp, gif and ppm
            (``(H, W, 3) uint8`` RGB, without alpha). ``{**default_handlers, "wav": f}`` adds one.

    Returns:
        A new dict with the same keys in the same order.

    Raises:
        FormatError: A default handler cannot decode a field; the message names field and key.
        Exception: What a user's handler raises, with field and key as a note.
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


tar_end = bytes(2 * BLOCK)


def encode_jsonl_sample(sample: Mapping[str, Any], *, allow_nan: bool = True) -> bytes:
    """One line of JSON. ``__url__``, where a sample was read from, is left out.

    Args:
        sample: Its fields.
        allow_nan: Whether to write ``NaN`` and ``Infinity``, which JSON lacks, though Python reads them.

    Raises:
        ValueError: A number that JSON lacks, if that is not allowed.
        TypeError: A field's name is no text, or JSON has no form for a value; the message names it.
    """
    for field in sample:
        if not isinstance(field, str):  # JSON would turn a number into text, and two fields into one
            raise TypeError(f"a field of a sample must have a str for its name, not {field!r}")
    plain = {key: value for key, value in sample.items() if key != "__url__"}
    try:
        return _dump_json(plain, allow_nan) + b"\n"
    except TypeError:
        for field, value in plain.items():
            _encode_by(partial(_dump_json, allow_nan=allow_nan), field, value)
        raise


def encode_tar_sample(sample: Mapping[str, Any]) -> bytes:
    """The tar members of one sample.

    Args:
        sample: ``__key__`` and at least one field. ``bytes`` are written as they are; other values
            are encoded by the field's last extension, see ``encoders``. Other names that start with
            ``__`` (``__url__``) belong to the pipeline and are left out.

    Raises:
        TypeError: There is no encoding for a value by its field's extension.
        ValueError: A key or field would not read back as it is.
    """
    key = _checked_key(sample.get("__key__"))
    members = []
    for field, value in sample.items():
        if not isinstance(field, str):
            raise TypeError(f"a field's name must be a str, not {field!r}")
        if not field.startswith("__"):
            members.append(_tar_member(f"{key}.{_checked_field(field)}", _encode_field(field, value)))
    if not members:
        raise ValueError(f"sample {key!r} has no field to write, and would be lost in a tar")
    return b"".join(members)


def _tar_member(name: str, body: bytes) -> bytes:
    encoded = name.encode("utf-8", "surrogateescape")
    if name.isascii() and len(encoded) < _MOST_NAME_BYTES and len(body) < _MOST_BODY_BYTES:
        header = _plain_header(encoded, len(body))
    else:
        import tarfile

        described = tarfile.TarInfo(name)
        described.size = len(body)
        # TarFile needs a file with tell(), which a compressor lacks.
        header = described.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    return b"".join((header, body, bytes(-len(body) % BLOCK)))


# The limits of a header without extensions.
_MOST_NAME_BYTES, _MOST_BODY_BYTES = 100, 8**11
# What tarfile puts between name, size and sum, and behind these, for a file of no owner and time.
_MODE_AND_OWNER, _TIME = b"0000644\0" + 2 * b"0000000\0", b"00000000000\0"
_KIND_AND_MAGIC = b"0" + bytes(100) + b"ustar\0" + b"00"
_REST_SUM = sum(_MODE_AND_OWNER + _TIME + _KIND_AND_MAGIC) + 8 * ord(" ")  # the sum itself counts as spaces


def _plain_header(name: bytes, size: int) -> bytes:
    """The same header as tarfile's, in a tenth of its time."""
    octal = b"%011o\0" % size
    total = b"%06o\0 " % (sum(name) + sum(octal) + _REST_SUM)
    name = name.ljust(_MOST_NAME_BYTES, b"\0")
    return b"".join((name, _MODE_AND_OWNER, octal, _TIME, total, _KIND_AND_MAGIC)).ljust(BLOCK, b"\0")


def _checked_key(key: object) -> str:
    if not isinstance(key, str):
        raise ValueError(f"a tar sample needs a str __key__, found {key!r}")
    base = key.rpartition("/")[2]
    if not base or "." in base or "\0" in key:
        raise ValueError(
            f"__key__ {key!r} would not read back: its last part must not be empty or hold a dot or a NUL"
        )
    return key


def _checked_field(field: str) -> str:
    if not field or field != field.lower() or "/" in field or "\0" in field:
        raise ValueError(
            f"field {field!r} would not read back: a field is not empty, in lower case, without '/' and NUL"
        )
    return field


def _encode_field(field: str, value: Any) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    encode = encoders.get(field.rpartition(".")[2])
    if encode is None:
        raise TypeError(
            f"field {field!r} must be bytes, not {type(value).__name__}; fields are encoded that end with "
            f"{', '.join(encoders)}, which takes arrays: {{'{field}.npy': numpy.asarray(...)}}"
        )
    return _encode_by(encode, field, value)


def _encode_by(encode: Callable[[Any], bytes], field: str, value: Any) -> bytes:
    try:
        return encode(value)
    except TypeError as error:
        raise TypeError(f"field {field!r}: {error}") from error


def _dump_json(value: Any, allow_nan: bool = True) -> bytes:
    text = json.dumps(
        value, ensure_ascii=False, allow_nan=allow_nan, separators=(",", ":"), default=_refuse_value
    )
    return text.encode("utf-8")


def _refuse_value(value: Any) -> NoReturn:
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    raise TypeError(
        f"JSON has no form for a {kind}; write dicts, lists, strings, numbers, booleans and None, such as "
        ".item() or .tolist() of it"
    )


def _encode_text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"expected a str, found {type(value).__name__}")
    return value.encode("utf-8")


def _encode_integer(value: Any) -> bytes:
    return b"%d" % operator.index(value)  # NumPy's integers too, and no float cut off


def _encode_npy(value: Any) -> bytes:
    if not isinstance(value, np.ndarray):
        raise TypeError(f"expected a NumPy array, found {type(value).__name__}; numpy.asarray makes one")
    if value.dtype.hasobject:
        raise TypeError("an array of Python objects would be pickled, and pickles are not read")
    file = io.BytesIO()
    np.lib.format.write_array(file, value, allow_pickle=False)
    return file.getvalue()


encoders: Mapping[str, Callable[[Any], bytes]] = MappingProxyType(
    {
        "json": _dump_json,
        "txt": _encode_text,
        "text": _encode_text,
        "cls": _encode_integer,
        "index": _encode_integer,
        "count": _encode_integer,
        "npy": _encode_npy,
    }
)
