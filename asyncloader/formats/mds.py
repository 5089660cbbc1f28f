"""Shards of MDS, which MosaicML's ``streaming`` writes, and the index of a folder of them. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from math import prod
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..blocks import Column, Objects, Ragged, offsets_of
from ..errors import FormatError
from ..types import Planning
from . import images
from .compression import CompressedDecoder, SniffingDecoder
from .decoder import Decoder, Selection, ShardSpec
from .offsets import (
    Decode,
    IndexedFile,
    IndexedShard,
    TableDecoder,
    TableKind,
    Values,
    field_edges,
    plan_table,
    view_of,
)
from .selection import choose_names
from .unpacking import SnappyDecoder, UnpackedDecoder

#: By the number before an array, if its column has no dtype.
DTYPES = {
    8: "uint8",
    9: "int8",
    16: "uint16",
    17: "int16",
    18: "float16",
    32: "uint32",
    33: "int32",
    34: "float32",
    64: "uint64",
    65: "int64",
    66: "float64",
}

_Places = NDArray[np.int64]


def fixed_of(dtype: np.dtype[Any], shape: tuple[int, ...], values: Values) -> NDArray[Any]:
    """Values of one dtype and shape as an array ``(n, *shape)``."""
    starts, size = values.starts, prod(shape) * dtype.itemsize
    if (starts[1:] == starts[:-1] + size).all():
        flat = view_of(values.run, dtype, len(values) * prod(shape), int(starts[0]))
    else:
        flat = values.gathered(size).reshape(-1).view(dtype)
    return flat.reshape(len(values), *shape)


def arrays_of(dtype: np.dtype[Any] | None, values: Values) -> Column:
    """Values that state their own shape, and their dtype if it is None here.

    Those of one dimension and one dtype are a ``Ragged``, others a list of arrays.

    Raises:
        ValueError: A value is not as long as its shape says, or has an unknown dtype.
    """
    octets = np.frombuffer(values.run, np.uint8)
    begins, stops = values.starts, values.stops
    if dtype is None:
        if (stops <= begins).any():
            raise ValueError("it has no byte, and should have one for its dtype")
        codes = octets[begins]
        if (codes != codes[0]).any():
            return Objects(map(partial(_array, None), values.bytes()))
        dtype, begins = _dtype(int(codes[0])), begins + 1
    lengths = _lengths(octets, begins, stops)
    if lengths is None:
        return Objects(map(partial(_array, dtype), Values(values.run, begins, stops).bytes()))
    begins, counts = lengths
    wrong = np.flatnonzero(stops - begins != counts * dtype.itemsize)
    if len(wrong):
        _fail((int(counts[wrong[0]]),), dtype, int((stops - begins)[wrong[0]]))
    return Ragged(Values(values.run, begins, stops).joined().view(dtype), offsets_of(counts))


def _lengths(octets: NDArray[np.uint8], begins: _Places, stops: _Places) -> tuple[_Places, _Places] | None:
    """Where the values of one-dimensional arrays begin, and their numbers; None if some have more axes."""
    if (stops <= begins).any():
        raise ValueError("it has no byte, and should have one for its number of dimensions")
    heads = octets[begins]
    if (heads >> 2 != 1).any():
        return None
    counts = np.zeros(len(begins), np.int64)
    widths = 1 << (heads & 3).astype(np.int64)
    if (begins + 1 + widths > stops).any():
        raise ValueError("it ends within its shape")
    for width in np.unique(widths).tolist():
        (which,) = np.nonzero(widths == width)
        places = begins[which, None] + np.arange(1, 1 + width)
        told = octets[places].view(f"<u{width}").reshape(-1)
        # This is longer than any shard already; the number of bytes of more might not fit.
        counts[which] = np.minimum(told, np.uint64(1 << 40)) if width == 8 else told
    return begins + 1 + widths, counts


def _array(dtype: np.dtype[Any] | None, content: bytes) -> NDArray[Any]:
    """One array of any number of dimensions."""
    if dtype is None:
        dtype, content = _dtype(content[0] if content else -1), content[1:]
    if not content:
        raise ValueError("it has no byte, and should have one for its number of dimensions")
    axes, width = content[0] >> 2, 1 << (content[0] & 3)
    stop = 1 + axes * width
    if stop > len(content):
        raise ValueError("it ends within its shape")
    shape = tuple(np.frombuffer(content, f"<u{width}", axes, 1).tolist())
    if prod(shape) * dtype.itemsize != len(content) - stop:
        _fail(shape, dtype, len(content) - stop)
    return np.frombuffer(content[stop:], dtype).reshape(shape)


def _dtype(code: int) -> np.dtype[Any]:
    if code not in DTYPES:
        raise ValueError(f"no dtype has the number {code}")
    return np.dtype(DTYPES[code]).newbyteorder("<")


def _fail(shape: tuple[int, ...], dtype: np.dtype[Any], found: int) -> None:
    raise ValueError(f"an array of shape {shape} and {dtype} does not take the {found} bytes that it has")


# It decodes to the same values as json.loads; what it refuses is given to json.
_JSON: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


_Read: TypeAlias = Callable[[Values], Column]


class Encoding(NamedTuple):
    """How the values of a column are read.

    Attributes:
        name: Its name in shards.
        size: Bytes of each value; None if they have unequal lengths.
        decode: Makes the column of values. Raises ValueError.
    """

    name: str
    size: int | None
    decode: _Read


def encoding_of(name: str, column: str, decode: bool = True) -> Encoding:
    """The encoding of a column.

    Args:
        name: Its name in the shard.
        column: For messages.
        decode: Whether image files are opened.

    Raises:
        FormatError: It is unknown, or decoding it may run any code.
    """
    why = "it is unknown"
    try:
        if (found := _find(name, decode)) is not None:
            return found
    except ValueError as error:
        why = str(error)
    if name == "pkl":
        why = (
            "a pickle may run any code when it is read. Name the other columns with columns=, or write the "
            "data set again with that column as json, bytes or ndarray"
        )
    raise FormatError(f"mds: column {column!r} has the encoding {name[:80]!r}, which is not supported: {why}")


def _find(name: str, decode: bool) -> Encoding | None:
    kind, _, config = name.partition(":")
    if kind == "ndarray":
        return _ndarray(name, config)
    if kind in _SCALARS and not config:
        dtype = np.dtype(kind).newbyteorder("<")
        return Encoding(name, dtype.itemsize, partial(fixed_of, dtype, ()))
    if name == "int":
        return Encoding(name, 8, _integers)
    make = (_VARIABLE if decode else _VARIABLE | _FILES).get(name)
    return None if make is None else Encoding(name, None, make)


_SCALARS = frozenset(DTYPES.values())
_SHAPE = re.compile(r"[1-9]\d{0,9}(,[1-9]\d{0,9})*")
#: No shard is longer, so no value is.
MOST_BYTES = 1 << 32


def _ndarray(name: str, config: str) -> Encoding:
    """Arrays with a dtype and a shape, a dtype alone, or neither in the name."""
    kind, _, shape_text = config.partition(":")
    if kind and kind not in _SCALARS:
        raise ValueError(f"{kind[:80]!r} is not one of {', '.join(DTYPES.values())}")
    dtype = np.dtype(kind).newbyteorder("<") if kind else None
    if not shape_text:
        return Encoding(name, None, partial(arrays_of, dtype))
    if dtype is None or _SHAPE.fullmatch(shape_text) is None:
        raise ValueError(f"{shape_text[:80]!r} behind {kind!r} is not a shape")
    shape = tuple(map(int, shape_text.split(",")))
    if len(shape) > _MOST_AXES or (size := prod(shape) * dtype.itemsize) > MOST_BYTES:
        raise ValueError(f"{shape_text[:80]} is larger than any shard")
    return Encoding(name, size, partial(fixed_of, dtype, shape))


_MOST_AXES = 63  # streaming's limit


def _integers(values: Values) -> Column:
    # Python's own integers, as streaming returns them.
    return Objects(fixed_of(np.dtype("<i8"), (), values).tolist())


def _each(make: Callable[[bytes], Any]) -> _Read:
    return lambda values: Objects(map(make, values.bytes()))


def _texts(values: Values) -> Column:
    run = values.run
    return [str(run[start:stop], "utf-8") for start, stop in values.edges]


def _json(text: bytes) -> Any:
    try:
        return _JSON.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return json.loads(str(text, "utf-8"))


_VARIABLE: dict[str, _Read] = {
    "bytes": Values.bytes,
    "str": _texts,
    "str_int": _each(lambda text: int(str(text, "utf-8"))),
    "str_float": _each(lambda text: float(str(text, "utf-8"))),
    "str_decimal": _each(lambda text: Decimal(str(text, "utf-8"))),
    "json": _each(_json),
    "pil": _each(images.raw),
    "list[pil]": _each(partial(images.listed, images.raw)),
    **dict.fromkeys(("jpeg", "png"), _each(images.encoded)),
    **dict.fromkeys(("jpegarray", "jpeg_array"), _each(partial(images.jpeg_array, images.encoded))),
    **dict.fromkeys(("list[jpeg]", "list[png]"), _each(partial(images.listed, images.encoded))),
}
# The bytes of image files; an image of pixels alone is no file.
_FILES: dict[str, _Read] = {
    **dict.fromkeys(("jpeg", "png"), Values.bytes),
    **dict.fromkeys(("jpegarray", "jpeg_array"), _each(partial(images.jpeg_array, bytes))),
    **dict.fromkeys(("list[jpeg]", "list[png]"), _each(partial(images.listed, bytes))),
}


_VERSION = 2


def _decode_samples(
    sizes: Sequence[int | None],
    wanted: Sequence[tuple[str, int, Encoding]],
    run: bytes | memoryview,
    bounds: NDArray[np.int64],
) -> Mapping[str, Column]:
    """The columns of some samples; see ``offsets.Decode``.

    Args:
        sizes: How many bytes a value of each column has; None if each sample states it.
        wanted: The columns that become fields: name, number, and how it is read.
        run: See ``Decode``.
        bounds: See ``Decode``.
    """
    edges = field_edges("mds", run, bounds, sizes)
    fields = {}
    for name, number, encoding in wanted:
        try:
            fields[name] = encoding.decode(Values(run, edges[number], edges[number + 1]))
        except (ValueError, ArithmeticError, RecursionError) as error:
            how = error.args[0] if isinstance(error, FormatError) else str(error)
            raise FormatError(f"mds: column {name!r} ({encoding.name}) cannot be read: {how}") from error
    return fields


class MdsColumns(msgspec.Struct):
    """The columns of shards, as the index and the header of each shard describe them."""

    version: int
    format: str
    column_names: list[str] = []
    column_encodings: list[str] = []
    column_sizes: list[Annotated[int, msgspec.Meta(ge=0, le=MOST_BYTES)] | None] = []


def _open_samples(header: bytes, *, selection: Selection) -> Decode:
    """What decodes the samples of a shard, by its header.

    Raises:
        FormatError: The header does not describe MDS, or another version of it; a column has an unknown or
            unsupported encoding; or a wanted column is missing.
    """
    try:
        return check_columns(msgspec.json.decode(header, type=MdsColumns), selection)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(
            f"mds: damaged: expected a description of the columns in JSON behind the table: {error}"
        ) from error


def check_columns(columns: MdsColumns, selection: Selection) -> Decode:
    """What decodes the samples of shards with these columns.

    Raises:
        FormatError: As of ``_open_samples``.
    """
    if (columns.version, columns.format) != (_VERSION, "mds"):
        raise FormatError(
            f"mds: expected format 'mds', version {_VERSION}, found {columns.format!r}, {columns.version}"
        )
    names, encodings, sizes = columns.column_names, columns.column_encodings, columns.column_sizes
    if not len(names) == len(encodings) == len(sizes) == len({*names}) or not names:
        raise FormatError(
            "mds: damaged: the numbers of names, encodings and sizes of columns differ, or a name is twice"
        )
    numbers = {name: number for number, name in enumerate(names)}
    wanted = []
    for name in choose_names(selection.columns, tuple(names)):
        encoding, size = encoding_of(encodings[numbers[name]], name, selection.decode), sizes[numbers[name]]
        if encoding.size != (size or None):
            raise FormatError(
                f"mds: damaged: column {name!r} ({encoding.name}) should have {encoding.size} bytes, found "
                f"{size}"
            )
        wanted.append((name, numbers[name], encoding))
    return partial(_decode_samples, [size or None for size in sizes], wanted)


#: By the end of a file's name, which is also the name that an index has for it.
COMPRESSIONS = ("br", "bz2", "gz", "snappy", "zstd")


def plan_mds(spec: ShardSpec) -> Planning | None:
    """Plan what to read of an uncompressed shard; None if all of it is wanted, which needs no plan."""
    return plan_table(_kind(spec), spec) if spec.start_sample or spec.stop_sample is not None else None


def open_mds(spec: ShardSpec) -> TableDecoder:
    """A decoder of a shard from front to back."""
    return TableDecoder(_kind(spec), start_sample=spec.first_sample, pass_over=spec.pass_over)


def open_packed_mds(compression: str, spec: ShardSpec) -> Decoder:
    """A decoder of a shard that is compressed as a whole, by one of ``COMPRESSIONS``."""
    unpacked = UnpackedDecoder("mds", open_mds(spec), spec.unpacked)
    if compression == "br":
        return CompressedDecoder(unpacked, "brotli")
    if compression == "snappy":
        return SnappyDecoder(unpacked)
    # Servers may decompress a file while they send it.
    return SniffingDecoder(lambda: unpacked)


def _kind(spec: ShardSpec) -> TableKind:
    return TableKind("mds", partial(_open_samples, selection=spec.selection))


# A table counts in 32 bits.
_Samples: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]


class _MdsEntry(MdsColumns, kw_only=True):
    samples: _Samples
    raw_data: IndexedFile | None = None
    zip_data: IndexedFile | None = None
    compression: str | None = None
    separator: str | None = None


class _MdsIndex(msgspec.Struct):
    version: int
    shards: list[_MdsEntry]


def parse_mds_index(
    content: bytes, selection: Selection, is_there: Callable[[str], bool] | None = None
) -> Iterator[IndexedShard]:
    """The shards of an index.

    Args:
        content: The file.
        selection: The wanted columns. All shards must have them.
        is_there: Whether a file is in the folder; None if that takes a request. A compressed shard may have
            been decompressed beside the original: then its raw file is read.

    Raises:
        FormatError: The index is damaged, has another version or format, or a wanted column is missing or has
            an unsupported encoding.
    """
    try:
        index = msgspec.json.decode(content, type=_MdsIndex)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FormatError(f"index: expected the index.json of MDS: {error}") from error
    checked: tuple[Any, ...] = ()
    _check_version("", index.version)
    for number, entry in enumerate(index.shards):
        place = f"shards[{number}]"
        _check_version(f"{place}.", entry.version)
        _check_format(place, entry)
        columns = entry.column_names, entry.column_encodings, entry.column_sizes
        if columns != checked:  # mostly all shards have the same columns
            check_columns(entry, selection)
            checked = columns
        yield _shard_of(place, entry, is_there)


def _shard_of(place: str, entry: _MdsEntry, is_there: Callable[[str], bool] | None) -> IndexedShard:
    raw, packed = entry.raw_data, entry.zip_data
    if raw is not None and (packed is None or (is_there is not None and is_there(raw.basename))):
        return IndexedShard(raw, "mds", entry.samples)
    if packed is None:
        raise FormatError(f"index: {place}: expected raw_data or zip_data, found neither")
    family = (entry.compression or "").partition(":")[0]
    if family not in COMPRESSIONS:
        raise FormatError(
            f"index: {place}.compression: expected one of {', '.join(COMPRESSIONS)}, found "
            f"{entry.compression!r}"
        )
    return IndexedShard(packed, f"mds.{family}", entry.samples, raw)


def _check_version(place: str, version: int) -> None:
    if version != _VERSION:
        raise FormatError(f"index: {place}version: expected {_VERSION}, found {version}")


# The formats that read streaming's text formats.
_TEXTS = {"json": "jsonl", "csv": "csv", "tsv": "tsv", "xsv": "csv"}


def _check_format(place: str, entry: _MdsEntry) -> None:
    format, separator = entry.format, entry.separator
    if format == "mds":
        return
    if format not in _TEXTS:
        raise FormatError(f"index: {place}.format: expected 'mds', found {format!r}")
    text = f"index: {place}: these shards are text, in streaming's format {format!r}: "
    delimiter = ""
    if format == "xsv":
        if separator is None or len(separator) != 1:
            raise FormatError(
                f"{text}their fields are separated by {separator!r}, but a separator must be one character; "
                "write them again with such a separator, or as MDS"
            )
        delimiter = f", delimiter={separator!r}"
    call = f"al.from_urls(..., format={_TEXTS[format]!r}{delimiter})"
    raise FormatError(f"{text}read their data files with {call}")
