"""What shards are made of: shards, the files of a folder, or samples spilled to a file, by number.

Each of the classes has ``samples()``, a generator of samples with where each is from. The two that are named
by the user also have ``versions``, ``size_bytes``, ``describe()``, ``counted(known)``, ``part(first, stop)``,
``dropped_before(first)``, ``looked_at()`` and ``verify(read)``.
"""

from __future__ import annotations

import os
import pickle
import stat
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from typing import IO, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import FormatError, StoreError
from ..flow.budget import Budget
from ..flow.engine import Engine
from ..formats import formats, split_suffix
from ..pipeline.lane import Lane, Services
from ..pipeline.shards import Shards, count_shards, open_survey
from ..plan.lanes import draw_order, permutation
from ..plan.pieces import Pieces
from ..plan.topology import Topology
from ..shards.expectations import Expected
from ..stores.urls import redact

# Of shards, in flight in one process: some parts at once.
_READ_BYTES = 64 << 20
# Requests for a byte of a shard at a time, which wait for servers alone.
_MOST_ASKED = 32
# Shards that are read at a time to be checked against a digest.
_MOST_VERIFIED = 2

Samples: TypeAlias = Generator[tuple[dict[str, Any], object], None, None]


class Version(NamedTuple):
    """A source as it is now; a tuple of JSON values.

    Attributes:
        name: Its URL or path as it may be shown.
        size_bytes: None if not known.
        version: What its store calls this version of it; None if it has no such name.
    """

    name: str
    size_bytes: int | None
    version: str | None


def read_versions(shards: Shards) -> list[Version]:
    """What each shard is now, and behind them the index of their folder, if there is one; asks their store.

    Raises:
        StoreError: One cannot be read.
    """
    urls = [*shards.urls] if shards.index is None else [*shards.urls, shards.index.url]
    with open_survey(shards, _MOST_ASKED) as (survey, threads):
        found = threads.map(survey.version, urls)
        return [Version(redact(url), *version) for url, version in zip(urls, found, strict=True)]


