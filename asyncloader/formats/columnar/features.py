"""What Hugging Face's ``datasets`` notes of columns in a shard's schema: shapes of arrays, files, classes.

The types of Arrow do not tell it where ``datasets`` is not imported: an array is lists in lists, and a file a
struct of its bytes and its path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...blocks import Column
from ...errors import FormatError
from .convert import field_of, tensors_of

__all__ = ["Features", "features_of"]

_ARRAY = re.compile(r"Array[2-5]D")
_FILES = frozenset({"Image", "Audio", "Video", "Pdf"})
_PARTS = {"bytes", "path"}

_Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class Features:
    """What is known of columns beyond their types.

    Attributes:
        shapes: Of the arrays in a column; the first length is None where each has its own.
        files: Columns of files.
        class_names: Of the classes that a column of labels numbers, from 0 on.
    """

    shapes: Mapping[str, _Shape] = field(default_factory=dict)
    files: frozenset[str] = frozenset()
    class_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def field_of(self, name: str, array: Any) -> Column:
        """The field of a block that a column's ``pyarrow.Array`` becomes.

        Raises:
            FormatError: It has not the shape that was noted.
        """
        if (shape := self.shapes.get(name)) is not None:
            try:
                return tensors_of(array, shape)
            except ValueError as error:
                raise FormatError(
                    f"column {name!r} should have arrays of shape {shape}, as datasets has noted in the "
                    f"schema, and has {error}"
                ) from error
        column = field_of(array)
        if name in self.files and isinstance(column, list):
            return [_without_null_path(value) for value in column]
        return column


def features_of(schema: Any) -> Features:
    """What the metadata of a ``pyarrow.Schema`` say; nothing where they are missing or of another form."""
    try:
        noted = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        kinds = {str(name): str(feature["_type"]) for name, feature in noted.items() if "_type" in feature}
        shapes = dict(_shapes(noted, kinds))
        classes = {
            name: tuple(map(str, noted[name]["names"]))
            for name, kind in kinds.items()
            if kind == "ClassLabel"
        }
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return Features()
    return Features(shapes, frozenset(name for name, kind in kinds.items() if kind in _FILES), classes)


def _shapes(noted: Mapping[str, Any], kinds: Mapping[str, str]) -> Iterator[tuple[str, _Shape]]:
    for name, kind in kinds.items():
        if not _ARRAY.fullmatch(kind):
            continue
        first, *others = shape = tuple(noted[name]["shape"])
        if all(type(length) is int and length > 0 for length in (1 if first is None else first, *others)):
            yield name, shape


def _without_null_path(value: Any) -> Any:
    """A file whose name was not kept, without a null in its place: no batch could hold that."""
    if type(value) is dict and value.keys() == _PARTS and value["path"] is None:
        return {"bytes": value["bytes"]}
    return value
