"""Write shards: tar in the WebDataset layout and JSON Lines, compressed or not.

Laws:

- A shard appears under its name only when it is whole: it is written under a temporary name in the
  same folder and renamed at the end. A killed writer leaves at most one hidden ``.tmp`` file, which
  stands in nobody's way.
- The same samples make the same bytes: no times, owners or host names go into headers.
- What is written reads back as the same samples: names that would not are refused.
- Of each finished shard the folder's index tells length, digests and samples, as they were when the
  bytes were written: what the disk has made of them since is what a reader checks.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from ..errors import FormatError
from ..formats import split_suffix
from ..formats.encode import encode_jsonl_sample, encode_tar_sample, tar_end
from ..index.building import update_index
from ..index.expectations import Expected
from ..stores.urls import INDEX_NAME, redact
from .open_shard import OpenShard, draft_in_folder

__all__ = ["ShardWriter", "WrittenShard"]

_FIELD = re.compile(r"%0?\d*d|\{[^{}]*\}")


@dataclass(frozen=True, slots=True)
class WrittenShard:
    """A shard that is finished.

    Attributes:
        path: Where it is.
        samples: How many samples it holds.
        size_bytes: Length of its samples in bytes, before compression.
        stored_bytes: Length of the file in bytes.
        sha256: Of the file, in hexadecimal digits.
    """

    path: str
    samples: int
    size_bytes: int
    stored_bytes: int
    sha256: str


class ShardWriter:
    """Write samples to shards, a new one whenever the last is full.

    The suffix says the format: ``.tar`` (each sample a dict of ``__key__`` and fields: ``bytes``, or
    values encoded by extension as ``asyncloader.formats.encode.encoders`` tells) or ``.jsonl`` (each
    sample a dict of JSON values), with ``.gz``, ``.zst``, ``.xz`` or ``.bz2`` after it to compress.

    Use it as a context manager: leaving the block finishes the open shard, leaving it by an exception
    discards the open shard and keeps those that were finished. Nothing is opened before the first
    sample; without samples no shard is written. A shard that exists is never replaced: two runs into
    one folder would leave a mixture of both.

    At the end, whichever it is, the finished shards are entered into ``asyncloader-index.json`` in their
    folder, which is made or added to; several writers may share a folder. A file of that name which is no
    such index stays as it is, and a ``UserWarning`` tells so.

    Args:
        pattern: Path of the shards with their number in it, ``"corpus-%05d.tar"`` or
            ``"corpus-{:05d}.tar"``. Without a number all goes into one shard. A path without a suffix
            is a folder, whose shards are ``shard-%05d.tar``. The folder is made, with those above it, when
            the first sample is written; a ``~`` at the start is your home.
        max_samples: Most samples in a shard; None for any number.
        max_bytes: Most bytes of a shard before compression, headers included. A larger sample gets a
            shard of its own. The default of 1 GiB is large enough for a request to cost nothing, and
            small enough to give each of many workers several shards. Ignored for a single shard.

    Raises:
        ValueError: A URL, a suffix that cannot be written, a limit below 1, a pattern that is none, or
            ``max_samples`` for a single shard.
    """

    def __init__(
        self, pattern: str | os.PathLike[str], *, max_samples: int | None = None, max_bytes: int = 1 << 30
    ) -> None:
        path = os.path.expanduser(os.fspath(pattern))
        if "://" in path:
            raise ValueError(
                f"shards are written to local files, not to {redact(path)!r}: give a path, and upload the "
                "folder with its asyncloader-index.json afterwards"
            )
        if "." not in os.path.basename(path):
            path = os.path.join(path, "shard-%05d.tar")
        if max_bytes < 1 or (max_samples is not None and max_samples < 1):
            raise ValueError(f"max_samples={max_samples} and max_bytes={max_bytes} must be at least 1")
        self._format, self._compression = split_suffix(path)
        if self._format not in ("tar", "jsonl"):
            raise ValueError(f"shards of format {self._format!r} are not written, only tar and jsonl")
        self._numbered = _FIELD.search(os.path.basename(path)) is not None
        if max_samples is not None and not self._numbered:
            raise ValueError(f"max_samples needs a number in the name, such as {{:05d}}, not {path!r}")
        self._pattern = path
        self._path(0)  # raises for a pattern that cannot be filled in
        self._max_samples = max_samples
        self._max_bytes = max_bytes
        self._open: OpenShard | None = None
        self._open_path = ""
        self._closed = False
        self._last_key: object = None
        self._unlisted: dict[str, Expected] = {}  # finished and not in the index yet
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
            OSError: The folder cannot be made, or the shard cannot be written; it is discarded and the
                writer closed.
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
            self._open = OpenShard(draft_in_folder(path), self._compression)
            self._open_path = path
        try:
            self._open.write(encoded)
        except BaseException:
            # Who catches this and goes on must not end up with half a sample in the shard.
            self._discard_shard()
            raise

    def close(self) -> None:
        """Finish the open shard and write the index; nothing happens the second time.

        Raises:
            OSError: The shard cannot be written; it is discarded. Or the index cannot.
        """
        self._closed = True
        try:
            if self._open is not None:
                self._finish_shard()
        finally:
            self._write_index()

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        self._discard_shard()
        try:
            self._write_index()
        except OSError as fault:  # the exception that ends the block is the one to hear of
            error.add_note(f"the finished shards have no entry in their index: {fault}")

    def _discard_shard(self) -> None:
        self._closed = True
        if self._open is not None:
            self._open.discard()
            self._open = None

    def _is_full(self, shard: OpenShard, more: int) -> bool:
        if not self._numbered:
            return False
        return shard.samples == self._max_samples or shard.size_bytes + more > self._max_bytes

    def _finish_shard(self) -> None:
        assert self._open is not None
        shard, self._open = self._open, None
        stored = shard.finish(tar_end if self._format == "tar" else b"")
        assert stored.sha256 is not None and stored.size_bytes is not None
        self._unlisted[os.path.basename(self._open_path)] = stored
        self.shards.append(
            WrittenShard(
                self._open_path, shard.samples, shard.size_bytes, stored.size_bytes, stored.sha256.hex()
            )
        )

    def _write_index(self) -> None:
        entries, self._unlisted = self._unlisted, {}
        if not entries:
            return
        path = os.path.join(os.path.dirname(self._pattern), INDEX_NAME)
        try:
            update_index(path, entries)
        except FormatError as error:
            warnings.warn(f"the shards written have no index: {error}", stacklevel=3)

    def _path(self, number: int) -> str:
        folder, name = os.path.split(self._pattern)
        if not self._numbered:
            return self._pattern
        try:
            name = name % number if "%" in name else name.format(number)
        except (ValueError, TypeError, LookupError) as error:
            raise ValueError(f"expected one number in {name!r}, such as {{:05d}}: {error}") from error
        return os.path.join(folder, name)
