"""``index.json`` of LitData: which chunks there are, and what they hold. Pure; nothing in it is believed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...errors import FormatError
from ...types import Unpacked
from ..columnar.selection import missing_column
from .arrays import flat_dtype
from .leaves import leaf_of
from .tokens import FIELD
from .tree import Tree, parse_tree

__all__ = ["Chunk", "Index", "Schema", "parse_index"]

_MOST_SAMPLES = (1 << 32) - 1
_MOST_BYTES = 1 << 62

# How values are compressed: each chunk as a whole, runs of samples, or each sample by itself.
_WRAPS = ("chunk", "batch", "sample")

# Samples with such a value are never written as rows of Arrow.
_NEVER_ROWS = frozenset(
    [
        "audio",
        "video",
        "image",
        "jpeg",
        "jpeg_array",
        "pil",
        "tiff",
        "text",
        "file",
        "mesh",
        "pdf",
        "nifti",
        "tensor",
        "no_header_tensor",
        "no_header_numpy",
    ]
)


class Chunk(NamedTuple):
    """A chunk as the index has it.

    Attributes:
        name: Relative to the index.
        samples: How many it has; of tokens how many blocks.
        size_bytes: Its length as stored; None of one that is compressed as a whole, of which nobody has noted
            it.
        unpacked: What it becomes, if it is compressed as a whole.
    """

    name: str
    samples: int
    size_bytes: int | None
    unpacked: Unpacked | None = None


@dataclass(frozen=True)
class Schema:
    """What the chunks of an index hold.

    Attributes:
        tree: How the values of a sample nest.
        leaves: The serializer of each value.
        wrap: What is compressed: ``"chunk"``, each as a whole; ``"batch"``, runs of samples; ``"sample"``,
            each by itself; or None.
        block_size: Tokens of a sample, where chunks hold nothing but tokens; else None.
    """

    tree: Tree
    leaves: tuple[str, ...]
    wrap: str | None = None
    block_size: int | None = None

    def check_columns(self, columns: Iterable[str] | None) -> None:
        """Refuse names of fields that samples do not have.

        Raises:
            ValueError: One is none.
        """
        names = [FIELD] if self.block_size is not None else [name for name, _ in self.tree.fields]
        for name in columns or ():
            if name not in names:
                raise ValueError(missing_column("columns", name, names))

    def describe(self) -> Mapping[str, Any]:
        """What makes other samples of the same chunks, as JSON values."""
        return {} if self.block_size is None else {"block_size": self.block_size}

    @property
    def may_be_older(self) -> bool:
        """Whether the lengths in the index may leave out the tables, as they did in older releases.

        Of tokens that is known, and what is compressed by runs or samples is newer.
        """
        return self.block_size is None and self.wrap in (None, "chunk")

    @property
    def may_be_rows(self) -> bool:
        """Whether chunks may hold rows of Arrow in place of samples; each of them tells."""
        kinds = {name.partition(":")[0] for name in self.leaves}
        return self.block_size is None and self.tree.kind == "dict" and not kinds & _NEVER_ROWS


class Index(NamedTuple):
    """What an ``index.json`` says.

    Attributes:
        chunks: In order.
        schema: What they hold.
    """

    chunks: tuple[Chunk, ...]
    schema: Schema


def parse_index(content: bytes, block_size: int | None = None) -> Index:
    """Read an index.

    Args:
        content: The file.
        block_size: Tokens of a sample, where the chunks were written for ``TokensLoader``.

    Raises:
        FormatError: It is no index, or one of chunks that are not read; the message says what to do.
        ValueError: ``block_size`` is missing, or given for chunks that hold samples.
    """
    try:
        document = json.loads(content)
        config, chunks = document["config"], document["chunks"]
    except KeyError as error:
        raise FormatError(f"litdata: index.json: expected chunks and config, found no {error}") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise FormatError(
            f"litdata: index.json: expected an object with chunks and config: {error!r}"
        ) from error
    if not isinstance(config, dict) or not isinstance(chunks, list):
        raise FormatError("litdata: index.json: expected config as an object and chunks as a list")
    schema = _schema(config, block_size)
    return Index(tuple(_chunk(entry, config, schema, number) for number, entry in enumerate(chunks)), schema)


def _schema(config: Mapping[str, Any], block_size: int | None) -> Schema:
    if config.get("encryption"):
        raise FormatError(
            "litdata: the chunks are encrypted, which is not read; write them anew without encryption=, and "
            "have the store encrypt them"
        )
    leaves = config.get("data_format")
    if not isinstance(leaves, list) or not leaves or not all(isinstance(name, str) for name in leaves):
        raise FormatError(
            f"litdata: index.json: config.data_format: expected a list of names, found {str(leaves)[:80]}"
        )
    holds_tokens = _holds_tokens(config, leaves)
    if holds_tokens != (block_size is not None):
        raise ValueError(
            "the chunks hold tokens without bounds, as TokensLoader reads them: say how many make a sample, "
            "by block_size= (--block-size)"
            if holds_tokens
            else "block_size is for chunks written for TokensLoader, but these hold samples: leave it out"
        )
    if holds_tokens:
        flat_dtype(leaves[0])
        return Schema(Tree("leaf"), tuple(leaves), wrap=_wrap(config), block_size=block_size)
    for name in leaves:
        leaf_of(name)
    tree = parse_tree(config.get("data_spec"))
    if tree.leaves != len(leaves):
        raise FormatError(
            f"litdata: index.json: config.data_spec has {tree.leaves} values, config.data_format "
            f"{len(leaves)}"
        )
    return Schema(tree, tuple(leaves), wrap=_wrap(config))


def _wrap(config: Mapping[str, Any]) -> str | None:
    if not (name := config.get("compression")):
        return None
    wrap = config.get("compression_level") or "chunk"
    if not isinstance(name, str) or name.partition(":")[0] != "zstd" or wrap not in _WRAPS:
        raise FormatError(
            f"litdata: index.json: expected compression by zstd of {', '.join(_WRAPS)}, found "
            f"{str(name)[:40]!r} of {str(wrap)[:40]!r}"
        )
    return wrap


def _holds_tokens(config: Mapping[str, Any], leaves: list[str]) -> bool:
    loader = config.get("item_loader")
    if loader == "TokensLoader" or (
        loader is None and len(leaves) == 1 and leaves[0].startswith("no_header_tensor")
    ):
        return True
    if loader not in (None, "PyTreeLoader"):
        hint = (
            "al.from_urls reads Parquet, without an index" if loader == "ParquetLoader" else "write them anew"
        )
        raise FormatError(
            f"litdata: the chunks are for {str(loader)[:80]}; those for PyTreeLoader and TokensLoader are "
            f"read: {hint}"
        )
    return False


def _chunk(entry: object, config: Mapping[str, Any], schema: Schema, number: int) -> Chunk:
    place = f"litdata: index.json: chunks[{number}]"
    if not isinstance(entry, dict):
        raise FormatError(f"{place}: expected an object, found {str(entry)[:80]}")
    name = entry.get("filename")
    if (
        not isinstance(name, str)
        or not name
        or any(part in ("", ".", "..") for part in name.split("/"))
        or "\\" in name
    ):
        raise FormatError(
            f"{place}.filename: expected the name of a file below the index, found {str(name)[:200]!r}"
        )
    samples = _number(f"{place}.chunk_size", entry.get("chunk_size"), _MOST_SAMPLES)
    size_bytes = _number(f"{place}.chunk_bytes", entry.get("chunk_bytes"), _MOST_BYTES)
    if schema.block_size is not None:
        table_bytes = 4 * (samples + 2)
        if entry.get("dim") == size_bytes / flat_dtype(schema.leaves[0]).itemsize:
            size_bytes += table_bytes  # an older index, which counts the tokens alone
        tokens, rest = divmod(size_bytes - table_bytes, flat_dtype(schema.leaves[0]).itemsize)
        if tokens < 0 or rest or entry.get("dim") not in (tokens, None):
            raise FormatError(
                f"{place}: {size_bytes} bytes are no {entry.get('dim')} tokens of {schema.leaves[0]} behind "
                f"a table of {table_bytes} bytes"
            )
        samples = tokens // schema.block_size
    # Of a chunk that is compressed as a whole it is the length of what it becomes.
    is_stored = not name.endswith(f".{config.get('compression')}.bin")
    return Chunk(name, samples, size_bytes) if is_stored else Chunk(name, samples, None, Unpacked(size_bytes))


def _number(place: str, number: object, most: int) -> int:
    if type(number) is not int or not 0 <= number <= most:
        raise FormatError(f"{place}: expected a whole number of 0 to {most}, found {str(number)[:80]}")
    return number
