"""Chunks that are damaged, or that their index lies of, through whole loaders."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from packed_files import zeros_behind

import asyncloader as al
from asyncloader import testing

from .making import framed, index, items, table

pytestmark = pytest.mark.usefixtures("fork_server")

CHUNKS, EACH, BAD = 3, 20, 1
WORKERS = pytest.mark.parametrize("workers", [0, 2])


def bodies(chunk: int) -> list[bytes]:
    """Samples of a number and some text."""
    return items([[struct.pack("<q", chunk * EACH + n), f"sample {n} ".encode() * 9] for n in range(EACH)])


COMPRESS = zstandard.ZstdCompressor(write_checksum=False).compress
# How a chunk is made of samples, what the index says of that, and the end of its name.
KINDS: dict[str, tuple[Callable[[list[bytes]], bytes], dict[str, str], str]] = {
    "plain": (table, {}, "bin"),
    "whole": (lambda each: COMPRESS(table(each)), {"compression": "zstd"}, "zstd.bin"),
    "runs": (
        lambda each: framed(each, 6),
        {"compression": "zstd", "compression_level": "batch"},
        "bin",
    ),
    "each": (
        lambda each: table([COMPRESS(body) for body in each]),
        {"compression": "zstd", "compression_level": "sample"},
        "bin",
    ),
    "tokens": (
        lambda each: table([np.arange(len(body), dtype="<i8").tobytes() for body in each]),
        {"item_loader": "TokensLoader"},
        "bin",
    ),
}
kinds = pytest.mark.parametrize("kind", KINDS)


class Chunks:
    """A folder of chunks, and its index, both of which may be made wrong."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self.kind = kind
        make, self._config, self._ending = KINDS[kind]
        self.contents = [make(bodies(chunk)) for chunk in range(CHUNKS)]
        sizes = [*map(len, self.contents)]
        if kind == "whole":  # of which the index has what they become
            sizes = [len(table(bodies(chunk))) for chunk in range(CHUNKS)]
        self.entries = [
            {"chunk_bytes": size, "chunk_size": EACH, "dim": None, "filename": self.path(chunk).name}
            for chunk, size in enumerate(sizes)
        ]
        for chunk, content in enumerate(self.contents):
            self.path(chunk).write_bytes(content)
        self.save()

    def path(self, chunk: int = BAD) -> Path:
        return self.folder / f"chunk-0-{chunk}.{self._ending}"

    def save(self) -> None:
        leaves = ["no_header_numpy:3"] if self.kind == "tokens" else ["int", "file"]
        (self.folder / "index.json").write_bytes(index(leaves, chunks=self.entries, **self._config))

    def replace(self, content: bytes) -> None:
        """Other bytes of the chunk, of which the index knows how long they are."""
        self.path().write_bytes(content)
        if self.kind != "whole":
            self.entries[BAD]["chunk_bytes"] = len(content)
            self.save()

    def recipe(self) -> al.Dataset:
        return al.from_litdata(self.folder, block_size=50 if self.kind == "tokens" else None)


def plain(sample: dict[str, Any]) -> Any:
    return sample["tokens"].tolist() if "tokens" in sample else sample


def outcome(chunks: Chunks, workers: int, **options: Any) -> tuple[list[Any], Exception | None]:
    """What came of a pass in one lane, and the error that it ended with."""
    found: list[Any] = []
    error: Exception | None = None
    loader = al.DataLoader(chunks.recipe(), 5, num_workers=workers, lanes=1, collate_fn=list, **options)
    with testing.check_leaks(), loader:
        try:
            for batch in loader:
                found += [plain(sample) for sample in batch]
        except (al.FormatError, al.StoreError) as caught:
            caught.__traceback__ = None
            error = caught
    return found, error


@pytest.fixture
def chunks(tmp_path: Path, kind: str) -> Chunks:
    return Chunks(tmp_path, kind)


