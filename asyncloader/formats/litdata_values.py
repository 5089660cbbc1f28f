"""Values of LitData's samples: by the names of their serializers, and how they nest.

``int``, ``float`` and ``bool`` are arrays, ``str`` and ``text`` strings, ``json`` what JSON has, arrays and
tensors NumPy's, ``pil`` images Pillow's. Media are the bytes of their file. Nothing is unpickled. The numbers
of dtypes never change: they are in every chunk. What is decoded is what litdata 0.2.76 decodes, by its source
and its output.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from struct import Struct, error
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..blocks import Column, Ragged, offsets_of
from ..errors import FormatError
from .images import raw as raw_image
from .offsets import gathered, joined, values_of


@dataclass(frozen=True, slots=True)
class Values:
    """A value of each sample.

    Attributes:
        run: Bytes of the samples; whoever keeps any copies them, since its memory may be used again.
        starts: Where each value begins in it, ``(n,) int64``.
        lengths: How many bytes each has, ``(n,) int64``.
    """

    run: bytes | memoryview
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts)

    def bytes(self) -> list[bytes]:
        """Each value as it is stored."""
        return values_of(self.run, self.starts, self.starts + self.lengths)

    def joined(self) -> NDArray[np.uint8]:
        """All of them end to end, ``(bytes of all,) uint8``; a copy."""
        return joined(self.run, self.starts, self.starts + self.lengths)

    def gather(self, size: int, skip: int = 0) -> NDArray[np.uint8]:
        """``(n, size) uint8``: so many bytes of each value, behind its first ``skip``; a copy.

        The caller has seen to it that the values are that long.
        """
        return gathered(self.run, self.starts + skip, size)

    def check(self, right: NDArray[np.bool_], wanted: str) -> None:
        """Raise for the first value whose length is not right."""
        if not right.all():
            found = int(self.lengths[right.argmin()])
            raise FormatError(f"litdata: damaged: a value should have {wanted}, found {found} bytes")


Leaf: TypeAlias = Callable[[Values], Column]
"""Makes the column of a value of each sample; raises FormatError where one cannot be read."""


def rows_of(values: Values, decode: Callable[[bytes], Any]) -> list[Any]:
    """Each value decoded by itself."""
    try:
        return [*map(decode, values.bytes())]
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise FormatError(f"litdata: damaged: {error}") from error


Dtypes: TypeAlias = Mapping[int, np.dtype[np.generic]]

_NAMES = "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128 bool"
numpy_dtypes: Dtypes = MappingProxyType(
    {number: np.dtype(name) for number, name in enumerate(_NAMES.split())}
)
# Some twice, since torch has two names for them; 10 is bfloat16, which their writer cannot write.
_TORCH = {
    "float32": (0, 1),
    "float64": (2, 3),
    "complex64": (4, 5),
    "complex128": (6, 7),
    "float16": (8, 9),
    "uint8": (11,),
    "int8": (12,),
    "int16": (13, 14),
    "int32": (15, 16),
    "int64": (17, 18),
    "bool": (19,),
    "uint16": (20,),
}
torch_dtypes: Dtypes = MappingProxyType(
    {number: np.dtype(name) for name, numbers in _TORCH.items() for number in numbers}
)

#: Of serializers of arrays without a header: their names end with the number.
flat_dtypes = MappingProxyType({"no_header_numpy": numpy_dtypes, "no_header_tensor": torch_dtypes})

_MOST_DIMENSIONS = 32
# Of a block's 1,024 arrays, of 16 bytes a value, as many bytes as NumPy counts.
_MOST_VALUES = 1 << 48


def flat_array(dtype: np.dtype[np.generic]) -> Leaf:
    """Reads arrays of one dimension: nothing but their values."""
    return partial(_flat, dtype)


def _flat(dtype: np.dtype[np.generic], values: Values) -> Column:
    lengths = values.lengths
    values.check(lengths % dtype.itemsize == 0, f"whole values of {dtype}")
    if len(lengths) and (lengths == lengths[0]).all():
        flat = values.gather(int(lengths[0])).reshape(-1)
    else:
        flat = values.joined()
    return Ragged.over(_typed(flat, dtype), offsets_of(lengths // dtype.itemsize))


def _typed(flat: NDArray[np.uint8], dtype: np.dtype[np.generic]) -> NDArray[Any]:
    # Bytes other than 0 and 1 are no bools to NumPy, and what it makes of them is not defined.
    return flat != 0 if dtype == np.bool_ else flat.view(dtype)


def header_array(byte_order: str, dtypes: Dtypes) -> Leaf:
    """Reads arrays that begin with the number of their dtype, of their dimensions, and these.

    Args:
        byte_order: Of the header: ``"<"`` or ``">"``, which may be ``"<"`` all the same. The values are
            little-endian.
        dtypes: By number.
    """
    return partial(_with_headers, byte_order, dtypes)


def _with_headers(byte_order: str, dtypes: Dtypes, values: Values) -> Column:
    if not len(values):
        return []
    run = values.run
    starts, lengths = values.starts.tolist(), values.lengths.tolist()
    dtype, shape = _header(byte_order, dtypes, run[starts[0] : starts[0] + lengths[0]])
    header_bytes = 8 + 4 * len(shape)
    if (values.lengths == lengths[0]).all():
        headers = values.gather(header_bytes)
        if (headers == headers[0]).all():
            flat = values.gather(lengths[0] - header_bytes, header_bytes).reshape(-1)
            return _typed(flat, dtype).reshape(len(values), *shape)
    arrays = []
    for start, length in zip(starts, lengths, strict=True):
        content = run[start : start + length]
        dtype, shape = _header(byte_order, dtypes, content)
        flat = np.frombuffer(content, np.uint8)[8 + 4 * len(shape) :].copy()
        arrays.append(_typed(flat, dtype).reshape(shape))
    return arrays


def _header(
    byte_order: str, dtypes: Dtypes, content: bytes | memoryview
) -> tuple[np.dtype[np.generic], tuple[int, ...]]:
    """Dtype and shape of an array, held against its length."""
    try:
        number, dimensions = struct.unpack_from(f"{byte_order}II", content)
        if dimensions > _MOST_DIMENSIONS and byte_order == ">":
            # As older releases have written tensors. No number is small in both orders.
            byte_order = "<"
            number, dimensions = struct.unpack_from("<II", content)
        if dimensions > _MOST_DIMENSIONS:
            raise FormatError(
                f"litdata: damaged: an array of {dimensions} dimensions, at most {_MOST_DIMENSIONS}"
            )
        shape = struct.unpack_from(f"{byte_order}{dimensions}I", content, 8)
    except struct.error as error:
        raise FormatError(f"litdata: damaged: {len(content)} bytes are no array with a header") from error
    dtype = dtypes.get(number)
    if dtype is None:
        raise FormatError(f"litdata: damaged: there is no dtype with the number {number}")
    wanted = 8 + 4 * dimensions + dtype.itemsize * prod(shape)
    # NumPy has no room for more, not even where another dimension is 0.
    if prod(max(size, 1) for size in shape) > _MOST_VALUES:
        raise FormatError(f"litdata: damaged: no array has the shape {shape}")
    if wanted != len(content):
        raise FormatError(
            f"litdata: damaged: an array {shape} of {dtype} takes {wanted} bytes, found {len(content)}"
        )
    return dtype, shape


def flat_dtype(name: str) -> np.dtype[np.generic]:
    """The dtype that such a format names, as ``no_header_numpy:3``.

    Raises:
        FormatError: It names none.
    """
    kind, _, number = name.partition(":")
    known = {str(key): dtype for key, dtype in flat_dtypes.get(kind, {}).items()}
    if number not in known:
        raise FormatError(
            f"litdata: index.json: config.data_format: expected {' or '.join(flat_dtypes)} with the number "
            f"of a dtype, found {name[:80]!r}"
        )
    return known[number]


_COUNT, _INT, _FLOAT = Struct("<I"), Struct("<q"), Struct("<d")

# What the first byte says a value is. JSON itself begins with a character above these.
_JSON, _TEXTS, _INTS, _FLOATS, _BOOLS, _DICT, _RECORDS, _TEXT, _ONE_INT, _ONE_FLOAT, _BOOL, _NONE = range(12)
_LAST_TAG = 0x20
_RECORD_KINDS = MappingProxyType({0x10: _NONE, 0x11: _TEXT, 0x12: _ONE_INT, 0x13: _ONE_FLOAT, 0x14: _BOOL})

_MOST_DEPTH = 64


def decode_json(content: bytes) -> Any:
    """The value: dicts, lists, strings, ints, floats, bools and None.

    Raises:
        ValueError: It is damaged.
    """
    if not content or content[0] > _LAST_TAG:
        return json.loads(content)
    reader = _JsonReader(content)
    try:
        value = reader.value(0)
    except (error, IndexError) as cause:
        raise ValueError("a list or dict is truncated") from cause
    if reader.at != len(content):
        raise ValueError(f"a list or dict ends {len(content) - reader.at} bytes before its value does")
    return value


class _JsonReader:
    """Reads one value from front to back."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.at = 0

    def value(self, depth: int) -> Any:
        if depth > _MOST_DEPTH:
            raise ValueError(f"a list or dict nests deeper than {_MOST_DEPTH}")
        tag = self._byte()
        if tag == _DICT:
            return {self._text(): self.value(depth + 1) for _ in range(self._count(5))}
        read = _READ.get(tag)
        if read is None:
            raise ValueError(f"a list or dict of the unknown kind {tag}")
        return read(self)

    def _byte(self) -> int:
        self.at += 1
        return self._content[self.at - 1]

    def _unpack(self, form: Struct) -> Any:
        self.at += form.size
        return form.unpack_from(self._content, self.at - form.size)[0]

    def _count(self, least_bytes: int) -> int:
        """How many entries come, of so many bytes at least: not more than there is room for."""
        count: int = self._unpack(_COUNT)
        if count * least_bytes > len(self._content) - self.at:
            raise ValueError(
                f"{count} entries do not fit into the {len(self._content) - self.at} bytes there are"
            )
        return count

    def _take(self, size: int) -> bytes:
        if size > len(self._content) - self.at:
            raise ValueError(f"expected {size} bytes more, found {len(self._content) - self.at}")
        self.at += size
        return self._content[self.at - size : self.at]

    def _text(self) -> str:
        return str(self._take(self._unpack(_COUNT)), "utf-8")

    def _json(self) -> Any:
        return json.loads(self._take(self._unpack(_COUNT)))

    def _texts(self) -> list[str]:
        return [self._text() for _ in range(self._count(4))]

    def _numbers(self, dtype: str) -> list[Any]:
        numbers: list[Any] = np.frombuffer(self._take(8 * self._count(8)), dtype).tolist()
        return numbers

    def _bools(self) -> list[bool]:
        return [byte != 0 for byte in self._take(self._count(1))]

    def _records(self) -> list[dict[str, Any]]:
        count, names = self._unpack(_COUNT), self._count(4)
        keys = [self._text() for _ in range(names)]
        if count * len(keys) > len(self._content) - self.at or (count and not keys):
            raise ValueError(
                f"{count} records do not fit into the {len(self._content) - self.at} bytes there are"
            )
        return [{key: self._of_record() for key in keys} for _ in range(count)]

    def _of_record(self) -> Any:
        tag = self._byte()
        if tag not in _RECORD_KINDS:
            raise ValueError(f"a record holds a value of the unknown kind {tag}")
        return _READ[_RECORD_KINDS[tag]](self)


