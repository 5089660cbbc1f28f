"""Values of LitData's samples: by the names of their serializers, and how they nest.

``int``, ``float`` and ``bool`` are arrays, ``str`` and ``text`` strings, ``json`` JSON's values, arrays and
tensors NumPy arrays, ``pil`` images of Pillow. Media are the bytes of their file. Nothing is unpickled. The
numbers of dtypes never change, since every chunk contains them. Values decode as in litdata 0.2.76, by its
source and its output.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..blocks import Column, Ragged, offsets_of
from ..errors import FormatError
from .images import raw as raw_image
from .offsets import Values

Leaf: TypeAlias = Callable[[Values], Column]
"""Makes the column of a value of each sample; raises FormatError if a value cannot be read."""


def _check_lengths(values: Values, right: NDArray[np.bool_], wanted: str) -> None:
    """Raise for the first value whose length is not right."""
    if not right.all():
        found = int(values.lengths[right.argmin()])
        raise FormatError(f"litdata: damaged: a value should have {wanted}, found {found} bytes")


def _each(decode: Callable[[bytes], Any], values: Values) -> list[Any]:
    try:
        return [*map(decode, values.bytes())]
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise FormatError(f"litdata: damaged: {error}") from error


Dtypes: TypeAlias = Mapping[int, np.dtype[np.generic]]

_NAMES = "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128 bool"
numpy_dtypes: Dtypes = MappingProxyType(
    {number: np.dtype(name) for number, name in enumerate(_NAMES.split())}
)
# Some have two numbers, since torch has two names for them; 10 is bfloat16, which LitData cannot write.
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

#: The dtypes of serializers of arrays without a header, whose names end with the number.
flat_dtypes = MappingProxyType({"no_header_numpy": numpy_dtypes, "no_header_tensor": torch_dtypes})

_MOST_DIMENSIONS = 32
# NumPy can count the bytes of a block of 1,024 such arrays, even with 16 bytes a value.
_MOST_VALUES = 1 << 48


def _flat(dtype: np.dtype[np.generic], values: Values) -> Column:
    """Arrays of one dimension: nothing but their values."""
    lengths = values.lengths
    _check_lengths(values, lengths % dtype.itemsize == 0, f"whole values of {dtype}")
    if len(lengths) and (lengths == lengths[0]).all():
        flat = values.gathered(int(lengths[0])).reshape(-1)
    else:
        flat = values.joined()
    return Ragged.over(_typed(flat, dtype), offsets_of(lengths // dtype.itemsize))


def _typed(flat: NDArray[np.uint8], dtype: np.dtype[np.generic]) -> NDArray[Any]:
    # NumPy does not define what bytes other than 0 and 1 are as bools.
    return flat != 0 if dtype == np.bool_ else flat.view(dtype)


def _with_headers(byte_order: str, dtypes: Dtypes, values: Values) -> Column:
    """Arrays that begin with the number of their dtype, the number of their dimensions, and these.

    Args:
        byte_order: Of the header: ``"<"`` or ``">"``, which may be ``"<"`` all the same. The values are
            little-endian.
        dtypes: By number.
        values: The arrays.
    """
    if not len(values):
        return []
    run = values.run
    starts, lengths = values.starts.tolist(), values.lengths.tolist()
    dtype, shape = _header(byte_order, dtypes, run[starts[0] : starts[0] + lengths[0]])
    header_bytes = 8 + 4 * len(shape)
    if (values.lengths == lengths[0]).all():
        headers = values.gathered(header_bytes)
        if (headers == headers[0]).all():
            flat = values.gathered(lengths[0] - header_bytes, header_bytes).reshape(-1)
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
    """Dtype and shape of an array, checked against its length."""
    try:
        number, dimensions = struct.unpack_from(f"{byte_order}II", content)
        if dimensions > _MOST_DIMENSIONS and byte_order == ">":
            # Older releases wrote tensors like this. No number is small in both orders.
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
    # NumPy refuses more, even if another dimension is 0.
    if prod(max(size, 1) for size in shape) > _MOST_VALUES:
        raise FormatError(f"litdata: damaged: no array has the shape {shape}")
    if wanted != len(content):
        raise FormatError(
            f"litdata: damaged: an array {shape} of {dtype} takes {wanted} bytes, found {len(content)}"
        )
    return dtype, shape


def flat_dtype(name: str) -> np.dtype[np.generic]:
    """The dtype that a serializer such as ``no_header_numpy:3`` names.

    Raises:
        FormatError: It names no dtype.
    """
    kind, _, number = name.partition(":")
    known = {str(key): dtype for key, dtype in flat_dtypes.get(kind, {}).items()}
    if number not in known:
        raise FormatError(
            f"litdata: index.json: config.data_format: expected {' or '.join(flat_dtypes)} with the number "
            f"of a dtype, found {name[:80]!r}"
        )
    return known[number]


_COUNT, _INT, _FLOAT = struct.Struct("<I"), struct.Struct("<q"), struct.Struct("<d")

# JSON begins with a character above the numbers of kinds.
_LAST_KIND = 0x20
# A value in a record has another number than the same kind elsewhere.
_RECORD_KINDS = MappingProxyType({0x10: 11, 0x11: 7, 0x12: 8, 0x13: 9, 0x14: 10})

_MOST_DEPTH = 64


def decode_json(content: bytes) -> Any:
    """The value: dicts, lists, strings, ints, floats, bools and None.

    Raises:
        ValueError: It is damaged.
    """
    if not content or content[0] > _LAST_KIND:
        return json.loads(content)
    reader = _JsonReader(content)
    try:
        value = reader.value(0)
    except (struct.error, IndexError) as error:
        raise ValueError("a list or dict is truncated") from error
    if reader.at != len(content):
        raise ValueError(f"a list or dict ends {len(content) - reader.at} bytes before its value does")
    return value


class _JsonReader:
    """Reads one value from front to back."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.at = 0

    def value(self, depth: int) -> Any:
        """The value that comes next: the number of its kind, and its bytes."""
        if depth > _MOST_DEPTH:
            raise ValueError(f"a list or dict nests deeper than {_MOST_DEPTH}")
        kind = self._byte()
        if kind == 5:  # a dict
            return {self._text(): self.value(depth + 1) for _ in range(self._count(5))}
        return self._of_kind(kind)

    def _of_kind(self, kind: int) -> Any:
        match kind:  # those of single values first, since most values are single
            case 7:
                return self._text()
            case 8:
                return self._unpack(_INT)
            case 9:
                return self._unpack(_FLOAT)
            case 10:  # a bool
                return self._byte() != 0
            case 11:
                return None
            case 0:  # as JSON
                return json.loads(self._take(self._unpack(_COUNT)))
            case 1:
                return [self._text() for _ in range(self._count(4))]
            case 2 | 3:  # integers, floats
                dtype = "<i8" if kind == 2 else "<f8"
                return np.frombuffer(self._take(8 * self._count(8)), dtype).tolist()
            case 4:
                return [byte != 0 for byte in self._take(self._count(1))]
            case 6:
                return self._records()
        raise ValueError(f"a list or dict of the unknown kind {kind}")

    def _records(self) -> list[dict[str, Any]]:
        count, names = self._unpack(_COUNT), self._count(4)
        keys = [self._text() for _ in range(names)]
        if count * len(keys) > len(self._content) - self.at or (count and not keys):
            raise ValueError(
                f"{count} records do not fit into the {len(self._content) - self.at} bytes there are"
            )
        return [{key: self._of_record(self._byte()) for key in keys} for _ in range(count)]

    def _of_record(self, kind: int) -> Any:
        if kind not in _RECORD_KINDS:
            raise ValueError(f"a record holds a value of the unknown kind {kind}")
        return self._of_kind(_RECORD_KINDS[kind])

    def _text(self) -> str:
        return str(self._take(self._unpack(_COUNT)), "utf-8")

    def _count(self, least_bytes: int) -> int:
        """How many entries come, each of at least so many bytes; no more than there is room for."""
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

    def _unpack(self, form: struct.Struct) -> Any:
        self.at += form.size
        return form.unpack_from(self._content, self.at - form.size)[0]

    def _byte(self) -> int:
        self.at += 1
        return self._content[self.at - 1]


