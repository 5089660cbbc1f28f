"""Chunks and indices of LitData made by hand, so that they can be made wrong."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import zstandard

from asyncloader.blocks import Block
from asyncloader.formats import open_decoder, open_plan
from asyncloader.formats.litdata import ChunkSchema, parse_litdata_index
from asyncloader.formats.selection import make_selection
from asyncloader.types import Answer, Layout

__all__ = ["LEAF", "blocks", "framed", "index", "items", "read", "schema", "table", "tree"]

LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}


def tree(**children: Any) -> dict[str, Any]:
    """A dict of a ``data_spec``."""
    return {
        "type": "builtins.dict",
        "context": json.dumps([*children]),
        "children_spec": [*children.values()],
    }


def index(
    leaves: Sequence[str], spec: Any = None, chunks: Sequence[dict[str, Any]] = (), **config: Any
) -> bytes:
    """An ``index.json``, by default of samples with the fields a, b and so on."""
    spec = tree(**dict(zip("abcdefgh", [LEAF] * len(leaves), strict=False))) if spec is None else spec
    settings = {"data_format": [*leaves], "data_spec": json.dumps([1, spec]), "item_loader": "PyTreeLoader"}
    return json.dumps({"config": settings | config, "chunks": [*chunks]}).encode()


def schema(*leaves: str, block_size: int | None = None, **config: Any) -> ChunkSchema:
    return parse_litdata_index(index(leaves, **config), block_size)[1]


def items(samples: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Samples as chunks hold them."""
    return [struct.pack(f"<{len(values)}I", *map(len, values)) + b"".join(values) for values in samples]


def table(bodies: Sequence[bytes]) -> bytes:
    """A chunk of such samples."""
    offsets = [4 * (len(bodies) + 2)]
    for body in bodies:
        offsets.append(offsets[-1] + len(body))
    return struct.pack(f"<{len(offsets) + 1}I", len(bodies), *offsets) + b"".join(bodies)


def framed(bodies: Sequence[bytes], run: int) -> bytes:
    """The same with every ``run`` samples compressed together."""
    runs = [bodies[first : first + run] for first in range(0, len(bodies), run)]
    frames = [zstandard.compress(b"".join(each)) for each in runs]
    offsets = [0]
    for body in bodies:
        offsets.append(offsets[-1] + len(body))
    head = struct.pack("<8sHHIII", b"LDFZ01\0\0", 1, 0, len(bodies), run, len(runs))
    head += struct.pack(f"<{len(offsets)}I", *offsets)
    begin = len(head) + 24 * len(runs)
    for number, (each, frame) in enumerate(zip(runs, frames, strict=True)):
        size = sum(map(len, each))
        head += struct.pack("<IIQII", number * run, len(each), begin, len(frame), size)
        begin += len(frame)
    return head + b"".join(frames)


def blocks(
    content: bytes,
    schema: ChunkSchema,
    *,
    start: int = 0,
    stop: int | None = None,
    chunk_bytes: int = 100,
    columns: list[str] | None = None,
) -> Iterator[Block]:
    """What comes of a chunk in memory, as a reader over a server would have it."""
    selection = make_selection(columns, None)
    plan = open_plan("litdata", start_sample=start, stop_sample=stop, schema=schema, selection=selection)
    body = content
    if plan is None:
        decoder = open_decoder("litdata", start_sample=start, schema=schema, selection=selection)
    else:
        layout = _run(plan, content)
        body = b"".join(content[begin:end] for begin, end in layout.spans)
        decoder = layout.open_decoder()
    for at in range(0, len(body), chunk_bytes):
        yield from decoder.feed(memoryview(bytearray(body[at : at + chunk_bytes])))
    yield from decoder.finish()


def read(
    content: bytes, schema: ChunkSchema, *, start: int = 0, stop: int | None = None, **options: Any
) -> list[Any]:
    """The samples of a chunk; see ``blocks``."""
    found = [*blocks(content, schema, start=start, stop=stop, **options)]
    assert all(map(len, found)), "empty blocks are not yielded"
    places = [block.trail.place(number).sample for block in found for number in range(len(block))]
    rows = [row for block in found for row in block.rows()]
    return [
        row
        for place, row in zip(places, rows, strict=True)
        if start <= place and (stop is None or place < stop)
    ]


def _run(plan: Any, content: bytes) -> Layout:
    try:
        span = next(plan)
        while True:
            assert 0 <= span.start < span.stop
            span = plan.send(Answer(content[span.start : span.stop], len(content), None))
    except StopIteration as end:
        layout: Layout = end.value
        assert all(0 <= begin < stop <= len(content) for begin, stop in layout.spans)
        return layout
