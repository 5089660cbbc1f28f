"""Chunks of LitData, which ``optimize`` writes; their ``index.json`` describes what they hold.

The plan finds out by the first and last bytes of a chunk what it is: samples behind a table, tokens,
compressed runs of samples, or rows of Arrow: a file of Arrow behind a table whose offsets mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any

import msgspec

from ..errors import FormatError
from ..types import Answer, Layout, Planning, Span
from .arrow import plan_arrow
from .compression import SIGNATURE_BYTES, SniffingDecoder, compression_of
from .decoder import Decoder, ShardSpec, bring
from .images import decode_image, decode_tiff, jpeg_array
from .litdata_chunks import FIELD, MAGIC, Tokens, decode_compressed, plan_frames, samples_decoder
from .litdata_values import Tree, flat_dtype, leaf_of, parse_tree
from .offsets import HEAD_BYTES, Decode, IndexedFile, IndexedShard, TableDecoder, TableKind, plan_table
from .selection import missing_column
from .unpacking import UnpackedDecoder

# What is compressed: each chunk as a whole, runs of samples, or each sample alone.
_WRAPS = ("chunk", "batch", "sample")

# Samples with other values are never written as rows of Arrow.
_OF_ROWS = frozenset(("int", "float", "bool", "str", "json", "numpy", "bytes", "tifffile"))


class _Entry(msgspec.Struct):
    # A file below the index; without separators of other systems.
    filename: Annotated[str, msgspec.Meta(pattern=r"^[^\\]+$")]
    chunk_size: Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]
    chunk_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
    dim: Any = None


class _Config(msgspec.Struct):
    data_format: Annotated[list[str], msgspec.Meta(min_length=1)]
    data_spec: Any = None
    compression: str | None = None
    compression_level: Any = None
    encryption: Any = None
    item_loader: Any = None


class _LitDataDocument(msgspec.Struct):
    config: _Config
    chunks: list[_Entry]


@dataclass(frozen=True)
class ChunkSchema:
    """What the chunks of an index hold.

    Attributes:
        tree: How the values of a sample nest.
        leaves: The serializer of each value.
        wrap: What is compressed: ``"chunk"``, each as a whole; ``"batch"``, runs of samples; ``"sample"``,
            each sample alone; or None.
        block_size: Tokens of a sample, if chunks hold tokens; else None.
    """

    tree: Tree
    leaves: tuple[str, ...]
    wrap: str | None = None
    block_size: int | None = None

    def check_columns(self, columns: Iterable[str] | None) -> None:
        """Refuse names of fields that samples do not have.

        Raises:
            ValueError: A name is not one of the fields.
        """
        names = [FIELD] if self.block_size is not None else [name for name, _ in self.tree.fields]
        for name in columns or ():
            if name not in names:
                raise ValueError(missing_column("columns", name, names))

    def describe(self) -> Mapping[str, Any]:
        """The options that change the samples of the same chunks, as JSON values."""
        return {} if self.block_size is None else {"block_size": self.block_size}

    @property
    def may_be_older(self) -> bool:
        """Whether the lengths in the index may leave out the tables, as older releases wrote them.

        For tokens that is known; compressed runs and samples are newer.
        """
        return self.block_size is None and self.wrap in (None, "chunk")

    @property
    def may_be_rows(self) -> bool:
        """Whether chunks may hold rows of Arrow in place of samples; each chunk shows whether it does."""
        kinds = {name.partition(":")[0] for name in self.leaves}
        return self.block_size is None and self.tree.kind == "dict" and kinds <= _OF_ROWS


def parse_litdata_index(
    content: bytes, block_size: int | None = None
) -> tuple[list[IndexedShard], ChunkSchema]:
    """The chunks of an ``index.json``, in order, and what they hold.

    Args:
        content: The file.
        block_size: Tokens of a sample, if the chunks were written for ``TokensLoader``.

    Raises:
        FormatError: It is no index, or its chunks are not supported; the message says what to do.
        ValueError: ``block_size`` is missing, or given for chunks that hold samples.
    """
    try:
        index = msgspec.json.decode(content, type=_LitDataDocument)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FormatError(
            f"litdata: index.json: expected an object with chunks and config: {error}"
        ) from error
    schema = _schema(index.config, block_size)
    return [_chunk(entry, index.config, schema, number) for number, entry in enumerate(index.chunks)], schema


def _schema(config: _Config, block_size: int | None) -> ChunkSchema:
    if config.encryption:
        raise FormatError(
            "litdata: the chunks are encrypted, which is not supported; write them again without "
            "encryption=, and let the store encrypt them"
        )
    leaves, loader, wrap = config.data_format, config.item_loader, None
    holds_tokens = loader == "TokensLoader" or (
        loader is None and len(leaves) == 1 and leaves[0].startswith("no_header_tensor")
    )
    if not holds_tokens and loader not in (None, "PyTreeLoader"):
        reads_it = "al.from_urls reads Parquet, without an index"
        raise FormatError(
            f"litdata: the chunks are for {str(loader)[:80]}; only those for PyTreeLoader and TokensLoader "
            f"are supported: {reads_it if loader == 'ParquetLoader' else 'write them again'}"
        )
    if holds_tokens != (block_size is not None):
        raise ValueError(
            "the chunks have tokens for TokensLoader, without samples: pass the number of tokens of a "
            "sample, by block_size= (--block-size)"
            if holds_tokens
            else "block_size is for chunks written for TokensLoader, but these hold samples: leave it out"
        )
    if config.compression:
        wrap = config.compression_level or "chunk"
        if config.compression.partition(":")[0] != "zstd" or wrap not in _WRAPS:
            raise FormatError(
                f"litdata: index.json: expected compression by zstd of {', '.join(_WRAPS)}, found "
                f"{config.compression[:40]!r} of {str(wrap)[:40]!r}"
            )
    if holds_tokens:
        flat_dtype(leaves[0])
        return ChunkSchema(Tree("leaf"), tuple(leaves), wrap, block_size)
    for name in leaves:
        leaf_of(name)
    tree = parse_tree(config.data_spec)
    if tree.leaves != len(leaves):
        raise FormatError(
            f"litdata: index.json: config.data_spec has {tree.leaves} values, data_format {len(leaves)}"
        )
    return ChunkSchema(tree, tuple(leaves), wrap)


def _chunk(entry: _Entry, config: _Config, schema: ChunkSchema, number: int) -> IndexedShard:
    samples, size_bytes = entry.chunk_size, entry.chunk_bytes
    if schema.block_size is not None:
        table_bytes, item_bytes = 4 * (samples + 2), flat_dtype(schema.leaves[0]).itemsize
        if entry.dim == size_bytes / item_bytes:
            size_bytes += table_bytes  # an older index, which counts the tokens alone
        tokens, rest = divmod(size_bytes - table_bytes, item_bytes)
        if tokens < 0 or rest or entry.dim not in (tokens, None):
            raise FormatError(
                f"litdata: index.json: chunks[{number}]: {size_bytes} bytes are not {entry.dim} tokens of "
                f"{schema.leaves[0]} behind a table of {table_bytes} bytes"
            )
        samples = tokens // schema.block_size
    # For a chunk that is compressed as a whole this is the decompressed length.
    file, raw = IndexedFile(entry.filename, size_bytes), None
    if entry.filename.endswith(f".{config.compression}.bin"):
        file, raw = IndexedFile(entry.filename, None), file
    return IndexedShard(file, "litdata", samples, raw)


_MAGIC = b"LDARW01\0"
_LENGTH_BYTES = 4

#: How much of the end of a chunk ``find_footer`` needs.
TAIL_BYTES = _LENGTH_BYTES + len(_MAGIC)


def find_footer(tail: bytes, length: int) -> Span | None:
    """Where the file of Arrow is in a chunk; None if there is none.

    Args:
        tail: The end of the chunk, ``TAIL_BYTES`` at least.
        length: Length of the chunk.

    Raises:
        FormatError: It would be longer than the chunk.
    """
    if not tail.endswith(_MAGIC):
        return None
    size = int.from_bytes(tail[-TAIL_BYTES : -len(_MAGIC)], "little")
    stop = length - TAIL_BYTES
    if not 0 < size <= stop:
        raise FormatError(
            f"litdata: damaged: the chunk claims rows of {size} bytes, and has {length} bytes", offset=stop
        )
    return Span(stop - size, stop)


def plan_inside(plan: Planning, inside: Span, known: Answer, samples: int) -> Planning:
    """The plan of a file inside of a chunk, as a plan of the chunk.

    Args:
        plan: The plan of the file.
        inside: Where the file is.
        known: The beginning of the chunk, which is not requested twice.
        samples: How many samples the chunk claims.
    """
    answer: Answer | None = None
    while True:
        try:
            asked = next(plan) if answer is None else plan.send(answer)
        except StopIteration as end:
            layout: Layout = end.value
            spans = tuple(Span(start + inside.start, stop + inside.start) for start, stop in layout.spans)
            return Layout(spans, layout.open_decoder, samples)
        except FormatError as error:
            if error.offset is not None:
                error.offset += inside.start
            raise
        span = Span(asked.start + inside.start, min(asked.stop + inside.start, inside.stop))
        content = yield from bring(known, span)
        answer = Answer(content, inside.stop - inside.start, known.version)


_DECODE: Mapping[str, Callable[[bytes], Any]] = MappingProxyType(
    {
        "jpeg": decode_image,
        "image": decode_image,
        "jpeg_array": partial(jpeg_array, decode_image),
        "tifffile": decode_tiff,
        "tiff": decode_tiff,
    }
)


class MediaDecoder:
    """Decodes the images of a sample, at any depth.

    Args:
        tree: The tree of the samples.
        leaves: The serializer of each value.
        columns: The fields that samples have; None for all.

    Attributes:
        fields: The fields with images in them.
    """

    def __init__(self, tree: Tree, leaves: tuple[str, ...], columns: tuple[str, ...] | None) -> None:
        rest = iter(leaves)
        found = [(name, _decode_of(child, rest)) for name, child in tree.fields]
        self._decode = {
            name: decode
            for name, decode in found
            if decode is not None and (columns is None or name in columns)
        }
        self.fields = tuple(self._decode)

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """A new sample with the same fields.

        Raises:
            FormatError: An image cannot be decoded; the message names the field.
            ImportError: A package is not installed.
        """
        decoded = dict(sample)
        for name, decode in self._decode.items():
            try:
                decoded[name] = decode(sample[name])
            except (ImportError, MemoryError):
                raise
            except Exception as cause:
                what = f"{type(cause).__name__}: {cause}"
                raise FormatError(f"litdata: field {name!r} cannot be decoded: {what}") from cause
        return decoded


def _decode_of(tree: Tree, leaves: Iterator[str]) -> Callable[[Any], Any] | None:
    """The function that decodes the images in a value of a sample; None if there are none."""
    if tree.kind == "leaf":
        decode = _DECODE.get(next(leaves).partition(":")[0])
        return None if decode is None else partial(_decode_bytes, decode)
    children = [_decode_of(child, leaves) for child in tree.children]
    return partial(_decode_children, children) if any(children) else None


def _decode_bytes(decode: Callable[[bytes], Any], value: Any) -> Any:
    # Rows of Arrow hold what the writer was given. For an image that may be its path, which is not opened.
    return decode(value) if isinstance(value, bytes) else value


def _decode_children(children: Sequence[Callable[[Any], Any] | None], value: Any) -> Any:
    entries = value.values() if isinstance(value, Mapping) else value
    pairs = zip(entries, children, strict=True)
    decoded = [entry if decode is None else decode(entry) for entry, decode in pairs]
    if isinstance(value, Mapping):
        return dict(zip(value, decoded, strict=True))
    return tuple(decoded) if isinstance(value, tuple) else decoded


def plan_litdata(spec: ShardSpec) -> Planning | None:
    """Plan what to read of a chunk; None if all of it is read from front to back."""
    schema: ChunkSchema = spec.schema
    if not schema.may_be_rows:
        reads_all = not spec.start_sample and spec.stop_sample is None
        if schema.wrap == "chunk" or (schema.wrap != "batch" and reads_all):
            return None
    return _plan(schema, spec)


def open_litdata(spec: ShardSpec) -> Decoder:
    """A decoder of a chunk from front to back, compressed as a whole or not."""
    inner = TableDecoder(_kind(spec.schema, spec), start_sample=spec.first_sample, pass_over=spec.pass_over)
    if spec.schema.wrap != "chunk":
        return inner
    unpacked = UnpackedDecoder("litdata", inner, spec.unpacked)
    return SniffingDecoder(lambda: unpacked)  # servers may decompress a file while they send it


def _plan(schema: ChunkSchema, spec: ShardSpec) -> Planning:
    head = yield Span(0, HEAD_BYTES)
    if head.content.startswith(MAGIC):
        return (yield from plan_frames(head, _decode(schema, spec), spec))
    # Only for these: a table of 559,903 samples begins like gzip.
    if schema.wrap == "chunk" and compression_of(head.content[:SIGNATURE_BYTES]) is not None:
        return Layout(
            (Span(0, head.length),),
            lambda **options: open_litdata(replace(spec, **options)),
            passes_over=True,
        )
    if schema.may_be_rows:
        tail = head.content[-TAIL_BYTES:]
        if len(head.content) < head.length:
            tail = (yield Span(max(head.length - TAIL_BYTES, 0), head.length)).content
        if (rows := find_footer(tail, head.length)) is not None:
            count = int.from_bytes(head.content[:4], "little")
            return (yield from plan_inside(plan_arrow(spec, count), rows, head, count))
    return (yield from plan_table(_kind(schema, spec), spec, head))


def _kind(schema: ChunkSchema, spec: ShardSpec) -> TableKind:
    if schema.block_size is None:
        return TableKind("litdata", lambda header: _decode(schema, spec))
    tokens = Tokens(flat_dtype(schema.leaves[0]), schema.block_size)
    return TableKind("litdata", lambda header: tokens.decode, tokens.bounds)


def _decode(schema: ChunkSchema, spec: ShardSpec) -> Decode:
    decode = samples_decoder(schema.tree, schema.leaves, spec.selection.columns)
    return partial(decode_compressed, decode) if schema.wrap == "sample" else decode
