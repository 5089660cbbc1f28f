"""Shards of MDS, which MosaicML's ``streaming`` writes, and the index of a folder of them. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from math import prod
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..blocks import Column, Objects, Ragged, offsets_of
from ..errors import FormatError
from ..types import Planning
from . import images
from .compression import CompressedDecoder
from .decoder import Decoder, Selection, ShardSpec
from .offsets import (
    IndexedFile,
    IndexedShard,
    TableDecoder,
    TableKind,
    field_edges,
    gathered,
    joined,
    plan_samples,
    values_of,
)
from .selection import missing_column
from .unpacking import Check, SnappyDecoder, UnpackingDecoder, sniffed

#: By the number that stands before an array whose column has no dtype.
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


def fixed_of(
    dtype: np.dtype[Any], shape: tuple[int, ...], run: bytes | memoryview, starts: _Places, stops: _Places
) -> NDArray[Any]:
    """Values of one dtype and shape as an array ``(n, *shape)``."""
    count, size = len(starts), prod(shape) * dtype.itemsize
    if (starts[1:] == starts[:-1] + size).all():
        there = np.frombuffer(run, dtype, count * prod(shape), int(starts[0]))
        # Memory that is lent is used again; and few like numbers that lie between the places for them.
        flat = there if type(run) is bytes and there.flags.aligned else there.copy()
    else:
        flat = gathered(run, starts, size).reshape(-1).view(dtype)
    return flat.reshape(count, *shape)


def arrays_of(
    dtype: np.dtype[Any] | None, run: bytes | memoryview, starts: _Places, stops: _Places
) -> Column:
    """Values that tell their own shape, and their dtype where that is None.

    Those of one dimension and one dtype are a ``Ragged``, others a list of arrays.

    Raises:
        ValueError: A value is not as long as its shape says, or of an unknown dtype.
    """
    octets = np.frombuffer(run, np.uint8)
    begins = starts
    if dtype is None:
        if (stops <= starts).any():
            raise ValueError("it has no byte, and should have one for its dtype")
        codes = octets[starts]
        if (codes != codes[0]).any():
            return Objects(_array(None, bytes(run[a:b])) for a, b in zip(starts, stops, strict=True))
        dtype, begins = _dtype(int(codes[0])), starts + 1
    lengths = _lengths(octets, begins, stops)
    if lengths is None:
        return Objects(_array(dtype, bytes(run[a:b])) for a, b in zip(begins, stops, strict=True))
    begins, counts = lengths
    wrong = np.flatnonzero(stops - begins != counts * dtype.itemsize)
    if len(wrong):
        _fail((int(counts[wrong[0]]),), dtype, int((stops - begins)[wrong[0]]))
    return Ragged(joined(run, begins, stops).view(dtype), offsets_of(counts))


def _lengths(octets: NDArray[np.uint8], begins: _Places, stops: _Places) -> tuple[_Places, _Places] | None:
    """Where the values of arrays of one dimension begin, and how many they are; None if some have more."""
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
        # Longer than any shard already; and not to be counted in bytes, which may not fit.
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
    raise ValueError(f"an array of shape {shape} and {dtype} takes other than the {found} bytes that it has")


Places: TypeAlias = NDArray[np.int64]
"""Where in a run each value begins, or where it ends: ``(n,) int64``."""

# What it decodes is what json.loads makes of it; what it refuses is json's to judge.
_JSON: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


class Encoding(NamedTuple):
    """How the values of a column are read.

    Attributes:
        name: As shards name it.
        size: Bytes of each value; None if they have unequal lengths.
        decode: Makes the column of a run, and of where its values begin and end. Raises ValueError.
    """

    name: str
    size: int | None
    decode: Callable[[bytes | memoryview, Places, Places], Column]


def encoding_of(name: str, column: str, decode: bool = True) -> Encoding:
    """The encoding of a column.

    Args:
        name: As the shard has it.
        column: For messages.
        decode: Whether images are opened, of those that are files.

    Raises:
        FormatError: It is not known, or may run anything.
    """
    why = "it is not known"
    try:
        if (found := _find(name, decode)) is not None:
            return found
    except ValueError as error:
        why = str(error)
    if name == "pkl":
        why = (
            "a pickle may run any code when it is read, so none is. Name the other columns with columns=, or "
            "write the data set again with that column as json, bytes or ndarray"
        )
    raise FormatError(f"mds: column {column!r} has the encoding {name[:80]!r}, which is not read: {why}")


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
#: No shard is longer, so no value of it.
MOST_BYTES = 1 << 32


def _ndarray(name: str, config: str) -> Encoding:
    """Those with a dtype and a shape, a dtype alone, or neither of them in the name."""
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


_MOST_AXES = 63  # more are not written


def _integers(run: bytes | memoryview, starts: Places, stops: Places) -> Column:
    # Python's own, as the shards' library has them.
    return Objects(fixed_of(np.dtype("<i8"), (), run, starts, stops).tolist())


def _each(make: Callable[[bytes], Any], run: bytes | memoryview, starts: Places, stops: Places) -> Column:
    return Objects(map(make, values_of(run, starts, stops)))


def _texts(run: bytes | memoryview, starts: Places, stops: Places) -> Column:
    edges = zip(starts.tolist(), stops.tolist(), strict=True)
    return [str(run[start:stop], "utf-8") for start, stop in edges]


def _decimal(text: bytes) -> Decimal:
    return Decimal(str(text, "utf-8"))


def _json(text: bytes) -> Any:
    try:
        return _JSON.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return json.loads(str(text, "utf-8"))


_VARIABLE: dict[str, Callable[[bytes | memoryview, Places, Places], Column]] = {
    "bytes": values_of,
    "str": _texts,
    "str_int": partial(_each, lambda text: int(str(text, "utf-8"))),
    "str_float": partial(_each, lambda text: float(str(text, "utf-8"))),
    "str_decimal": partial(_each, _decimal),
    "json": partial(_each, _json),
    "pil": partial(_each, images.raw),
    "jpeg": partial(_each, images.encoded),
    "png": partial(_each, images.encoded),
    "jpegarray": partial(_each, partial(images.jpeg_array, images.encoded)),
    "jpeg_array": partial(_each, partial(images.jpeg_array, images.encoded)),
    "list[pil]": partial(_each, partial(images.listed, images.raw)),
    "list[jpeg]": partial(_each, partial(images.listed, images.encoded)),
    "list[png]": partial(_each, partial(images.listed, images.encoded)),
}
# Of images that are files, their bytes; pixels alone are no file.
_FILES: dict[str, Callable[[bytes | memoryview, Places, Places], Column]] = {
    **dict.fromkeys(("jpeg", "png"), values_of),
    **dict.fromkeys(("jpegarray", "jpeg_array"), partial(_each, partial(images.jpeg_array, bytes))),
    **dict.fromkeys(("list[jpeg]", "list[png]"), partial(_each, partial(images.listed, bytes))),
}


_VERSION = 2


@dataclass(frozen=True)
class MdsSamples:
    """What the samples of one shard are; see ``offsets.decoder.Samples``.

    Attributes:
        sizes: How many bytes a value of each column has; None where samples tell it.
        wanted: Of the columns that become fields: name, number, and how it is read.
    """

    sizes: Sequence[int | None]
    wanted: Sequence[tuple[str, int, Encoding]]

    def decode(self, run: bytes | memoryview, bounds: NDArray[np.int64]) -> Mapping[str, Column]:
        edges = field_edges("mds", run, bounds, self.sizes)
        fields = {}
        for name, number, encoding in self.wanted:
            try:
                fields[name] = encoding.decode(run, edges[number], edges[number + 1])
            except (ValueError, ArithmeticError, RecursionError) as error:
                how = error.args[0] if isinstance(error, FormatError) else str(error)
                raise FormatError(f"mds: column {name!r} ({encoding.name}) cannot be read: {how}") from error
        return fields


class MdsColumns(msgspec.Struct):
    """The columns of shards, as the index describes them and each shard behind its table."""

    version: int
    format: str
    column_names: list[str] = []
    column_encodings: list[str] = []
    column_sizes: list[Annotated[int, msgspec.Meta(ge=0, le=MOST_BYTES)] | None] = []


def _open_samples(header: bytes, *, selection: Selection) -> MdsSamples:
    """The samples of a shard, by what is between its table and the first of them.

    Raises:
        FormatError: It is no description of MDS, of another version, has columns in an encoding that is not
            known or not read, or lacks one that is wanted.
    """
    try:
        return check_columns(msgspec.json.decode(header, type=MdsColumns), selection)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"mds: damaged: behind the table should be its columns in JSON: {error}") from error


def check_columns(columns: MdsColumns, selection: Selection) -> MdsSamples:
    """The samples of shards that are described so.

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
            "mds: damaged: names, encodings and sizes of the columns are not as many, or a name is twice"
        )
    numbers = {name: number for number, name in enumerate(names)}
    wanted = []
    for name in names if selection.columns is None else selection.columns:
        if name not in numbers:
            raise FormatError(missing_column("columns", name, names))
        encoding, size = encoding_of(encodings[numbers[name]], name, selection.decode), sizes[numbers[name]]
        if encoding.size != (size or None):
            raise FormatError(
                f"mds: damaged: column {name!r} ({encoding.name}) should have {encoding.size} bytes, found "
                f"{size}"
            )
        wanted.append((name, numbers[name], encoding))
    return MdsSamples([size or None for size in sizes], wanted)


