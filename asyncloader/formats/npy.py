"""``.npy``: the header first, then the wanted rows, and no byte before them.

The header is a literal of dtype, shape and order, in versions 1.0 to 3.0 of NEP 1 and ``numpy.lib.format``.
Several arrays come in turns. Bytes of an array that come before those of the others are held as they are
stored, so deflated bytes expand only as their rows are wanted.
"""

from __future__ import annotations

import ast
import math
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..blocks import Block, Column, Columns, OffsetTrail
from ..errors import FormatError
from ..types import Layout, Planning, Span
from .compression import Decompressor, describe_whole
from .decoder import MAX_BLOCK_BYTES, MAX_BLOCK_SAMPLES, ByteQueue, Decoder, ShardSpec, bring, check_reached
from .selection import choose_names

_MAGIC = b"\x93NUMPY"

# The size of the length behind magic and version, and the encoding of the header.
_VERSIONS = {(1, 0): (2, "latin-1"), (2, 0): (4, "latin-1"), (3, 0): (4, "utf-8")}

# The limit of NumPy's own reader, since a literal is parsed recursively.
_MOST_HEADER_BYTES = 10_000

#: The part of a shard or member that is read first: NumPy's headers take 128 bytes, with many fields some
# more.
HEAD_BYTES = 4 << 10

# NumPy's longest axis.
_MOST_LENGTH = (1 << 63) - 1

# The limit of older NumPys, with the axes of a structure's fields, since a column has both.
_MOST_AXES = 32

#: A row is held until it is complete, as a line is.
MOST_ROW_BYTES = 256 << 20

# The kinds of values: no objects, which are pickles and run any code, and no structures in structures.
_KINDS = "biufcSUmM"