def _number(dtype: np.dtype[Any], values: Values) -> Column:
    _check_lengths(values, values.lengths == dtype.itemsize, f"{dtype.itemsize} bytes")
    return _typed(values.gathered(dtype.itemsize).reshape(-1), dtype)


def _text(content: bytes) -> str:
    return str(content, "utf-8")


_MEDIA = "bytes file jpeg jpeg_array image tifffile tiff video audio nifti mesh pdf"
_LEAVES: Mapping[str, Leaf] = MappingProxyType(
    {
        "int": partial(_number, np.dtype("<i8")),
        "float": partial(_number, np.dtype("<f8")),
        "bool": partial(_number, np.dtype(np.bool_)),
        "str": partial(_each, _text),
        "text": partial(_each, _text),
        "json": partial(_each, decode_json),
        "pil": partial(_each, raw_image),
        "numpy": partial(_with_headers, "<", numpy_dtypes),
        "tensor": partial(_with_headers, ">", torch_dtypes),
        **dict.fromkeys(_MEDIA.split(), Values.bytes),
    }
)

# Reading these runs whatever code the author of a chunk put into it.
_PICKLES = ("pickle", "graph")


def leaf_of(name: str) -> Leaf:
    """The function that reads values of a serializer.

    Args:
        name: Its name in ``data_format``, with a parameter behind a colon: ``"file:mp3"``,
            ``"no_header_tensor:17"``.

    Raises:
        FormatError: It writes pickles, or is unknown.
    """
    kind = name.partition(":")[0]
    if kind in _PICKLES:
        raise FormatError(
            f"litdata: samples hold values of the serializer {kind!r}, which are pickles: reading them would "
            "run whatever code is in the chunks; write the chunks again with values that have a serializer "
            "(arrays, numbers, strings, bytes, and lists and dicts of these)"
        )
    if kind in flat_dtypes:
        return partial(_flat, flat_dtype(name))
    if kind not in _LEAVES:
        raise FormatError(
            f"litdata: expected values of one of the serializers {', '.join((*_LEAVES, *flat_dtypes))}, "
            f"found {kind[:80]!r}; write the chunks again without a serializer of your own"
        )
    return _LEAVES[kind]


