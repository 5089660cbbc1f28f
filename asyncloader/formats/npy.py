"""``.npy``: the header first, then the rows that are wanted, and no byte before them.

The header is dtype, shape and order, of which nothing is evaluated but a literal: versions 1.0 to 3.0, after
NEP 1 and ``numpy.lib.format``. Several arrays come in turns; the bytes of one that come before the others are
held as they are stored, so that what was deflated expands only as its rows are wanted.
"""

from __future__ import annotations

import ast
import math
import sys
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..blocks import Block, Column, Columns, OffsetTrail
from ..errors import FormatError
from ..types import Answer, Layout, Planning, Span
from .compression import SIGNATURE_BYTES, compression_of
from .decoder import MAX_BLOCK_BYTES, MAX_BLOCK_SAMPLES, ByteQueue, Decoder, ShardSpec, describe_bytes
from .selection import check_rows, choose_names

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

# Of values: not objects, which are pickles and run what their author wrote, nor structures in structures.
_KINDS = "biufcSUmM"


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
        return self.dtype.itemsize * math.prod(self.shape)


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
        FormatError: It is cut or damaged, or of objects.
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
        raise _damaged(what, "the header should have descr, fortran_order and shape", told)
    shape, by_columns, dtype = told["shape"], told["fortran_order"], _dtype_of(told["descr"], what)
    if not isinstance(by_columns, bool):
        raise _damaged(what, "fortran_order should be True or False", by_columns)
    if not isinstance(shape, tuple) or not all(
        type(length) is int and 0 <= length <= _MOST_LENGTH for length in shape
    ):
        raise _damaged(what, "the shape should be a tuple of whole numbers of 0 or more", shape)
    # Of one axis both orders are the same.
    return ArrayHeader(dtype, shape, by_columns and len(shape) > 1, size_bytes)


