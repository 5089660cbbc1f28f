"""Write shards: tar in the WebDataset layout and JSON Lines, compressed or not.

Laws:

- A shard appears under its name only when it is whole: it is written under a temporary name in the
  same folder and renamed at the end. A killed writer leaves at most one hidden ``.tmp`` file, which
  stands in nobody's way.
- The same samples make the same bytes: no times, owners or host names go into headers.
- What is written reads back as the same samples: names that would not are refused.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
import secrets
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any

from .formats import split_suffix
from .formats.encode import encode_jsonl_sample, encode_tar_sample, tar_end

__all__ = ["ShardWriter", "WrittenShard"]

_FIELD = re.compile(r"%0?\d*d|\{[^{}]*\}")


@dataclass(frozen=True, slots=True)
class WrittenShard:
    """A shard that is finished.

    Attributes:
        path: Where it is.
        samples: How many samples it holds.
        size_bytes: Length of its samples in bytes, before compression.
    """

    path: str
    samples: int
    size_bytes: int


class ShardWriter:
    """Write samples to shards, a new one whenever the last is full.

    The suffix says the format: ``.tar`` (each sample a dict of ``__key__`` and fields: ``bytes``, or
    values encoded by extension as ``asyncloader.formats.encode.encoders`` tells) or ``.jsonl`` (each
    sample a dict of JSON values), with ``.gz``, ``.zst``, ``.xz`` or ``.bz2`` after it to compress.

    Use it as a context manager: leaving the block finishes the open shard, leaving it by an exception
    discards the open shard and keeps those that were finished. Nothing is opened before the first
    sample; without samples no shard is written. A shard that exists is never replaced: two runs into
    one folder would leave a mixture of both.

    Args:
        pattern: Path of the shards with their number in it, ``"corpus-%05d.tar"`` or
            ``"corpus-{:05d}.tar"``. Without a number all goes into one shard. A path without a suffix
            is a folder, whose shards are ``shard-%05d.tar``. The folder must exist.
        max_samples: Most samples in a shard; None for any number.
        max_bytes: Most bytes of a shard before compression, headers included. A larger sample gets a
            shard of its own. The default of 1 GiB is large enough for a request to cost nothing, and
            small enough to give each of many workers several shards. Ignored for a single shard.

    Raises:
        ValueError: A suffix that cannot be written, a limit below 1, a pattern that is none, or
            ``max_samples`` for a single shard.
    """

    def __init__(
        self, pattern: str | os.PathLike[str], *, max_samples: int | None = None, max_bytes: int = 1 << 30
    ) -> None:
        path = os.fspath(pattern)
        if "." not in os.path.basename(path):
            path = os.path.join(path, "shard-%05d.tar")
        if max_bytes < 1 or (max_samples is not None and max_samples < 1):
            raise ValueError(f"max_samples={max_samples} and max_bytes={max_bytes} must be at least 1")
        self._format, self._compression = split_suffix(path)
        if self._format not in ("tar", "jsonl"):
            raise ValueError(f"shards of format {self._format!r} are not written, only tar and jsonl")
        self._numbered = _FIELD.search(os.path.basename(path)) is not None
        if max_samples is not None and not self._numbered:
            raise ValueError(f"max_samples needs a number in the name, such as %05d, not {path!r}")
        self._pattern = path
        self._path(0)  # raises for a pattern that cannot be filled in
        self._max_samples = max_samples
        self._max_bytes = max_bytes
        self._open: _OpenShard | None = None
        self._closed = False
        self._last_key: object = None
        self.shards: list[WrittenShard] = []

    def write(self, sample: Mapping[str, Any]) -> None:
        """Add one sample.

        Args:
            sample: For tar ``{"__key__": "a/b", "txt": ...}``; for jsonl a dict of JSON values.

        Raises:
            ValueError: A key or field that would not read back, or the key of the sample before.
            TypeError: A value that has no encoding.
            RuntimeError: The writer is closed.
            FileExistsError: There is a shard of this name; nothing of the sample was written.
            OSError: The shard cannot be written; it is discarded and the writer closed.
        """
        if self._closed:
            raise RuntimeError("the writer is closed")
        if self._format == "tar":
            encoded = encode_tar_sample(sample)
            if self._open is not None and sample["__key__"] == self._last_key:
                raise ValueError(f"two samples in a row with __key__ {self._last_key!r} would read as one")
            self._last_key = sample["__key__"]
        else:
            encoded = encode_jsonl_sample(sample)
        if self._open is not None and self._is_full(self._open, len(encoded)):
            self._finish_shard()
        if self._open is None:
            path = self._path(len(self.shards))
            if os.path.exists(path):
                raise FileExistsError(
                    f"{path!r} exists, from another run perhaps; write to an empty folder, or remove it first"
                )
            self._open = _OpenShard(path, self._compression)
        try:
            self._open.write(encoded)
        except BaseException:
            # Who catches this and goes on must not end up with half a sample in the shard.
            self._discard_shard()
            raise

    def close(self) -> None:
        """Finish the open shard; nothing happens the second time.

        Raises:
            OSError: The shard cannot be written; it is discarded.
        """
        self._closed = True
        if self._open is not None:
            self._finish_shard()

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
            return
        self._discard_shard()

    def _discard_shard(self) -> None:
        self._closed = True
        if self._open is not None:
            self._open.discard()
            self._open = None

    def _is_full(self, shard: _OpenShard, more: int) -> bool:
        if not self._numbered:
            return False
        return shard.samples == self._max_samples or shard.size_bytes + more > self._max_bytes

    def _finish_shard(self) -> None:
        assert self._open is not None
        shard, self._open = self._open, None
        shard.finish(tar_end if self._format == "tar" else b"")
        self.shards.append(WrittenShard(shard.path, shard.samples, shard.size_bytes))

    def _path(self, number: int) -> str:
        folder, name = os.path.split(self._pattern)
        if not self._numbered:
            return self._pattern
        try:
            name = name % number if "%" in name else name.format(number)
        except (ValueError, TypeError, LookupError) as error:
            raise ValueError(f"expected one number in {name!r}, such as %05d or {{:05d}}: {error}") from error
        return os.path.join(folder, name)


class _OpenShard:
    """A shard under its temporary name."""

    def __init__(self, path: str, compression: str | None) -> None:
        self.path = path
        self.samples = 0
        self.size_bytes = 0
        folder, name = os.path.split(path)
        self._temporary = os.path.join(folder, f".{name}.{secrets.token_hex(8)}.tmp")
        self._file: IO[bytes] = open(self._temporary, "xb")  # noqa: SIM115 - finish or discard close it
        self._stream: Any = self._file
        try:
            self._stream = _open_compressor(self._file, compression)
        except BaseException:
            self.discard()
            raise

    def write(self, encoded: bytes) -> None:
        self._stream.write(encoded)
        self.samples += 1
        self.size_bytes += len(encoded)

    def finish(self, end: bytes) -> None:
        try:
            self._stream.write(end)
            if self._stream is not self._file:
                self._stream.close()
            self._file.flush()
            # Else a power cut may leave the new name with an empty file.
            os.fsync(self._file.fileno())
            self._file.close()
            os.replace(self._temporary, self.path)
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        # The compressor too, or its finalizer writes to a closed file; a full disk fails both.
        for stream in (self._stream, self._file):
            with suppress(Exception):
                stream.close()
        with suppress(FileNotFoundError):
            os.unlink(self._temporary)


def _open_compressor(file: IO[bytes], compression: str | None) -> Any:
    """A binary stream that writes to ``file`` and leaves it open when it is closed."""
    if compression is None:
        return file
    if compression == "gzip":
        return gzip.GzipFile("", "wb", fileobj=file, mtime=0)
    if compression == "xz":
        return lzma.LZMAFile(file, "wb")
    if compression == "bzip2":
        return bz2.BZ2File(file, "wb")
    if sys.version_info >= (3, 14):
        from compression import zstd

        return zstd.ZstdFile(file, "wb", options={zstd.CompressionParameter.checksum_flag: 1})
    import zstandard

    return zstandard.ZstdCompressor(write_checksum=True).stream_writer(file, closefd=False)