@dataclass(frozen=True, slots=True)
class ArrayHeader:
    """The header of an array.

    Attributes:
        dtype: Dtype of a stored element; a structure has fields.
        shape: Shape of the array; the first axis is that of rows.
        by_columns: Whether the first axis changes fastest, which is Fortran's order.
        size_bytes: Length of the header itself, before the elements.
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
    def body_bytes(self) -> int:
        """Length of all elements."""
        return self.dtype.itemsize * math.prod(self.shape)


def header_bytes(start: bytes, what: str) -> int:
    """The length of the header that begins with ``start``.

    Args:
        start: The first bytes; 12 are enough.
        what: Name of the array, for messages.

    Raises:
        FormatError: They are no array, or truncated.
    """
    if not start:
        raise FormatError(f"{what}: truncated: it is empty", offset=0)
    if len(start) < len(_MAGIC) and _MAGIC.startswith(start):
        raise FormatError(f"{what}: truncated within its magic", offset=len(start))
    if not start.startswith(_MAGIC):
        hint = describe_whole(start, "an array")
        raise FormatError(f"{what}: expected the magic {_MAGIC!r}, found {start[:6]!r}{hint}", offset=0)
    version = (*start[6:8],)
    if len(version) == 2 and version not in _VERSIONS:
        raise FormatError(
            f"{what}: expected version 1.0, 2.0 or 3.0 of the format, found {version[0]}.{version[1]}",
            offset=6,
        )
    width = _VERSIONS.get(version, (4, ""))[0]  # a truncated version is not in it
    if len(start) < 8 + width:
        raise FormatError(f"{what}: truncated within its header", offset=len(start))
    length = int.from_bytes(start[8 : 8 + width], "little")
    if length > _MOST_HEADER_BYTES:
        raise FormatError(
            f"{what}: the header claims {length} bytes; at most {_MOST_HEADER_BYTES} are read", offset=8
        )
    return 8 + width + length


def parse_header(content: bytes, what: str) -> ArrayHeader:
    """Parse a header.

    Args:
        content: The bytes from the first one on, at least as many as ``header_bytes`` returns.
        what: Name of the array, for messages.

    Raises:
        FormatError: The header is truncated or damaged, or the array has objects.
    """
    size_bytes = header_bytes(content, what)
    if len(content) < size_bytes:
        raise FormatError(f"{what}: truncated within its header", offset=len(content))
    width, encoding = _VERSIONS[content[6], content[7]]
    try:
        found = ast.literal_eval(str(content[8 + width : size_bytes], encoding).strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise FormatError(f"{what}: damaged: the header is no literal of Python", offset=8 + width) from error
    if not isinstance(found, dict) or found.keys() != {"descr", "fortran_order", "shape"}:
        raise _damaged(what, "the header should have descr, fortran_order and shape", found)
    shape, by_columns = found["shape"], found["fortran_order"]
    if not isinstance(by_columns, bool):
        raise _damaged(what, "fortran_order should be True or False", by_columns)
    if not isinstance(shape, tuple) or not all(
        type(length) is int and 0 <= length <= _MOST_LENGTH for length in shape
    ):
        raise _damaged(what, "the shape should be a tuple of whole numbers of 0 or more", shape)
    # With one axis both orders are the same.
    return ArrayHeader(_dtype_of(found["descr"], what), shape, by_columns and len(shape) > 1, size_bytes)


def parse_rows_header(content: bytes, what: str) -> ArrayHeader:
    """Parse the header of an array whose rows are samples.

    Raises:
        FormatError: As ``parse_header``; or the array has no axis or more than 32, structures in structures,
            or rows without a byte or of more than 256 MiB.
    """
    header = parse_header(content, what)
    dtype, shape = header.dtype, header.shape
    if not shape:
        raise FormatError(
            f"{what}: a single value has no rows to be samples; save an array of one axis or more"
        )
    fields = [dtype[name] for name in dtype.names] if dtype.names else [dtype]
    if any(field.base.kind not in _KINDS for field in fields):
        raise FormatError(
            f"{what}: expected numbers, times, texts or bytes, or structures of these, found {_shown(dtype)}"
        )
    axes = len(shape) + max(field.ndim for field in fields)
    if axes > _MOST_AXES:
        raise FormatError(f"{what}: an array of {axes} axes, at most {_MOST_AXES} are read")
    if header.rows and not 0 < header.row_bytes <= MOST_ROW_BYTES:
        raise FormatError(
            f"{what}: expected rows, along the first axis, of 1 to {MOST_ROW_BYTES} bytes; with shape "
            f"{shape} and {dtype} a row has {header.row_bytes} bytes"
        )
    return header


def _dtype_of(descr: Any, what: str) -> np.dtype[Any]:
    try:
        dtype: np.dtype[Any] = np.lib.format.descr_to_dtype(descr)
    # What NumPy raises for a damaged dtype is not documented; a deprecated name is a warning.
    except (Exception, Warning) as error:
        raise FormatError(f"{what}: NumPy knows no dtype {_shown(descr)}: {error}") from error
    if dtype.hasobject:
        raise FormatError(
            f"{what}: an array of objects is a pickle, which may run any code and is not supported; save "
            "numbers, texts or bytes of one dtype"
        )
    return dtype


def _damaged(what: str, wanted: str, found: object) -> FormatError:
    return FormatError(f"{what}: damaged: {wanted}, found {_shown(found)}")


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python does not convert a number of so many digits to text
        return "a number that is too long to be shown"
    return text if len(text) <= 80 else f"{text[:80]}..."


class Stored:
    """Bytes that are stored without compression.

    Args:
        crc32: Checksum of all bytes, with those before the first that comes; None to check nothing.
        before: Checksum of those before.

    Attributes:
        fault: What is wrong with the bytes; None if nothing was found.
    """

    fault: str | None = None

    def __init__(self, crc32: int | None = None, before: int = 0) -> None:
        self._expected = crc32
        self._found = before
        self._held = ByteQueue()

    def put(self, chunk: memoryview) -> None:
        """Add the next bytes."""
        if self._expected is not None:
            self._found = zlib.crc32(chunk, self._found)
        self._held.put(chunk)

    def available(self, most_bytes: int) -> int:
        """How many bytes are there; at least ``most_bytes`` if as many have come."""
        return self._held.size_bytes

    def take(self, size_bytes: int) -> NDArray[np.uint8]:
        """Remove so many bytes from the front, which are there; in memory of their own."""
        return np.frombuffer(bytearray().join(self._held.take(size_bytes)), np.uint8)

    def finish(self) -> str | None:
        """What is wrong, after all bytes have come and the wanted ones were taken; None if nothing is."""
        if self._expected is not None and self._found != self._expected:
            return f"damaged: expected the CRC-32 {self._expected:08x}, found {self._found:08x}"
        return None


class Deflated(Stored):
    """Bytes that were deflated, expanded only as far as they are wanted.

    Args:
        stored_bytes: How many bytes come.
        size_bytes: How many bytes they expand to.
        skip_bytes: How many of these are dropped at the front.
        crc32: Checksum of the expanded bytes.
    """

    def __init__(self, stored_bytes: int, size_bytes: int, skip_bytes: int, crc32: int) -> None:
        super().__init__(crc32)
        self._left = stored_bytes
        self._size_bytes = size_bytes
        self._skip = skip_bytes
        self._made = 0
        self._stored: deque[memoryview] = deque()
        self._decompressor = Decompressor("deflate", "member")
        self._pieces: Iterator[bytes] = iter(())

    def put(self, chunk: memoryview) -> None:
        """Add the next bytes."""
        self._stored.append(chunk)

    def available(self, most_bytes: int) -> int:
        """Expand until so many bytes are there, or all that have come; returns how many there are."""
        while self._held.size_bytes < most_bytes and self._expand():
            if self._skip:
                self._skip -= sum(map(len, self._held.take(min(self._skip, self._held.size_bytes))))
        return self._held.size_bytes

    def finish(self) -> str | None:
        while self._expand():
            self._held.take(self._held.size_bytes)
        if self.fault is None and self._made != self._size_bytes:
            return f"expected {self._size_bytes} bytes when it is inflated, found {self._made}"
        return self.fault or super().finish()

    def _expand(self) -> bool:
        """Expand one piece; False if nothing can be expanded of what has come."""
        if self.fault is not None:
            return False
        try:
            while (piece := next(self._pieces, None)) is None:
                if not self._stored:
                    return False
                chunk = self._stored.popleft()
                self._left -= len(chunk)
                end = () if self._left else self._decompressor.finish()
                self._pieces = chain(self._decompressor.feed(chunk), end)
        except FormatError as error:
            self.fault = error.args[0]
            return False
        self._made += len(piece)
        if self._made > self._size_bytes:
            self.fault = f"expected {self._size_bytes} bytes when it is inflated, found more"
            return False
        self._found = zlib.crc32(piece, self._found)
        self._held.put(piece)
        return True


@dataclass(slots=True)
class ArrayRows:
    """An array whose rows are read.

    Attributes:
        what: Name of the array, for messages.
        header: Its header.
        fields: Names of the fields that its rows become, each with the name of the structure's field; None if
            the array is no structure.
        wanted: The rows that are wanted.
        come: The rows that come; in Fortran's order all of them.
        open_content: Makes the object that takes its bytes.
        content: That object, in a decoder.
    """

    what: str
    header: ArrayHeader
    fields: tuple[tuple[str, str | None], ...]
    wanted: range
    come: range
    open_content: Callable[[], Stored]
    content: Stored = field(init=False)
    _held: NDArray[Any] | None = field(default=None, init=False)

    def ready(self, most: int, row: int) -> int:
        """How many rows are there, at most ``most``; ``row`` comes next, for messages."""
        header = self.header
        if not header.by_columns:
            there = self.content.available(most * header.row_bytes) // header.row_bytes
        else:
            come, wanted = self.come, self.wanted
            size = len(come) * header.row_bytes
            if self._held is None and self.content.available(size) >= size:
                values = self.content.take(size).view(header.dtype)
                by_rows = values.reshape(*header.shape[:0:-1], len(come)).T
                self._held = by_rows[wanted.start - come.start : wanted.stop - come.start]
            there = 0 if self._held is None else len(self._held)
        if not there and self.content.fault is not None:
            raise FormatError(f"{self.what}: {self.content.fault}", sample=row)
        return min(there, most)

    def take(self, rows: int, row: int) -> Iterator[tuple[str, Column]]:
        """The fields of the next rows, which are there."""
        header = self.header
        if self._held is not None:
            values, self._held = np.ascontiguousarray(self._held[:rows]), self._held[rows:]
        else:
            values = self.content.take(rows * header.row_bytes).view(header.dtype)
            values = values.reshape(rows, *header.shape[1:])
        if not header.dtype.isnative:
            values = values.astype(header.dtype.newbyteorder("="))
        for name, inside in self.fields:
            part = values if inside is None else np.ascontiguousarray(values[inside])
            yield name, _column_of(part, f"{self.what}: field {name!r}", row)

    def finish(self) -> None:
        """All bytes have come.

        Raises:
            FormatError: Their length or checksum is wrong.
        """
        if fault := self.content.finish():
            raise FormatError(f"{self.what}: {fault}")


class RowsDecoder(Decoder):
    """Decode rows as they come.

    Args:
        arrays: The arrays whose rows make a sample; all of one length.
        turns: The number of the array that the next bytes belong to, and how many bytes, turn by turn.
        wanted: The wanted rows.
    """

    def __init__(self, arrays: Sequence[ArrayRows], turns: Sequence[tuple[int, int]], wanted: range) -> None:
        # Copies: a plan opens any number of decoders, and outlives them.
        self._columns = [replace(array) for array in arrays]
        for column in self._columns:
            column.content = column.open_content()
        self._turns = deque(turns)
        self._row, self._stop = wanted.start, wanted.stop
        row_bytes = sum(array.header.row_bytes for array in arrays)
        self._most = max(1, min(MAX_BLOCK_SAMPLES, MAX_BLOCK_BYTES // max(row_bytes, 1)))

    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]:
        rest = memoryview(chunk)
        while rest:
            number, left = self._turns.popleft()
            here, rest = rest[:left], rest[left:]
            if len(here) < left:
                self._turns.appendleft((number, left - len(here)))
            self._columns[number].content.put(here)
        yield from self._whole()

    def finish(self) -> Iterator[Block]:
        yield from self._whole()
        for column in self._columns:
            column.finish()
        if self._row < self._stop:
            raise FormatError("truncated within a row", sample=self._row)

    def _whole(self) -> Iterator[Block]:
        """The rows that are complete in all arrays."""
        while self._row < self._stop:
            most = min(self._most, self._stop - self._row)
            ready = [column.ready(most, self._row) for column in self._columns]
            if not (rows := min(ready)):
                return
            fields = {
                name: values for column in self._columns for name, values in column.take(rows, self._row)
            }
            first, self._row = self._row, self._row + rows
            yield Columns(fields, OffsetTrail(first, None))


def _column_of(values: NDArray[Any], what: str, row: int) -> Column:
    """An array as a column: texts and bytes as Python's own, others as they are."""
    if values.dtype.kind == "b" and (odd := values.view(np.uint8) > 1).any():
        bad = row + int(np.flatnonzero(odd.reshape(len(values), -1).any(axis=1))[0])
        raise FormatError(f"{what}: damaged: expected a bool of 0 or 1", sample=bad)
    if values.dtype.kind not in "SU":
        return values
    # For other characters Python raises errors that do not name the shard.
    if values.dtype.kind == "U" and (values.view(np.uint32) > sys.maxunicode).any():
        raise FormatError(f"{what}: damaged: a character that Unicode does not have", sample=row)
    texts: list[Any] = values.tolist()
    return texts