#: The field of samples that are a single value.
VALUE = "value"

_PROTOCOL = 1
_KINDS = {
    "builtins.dict": "dict",
    "collections.OrderedDict": "dict",
    "builtins.list": "list",
    "builtins.tuple": "tuple",
}
# Real samples stay far below these; more is an attack on the reader's memory.
_MOST_TREE_DEPTH = 32
_MOST_LEAVES = 4096


@dataclass(frozen=True)
class Tree:
    """A value of a sample, or a container of values.

    Attributes:
        kind: ``"leaf"``, ``"dict"``, ``"list"`` or ``"tuple"``.
        names: The keys of a dict.
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
        """The fields of a sample: a dict's keys; ``"0"``, ``"1"`` of a list or tuple; or ``VALUE``."""
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
        FormatError: It is damaged, or holds something other than dicts, lists and tuples.
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
            "tuples: write the chunks again with an fn= that returns these"
        )
    children = tuple(_parse(child, depth + 1) for child in node.children_spec)
    return Tree(kind, _names(node.context, len(children)) if kind == "dict" else (), children)


def _names(context: object, count: int) -> tuple[str, ...]:
    """The keys of a dict as texts, since the keys of samples are texts."""
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


def column_of(tree: Tree, leaves: Iterator[Column], count: int) -> Column:
    """The column of a field, made of the columns of its values: containers become dicts, lists and tuples.

    Args:
        tree: Of the field.
        leaves: A column for each of its values.
        count: How many samples they are of.
    """
    if tree.kind == "leaf":
        return next(leaves)
    columns = [column_of(child, leaves, count) for child in tree.children]
    rows: Iterator[tuple[Any, ...]] = zip(*columns, strict=True) if columns else iter([()] * count)
    if tree.kind == "dict":
        return [dict(zip(tree.names, row, strict=True)) for row in rows]
    return [*rows] if tree.kind == "tuple" else [*map(list, rows)]