_READ: Mapping[int, Callable[[_JsonReader], Any]] = MappingProxyType(
    {
        _JSON: _JsonReader._json,
        _TEXTS: _JsonReader._texts,
        _INTS: lambda reader: reader._numbers("<i8"),
        _FLOATS: lambda reader: reader._numbers("<f8"),
        _BOOLS: _JsonReader._bools,
        _RECORDS: _JsonReader._records,
        _TEXT: _JsonReader._text,
        _ONE_INT: lambda reader: reader._unpack(_INT),
        _ONE_FLOAT: lambda reader: reader._unpack(_FLOAT),
        _BOOL: lambda reader: reader._byte() != 0,
        _NONE: lambda reader: None,
    }
)


def _number(dtype: str, values: Values) -> Column:
    size = np.dtype(dtype).itemsize
    values.check(values.lengths == size, f"{size} bytes")
    numbers: NDArray[Any] = values.gather(size).view(np.dtype(dtype))[:, 0]
    return numbers


def _flags(values: Values) -> Column:
    values.check(values.lengths == 1, "1 byte")
    flags: NDArray[np.bool_] = values.gather(1)[:, 0] != 0
    return flags


def _texts(values: Values) -> Column:
    return rows_of(values, _text)


def _text(content: bytes) -> str:
    return str(content, "utf-8")


