"""A shard that is being written: its compression, its digests, and how it gets its name."""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import os
import sys
from contextlib import suppress
from typing import IO, Any, Protocol

from ..descriptors import occupy_standard_descriptors
from ..digest import Digest, open_digest
from ..draft import Draft, named
from ..index.entries import OffsetPicker
from ..index.expectations import Expected, Offsets
from ..types import Buffer

__all__ = ["OpenShard", "Pending", "draft_in_folder"]


class Pending(Protocol):
    """What is written to, and is nowhere to be seen before it is published; see ``draft.Draft``."""

    file: IO[bytes]

    def publish(self) -> None: ...
    def discard(self) -> None: ...


def draft_in_folder(path: str) -> Draft:
    """A draft of a shard, whose folder is made if it is not there."""
    folder = os.path.dirname(path)
    occupy_standard_descriptors()
    try:
        os.makedirs(folder or ".", exist_ok=True)
    except FileExistsError:  # would read as if a shard were there
        raise NotADirectoryError(
            errno.ENOTDIR, "shards are written to a folder, but this is a file", folder
        ) from None
    return Draft(path)


class OpenShard:
    """A shard that nobody sees yet.

    Args:
        draft: What it is written to.
        compression: Of all of it; None for none.
        is_entered: Whether a decoder may begin between any two writes.
    """

    def __init__(self, draft: Pending, compression: str | None, *, is_entered: bool = True) -> None:
        self.samples = 0
        self.size_bytes = 0
        # What is compressed can only be read from its beginning.
        self._offsets = OffsetPicker() if compression is None and is_entered else None
        self._draft = draft
        self._stored = _StoredBytes(self._draft.file)
        self._stream: Any = self._stored
        try:
            self._stream = _open_compressor(self._stored, compression)
        except BaseException:
            self.discard()
            raise

    def write(self, encoded: Buffer, samples: int = 1) -> None:
        """Write what ``samples`` samples are encoded to."""
        if self._offsets is not None:
            self._offsets.add(self.samples, self.size_bytes)
        self._stream.write(encoded)
        self.samples += samples
        self.size_bytes += memoryview(encoded).nbytes

    def finish(self, end: bytes) -> Expected:
        """Give the shard its name; what it is."""
        try:
            self._stream.write(end)
            if self._stream is not self._stored:
                self._stream.close()
            self._draft.publish()
        except BaseException:
            self.discard()
            raise
        offsets = () if self._offsets is None else self._offsets.picked(self.samples)
        return self._stored.expected(self.samples, offsets)

    def discard(self) -> None:
        # The compressor too, or its finalizer writes to a closed file; a full disk fails both.
        with suppress(Exception):
            self._stream.close()
        self._draft.discard()


class _StoredBytes:
    """A file for a compressor to write to, which sees the bytes as they are stored."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._size_bytes = 0
        # The first for whoever asks, the second because it is fifteen times cheaper to verify.
        digests = {name: open_digest(name) for name in ("sha256", "crc32c")}
        self._digests: dict[str, Digest] = {name: digest for name, digest in digests.items() if digest}
        self.flush = file.flush
        self.close = file.close

    def write(self, chunk: Buffer) -> int:
        try:
            self._file.write(chunk)
        except OSError as error:
            raise named(error, self._file) from None
        length = memoryview(chunk).nbytes
        self._size_bytes += length
        for digest in self._digests.values():
            digest.update(chunk)
        return length

    def expected(self, samples: int, offsets: Offsets) -> Expected:
        """What a reader should find."""
        digests = {name: digest.digest() for name, digest in self._digests.items()}
        return Expected(self._size_bytes, samples, digests.get("sha256"), digests.get("crc32c"), offsets)


def _open_compressor(file: _StoredBytes, compression: str | None) -> Any:
    """A binary stream that writes to ``file`` and leaves it open when it is closed."""
    target: Any = file  # a file to compressors, if not to their types
    if compression is None:
        return target
    if compression == "gzip":
        return gzip.GzipFile("", "wb", fileobj=target, mtime=0)
    if compression == "xz":
        return lzma.LZMAFile(target, "wb")
    if compression == "bzip2":
        return bz2.BZ2File(target, "wb")
    if sys.version_info >= (3, 14):
        from compression import zstd

        return zstd.ZstdFile(target, "wb", options={zstd.CompressionParameter.checksum_flag: 1})
    import zstandard

    return zstandard.ZstdCompressor(write_checksum=True).stream_writer(target, closefd=False)