def parse_rows_header(content: bytes, what: str) -> ArrayHeader:
    """The same of an array whose rows are samples.

    Raises:
        FormatError: As ``parse_header``; or it has no axis of rows or more than 32, structures in structures,
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
            f"{what}: expected numbers, times, texts or bytes, or structures of such, found {_shown(dtype)}: "
            "others are not read"
        )
    axes = len(shape) + max(field.ndim for field in fields)
    if axes > _MOST_AXES:
        raise FormatError(f"{what}: an array of {axes} axes, at most {_MOST_AXES} are read")
    if header.rows and not 0 < header.row_bytes <= MOST_ROW_BYTES:
        raise FormatError(
            f"{what}: of shape {shape} and {dtype}, a row has {header.row_bytes} bytes; rows, which are "
            f"along the first axis, of 1 to {MOST_ROW_BYTES} bytes are read"
        )
    return header


def _dtype_of(descr: Any, what: str) -> np.dtype[Any]:
    try:
        dtype: np.dtype[Any] = np.lib.format.descr_to_dtype(descr)
    # What it raises of damaged ones is not documented; a deprecated name is a warning.
    except (Exception, Warning) as error:
        raise FormatError(f"{what}: NumPy knows no dtype {_shown(descr)}: {error}") from error
    if dtype.hasobject:
        raise FormatError(
            f"{what}: an array of objects is a pickle, which may run any code and is not read; save numbers, "
            "texts or bytes of one dtype"
        )
    return dtype


def _damaged(what: str, wanted: str, found: object) -> FormatError:
    return FormatError(f"{what}: damaged: {wanted}, found {_shown(found)}")


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python shows no whole number of so many digits
        return "a number that is too long to be shown"
    return text if len(text) <= 80 else f"{text[:80]}..."


# Of what is deflated, from its first byte on, and of what becomes of it: as in ``compression``, so that what
# comes out before corrupt bytes raise does not go by how they were cut into chunks.
_STEP_BYTES = 1 << 16
_PIECE_BYTES = 1 << 20


class Stored:
    """Bytes that are stored as they are.

    Args:
        crc32: Of all bytes, those before the first that comes included; None to check nothing.
        before: The checksum of those.
    """

    fault: str | None = None

    def __init__(self, crc32: int | None = None, before: int = 0) -> None:
        self._expected = crc32
        self._found = before
        self._held = ByteQueue()

    def put(self, chunk: memoryview) -> None:
        """Take in the next bytes."""
        if self._expected is not None:
            self._found = zlib.crc32(chunk, self._found)
        self._held.put(chunk)

    def available(self, most_bytes: int) -> int:
        """How many bytes are there, as far as ``most_bytes``."""
        return self._held.size_bytes

    def take(self, size_bytes: int) -> NDArray[np.uint8]:
        """What is in front, which is there, in memory of its own."""
        return np.frombuffer(bytearray().join(self._held.take(size_bytes)), np.uint8)

    def finish(self) -> str | None:
        """What is wrong, when all bytes have come."""
        if self._expected is not None and self._found != self._expected:
            return _wrong_crc(self._expected, self._found)
        return None


class Deflated:
    """Bytes that were deflated, of which no more is expanded than is wanted.

    Args:
        stored_bytes: How many come.
        size_bytes: How many they hold.
        skip_bytes: Of these, how many in front nobody wants.
        crc32: Of these.
    """

    def __init__(self, stored_bytes: int, size_bytes: int, skip_bytes: int, crc32: int) -> None:
        self._left = stored_bytes
        self._size_bytes = size_bytes
        self._skip = skip_bytes
        self._expected = crc32
        self._found = 0
        self._made = 0
        self._stored, self._held = ByteQueue(), ByteQueue()
        self._inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        self._tail: bytes = b""
        self._may_hold_more = False
        self.fault: str | None = None

    def put(self, chunk: memoryview) -> None:
        """Take in the next bytes."""
        self._stored.put(chunk)

    def available(self, most_bytes: int) -> int:
        """Expand until so many bytes are there, or all that have come; how many there are."""
        while self._held.size_bytes < most_bytes and self._expand():
            if self._skip:
                self._skip -= sum(map(len, self._held.take(min(self._skip, self._held.size_bytes))))
        return self._held.size_bytes

    def take(self, size_bytes: int) -> NDArray[np.uint8]:
        """What is in front, which is there, in memory of its own."""
        return np.frombuffer(bytearray().join(self._held.take(size_bytes)), np.uint8)

    def finish(self) -> str | None:
        """What is wrong, when all bytes have come, and the last that was wanted was taken."""
        while self.fault is None and self._expand():
            self._held.take(self._held.size_bytes)
        if self.fault is None and self._made != self._size_bytes:
            return f"expected {self._size_bytes} bytes when it is inflated, found {self._made}"
        if self.fault is None and self._found != self._expected:
            return _wrong_crc(self._expected, self._found)
        return self.fault

    def _expand(self) -> bool:
        """One step; False if there is nothing to be had of what has come."""
        if self.fault is not None or self._inflater.eof:
            return False
        if not self._tail and not self._may_hold_more:
            step = min(_STEP_BYTES, self._left)
            if not step or self._stored.size_bytes < step:
                return False
            self._left -= step
            self._tail = b"".join(self._stored.take(step))
        try:
            piece = self._inflater.decompress(self._tail, _PIECE_BYTES)
        except zlib.error as error:
            self.fault = f"corrupt deflated bytes: {error}"
            return False
        self._tail = self._inflater.unconsumed_tail
        self._may_hold_more = len(piece) == _PIECE_BYTES
        self._made += len(piece)
        if self._made > self._size_bytes:
            self.fault = f"expected {self._size_bytes} bytes when it is inflated, found more"
            return False
        self._found = zlib.crc32(piece, self._found)
        self._held.put(memoryview(piece))
        return True


def _wrong_crc(expected: int, found: int) -> str:
    return f"damaged: expected the CRC-32 {expected:08x}, found {found:08x}"


@dataclass(frozen=True, slots=True)
class ArrayRows:
    """An array of which rows are read.

    Attributes:
        what: It is, for messages.
        header: Of it.
        fields: Names of the fields that its rows become, each with that of the field inside of a structure;
            None for what is no structure.
        come: The rows that come; of Fortran's order perhaps others around those that are wanted.
        open_content: Makes what takes its bytes.
    """

    what: str
    header: ArrayHeader
    fields: tuple[tuple[str, str | None], ...]
    come: range
    open_content: Callable[[], Stored | Deflated]


class RowsDecoder(Decoder):
    """Decode rows as they come.

    Args:
        arrays: Whose rows make a sample; all of one length.
        turns: Which array the bytes are of, by number, and how many of them, one turn after another.
        wanted: The rows that are wanted.
    """

    def __init__(self, arrays: Sequence[ArrayRows], turns: Sequence[tuple[int, int]], wanted: range) -> None:
        super().__init__()
        self._columns = [_Rows(array, wanted) for array in arrays]
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
            self._columns[number].put(here)
        yield from self._whole()

    def _decode_end(self) -> Iterator[Block]:
        yield from self._whole()
        for column in self._columns:
            column.finish()
        if self._row < self._stop:
            raise FormatError("truncated within a row", sample=self._row)

    def _whole(self) -> Iterator[Block]:
        """The rows of which all arrays have all."""
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


class _Rows:
    """The rows of one array."""

    def __init__(self, array: ArrayRows, wanted: range) -> None:
        self._array = array
        self._content = array.open_content()
        self._native = array.header.dtype.newbyteorder("=")
        self._held: NDArray[Any] | None = None
        self._wanted = wanted

    def put(self, chunk: memoryview) -> None:
        self._content.put(chunk)

    def ready(self, most: int, row: int) -> int:
        """How many rows are there, of ``most`` that are wanted; ``row`` comes next, for messages."""
        header = self._array.header
        if not header.by_columns:
            there = self._content.available(most * header.row_bytes) // header.row_bytes
        else:
            size = len(self._array.come) * header.row_bytes
            if self._held is None and self._content.available(size) >= size:
                self._held = self._by_rows(self._content.take(size))
            there = 0 if self._held is None else len(self._held)
        if not there and self._content.fault is not None:
            raise FormatError(f"{self._array.what}: {self._content.fault}", sample=row)
        return min(there, most)

    def take(self, rows: int, row: int) -> Iterator[tuple[str, Column]]:
        """The fields of the next rows, which are there."""
        header = self._array.header
        if self._held is not None:
            values, self._held = np.ascontiguousarray(self._held[:rows]), self._held[rows:]
        else:
            values = self._content.take(rows * header.row_bytes).view(header.dtype)
            values = values.reshape(rows, *header.shape[1:])
        if not header.dtype.isnative:
            values = values.astype(self._native)
        for name, inside in self._array.fields:
            part = values if inside is None else np.ascontiguousarray(values[inside])
            yield name, _column_of(part, f"{self._array.what}: field {name!r}", row)

    def finish(self) -> None:
        """All bytes have come.

        Raises:
            FormatError: They are not those that were promised.
        """
        if fault := self._content.finish():
            raise FormatError(f"{self._array.what}: {fault}")

    def _by_rows(self, content: NDArray[np.uint8]) -> NDArray[Any]:
        """The wanted rows, of bytes in Fortran's order."""
        header, come, wanted = self._array.header, self._array.come, self._wanted
        values = content.view(header.dtype).reshape(*header.shape[:0:-1], len(come)).T
        return values[wanted.start - come.start : wanted.stop - come.start]


