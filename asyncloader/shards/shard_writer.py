"""Write shards: tar in the WebDataset layout, JSON Lines, and Parquet.

Laws:

- A shard appears under its name only when it is whole. A writer that is killed leaves at most one hidden
  ``.tmp`` file in a folder, which later writers ignore, and nothing in an object store.
- The same samples make the same bytes: headers contain no times, owners or host names.
- Shards read back as the same samples; names and values that would not are refused.
- The index contains length, digests and number of samples of each finished shard, as written. Readers check
  shards against it.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from ..blocks import bytes_of
from ..errors import FormatError
from ..formats import split_suffix
from ..quantity import as_count, parse_bytes
from .destinations import FolderDestination, open_destination
from .expectations import Expected
from .open_shard import OpenShard, check_written, encode, open_shard

_FIELD = re.compile(r"%0?\d*d|\{[^{}]*\}")


@dataclass(frozen=True, slots=True)
class WrittenShard:
    """A finished shard.

    Attributes:
        path: Path or URL of the shard.
        samples: How many samples it has.
        size_bytes: Length of its samples in bytes, before compression; for Parquet, in memory.
        stored_bytes: Length of the file in bytes.
        sha256: Digest of the file, in hexadecimal digits.
    """

    path: str
    samples: int
    size_bytes: int
    stored_bytes: int
    sha256: str


class ShardWriter:
    """Write samples to shards, and begin a new one when the last is full.

    The suffix selects the format. Samples are dicts:

    - ``.tar``: ``__key__`` and fields, which are ``bytes``, or values that are encoded by the extension of
      the field: ``txt``, ``json``, ``cls``, ``npy``.
    - ``.jsonl``: JSON values.
    - ``.parquet``: values, for each field of one type that fits a column.

    ``.gz``, ``.zst``, ``.xz`` or ``.bz2`` after the first two compresses them.

    Use the writer as a context manager. The end of the block finishes the open shard; an exception discards
    it, and keeps the finished ones. No file is opened before the first sample. An existing shard is never
    replaced, since two runs into one folder would leave a mixture of both.

    At the end, also after an exception, the finished shards are added to the ``asyncloader-index.json``
    beside them; several writers may share a folder. If a file of that name is not an index, it stays as it
    is, and a ``UserWarning`` is issued.

    Example:
        ```python
        import asyncloader as al

        with al.ShardWriter("written/train-%05d.tar", samples_per_shard=1000) as writer:
            for number in range(5000):
                writer.write({"__key__": f"{number:06d}", "txt": f"text {number}", "cls": number % 10})
        ```

    Args:
        pattern: Path of the shards with a place for their number, ``"corpus-%05d.tar"`` or
            ``"corpus-{:05d}.tar"``, or such a URL of an object store (``s3://``, ``gs://``, ``az://``).
            Without a number, all samples go into one shard. A path without a suffix is a folder or prefix
            for shards ``shard-%05d.tar``. Missing folders are made for the first sample; ``~`` at the start
            is the home folder. A shard for an object store is first written to an unnamed temporary file.
        shard_size: The most bytes of a shard before compression, headers included, as an int or as text such
            as ``"256MB"``. A larger sample gets its own shard. 1 GiB by default: large enough for a request
            to cost little, and small enough to give each of many workers several shards. A single shard has
            no limit.
        samples_per_shard: The most samples of a shard. None: no limit.
        schema: A ``pyarrow.Schema`` for Parquet. None: taken from the samples of the first row group, of
            about 32 MB, which all later values must fit.
        storage_options: Options of the object store, as for ``from_urls``.

    Attributes:
        shards: The finished shards so far, each with ``path``, ``samples``, ``size_bytes``, ``stored_bytes``
            and ``sha256``.

    Raises:
        TypeError: A path, size or option has a wrong type.
        ValueError: The URL, suffix or pattern cannot be written to; a limit is below 1; or an option does not
            fit: ``samples_per_shard`` for a single shard, ``schema`` without Parquet, ``storage_options`` for
            a local path.
        ImportError: The format is Parquet, and pyarrow is not installed.
    """

    def __init__(
        self,
        pattern: str | os.PathLike[str],
        *,
        shard_size: int | str = 1 << 30,
        samples_per_shard: int | None = None,
        schema: Any = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        path = os.fspath(pattern)
        if "." not in path.rpartition("/")[2]:
            path = f"{path.rstrip('/')}/shard-%05d.tar"
        folder, slash, self._name = path.rpartition("/")
        self._destination = open_destination(folder or slash, storage_options or {})
        if storage_options and isinstance(self._destination, FolderDestination):
            raise ValueError(f"storage_options are of an object store, and {path!r} is a local path")
        self._format, self._compression = split_suffix(self._name)
        check_written(self._format, self._compression)
        if schema is not None and self._format != "parquet":
            raise ValueError(f"schema is of Parquet, and {self._name!r} is {self._format}: leave it out")
        self._schema = schema
        self._numbered = _FIELD.search(self._name) is not None
        if samples_per_shard is not None and not self._numbered:
            raise ValueError(
                f"samples_per_shard needs a number in the name, such as {{:05d}}, not {self._name!r}"
            )
        self._name_of(0)  # raises for a pattern that cannot be filled in
        self._most_samples = (
            None if samples_per_shard is None else as_count("samples_per_shard", samples_per_shard)
        )
        self._most_bytes = as_count("shard_size", parse_bytes("shard_size", shard_size))
        self._open: OpenShard | None = None
        self._closed = False
        self._unlisted: dict[str, Expected] = {}  # finished and not in the index yet
        self.shards: list[WrittenShard] = []

    def write(self, sample: Mapping[str, Any]) -> None:
        """Add a sample.

        Args:
            sample: For tar, a dict such as ``{"__key__": "a/b", "txt": ...}``; for jsonl, a dict of JSON
                values; for Parquet, a dict of the values of columns, in which missing ones are null.

        Raises:
            ValueError: A key, field or value could not be read back, or the key is that of the sample before.
                If a row group of Parquet is refused, the shard is discarded and the writer closed.
            TypeError: A value has no encoding.
            RuntimeError: The writer is closed.
            FileExistsError: There is a shard of this name; nothing of the sample was written.
            OSError: The folder or the shard cannot be written. The shard is discarded and the writer closed.
        """
        if self._closed:
            raise RuntimeError("the writer is closed")
        encoded = encode(self._format, sample)
        if self._open is not None:
            self._open.check(sample)
            if self._is_full(self._open, bytes_of(encoded)):
                self._finish_shard()
        if self._open is None:
            self._open = self._begin_shard(self._name_of(len(self.shards)))
            self._open.check(sample)
        try:
            self._open.write(encoded)
        except BaseException:
            # If the caller catches this and continues, there must not be half a sample in the shard.
            self._discard_shard()
            raise

    def close(self) -> None:
        """Finish the open shard and write the index. Further calls do nothing.

        Raises:
            OSError: The shard cannot be written, and is discarded; or the index cannot be written.
            ValueError: The last row group of Parquet has a value that does not fit; the shard is discarded.
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
        except OSError as fault:  # the exception of the block is the one to raise
            error.add_note(f"the finished shards have no entry in their index: {fault}")

    def _begin_shard(self, name: str) -> OpenShard:
        if self._destination.exists(name):
            raise FileExistsError(
                f"{self._destination.path_of(name)!r} exists, perhaps from another run; write to an empty "
                "folder, or remove it first"
            )
        return open_shard(self._destination.draft(name), self._format, self._compression, self._schema)

    def _discard_shard(self) -> None:
        self._closed = True
        if self._open is not None:
            self._open.discard()
            self._open = None

    def _is_full(self, shard: OpenShard, more: int) -> bool:
        if not self._numbered:
            return False
        return shard.samples == self._most_samples or shard.size_bytes + more > self._most_bytes

    def _finish_shard(self) -> None:
        assert self._open is not None
        shard, self._open = self._open, None
        stored = shard.finish()
        self._schema = shard.schema
        assert stored.sha256 is not None and stored.size_bytes is not None
        name = self._name_of(len(self.shards))
        self._unlisted[name] = stored
        path = self._destination.path_of(name)
        self.shards.append(
            WrittenShard(path, shard.samples, shard.size_bytes, stored.size_bytes, stored.sha256.hex())
        )

    def _write_index(self) -> None:
        entries, self._unlisted = self._unlisted, {}
        if not entries:
            return
        try:
            self._destination.add_to_index(entries)
        except FormatError as error:
            warnings.warn(f"the shards written have no index: {error}", stacklevel=3)

    def _name_of(self, number: int) -> str:
        name = self._name
        if not self._numbered:
            return name
        try:
            return name % number if "%" in name else name.format(number)
        except (ValueError, TypeError, LookupError) as error:
            raise ValueError(f"expected one number in {name!r}, such as {{:05d}}: {error}") from error
