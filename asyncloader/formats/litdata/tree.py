"""How the values of a sample nest, as ``data_spec`` of an index says it: JSON that names no code to run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...blocks import Column
from ...errors import FormatError

__all__ = ["Tree", "column_of", "parse_tree"]

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
_MOST_DEPTH = 32
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


def parse_tree(text: object) -> Tree:
    """The tree that ``data_spec`` describes.

    Args:
        text: A string of JSON: protocol and root, each node with its type, its context and its children.

    Raises:
        FormatError: It is not such, or holds what is neither dict, list nor tuple.
    """
    try:
        protocol, root = json.loads(text) if isinstance(text, str) else (None, None)
    except (ValueError, TypeError, RecursionError) as error:
        raise FormatError(
            f"litdata: index.json: config.data_spec is no JSON of a protocol and a tree: {error}"
        ) from error
    if protocol != _PROTOCOL:
        raise FormatError(
            f"litdata: index.json: expected config.data_spec of protocol {_PROTOCOL}, found {protocol!r}"
        )
    tree = _parse(root, 0)
    if not 0 < tree.leaves <= _MOST_LEAVES:
        raise FormatError(
            f"litdata: index.json: config.data_spec: expected 1 to {_MOST_LEAVES} values a sample, found "
            f"{tree.leaves}"
        )
    return tree


def _parse(node: Any, depth: int) -> Tree:
    if depth > _MOST_DEPTH:
        raise FormatError(f"litdata: index.json: config.data_spec nests deeper than {_MOST_DEPTH}")
    if not isinstance(node, dict) or not isinstance(node.get("children_spec"), list):
        raise FormatError(
            f"litdata: index.json: config.data_spec: expected a node with children, found {str(node)[:80]}"
        )
    name, found = node.get("type"), node["children_spec"]
    if name is None:
        if found:
            raise FormatError("litdata: index.json: config.data_spec: a value has children")
        return Tree("leaf")
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise FormatError(
            f"litdata: index.json: samples hold {str(name)[:80]}, which is made by importing code; expected "
            "dicts, lists and tuples: write the chunks anew with fn= returning such"
        )
    children = tuple(_parse(child, depth + 1) for child in found)
    return Tree(kind, _names(node.get("context"), len(children)) if kind == "dict" else (), children)


def _names(context: object, count: int) -> tuple[str, ...]:
    """The keys of a dict, as text: those of samples are."""
    try:
        keys = json.loads(context) if isinstance(context, str) else context
    except (ValueError, RecursionError):
        keys = None
    names = tuple(map(str, keys)) if isinstance(keys, list) else ()
    if len({*names}) != count or len(names) != count:
        raise FormatError(
            f"litdata: index.json: config.data_spec: expected {count} different keys of a dict, found "
            f"{str(context)[:80]}"
        )
    return names


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