#: The field of an array that is no structure.
FIELD = "array"

# In Fortran's order a row is spread over the whole array, so the wanted rows are held until all have come.
_MOST_HELD_BYTES = 256 << 20


def plan_npy(spec: ShardSpec) -> Planning:
    """Plan what to read of an array; one that is no structure has the one field ``array``.

    Raises:
        FormatError: It is no array, truncated, of an unsupported kind, or lacks a wanted field.
    """
    head = yield Span(0, HEAD_BYTES)
    size = min(header_bytes(head.content, "npy"), head.length)
    header = parse_rows_header((yield from bring(head, Span(0, size))), "npy")
    stop = header.size_bytes + header.body_bytes
    if head.length != stop:
        raise _other_length(header, head.length)
    names = header.dtype.names
    fields = choose_names(spec.selection.columns, names or (FIELD,))
    wanted = wanted_rows(header.rows, spec)
    come = rows_to_read(header, wanted)
    spans = (span_of(header, Span(header.size_bytes, stop), come),) if come else ()
    parts = tuple((name, name if names else None) for name in fields)
    rows = ArrayRows("npy", header, parts, wanted, come, Stored)
    check_held("npy", [rows])
    turns = [(0, span.stop - span.start) for span in spans]
    return Layout(spans, partial(RowsDecoder, [rows], turns, wanted), samples=header.rows)


