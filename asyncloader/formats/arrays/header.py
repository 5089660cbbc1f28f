"""The header of ``.npy``: dtype, shape and order, of which nothing is evaluated but a literal.

Versions 1.0 to 3.0, after NEP 1 and ``numpy.lib.format``.
"""

from __future__ import annotations

import ast
import math
import re
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from ...errors import FormatError
from .._push import describe_bytes
from ..compression import SIGNATURE_BYTES, compression_of

__all__ = ["HEAD_BYTES", "MOST_ROW_BYTES", "ArrayHeader", "header_bytes", "parse_header"]

_MAGIC = b"\x93NUMPY"

# Of the length that is behind magic and version, and the header's encoding.
_VERSIONS = {(1, 0): (2, "latin-1"), (2, 0): (4, "latin-1"), (3, 0): (4, "utf-8")}

# As NumPy's own reader has it: a literal is parsed recursively.
_MOST_HEADER_BYTES = 10_000

#: Of a shard or a member, asked for first: NumPy's headers take 128 bytes, those of many fields a few more.
HEAD_BYTES = 4 << 10

# An axis has no more in NumPy; and of more digits Python would not show an error.
_MOST_LENGTH = (1 << 63) - 1

# As older NumPys have it; those of a structure's fields count, since a column has both.
_MOST_AXES = 32

#: A row is held whole while it comes, as a line is.
MOST_ROW_BYTES = 256 << 20

# Other kinds are no values: objects (``O``) are pickles, which run what their author wrote.
_KIND = re.compile(r"[<>=|]?(?:[?bBhHiIlLqQefdgFDG]|[biufcSU]\d+|[mM]8(?:\[\w+\])?)")
_PADDING = re.compile(r"\|?V\d+")
_OBJECT = re.compile(r"[<>=|]?O\d*")


@dataclass(frozen=True, slots=True)
class ArrayHeader:
    """What an array says of itself.

    Attributes:
        dtype: Of an element, as it is stored; a structure has fields.
        shape: Of all elements; the first axis is that of rows.
        by_columns: Whether the first axis is the one that changes fastest, which is Fortran's order.
        size_bytes: Of the header itself, before the elements.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    by_columns: bool
    size_bytes: int

    @property
    def rows(self) -> int:
        return self.shape[0]

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape[1:])

    @property
    def columns(self) -> int:
        """Of how many runs it consists in Fortran's order, each with an element of every row."""
        return math.prod(self.shape[1:])

    @property
    def body_bytes(self) -> int:
        """Of all elements."""
        return self.rows * self.row_bytes


def header_bytes(start: bytes, what: str) -> int:
    """The length of the header that begins with ``start``, of which the first 12 bytes are enough.

    Args:
        start: The first bytes.
        what: They are of, for messages.

    Raises:
        FormatError: They are no array, or are cut.
    """
    if not start:
        raise FormatError(f"{what}: truncated: it is empty", offset=0)
    if len(start) < len(_MAGIC) and _MAGIC.startswith(start):
        raise FormatError(f"{what}: truncated within its magic", offset=len(start))
    if not start.startswith(_MAGIC):
        hint = describe_bytes(start)
        if compression_of(start[:SIGNATURE_BYTES]) is not None:
            hint += ", and an array cannot be read in parts when it is compressed: decompress it"
        raise FormatError(f"{what}: expected the magic {_MAGIC!r}, found {start[:6]!r}{hint}", offset=0)
    version = (*start[6:8],)
    if len(version) == 2 and version not in _VERSIONS:
        raise FormatError(
            f"{what}: expected version 1.0, 2.0 or 3.0 of the format, found {version[0]}.{version[1]}",
            offset=6,
        )
    width = _VERSIONS.get(version, (4, ""))[0]  # a cut one is not in it
    if len(start) < 8 + width:
        raise FormatError(f"{what}: truncated within its header", offset=len(start))
    length = int.from_bytes(start[8 : 8 + width], "little")
    if length > _MOST_HEADER_BYTES:
        raise FormatError(
            f"{what}: the header claims {length} bytes; at most {_MOST_HEADER_BYTES} are read", offset=8
        )
    return 8 + width + length


