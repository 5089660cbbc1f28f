"""Feed decoders in several chunkings; what comes out must not depend on it."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from asyncloader.blocks import Block
from asyncloader.errors import FormatError
from asyncloader.formats.decoder import Decoder

Outcome = tuple[list[Any], list[Any], tuple[str, int | None, int | None] | None]


def cut(body: bytes, sizes: Sequence[int]) -> list[bytes]:
    """``body`` in pieces of ``sizes``, taken round and round."""
    pieces, at, turn = [], 0, 0
    while at < len(body):
        pieces.append(body[at : at + sizes[turn % len(sizes)]])
        at += sizes[turn % len(sizes)]
        turn += 1
    return pieces


def decoded(decoder: Decoder, chunks: Iterable[bytes | bytearray]) -> Iterator[Block]:
    """The blocks, as they come."""
    for chunk in chunks:
        yield from decoder.feed(chunk)
    yield from decoder.finish()


def blocks_of(decoder: Decoder, chunks: Iterable[bytes]) -> list[Block]:
    return list(decoded(decoder, chunks))


def samples_of(decoder: Decoder, *chunks: bytes) -> list[Any]:
    return [comparable(sample) for block in blocks_of(decoder, chunks) for sample in block.rows()]


def comparable(sample: Any) -> Any:
    """A sample that ``==`` compares: its arrays as lists."""
    if not isinstance(sample, dict) or not any(isinstance(value, np.ndarray) for value in sample.values()):
        return sample
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in sample.items()
    }


def outcome(decoder: Decoder, chunks: Iterable[bytes]) -> Outcome:
    """Samples, their positions, and the error that ended it if there was one."""
    samples: list[Any] = []
    positions: list[Any] = []

    def take(blocks: Iterable[Block]) -> None:
        for block in blocks:
            assert len(block), "empty blocks are not yielded"
            samples.extend(map(comparable, block.rows()))
            positions.extend(block.trail.after(index)[0] for index in range(len(block)))

    try:
        for chunk in chunks:
            take(decoder.feed(chunk))
        take(decoder.finish())
    except FormatError as error:
        return samples, positions, (str(error), error.offset, error.sample)
    return samples, positions, None


def assert_any_chunking_equal(make: Callable[[], Decoder], body: bytes, *chunkings: Sequence[int]) -> Outcome:
    whole = outcome(make(), [body])
    for sizes in ((1,), (511, 2), *chunkings):
        assert outcome(make(), cut(body, sizes)) == whole
    return whole


def make_tar(members: Iterable[tuple[str, bytes]], format: int = tarfile.USTAR_FORMAT) -> bytes:
    """A tar as short as can be: members and two zero blocks."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as archive:
        for name, body in members:
            member = tarfile.TarInfo(name)
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))
        end = archive.offset
    return out.getvalue()[:end] + bytes(1024)


def raw_header(
    name: bytes = b"a.txt",
    size: bytes | int = 0,
    kind: bytes = b"0",
    magic: bytes = b"ustar\x0000",
    **at: bytes,
) -> bytes:
    """A header with a right checksum whatever its fields say; ``b345=...`` writes at an offset."""
    block = bytearray(512)
    block[: len(name)] = name
    field = size if isinstance(size, bytes) else b"%011o\0" % size
    block[124 : 124 + len(field)] = field
    block[156:157] = kind
    block[257 : 257 + len(magic)] = magic
    for place, patch in at.items():
        start = int(place[1:])
        block[start : start + len(patch)] = patch
    return with_checksum(bytes(block))


def with_checksum(block: bytes) -> bytes:
    total = sum(block[:148]) + 8 * 32 + sum(block[156:])
    return block[:148] + b"%06o\0 " % total + block[156:]


def padded(body: bytes) -> bytes:
    return body + bytes(-len(body) % 512)


def pax_header(*records: tuple[bytes, bytes], kind: bytes = b"x") -> bytes:
    body = b"".join(pax_record(key, value) for key, value in records)
    return raw_header(b"pax", len(body), kind) + padded(body)


def pax_record(key: bytes, value: bytes) -> bytes:
    length = len(key) + len(value) + 3
    while len(b"%d" % length) + len(key) + len(value) + 3 != length:
        length = len(b"%d" % length) + len(key) + len(value) + 3
    return b"%d %s=%s\n" % (length, key, value)


END = bytes(1024)


def limited(decoder: type[Any], **limits: int) -> Any:
    """The same decoder with other limits."""
    return type(decoder.__name__, (decoder,), limits)