def _column_of(values: NDArray[Any], what: str, row: int) -> Column:
    """An array as a column: texts and bytes as Python's own, all else as it is."""
    if values.dtype.kind == "b" and (odd := values.view(np.uint8) > 1).any():
        bad = row + int(np.flatnonzero(odd.reshape(len(values), -1).any(axis=1))[0])
        raise FormatError(f"{what}: damaged: expected a bool of 0 or 1", sample=bad)
    if values.dtype.kind not in "SU":
        return values
    # Of others Python makes no text, and says so in ways that are not for errors of shards.
    if values.dtype.kind == "U" and (values.view(np.uint32) > sys.maxunicode).any():
        raise FormatError(f"{what}: damaged: a character that Unicode does not have", sample=row)
    texts: list[Any] = values.tolist()
    return texts


#: Of what is no structure.
FIELD = "array"

# In Fortran's order a row is spread over the whole array, so that what is wanted is held until it is whole.
_MOST_HELD_BYTES = 256 << 20

# Runs of it that are asked for one by one; of more, all rows are read.
_MOST_RUNS = 256


def plan_npy(spec: ShardSpec) -> Planning:
    """Plan what to read of an array; what is no structure has the one field ``array``.

    Raises:
        FormatError: It is no array, truncated, of a kind that is not read, or lacks what is wanted of it.
    """
    head = yield Span(0, HEAD_BYTES)
    header = yield from _read_header(head)
    stop = header.size_bytes + header.body_bytes
    if head.length != stop:
        raise _other_length(header, head.length)
    names = header.dtype.names
    fields = choose_names(spec.selection.columns, names or (FIELD,))
    wanted = wanted_rows(header.rows, spec)
    come, spans = spans_of(header, Span(header.size_bytes, stop), wanted)
    rows = ArrayRows("npy", header, tuple((name, name if names else None) for name in fields), come, Stored)
    check_held("npy", [rows])
    turns = [(0, span.stop - span.start) for span in spans]
    return Layout(tuple(spans), partial(RowsDecoder, [rows], turns, wanted), samples=header.rows)