def parse_header(content: bytes, what: str) -> ArrayHeader:
    """What a whole header says.

    Args:
        content: From its first byte on, as many as ``header_bytes`` says, or more.
        what: They are of, for messages.

    Raises:
        FormatError: It is cut or damaged, or says what is not read: no axis of rows or more than 32, objects,
            structures in structures, or rows without a byte or of more than 256 MiB.
    """
    size_bytes = header_bytes(content, what)
    if len(content) < size_bytes:
        raise FormatError(f"{what}: truncated within its header", offset=len(content))
    width, encoding = _VERSIONS[content[6], content[7]]
    try:
        told = ast.literal_eval(str(content[8 + width : size_bytes], encoding).strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise FormatError(f"{what}: damaged: the header is no literal of Python", offset=8 + width) from error
    if not isinstance(told, dict) or told.keys() != {"descr", "fortran_order", "shape"}:
        _damaged(what, "the header should have descr, fortran_order and shape", told)
    shape, by_columns = _shape_of(told["shape"], what), told["fortran_order"]
    if not isinstance(by_columns, bool):
        _damaged(what, "fortran_order should be True or False", by_columns)
    dtype = _dtype_of(told["descr"], what)
    axes = len(shape) + max((dtype[name].ndim for name in dtype.names or ()), default=0)
    if axes > _MOST_AXES:
        raise FormatError(f"{what}: an array of {axes} axes, at most {_MOST_AXES} are read")
    # Of one axis both orders are the same.
    header = ArrayHeader(dtype, shape, by_columns and len(shape) > 1, size_bytes)
    if header.rows and not 0 < header.row_bytes <= MOST_ROW_BYTES:
        raise FormatError(
            f"{what}: of shape {shape} and {header.dtype}, a row has {header.row_bytes} bytes; rows, which "
            f"are along the first axis, of 1 to {MOST_ROW_BYTES} bytes are read"
        )
    return header


def _shape_of(shape: object, what: str) -> tuple[int, ...]:
    if not isinstance(shape, tuple) or not all(
        type(length) is int and 0 <= length <= _MOST_LENGTH for length in shape
    ):
        _damaged(what, "the shape should be a tuple of whole numbers of 0 or more", shape)
    if not shape:
        raise FormatError(
            f"{what}: a single value has no rows to be samples; save an array of one axis or more"
        )
    return shape


def _dtype_of(descr: object, what: str) -> np.dtype[Any]:
    """The dtype that NumPy makes of what is known to be harmless."""
    try:
        if isinstance(descr, str):
            _check_kind(descr, what)
            return np.dtype(descr)
        if not isinstance(descr, list) or not descr:
            _damaged(what, "descr should be a type, or a list of fields", descr)
        for field in descr:
            _check_field(field, what)
        dtype: np.dtype[Any] = np.lib.format.descr_to_dtype(descr)
        return dtype
    except FormatError:
        raise
    except (ValueError, TypeError, OverflowError, MemoryError, SyntaxError) as error:
        raise FormatError(f"{what}: NumPy knows no dtype {_shown(descr)}: {error}") from error


def _check_field(field: object, what: str) -> None:
    if not isinstance(field, tuple) or not 2 <= len(field) <= 3:
        _damaged(what, "a field should be a name, a type and perhaps a shape", field)
    name, kind, *shape = field
    if isinstance(kind, list):
        raise FormatError(
            f"{what}: the field {_shown(name)} has fields of its own; structures in structures are not read"
        )
    if not isinstance(name, str):
        _damaged(what, "a field should have a name", name)
    if shape and (
        not isinstance(shape[0], tuple) or any(type(length) is not int or length < 1 for length in shape[0])
    ):
        _damaged(what, "the shape of a field should be a tuple of whole numbers above 0", shape[0])
    if name or not isinstance(kind, str) or _PADDING.fullmatch(kind) is None:  # what aligns has no name
        _check_kind(kind, what)


def _check_kind(kind: object, what: str) -> None:
    if isinstance(kind, str) and _OBJECT.fullmatch(kind):
        raise FormatError(
            f"{what}: an array of objects is a pickle, which may run any code and is not read; save numbers, "
            "texts or bytes of one dtype"
        )
    if not isinstance(kind, str) or _KIND.fullmatch(kind) is None:
        raise FormatError(f"{what}: expected a type of numbers, times, texts or bytes, found {_shown(kind)}")


def _damaged(what: str, wanted: str, found: object) -> NoReturn:
    raise FormatError(f"{what}: damaged: {wanted}, found {_shown(found)}")


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python shows no whole number of so many digits
        return "a number that is too long to be shown"
    return text if len(text) <= 80 else f"{text[:80]}..."