def damaged(content: bytes) -> dict[str, bytes]:
    middle = len(content) // 2
    return {
        "empty": b"",
        "cut at its beginning": content[:3],
        "cut in its middle": content[:middle],
        "cut at its end": content[:-1],
        "flipped in its table": content[:9] + bytes([content[9] ^ 0xFF]) + content[10:],
        "garbage": content + b"garbage",
        "twice": content * 2,
        "a page": b"<html>not found</html>",
    }


@kinds
@pytest.mark.parametrize("damage", damaged(bytes(20)))
def test_a_damaged_chunk_raises_and_no_sample_before_it_is_lost(
    chunks: Chunks, kind: str, damage: str
) -> None:
    whole, error = outcome(chunks, 0)
    assert error is None
    try:
        chunks.replace(damaged(chunks.contents[BAD])[damage])
        found, error = outcome(chunks, 0)
    except al.FormatError as refused:  # by the index alone: as many bytes are no tokens
        assert kind == "tokens" and refused.shard == str(chunks.folder / "index.json")
        return
    assert isinstance(error, al.FormatError) and error.shard == str(chunks.path())
    assert found == whole[: len(found)] and len(found) >= len(whole) // CHUNKS // 5 * 5


@WORKERS
@pytest.mark.parametrize(("kind", "damage"), [("whole", "cut at its end"), ("runs", "cut in its middle")])
def test_a_damaged_chunk_is_skipped_and_no_other_sample_is_lost(
    chunks: Chunks, workers: int, damage: str
) -> None:
    whole, _ = outcome(chunks, 0)
    chunks.replace(damaged(chunks.contents[BAD])[damage])
    found, error = outcome(chunks, workers, on_error=al.SkipErrors(max=1))
    assert error is None
    came = len(found) - EACH * (CHUNKS - 1)
    assert 0 <= came <= EACH
    assert found == whole[: EACH + came] + whole[2 * EACH :]


@WORKERS
@pytest.mark.parametrize("kind", ["whole"])
@pytest.mark.parametrize("by", [-1, 1, 1 << 40])
def test_an_index_that_lies_of_what_a_chunk_becomes_is_found_out(
    chunks: Chunks, workers: int, by: int
) -> None:
    chunks.entries[BAD]["chunk_bytes"] += by
    chunks.save()
    found, error = outcome(chunks, workers)
    assert isinstance(error, al.FormatError) and error.shard == str(chunks.path())
    assert "bytes of this shard when it is decompressed" in str(error)
    assert len(found) >= EACH // 5 * 5


@WORKERS
@pytest.mark.parametrize("kind", ["plain", "whole", "tokens"])
def test_an_index_that_counts_without_tables_as_older_ones_do_is_read(
    chunks: Chunks, workers: int, kind: str
) -> None:
    whole, error = outcome(chunks, 0)
    assert error is None
    for entry in chunks.entries:
        entry["chunk_bytes"] -= 4 * (EACH + 2)
        if kind == "tokens":
            entry["dim"] = entry["chunk_bytes"] // 8
    chunks.save()
    assert outcome(chunks, workers) == (whole, None)
    content = chunks.contents[BAD]
    for damage in (content[:-1], content + b"x", content[: -4 * (EACH + 2)]):
        chunks.path().write_bytes(damage)
        _, error = outcome(chunks, workers)
        assert isinstance(error, al.FormatError | al.StoreError) and error.shard == str(chunks.path())


@WORKERS
@pytest.mark.parametrize("kind", ["whole"])
def test_a_chunk_that_is_a_bomb_is_refused(chunks: Chunks, workers: int) -> None:
    size = 1 << 30
    head = struct.pack("<III", 1, 12, 12 + size)
    chunks.replace(zeros_behind(head, size))
    # What the index says is less than what comes out, or a lie as large.
    for told, message in ((chunks.entries[BAD]["chunk_bytes"], "found more"), (12 + size, "made to use up")):
        chunks.entries[BAD]["chunk_bytes"] = told
        chunks.save()
        _, error = outcome(chunks, workers)
        assert isinstance(error, al.FormatError) and message in str(error)
        assert error.shard == str(chunks.path())
