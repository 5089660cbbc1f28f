"""What the workloads read: shards in a folder. Their samples are numbered, so that each is seen to come once.

A loader that wants a form of its own writes that into the same folder (`over_litdata`).
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

__all__ = ["BODY_BYTES", "Corpus", "link_again", "write_corpus"]

BODY_BYTES = 100_000
#: Of an image, whose file is then as large as a body.
IMAGE_SHAPE = (375, 500, 3)


@dataclass(frozen=True)
class Corpus:
    """Shards ``train-000`` and so on, of which each sample has a number from 0 on.

    Attributes:
        kind: What they hold, a key of ``KINDS``.
        suffix: Of the shards' names.
        shards: How many.
        samples: How many all of them have.
    """

    kind: str
    suffix: str
    shards: int
    samples: int

    def names(self, times: int = 1) -> tuple[str, ...]:
        """The shards, ``times`` times, each time under other names (:func:`link_again`)."""
        return tuple(f"train-{shard:03d}.{self.suffix}" for shard in range(self.shards * times))


def write_corpus(kind: str, folder: Path, scale: float) -> Corpus:
    """Write the corpus of this kind, and what it is to ``corpus.json``.

    Args:
        kind: A key of ``KINDS``.
        folder: Empty.
        scale: How many samples there are: 1 for the usual number.
    """
    suffix, shards, samples, write = KINDS[kind]
    corpus = Corpus(kind, suffix, shards, shards * max(8, round(samples * scale / shards)))
    each = corpus.samples // shards
    for shard, name in enumerate(corpus.names()):
        write(folder / name, range(shard * each, shard * each + each))
    (folder / "corpus.json").write_text(json.dumps(asdict(corpus)))
    return corpus


def link_again(corpus: Corpus, folder: Path, times: int) -> None:
    """Give the shards other names too, so that a pass can read ``times`` as much."""
    names = corpus.names(times)
    for shard, name in enumerate(names):
        if not (folder / name).exists():
            os.link(folder / names[shard % corpus.shards], folder / name)


def tar_of(path: Path, members: Iterable[tuple[str, bytes]]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, body in members:
            member = tarfile.TarInfo(name)
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))


def bodies(path: Path, numbers: range) -> None:
    """100 KB each, which begin and end with the number."""
    inner = os.urandom(BODY_BYTES - 16)
    ends = ((number, number.to_bytes(8, "big")) for number in numbers)
    tar_of(path, ((f"{number:08d}.bin", end + inner + end) for number, end in ends))


def images(path: Path, numbers: range) -> None:
    """JPEG of some 100 KB, and the number as ``cls``."""
    from PIL import Image

    draw = np.random.default_rng(numbers.start)
    # Noise over a coarse pattern: as many coefficients as a photograph of this size has.
    coarse = np.kron(draw.integers(40, 210, (25, 25, 3)), np.ones((15, 20, 1)))
    packed = []
    for _ in range(2):
        pixels = np.clip(coarse + draw.normal(0, 19, IMAGE_SHAPE), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(file := io.BytesIO(), "JPEG", quality=90)
        packed.append(file.getvalue())
    tar_of(
        path,
        (
            member
            for number in numbers
            for member in (
                (f"{number:08d}.jpg", packed[number % len(packed)]),
                (f"{number:08d}.cls", str(number).encode()),
            )
        ),
    )


def tokens(path: Path, numbers: range) -> None:
    """Sequences of int32 with lognormal lengths, mean some 200; their first token is the number.

    Written as Parquet, and beside it as JSON Lines with zstd.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq
    import zstandard

    draw = np.random.default_rng(numbers.start)
    lengths = np.clip(draw.lognormal(np.log(200) - 0.32, 0.8, len(numbers)), 16, 2048).astype(np.int64)
    sequences = [draw.integers(1, 50_000, length, np.int32) for length in lengths]
    for number, sequence in zip(numbers, sequences, strict=True):
        sequence[0] = number
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    column = pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(sequences)))
    pq.write_table(pa.table({"tokens": column}), path, row_group_size=5_000)
    lines = "".join(f'{{"tokens": {sequence.tolist()}}}\n' for sequence in sequences)
    path.with_suffix(".jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(lines.encode()))


def tiny_tar(path: Path, numbers: range) -> None:
    """A number and a label, each a member of some bytes."""
    tar_of(
        path,
        (
            (f"{number:08d}.{name}", str(value).encode())
            for number in numbers
            for name, value in (("num", number), ("cls", number % 10))
        ),
    )


def tiny_lines(path: Path, numbers: range) -> None:
    """A number and a label a line."""
    path.write_text("".join(f'{{"num": {number}, "cls": {number % 10}}}\n' for number in numbers))


def many_shards(path: Path, numbers: range) -> None:
    """A folder ``many`` with an index of as many shards, of which the first ones are there."""
    from many_shards import write_index

    path.touch()
    folder = path.parent / "many"
    folder.mkdir()
    write_index(str(folder), len(numbers))
    # As revisions up to 0.1.0 know it.
    index = (folder / "asyncloader-index.json").read_bytes()
    (folder / "manifest.json").write_bytes(index.replace(b"asyncloader_index", b"asyncloader_manifest", 1))


#: Suffix, shards, samples at scale 1, and what writes a shard.
KINDS: dict[str, tuple[str, int, int, Callable[[Path, range], None]]] = {
    "bodies": ("tar", 32, 10_000, bodies),
    "images": ("tar", 32, 3_200, images),
    "tokens": ("parquet", 6, 120_000, tokens),
    "tiny tar": ("tar", 8, 100_000, tiny_tar),
    "tiny lines": ("jsonl", 8, 800_000, tiny_lines),
    "many shards": ("none", 1, 1_000_000, many_shards),
}