_LEAVES: Mapping[str, Leaf] = MappingProxyType(
    {
        "int": partial(_number, "<i8"),
        "float": partial(_number, "<f8"),
        "bool": _flags,
        "str": _texts,
        "text": _texts,
        "json": partial(rows_of, decode=decode_json),
        "pil": partial(rows_of, decode=raw_image),
        "numpy": header_array("<", numpy_dtypes),
        "tensor": header_array(">", torch_dtypes),
        **dict.fromkeys(
            [
                "bytes",
                "file",
                "jpeg",
                "jpeg_array",
                "image",
                "tifffile",
                "tiff",
                "video",
                "audio",
                "nifti",
                "mesh",
                "pdf",
            ],
            Values.bytes,
        ),
    }
)

# Those that run whatever code a chunk's author has put into it.
_PICKLES = ("pickle", "graph")


def leaf_of(name: str) -> Leaf:
    """What reads values of a serializer.

    Args:
        name: As ``data_format`` has it, with a parameter behind a colon: ``"file:mp3"``,
            ``"no_header_tensor:17"``.

    Raises:
        FormatError: It holds pickles, or is not known.
    """
    kind = name.partition(":")[0]
    if kind in _PICKLES:
        raise FormatError(
            f"litdata: samples hold values of the serializer {kind!r}, which are pickles: reading them would "
            "run whatever code is in the chunks; write the chunks anew with values that have a serializer "
            "(arrays, numbers, strings, bytes, lists and dicts of such)"
        )
    if kind in flat_dtypes:
        return flat_array(flat_dtype(name))
    if kind not in _LEAVES:
        raise FormatError(
            f"litdata: expected values of one of the serializers {', '.join((*_LEAVES, *flat_dtypes))}, "
            f"found {kind[:80]!r}; write the chunks anew without a serializer of your own"
        )
    return _LEAVES[kind]


