"""The sources of shards: other shards, the files of a folder, or samples spilled to a file.

Each class has ``samples()``, a generator of samples with their places, and ``part(first, stop)``. The two
that the user can name also have ``versions``, ``size_bytes``, ``describe()``, ``counted(known)``,
``dropped_before(first)``, ``looked_at()`` and ``verify(read)``.
"""

from __future__ import annotations

import os
import pickle
import stat
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate, groupby, pairwise
from typing import IO, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import FormatError, StoreError
from ..flow.budget import Budget
from ..flow.engine import Engine
from ..formats import formats, split_suffix
from ..pipeline.lane import Lane, Services
from ..pipeline.shards import Shards, count_shards
from ..plan.lanes import draw_order, permutation
from ..plan.pieces import Pieces
from ..plan.topology import Topology
from ..shards.expectations import Expected
from ..stores.urls import redact

# Bytes of shards in flight in one process: some parts at once.
_READ_BYTES = 64 << 20
# Requests for one byte of a shard at a time; they only wait for servers.
_MOST_ASKED = 32
# Shards to read at a time for checking their digests.
_MOST_VERIFIED = 2

Samples: TypeAlias = Generator[tuple[dict[str, Any], Callable[[], object]], None, None]
"""Samples, each with a function that returns where it is from; most are never called."""


class Version(NamedTuple):
    """The version of a source, as JSON values.

    Attributes:
        name: Its URL or path, redacted.
        size_bytes: Its length; None if unknown.
        version: The name of this version in its store; None if it has none.
    """

    name: str
    size_bytes: int | None
    version: str | None


def read_versions(shards: Shards) -> list[Version]:
    """The current versions of shards, and of the index of their folder behind them, if there is one.

    Raises:
        StoreError: One cannot be read.
    """
    urls = [*shards.urls, *filter(None, [shards.index.url])]
    with shards.open_survey(_MOST_ASKED) as (survey, threads):
        found = threads.map(survey.version, urls)
        return [Version(redact(url), *version) for url, version in zip(urls, found, strict=True)]


