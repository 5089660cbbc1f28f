"""Chunks of LitData, which ``optimize`` writes: what they hold is in their ``index.json``, not in them.

The plan tells by a chunk's first and last bytes what it is: samples behind a table, tokens, runs of samples
that are compressed, or rows of Arrow, a file of Arrow behind a table of offsets that lead nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec

from ..blocks import Block
from ..errors import FormatError
from ..types import Answer, Layout, Planning, Span
from .arrow import plan_arrow
from .compression import SIGNATURE_BYTES, compression_of
from .decoder import Decoder, ShardSpec
from .images import decode_image, decode_tiff, jpeg_array
from .litdata_chunks import FIELD, MAGIC, CompressedSamples, LitDataSamples, Tokens, plan_frames
from .litdata_values import Tree, flat_dtype, leaf_of, parse_tree
from .offsets import HEAD_BYTES, IndexedFile, IndexedShard, Samples, TableDecoder, TableKind, plan_table
from .selection import missing_column
from .unpacking import UnpackingDecoder, sniffed

# How values are compressed: each chunk as a whole, runs of samples, or each sample by itself.
_WRAPS = ("chunk", "batch", "sample")

# Samples with other values are never written as rows of Arrow.
_OF_ROWS = frozenset(("int", "float", "bool", "str", "json", "numpy", "bytes", "tifffile"))


class _Entry(msgspec.Struct):
    # Behind the name of a file below the index no separator of another system.
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
        return self.block_size is None and self.tree.kind == "dict" and kinds <= _OF_ROWS


class LitDataIndex(NamedTuple):
    """What an ``index.json`` says.

    Attributes:
        chunks: In order.
        schema: What they hold.
    """

    chunks: list[IndexedShard]
    schema: ChunkSchema


def parse_litdata_index(content: bytes, block_size: int | None = None) -> LitDataIndex:
    """Read an index.

    Args:
        content: The file.
        block_size: Tokens of a sample, where the chunks were written for ``TokensLoader``.

    Raises:
        FormatError: It is no index, or one of chunks that are not read; the message says what to do.
        ValueError: ``block_size`` is missing, or given for chunks that hold samples.
    """
    try:
        index = msgspec.json.decode(content, type=_LitDataDocument)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FormatError(
            f"litdata: index.json: expected an object with chunks and config: {error}"
        ) from error
    schema = _schema(index.config, block_size)
    chunks = (_chunk(entry, index.config, schema, number) for number, entry in enumerate(index.chunks))
    return LitDataIndex([*chunks], schema)


def _schema(config: _Config, block_size: int | None) -> ChunkSchema:
    if config.encryption:
        raise FormatError(
            "litdata: the chunks are encrypted, which is not read; write them anew without encryption=, and "
            "have the store encrypt them"
        )
    leaves, loader, wrap = config.data_format, config.item_loader, None
    holds_tokens = loader == "TokensLoader" or (
        loader is None and len(leaves) == 1 and leaves[0].startswith("no_header_tensor")
    )
    if not holds_tokens and loader not in (None, "PyTreeLoader"):
        reads_it = "al.from_urls reads Parquet, without an index"
        raise FormatError(
            f"litdata: the chunks are for {str(loader)[:80]}; those for PyTreeLoader and TokensLoader are "
            f"read: {reads_it if loader == 'ParquetLoader' else 'write them anew'}"
        )
    if holds_tokens != (block_size is not None):
        raise ValueError(
            "the chunks hold tokens without bounds, as TokensLoader reads them: say how many make a sample, "
            "by block_size= (--block-size)"
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
                f"litdata: index.json: chunks[{number}]: {size_bytes} bytes are no {entry.dim} tokens of "
                f"{schema.leaves[0]} behind a table of {table_bytes} bytes"
            )
        samples = tokens // schema.block_size
    # Of a chunk that is compressed as a whole it is the length of what it becomes.
    file, raw = IndexedFile(entry.filename, size_bytes), None
    if entry.filename.endswith(f".{config.compression}.bin"):
        file, raw = IndexedFile(entry.filename, None), file
    return IndexedShard(file, "litdata", samples, raw)


_MAGIC = b"LDARW01\0"
_LENGTH_BYTES = 4

#: What is to be known of the end of a chunk.
TAIL_BYTES = _LENGTH_BYTES + len(_MAGIC)


def find_footer(tail: bytes, length: int) -> Span | None:
    """Where the file of Arrow is in a chunk; None if there is none.

    Args:
        tail: The end of the chunk, ``TAIL_BYTES`` at least.
        length: Of the chunk.

    Raises:
        FormatError: It is said to be longer than the chunk.
    """
    if not tail.endswith(_MAGIC):
        return None
    size = int.from_bytes(tail[-TAIL_BYTES : -len(_MAGIC)], "little")
    stop = length - TAIL_BYTES
    if not 0 < size <= stop:
        raise FormatError(
            f"litdata: damaged: rows of {size} bytes are said to be in a chunk of {length}", offset=stop
        )
    return Span(stop - size, stop)


def plan_inside(plan: Planning, inside: Span, known: Answer, samples: int, start: int) -> Planning:
    """The plan of a file that is inside of a chunk, as one of the chunk.

    Args:
        plan: Of the file.
        inside: Where it is.
        known: The beginning of the chunk, which is not asked for again.
        samples: How many the chunk says that it has.
        start: How many of them were had already.
    """
    answer: Answer | None = None
    while True:
        try:
            asked = next(plan) if answer is None else plan.send(answer)
        except StopIteration as end:
            layout: Layout = end.value
            spans = tuple(Span(start + inside.start, stop + inside.start) for start, stop in layout.spans)
            return Layout(spans, partial(_RowsDecoder, layout.open_decoder, samples, start), samples)
        except FormatError as error:
            raise _moved(error, inside.start) from None
        span = Span(asked.start + inside.start, min(asked.stop + inside.start, inside.stop))
        content = known.content[span.start : span.stop]
        if len(content) < span.stop - span.start:
            content = (yield span).content
        answer = Answer(content, inside.stop - inside.start, known.version)


def _moved(error: FormatError, begin: int) -> FormatError:
    """The error of a file as one of the chunk that it begins in."""
    if error.offset is not None:
        error.offset += begin
    return error


class _RowsDecoder(Decoder):
    """Hold the rows of a file against the number of samples that its chunk has.

    Args:
        open_rows: Makes the decoder of the file.
        samples: How many there should be.
        start: The first that comes.
    """

    def __init__(self, open_rows: Callable[[], Decoder], samples: int, start: int) -> None:
        super().__init__()
        self._rows = open_rows()
        self._samples = samples
        self._reached = start

    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]:
        return self._watched(self._rows.feed(chunk))

    def _decode_end(self) -> Iterator[Block]:
        yield from self._watched(self._rows.finish())
        if self._reached != self._samples:
            raise FormatError(
                f"litdata: damaged: the chunk has {self._samples} samples, and the rows in it end at "
                f"{self._reached}",
                offset=0,
            )

    def _watched(self, blocks: Iterator[Block]) -> Iterator[Block]:
        for block in blocks:
            self._reached = block.trail.place(len(block) - 1).sample + 1
            yield block


_Decode: TypeAlias = Callable[[Any], Any]


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
    """Decodes the images of a sample, wherever they nest in it.

    Args:
        tree: Of the samples.
        leaves: The serializer of each value.
        columns: The fields that samples have; None for all.
    """

    def __init__(self, tree: Tree, leaves: tuple[str, ...], columns: tuple[str, ...] | None) -> None:
        rest = iter(leaves)
        found = [(name, _decode_of(child, rest)) for name, child in tree.fields]
        # Only those with images in them, each with the function that makes it anew.
        self._decode = {
            name: decode
            for name, decode in found
            if decode is not None and (columns is None or name in columns)
        }

    @property
    def fields(self) -> tuple[str, ...]:
        """Those with images in them."""
        return tuple(self._decode)

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """A new sample with the same fields.

        Raises:
            FormatError: One does not decode; the message names the field.
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