def wanted_rows(rows: int, spec: ShardSpec) -> range:
    """Which of an array's rows are wanted.

    Raises:
        FormatError: It has fewer than were read before.
    """
    check_rows(rows, spec.start_sample)
    stop = rows if spec.stop_sample is None else min(rows, spec.stop_sample)
    return range(spec.start_sample, max(spec.start_sample, stop))


def spans_of(header: ArrayHeader, body: Span, wanted: range) -> tuple[range, list[Span]]:
    """Where rows are.

    Args:
        header: Of the array.
        body: Where its elements are, as they are stored.
        wanted: The rows.

    Returns:
        The rows that come, and the spans, none of them empty.
    """
    if not wanted:
        return wanted, []
    if not header.by_columns:
        begin = body.start + wanted.start * header.row_bytes
        return wanted, [Span(begin, begin + len(wanted) * header.row_bytes)]
    come = wanted if header.columns <= _MOST_RUNS else range(header.rows)
    if len(come) == header.rows:
        return come, [body]
    size = header.dtype.itemsize
    begins = [body.start + (run * header.rows + come.start) * size for run in range(header.columns)]
    return come, [Span(begin, begin + len(come) * size) for begin in begins]


def check_held(what: str, arrays: Sequence[ArrayRows]) -> None:
    """Refuse to hold more of arrays in Fortran's order than there is room for.

    Raises:
        FormatError: It is more, of all of them together.
    """
    held = sum(len(rows.come) * rows.header.row_bytes for rows in arrays if rows.header.by_columns)
    if held > _MOST_HELD_BYTES:
        raise FormatError(
            f"{what}: in Fortran's order rows are spread over all of an array, and {held} bytes would be "
            f"held at once; at most {_MOST_HELD_BYTES} are: save numpy.ascontiguousarray of it"
        )


def _read_header(head: Answer) -> Generator[Span, Answer, ArrayHeader]:
    content = head.content
    size = header_bytes(content, "npy")
    if len(content) < min(size, head.length):
        content += (yield Span(len(content), min(size, head.length))).content
    return parse_rows_header(content, "npy")


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