def wanted_rows(rows: int, spec: ShardSpec) -> range:
    """The wanted rows of an array.

    Raises:
        FormatError: It has fewer rows than were already read.
    """
    check_reached(rows, spec.start_sample, "rows")
    stop = rows if spec.stop_sample is None else min(rows, spec.stop_sample)
    return range(spec.start_sample, max(spec.start_sample, stop))


def rows_to_read(header: ArrayHeader, wanted: range) -> range:
    """The rows to read for the wanted ones: in Fortran's order each is spread over the whole array."""
    return range(header.rows) if header.by_columns and wanted else wanted


def span_of(header: ArrayHeader, body: Span, rows: range) -> Span:
    """Where some rows are in the stored elements."""
    begin = body.start + rows.start * header.row_bytes
    return Span(begin, begin + len(rows) * header.row_bytes)


def check_held(what: str, arrays: Sequence[ArrayRows]) -> None:
    """Refuse arrays in Fortran's order that together take too much memory.

    Raises:
        FormatError: They take more than 256 MiB.
    """
    held = sum(len(rows.come) * rows.header.row_bytes for rows in arrays if rows.header.by_columns)
    if held > _MOST_HELD_BYTES:
        raise FormatError(
            f"{what}: in Fortran's order rows are spread over all of an array, and {held} bytes would be "
            f"held at once; at most {_MOST_HELD_BYTES} are allowed: save numpy.ascontiguousarray of it"
        )


def _other_length(header: ArrayHeader, length: int) -> FormatError:
    stop = header.size_bytes + header.body_bytes
    what = f"shape {header.shape} of {header.dtype}"
    claim = f"{what} takes {stop} bytes with its header, and the shard has {length}"
    if length < stop:
        whole = (length - header.size_bytes) // header.row_bytes
        return FormatError(
            f"npy: truncated: {claim}", offset=length, sample=None if header.by_columns else max(whole, 0)
        )
    return FormatError(
        f"npy: {claim}: only one array is read; save several with numpy.savez, or in files of their own",
        offset=stop,
    )