#: What a sample is called that is a single value.
VALUE = "value"

_PROTOCOL = 1
_KINDS = {
    "builtins.dict": "dict",
    "collections.OrderedDict": "dict",
    "builtins.list": "list",
    "builtins.tuple": "tuple",
}
# Of a sample that somebody has made: what is beyond is made to exhaust whoever reads it.
_MOST_TREE_DEPTH = 32
_MOST_LEAVES = 4096


@dataclass(frozen=True)
class Tree:
    """A value of a sample, or what holds such.

    Attributes:
        kind: ``"leaf"``, ``"dict"``, ``"list"`` or ``"tuple"``.
        names: Of a dict's children.
        children: In the order in which their values are stored.
    """

    kind: str
    names: tuple[str, ...] = ()
    children: tuple[Tree, ...] = ()

    @property
    def leaves(self) -> int:
        """How many values there are in a sample."""
        return 1 if self.kind == "leaf" else sum(child.leaves for child in self.children)

    @property
    def fields(self) -> tuple[tuple[str, Tree], ...]:
        """Those of the sample that this is: a dict's keys; ``"0"``, ``"1"`` of a list or tuple; or one."""
        if self.kind == "leaf":
            return ((VALUE, self),)
        names = self.names if self.kind == "dict" else map(str, range(len(self.children)))
        return tuple(zip(names, self.children, strict=True))