@dataclass(frozen=True)
class ShardSamples:
    """The samples of shards.

    Args:
        shards: Which, how they are reached, and what is read of them.
        versions: What they were at the beginning.
        skip: Samples of the first one that are not wanted.
        count: How many are wanted; None for all.
    """

    shards: Shards
    versions: Sequence[Version] = ()
    skip: int = 0
    count: int | None = None

    def counted(self, known: Mapping[int, Expected]) -> tuple[ShardSamples, dict[int, Expected]]:
        """The same with the number of samples of each shard; and of each that had to be read for it, with
        those of ``known``, what was found."""
        found = dict(known)
        checks = count_shards(self.shards, known, found.__setitem__)
        return replace(self, shards=replace(self.shards, checks=checks)), found

    @property
    def size_bytes(self) -> int:
        # Some indexes do not tell it of what is compressed, and some servers do not. The index comes last.
        known = zip(self.shards.checks.size_bytes.tolist(), self.versions, strict=False)
        return sum(size or version.size_bytes or 0 for size, version in known)

    @cached_property
    def stops(self) -> list[int]:
        """Number behind the last sample of each shard."""
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
        """How many samples have to be read and dropped if reading begins at sample ``first``."""
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
        """Check each shard against its digest, and whether it is still what it was at the beginning.

        Args:
            read: The parts that were read in one go, each from a sample up to another. A shard that is in one
                of them as a whole was checked there, and is not read again.

        Raises:
            StoreError: One is damaged, or was changed meanwhile.
        """
        shards = self.shards
        starts = [0, *self.stops[:-1]]
        # Formats that are read by ranges alone have not been checked against a digest.
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
        with open_survey(shards, _MOST_VERIFIED) as (survey, threads):
            for _ in threads.map(survey.prove, owed.keys(), owed.values()):
                pass  # it raises what one of them raised
        if read_versions(shards) != [*self.versions]:
            raise StoreError(
                "a source was changed while it was being converted: call convert again with overwrite"
            )

    def describe(self) -> Mapping[str, Any]:
        """What two runs must agree in beside the versions, as JSON values."""
        schema, delimiter = self.shards.schema, self.shards.delimiter
        described = {"made_of": "shards", **({} if schema is None else schema.describe())}
        return described if delimiter is None else {**described, "delimiter": delimiter}

    def samples(self) -> Samples:
        """Its samples with where each is from, in order. Closing it stops the reading."""
        # Whether shards have changed since they were counted is for their lengths and digests to say, which
        # are among the checks as far as an index or an index has them.
        shards = self.shards
        left = self.stops[-1] - self.skip if self.count is None else self.count
        with Engine() as engine:
            lane = Lane(Topology(), Services(engine, _READ_BYTES), Budget(_READ_BYTES, [0]))
            last = self.stops[-2] if len(self.stops) > 1 else 0
            numbers = np.arange(len(shards.urls))
            pieces = Pieces(numbers, shards.checks.samples, self.skip, self.skip + left - last)
            with closing(shards.read(pieces, lane)) as blocks:
                for block in blocks:
                    wanted = min(left, len(block))
                    numbered = shards.formats[block.trail.place(0).number] == "text"
                    for index, sample in enumerate(block.rows()[:wanted]):
                        if numbered:  # its key is the number of its line, which says nothing elsewhere
                            sample = {"text": sample["text"]}
                        yield sample, _SamplePlace(block, index)
                    left -= wanted

    def looked_at(self) -> Iterator[ShardSamples]:
        """Parts whose first samples are looked at: up to eight shards, from all over."""
        counts = self.shards.checks.samples
        full = np.flatnonzero(counts)
        for shard in full[:: max(-(-len(full) // 8), 1)].tolist():
            stop = self.stops[shard]
            yield self.part(stop - int(counts[shard]), stop)

    def _shard_of(self, sample: int) -> int:
        return bisect_right(self.stops, sample)


class _SamplePlace:
    """Where a sample is from, worked out if it is asked for."""

    __slots__ = ("_block", "_index")

    def __init__(self, block: Any, index: int) -> None:
        self._block = block
        self._index = index

    def __str__(self) -> str:
        return str(self._block.trail.place(self._index))


class _SampleFile(NamedTuple):
    """A file of a sample; names are below the folder."""

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
        classes: Numbers of the folders that are classes, by name; None if they are none.
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
        """Of each sample, in bytes."""
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
        pass  # each file was checked against its version when it was read, and there are no digests

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
            yield sample, os.path.join(self.folder, group[0].name)


Source: TypeAlias = ShardSamples | FileSamples

# Formats of shards that are hardly fields of samples: a folder with such files is not taken for one of files.
_HARDLY_FIELDS = {"tar", "jsonl", "parquet", "arrow", "mds", "litdata"}


def find_files(folder: str, labels: bool, *, is_sure: bool) -> FileSamples:
    """The samples of a folder: files whose paths are the same up to the first dot of their names are one.

    Args:
        folder: Its path.
        labels: Whether the folders in it are classes.
        is_sure: Whether the user has said that it is a folder of files, even if there are shards in it.

    Raises:
        ValueError: There is no such folder, it is empty, or has something that would be lost: a file without
            an extension, two files for one field, a link to a folder, a pipe.
        StoreError: It cannot be looked into.
    """
    if not os.path.isdir(folder):
        raise ValueError(f"there is no folder {folder!r}, of whose files samples could be made")
    files, hidden = [], 0
    for name, entry in _walk(folder, ""):
        if any(part.startswith(".") for part in name.split("/")):
            hidden += 1
            continue
        files.append(_file(name, entry))
    if not files:
        but = f", but for {hidden} that are hidden" if hidden else ""
        raise ValueError(f"there is no file below {folder!r}{but}")
    shards = {field for field in {file.field for file in files} if _is_shard(f"x.{field}")}
    if shards and not is_sure:
        name = next(file.name for file in files if file.field in shards)
        raise ValueError(
            f"{name!r} in {folder!r} is a shard: to convert the shards of a folder, end its name with "
            "'/'; to make samples of them as of other files, pass format='files'"
        )
    # By key first: "a.b" comes between "a" and "a/b", and would part the files of a sample.
    files.sort(key=lambda file: (file.key, file.field, file.name))
    for one, other in pairwise(files):
        if (one.key, one.field) == (other.key, other.field):
            raise ValueError(
                f"{one.name!r} and {other.name!r} are the same field {one.field!r} of sample {one.key!r}: "
                "extensions are in lower case; rename one"
            )
    groups = [tuple(group) for _, group in groupby(files, key=lambda file: file.key)]
    return FileSamples(folder, groups, _classes(files) if labels else None, hidden)


def _is_shard(name: str) -> bool:
    try:
        return split_suffix(name)[0] in _HARDLY_FIELDS
    except ValueError:
        return False


def _walk(folder: str, below: str) -> Iterator[tuple[str, os.stat_result]]:
    """Files by name below the folder, with what they are."""
    try:
        entries = sorted(os.scandir(where := os.path.join(folder, below)), key=lambda entry: entry.name)
    except OSError as error:
        raise StoreError(f"cannot look into the folder: {error.strerror}", shard=where) from error
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
                f"{name!r} is a link to a folder, which may lead in a circle: convert the folder that it "
                "leads to, or remove it"
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
        raise StoreError("the file was changed while it was being converted; begin anew", shard=path)
    return content


@dataclass(frozen=True)
class SpilledSamples:
    """Samples in a file without a name, written in their order and read in a random one.

    Any sample can then be read with one request to the disk, whatever it comes from: a source that is
    compressed, or on a server, could only be read once for each shard.

    Args:
        path: The file by its descriptor in the process that has written it, so that others can open it too.
        spans: Where each sample lies, in the order in which they are wanted: ``(n, 2) int64`` of first byte
            and length.
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
                    raise FormatError("the file of samples in between is cut: is its disk full?")
                yield pickle.loads(content)


def spill(source: Source, count: int, seed: int, file: IO[bytes]) -> SpilledSamples:
    """Write all ``count`` samples of a source to a file, to be read in the order that ``seed`` draws.

    Args:
        file: Without a name, or this process's own, since it is read as a pickle. Closing it ends reading.

    Raises:
        FormatError: There are fewer samples.
    """
    ends = np.zeros(count + 1, np.int64)
    number = 0
    with closing(source.part(0, count).samples()) as samples:
        for number, (sample, place) in enumerate(samples, 1):
            # The place is known now, and what cannot be kept is found when a shard is made.
            content = pickle.dumps((sample, str(place)), pickle.HIGHEST_PROTOCOL)
            ends[number] = ends[number - 1] + file.write(content)
    if number < count:
        raise FormatError(
            f"expected {count} samples, as many as were counted, and the sources have {number}: have they "
            "changed? If so, begin anew with overwrite"
        )
    file.flush()
    spans = np.stack([ends[:-1], np.diff(ends)], axis=1)[draw_order(count, seed)]
    folder = f"/proc/{os.getpid()}/fd" if os.path.exists("/proc/self/fd") else "/dev/fd"
    return SpilledSamples(f"{folder}/{file.fileno()}", spans)