def _brotli(inner: Decoder, check: Check) -> Decoder:
    return CompressedDecoder(inner, "brotli", check)


def _snappy(inner: Decoder, check: Check) -> Decoder:
    return SnappyDecoder(inner)  # which bounds what it makes by itself


#: By the end of a file's name, which is also how an index names it: what reads it.
COMPRESSIONS: Mapping[str, Callable[[Decoder, Check], Decoder]] = MappingProxyType(
    {
        "br": _brotli,
        "bz2": sniffed,
        "gz": sniffed,
        "snappy": _snappy,
        "zstd": sniffed,
    }
)


def plan_mds(spec: ShardSpec) -> Planning | None:
    """Plan what to read of an uncompressed shard; see ``plan_samples``."""
    return plan_samples(_kind(spec), spec)


def open_mds(spec: ShardSpec) -> TableDecoder:
    """A decoder of a shard from front to back."""
    return TableDecoder(_kind(spec), start_sample=spec.first_sample, pass_over=spec.pass_over)


def open_packed_mds(family: str, spec: ShardSpec) -> Decoder:
    """The same of a shard that is compressed as a whole, by a key of ``COMPRESSIONS``."""
    return UnpackingDecoder("mds", COMPRESSIONS[family], open_mds(spec), spec.unpacked)


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
        selection: Which columns are wanted: that all shards have them is checked.
        is_there: Whether a file is in the folder; None where that takes a request. A shard that was
            compressed may have been decompressed beside the original: its raw file is read if it is there,
            else the compressed one.

    Raises:
        FormatError: It is not sound, of another version or format, or a wanted column is not read.
    """
    try:
        index = msgspec.json.decode(content, type=_MdsIndex)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FormatError(f"index: expected the index.json of MDS: {error}") from error
    _check_version("", index.version)
    checked: tuple[Any, ...] = ()
    for number, entry in enumerate(index.shards):
        place = f"shards[{number}]"
        _check_version(f"{place}.", entry.version)
        _check_format(place, entry)
        columns = entry.column_names, entry.column_encodings, entry.column_sizes
        if columns != checked:  # mostly all have the same
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


# What reads the formats of streaming that are text.
_TEXTS = {"json": "jsonl", "csv": "csv", "tsv": "tsv", "xsv": "csv"}


def _check_format(place: str, entry: _MdsEntry) -> None:
    format, separator = entry.format, entry.separator
    if format == "mds":
        return
    if format not in _TEXTS:
        raise FormatError(f"index: {place}.format: expected 'mds', found {format!r}")
    text = f"index: {place}: these shards are text, in streaming's format {format!r}: "
    said = ""
    if format == "xsv":
        if separator is None or len(separator) != 1:
            raise FormatError(
                f"{text}their fields are separated by {separator!r}, and only one character is read as that; "
                "write them anew with such a one, or as MDS"
            )
        said = f", delimiter={separator!r}"
    raise FormatError(f"{text}read their data files with al.from_urls(..., format={_TEXTS[format]!r}{said})")