def decoder_of(
    tree: Tree, leaves: tuple[str, ...], columns: tuple[str, ...] | None = None
) -> MediaDecoder | None:
    """What decodes the images of samples; None if they have none."""
    decoder = MediaDecoder(tree, leaves, columns)
    return decoder if decoder.fields else None


def _decode_of(tree: Tree, leaves: Iterator[str]) -> _Decode | None:
    """What makes a value of a sample anew; None where it holds no image."""
    if tree.kind == "leaf":
        decode = _DECODE.get(next(leaves).partition(":")[0])
        return None if decode is None else partial(_decode_bytes, decode)
    children = [_decode_of(child, leaves) for child in tree.children]
    if not any(children):
        return None
    return partial(_decode_dict if tree.kind == "dict" else _decode_sequence, children)


def _decode_bytes(decode: _Decode, value: Any) -> Any:
    # Rows of Arrow hold what the writer was given: of an image its path, of which nothing is opened.
    return decode(value) if isinstance(value, bytes) else value


def _decode_dict(children: Sequence[_Decode | None], value: Mapping[str, Any]) -> dict[str, Any]:
    entries = zip(value.items(), children, strict=True)
    return {name: entry if decode is None else decode(entry) for (name, entry), decode in entries}


def _decode_sequence(children: Sequence[_Decode | None], value: Sequence[Any]) -> Any:
    decoded = [
        entry if decode is None else decode(entry) for entry, decode in zip(value, children, strict=True)
    ]
    return tuple(decoded) if isinstance(value, tuple) else decoded


def plan_litdata(spec: ShardSpec) -> Planning | None:
    """Plan what to read of a chunk; None where all of it is read from front to back."""
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
    return UnpackingDecoder("litdata", sniffed, inner, spec.unpacked)


def _plan(schema: ChunkSchema, spec: ShardSpec) -> Planning:
    head = yield Span(0, HEAD_BYTES)
    if head.content.startswith(MAGIC):
        return (yield from plan_frames(head, _samples(schema, spec), spec))
    # Never of others: one of 559,903 samples begins as gzip does.
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
            return (yield from plan_inside(plan_arrow(spec), rows, head, count, spec.start_sample))
    return (yield from plan_table(_kind(schema, spec), spec, head))


def _kind(schema: ChunkSchema, spec: ShardSpec) -> TableKind:
    if schema.block_size is None:
        return TableKind("litdata", lambda header: _samples(schema, spec))
    tokens = Tokens(flat_dtype(schema.leaves[0]), schema.block_size)
    return TableKind("litdata", lambda header: tokens, tokens.bounds)


def _samples(schema: ChunkSchema, spec: ShardSpec) -> Samples:
    samples = LitDataSamples(schema.tree, schema.leaves, spec.selection.columns)
    return CompressedSamples(samples) if schema.wrap == "sample" else samples
