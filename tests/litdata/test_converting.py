"""Every kind of chunks that litdata writes, made shards of our own."""

from __future__ import annotations

from pathlib import Path

import pytest
from converting.corpora import plain, samples_of

import asyncloader as al

from .conftest import Chunks
from .test_reading import BLOCK, KINDS, TOKENS


@pytest.mark.parametrize("name", [*KINDS[:1], "equal_shapes", "files", "jpeg_array", *KINDS[2:]])
def test_they_are_converted_by_their_index(name: str, chunks: Chunks, tmp_path: Path) -> None:
    block_size = BLOCK if name in TOKENS else None
    source = chunks.folder / name
    al.convert(
        source,
        tmp_path / "out",
        format="litdata",
        block_size=block_size,
        to="parquet",
        samples_per_shard=7,
        num_workers=0,
    )
    kept = al.from_litdata(source, block_size=block_size, decode=False).head(1000)
    assert len(kept) > 40
    assert [*map(plain, samples_of(f"{tmp_path}/out/"))] == [*map(plain, kept)]