class _SpecNode(msgspec.Struct):
    children_spec: list[_SpecNode]
    type: str | None = None
    context: Any = None


def parse_tree(text: Any) -> Tree:
    """The tree that ``data_spec`` describes.

    Args:
        text: A string of JSON: protocol and root, each node with its type, its context and its children.

    Raises:
        FormatError: It is not such, or holds what is neither dict, list nor tuple.
    """
    try:
        protocol, root = msgspec.json.decode(text, type=tuple[int, _SpecNode])
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        raise _no_spec(f"no JSON of a protocol and a tree: {error}") from error
    if protocol != _PROTOCOL:
        raise _no_spec(f"expected protocol {_PROTOCOL}, found {protocol}")
    tree = _parse(root, 0)
    if not 0 < tree.leaves <= _MOST_LEAVES:
        raise _no_spec(f"expected 1 to {_MOST_LEAVES} values a sample, found {tree.leaves}")
    return tree


def _parse(node: _SpecNode, depth: int) -> Tree:
    if depth > _MOST_TREE_DEPTH:
        raise _no_spec(f"it nests deeper than {_MOST_TREE_DEPTH}")
    if node.type is None:
        if node.children_spec:
            raise _no_spec("a value has children")
        return Tree("leaf")
    if (kind := _KINDS.get(node.type)) is None:
        raise _no_spec(
            f"samples hold {node.type[:80]}, which is made by importing code; expected dicts, lists and "
            "tuples: write the chunks anew with fn= returning such"
        )
    children = tuple(_parse(child, depth + 1) for child in node.children_spec)
    return Tree(kind, _names(node.context, len(children)) if kind == "dict" else (), children)


def _names(context: object, count: int) -> tuple[str, ...]:
    """The keys of a dict, as text: those of samples are."""
    try:
        keys = json.loads(context) if isinstance(context, str) else context
    except (ValueError, RecursionError):
        keys = None
    names = tuple(map(str, keys)) if isinstance(keys, list) else ()
    if len({*names}) != count or len(names) != count:
        raise _no_spec(f"expected {count} different keys of a dict, found {str(context)[:80]}")
    return names


def _no_spec(what: str) -> FormatError:
    return FormatError(f"litdata: index.json: config.data_spec: {what}")


def column_of(tree: Tree, leaves: Sequence[Column], count: int) -> Column:
    """The column of a field, of those of its values: of what nests a list of dicts, lists and tuples.

    Args:
        tree: Of the field.
        leaves: A column for each of its values.
        count: How many samples they are of.
    """
    return _column(tree, iter(leaves), count)


def _column(tree: Tree, leaves: Iterator[Column], count: int) -> Column:
    if tree.kind == "leaf":
        return next(leaves)
    columns = [_column(child, leaves, count) for child in tree.children]
    rows: Iterator[tuple[Any, ...]] = zip(*columns, strict=True) if columns else iter([()] * count)
    if tree.kind == "dict":
        return [dict(zip(tree.names, row, strict=True)) for row in rows]
    return [*rows] if tree.kind == "tuple" else [*map(list, rows)]