@dataclass(frozen=True)
class ShardSamples:
    """The samples of shards.

    Args:
        shards: The shards, how they are reached, and what is read of them.
        versions: Their versions at the beginning.
        skip: Samples of the first shard to drop.
        count: How many samples to read; None for all.
    """

    shards: Shards
    versions: Sequence[Version] = ()
    skip: int = 0
    count: int | None = None

    def counted(self, known: Mapping[int, Expected]) -> tuple[ShardSamples, dict[int, Expected]]:
        """The same with the number of samples of each shard; and what was found of shards that had to be read
        for it, including ``known``."""
        found = dict(known)
        checks = count_shards(self.shards, known, found.__setitem__)
        return replace(self, shards=replace(self.shards, checks=checks)), found

    @property
    def size_bytes(self) -> int:
        # Some indexes lack lengths of compressed shards, and some servers send none. The index is last.
        known = zip(self.shards.checks.size_bytes.tolist(), self.versions, strict=False)
        return sum(size or version.size_bytes or 0 for size, version in known)

    @cached_property
    def stops(self) -> list[int]:
        """The number behind the last sample of each shard."""
        return [*accumulate(self.shards.checks.samples.tolist())]

    def part(self, first: int, stop: int) -> ShardSamples:
        """Samples ``first`` up to ``stop``."""
        begin, end = self._shard_of(first), self._shard_of(stop - 1) + 1
        shards = replace(
            self.shards,
            urls=[*self.shards.urls[begin:end]],
            formats=[*self.shards.formats[begin:end]],
            checks=self.shards.checks.take(np.arange(begin, end)),
        )
        skip = first - (self.stops[begin - 1] if begin else 0)
        return ShardSamples(shards, skip=skip, count=stop - first)

    def dropped_before(self, first: int) -> int:
        """How many samples must be read and dropped if reading begins at sample ``first``."""
        shard = self._shard_of(first)
        inside = first - (self.stops[shard - 1] if shard else 0)
        if formats[self.shards.formats[shard]].reopens:
            return 0  # a part of a row group at most
        expected = self.shards.checks[shard]
        assert expected is not None, "all are counted"
        offsets = expected.offsets or ()
        place = bisect_right(offsets, inside, key=lambda offset: offset[0])
        return inside - (offsets[place - 1][0] if place else 0)

    def verify(self, read: Iterable[tuple[int, int]]) -> None:
        """Check each shard against its digest, and whether its version is still the same.

        Args:
            read: The parts that were read in one go, each from a sample up to another. A shard that is whole
                in one of them was checked there, and is not read again.

        Raises:
            StoreError: One is damaged, or was changed meanwhile.
        """
        shards = self.shards
        starts = [0, *self.stops[:-1]]
        # Formats that are read by ranges were not checked against a digest.
        checked = {
            number
            for first, stop in read
            for number in range(bisect_left(starts, first), bisect_right(self.stops, stop))
            if formats[shards.formats[number]].open is not None
        }
        owed = {
            url: entry
            for number, (url, entry) in enumerate(zip(shards.urls, shards.checks, strict=True))
            if number not in checked and entry is not None and entry.digests
        }
        with shards.open_survey(_MOST_VERIFIED) as (survey, threads):
            for _ in threads.map(survey.prove, owed.keys(), owed.values()):
                pass  # it raises the error of a shard
        if read_versions(shards) != [*self.versions]:
            raise StoreError(
                "a source was changed while it was being converted: call convert again with overwrite"
            )

    def describe(self) -> Mapping[str, Any]:
        """What must be equal in two runs of a job besides the versions, as JSON values."""
        schema, delimiter = self.shards.schema, self.shards.delimiter
        described = {"made_of": "shards", **({} if schema is None else schema.describe())}
        return described if delimiter is None else {**described, "delimiter": delimiter}

    def samples(self) -> Samples:
        """Its samples with their places, in order. Closing the generator stops reading."""
        # Shards that have changed since they were counted are found by the lengths and digests in ``checks``.
        shards = self.shards
        left = self.stops[-1] - self.skip if self.count is None else self.count
        with Engine() as engine:
            lane = Lane(Topology(), Services(engine, _READ_BYTES), Budget(_READ_BYTES, [0]).of(0))
            last = self.stops[-2] if len(self.stops) > 1 else 0
            numbers = np.arange(len(shards.urls))
            pieces = Pieces(numbers, shards.checks.samples, self.skip, self.skip + left - last)
            with closing(shards.read(pieces, lane)) as blocks:
                for block in blocks:
                    wanted = min(left, len(block))
                    numbered = shards.formats[block.trail.place(0).number] == "text"
                    for index, sample in enumerate(block.rows()[:wanted]):
                        if (
                            numbered
                        ):  # its key is the number of its line, which means nothing in another shard
                            sample = {"text": sample["text"]}
                        yield sample, partial(block.trail.place, index)
                    left -= wanted

    def looked_at(self) -> Iterator[ShardSamples]:
        """Parts whose first samples are looked at: up to eight shards, spread over all."""
        counts = self.shards.checks.samples
        full = np.flatnonzero(counts)
        for shard in full[:: max(-(-len(full) // 8), 1)].tolist():
            stop = self.stops[shard]
            yield self.part(stop - int(counts[shard]), stop)

    def _shard_of(self, sample: int) -> int:
        return bisect_right(self.stops, sample)


class _SampleFile(NamedTuple):
    """A file of a sample; its name is relative to the folder."""

    name: str
    key: str
    field: str
    size_bytes: int
    modified_ns: int


@dataclass(frozen=True)
class FileSamples:
    """The samples of a folder of files; its methods are those of ``ShardSamples``.

    Args:
        folder: Its path.
        groups: The files of each sample, in the order of the samples.
        classes: The number of each folder that is a class, by name; None without classes.
        hidden: How many files were left out.
    """

    folder: str
    groups: Sequence[tuple[_SampleFile, ...]]
    classes: Mapping[str, int] | None = None
    hidden: int = 0

    @property
    def versions(self) -> Sequence[Version]:
        return [
            Version(file.name, file.size_bytes, str(file.modified_ns))
            for group in self.groups
            for file in group
        ]

    @cached_property
    def sizes(self) -> list[int]:
        """The length of each sample in bytes."""
        return [sum(file.size_bytes for file in group) for group in self.groups]

    @property
    def size_bytes(self) -> int:
        return sum(self.sizes)

    def counted(self, known: Mapping[int, Expected]) -> tuple[FileSamples, dict[int, Expected]]:
        return self, {}

    def part(self, first: int, stop: int) -> FileSamples:
        return replace(self, groups=self.groups[first:stop])

    def shuffled(self, seed: int) -> FileSamples:
        """The same samples in a random order."""
        return replace(self, groups=[self.groups[number] for number in permutation(len(self.groups), seed)])

    def dropped_before(self, first: int) -> int:
        return 0

    def verify(self, read: Iterable[tuple[int, int]]) -> None:
        pass  # each file was checked against its version while it was read, and there are no digests

    def describe(self) -> Mapping[str, Any]:
        return {"made_of": "files", "labels": self.classes is not None}

    def looked_at(self) -> Iterator[FileSamples]:
        yield self

    def samples(self) -> Samples:
        for group in self.groups:
            sample: dict[str, Any] = {"__key__": group[0].key}
            for file in group:
                sample[file.field] = _content(os.path.join(self.folder, file.name), file)
            if self.classes is not None:
                name = group[0].key.partition("/")[0]
                sample |= {"cls": str(self.classes[name]).encode(), "label.txt": name.encode()}
            yield sample, partial(os.path.join, self.folder, group[0].name)


Source: TypeAlias = ShardSamples | FileSamples

# Formats of shards that are probably not fields of samples: a folder with such files is not one of files.
_HARDLY_FIELDS = {"tar", "jsonl", "parquet", "arrow", "mds", "litdata"}


def find_files(folder: str, labels: bool, *, is_sure: bool) -> FileSamples:
    """The samples of a folder: files whose paths are the same up to the first dot of their names are one.

    Args:
        folder: Its path.
        labels: Whether the folders in it are classes.
        is_sure: Whether the user has named it as a folder of files, even if there are shards in it.

    Raises:
        ValueError: There is no such folder, it is empty, or has something that would be lost: a file without
            an extension, two files for one field, a link to a folder, a pipe.
        StoreError: It cannot be listed.
    """
    if not os.path.isdir(folder):
        raise ValueError(f"there is no folder {folder!r} with files to make samples of")
    files, hidden = [], 0
    for name, entry in _walk(folder, ""):
        if any(part.startswith(".") for part in name.split("/")):
            hidden += 1
            continue
        files.append(_file(name, entry))
    if not files:
        but = f", except {hidden} hidden ones" if hidden else ""
        raise ValueError(f"there is no file below {folder!r}{but}")
    shards = {field for field in {file.field for file in files} if _is_shard(f"x.{field}")}
    if shards and not is_sure:
        name = next(file.name for file in files if file.field in shards)
        raise ValueError(
            f"{name!r} in {folder!r} is a shard: to convert the shards of a folder, end its name with "
            "'/'; to use them as files of samples, pass format='files'"
        )
    # By key first: "a.b" is between "a" and "a/b", and would separate the files of a sample.
    files.sort(key=lambda file: (file.key, file.field, file.name))
    for one, other in pairwise(files):
        if (one.key, one.field) == (other.key, other.field):
            raise ValueError(
                f"{one.name!r} and {other.name!r} are the same field {one.field!r} of sample {one.key!r}: "
                "extensions are converted to lower case: rename one"
            )
    groups = [tuple(group) for _, group in groupby(files, key=lambda file: file.key)]
    return FileSamples(folder, groups, _classes(files) if labels else None, hidden)


def _is_shard(name: str) -> bool:
    try:
        return split_suffix(name)[0] in _HARDLY_FIELDS
    except ValueError:
        return False


def _walk(folder: str, below: str) -> Iterator[tuple[str, os.stat_result]]:
    """Files below the folder by name, with their status."""
    try:
        entries = sorted(os.scandir(where := os.path.join(folder, below)), key=lambda entry: entry.name)
    except OSError as error:
        raise StoreError(f"cannot list the folder: {error.strerror}", shard=where) from error
    for entry in entries:
        name = f"{below}{entry.name}"
        try:
            found = entry.stat()
        except OSError as error:  # a link to nowhere
            raise ValueError(f"{name!r} cannot be read ({error.strerror}): remove it") from None
        if not stat.S_ISDIR(found.st_mode):
            yield name, found
        elif entry.is_symlink():
            raise ValueError(
                f"{name!r} is a link to a folder, which may contain itself: convert the folder that it "
                "links to, or remove it"
            )
        else:
            yield from _walk(folder, f"{name}/")


def _file(name: str, found: os.stat_result) -> _SampleFile:
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{name!r} is no regular file: remove it")
    folder, slash, base = name.rpartition("/")
    base, _, field = base.partition(".")
    if not field:
        raise ValueError(
            f"{name!r} has no extension, which would be the name of its field: rename it, or remove it"
        )
    return _SampleFile(name, folder + slash + base, field.lower(), found.st_size, found.st_mtime_ns)


def _classes(files: Sequence[_SampleFile]) -> dict[str, int]:
    for file in files:
        if "/" not in file.key:
            raise ValueError(f"labels are the names of subfolders, but {file.name!r} is in none")
        if file.field in ("cls", "label.txt"):
            raise ValueError(
                f"labels would be the fields cls and label.txt, and there is {file.name!r} already: leave "
                "labels out, or rename it"
            )
    return {name: number for number, name in enumerate(sorted({f.key.partition("/")[0] for f in files}))}


def _content(path: str, expected: _SampleFile) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read()
            found = os.fstat(file.fileno())
    except OSError as error:
        raise StoreError(f"cannot read the file: {error.strerror}", shard=path) from error
    if (len(content), found.st_mtime_ns) != (expected.size_bytes, expected.modified_ns):
        raise StoreError("the file was changed while it was being converted; call convert again", shard=path)
    return content


@dataclass(frozen=True)
class SpilledSamples:
    """Samples in an unnamed file, written in their order and read in a random one.

    Any sample can be read from it with one request to the disk. A source that is compressed or on a server
    would have to be read once for each new shard.

    Args:
        path: The file by its descriptor in the process that has written it, so that others can open it too.
        spans: The first byte and the length of each sample, in the order of reading: ``(n, 2) int64``.
    """

    path: str
    spans: npt.NDArray[np.int64]

    def part(self, first: int, stop: int) -> SpilledSamples:
        return replace(self, spans=self.spans[first:stop])

    def samples(self) -> Samples:
        with open(self.path, "rb") as file:
            for start, length in self.spans.tolist():
                file.seek(start)
                if len(content := file.read(length)) < length:
                    raise FormatError("the temporary file of samples is cut: is its disk full?")
                sample, place = pickle.loads(content)
                yield sample, partial(str, place)


def spill(source: Source, count: int, seed: int, file: IO[bytes]) -> SpilledSamples:
    """Write all ``count`` samples of a source to a file, to be read in the order that ``seed`` draws.

    Args:
        source: The source.
        count: Its number of samples.
        seed: Of the order.
        file: Unnamed, or private to this process, since it is read as a pickle. Closing it ends reading.

    Raises:
        FormatError: There are fewer samples.
    """
    ends = np.zeros(count + 1, np.int64)
    number = 0
    with closing(source.part(0, count).samples()) as samples:
        for number, (sample, place) in enumerate(samples, 1):
            # The place is known only now. Values that cannot be kept are found when a shard is made.
            content = pickle.dumps((sample, str(place())), pickle.HIGHEST_PROTOCOL)
            ends[number] = ends[number - 1] + file.write(content)
    if number < count:
        raise FormatError(
            f"expected {count} samples, as many as were counted, but the sources have {number}: have they "
            "changed? If so, call convert with overwrite"
        )
    file.flush()
    spans = np.stack([ends[:-1], np.diff(ends)], axis=1)[draw_order(count, seed)]
    folder = f"/proc/{os.getpid()}/fd" if os.path.exists("/proc/self/fd") else "/dev/fd"
    return SpilledSamples(f"{folder}/{file.fileno()}", spans)
