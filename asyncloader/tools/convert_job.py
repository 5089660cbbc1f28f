"""A job: its plan, and its notes beside the shards, by which the next run continues after a killed one.

All samples, one source after another, are cut into shards. Which sample goes into which shard depends on the
sources and the options alone, not on the number of processes, nor on the progress of an earlier run.

A second call of ``convert`` with the same sources and options continues the job. With others it is refused
before anything is changed, and the error names the difference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal, NamedTuple

from ..errors import FormatError
from ..formats import has_format
from ..shards.destinations import Destination
from ..shards.expectations import Expected
from ..shards.index_entries import decode_note, encode_note, format_index, parse_index
from ..stores.urls import INDEX_NAME
from .convert_sources import Source, Version
from .convert_target import ShardTarget

#: The folder of notes, below the destination's folder.
NOTES = ".convert/"

_JOB = f"{NOTES}job.json"
_SHARD = re.compile(r"shard-\d{5,}(\.[a-z0-9]+){1,2}")

# A run begins where at most this part of its first shard's samples must be read and dropped. Otherwise, as in
# compressed sources, one process makes the shard and the one before it.
_MOST_DROPPED = 0.5


class NewShard(NamedTuple):
    """A shard to make: its name, the number of its first sample among all, and that behind its last."""

    name: str
    first: int
    stop: int

    @property
    def samples(self) -> int:
        return self.stop - self.first


@dataclass(frozen=True)
class Cuts:
    """How a job is cut.

    Attributes:
        stops: Numbers of samples at which shards stop.
        schema: Of Parquet, a ``pyarrow.Schema`` as its IPC message.
        counted: What was found of sources that had to be read to be counted, by number.
    """

    stops: list[int]
    schema: bytes | None
    counted: dict[int, Expected]


@dataclass(frozen=True)
class _Job:
    """What a job is; noted in JSON. The first field says whose note it is, and its version."""

    asyncloader_convert: Literal[4]
    options: dict[str, Any]
    sources: list[Version]
    cuts: Cuts


def cut_evenly(samples: int, most_samples: int) -> list[int]:
    """Where shards stop that have at most ``most_samples``, and differ by one sample at most."""
    count = -(-samples // most_samples)
    share, longer = divmod(samples, count) if count else (0, 0)
    return [*accumulate(share + (number < longer) for number in range(count))]


def cut_by_sizes(sizes: Iterable[int], most_bytes: int, most_samples: int | None) -> list[int]:
    """Where shards stop that have as many samples as fit; a larger sample has a shard of its own.

    Args:
        sizes: Length of each sample in bytes.
        most_bytes: The most bytes of a shard.
        most_samples: The most samples of a shard; None for any number.
    """
    stops, number, held_bytes, first = [], -1, 0, 0
    for number, size in enumerate(sizes):
        if number > first and (held_bytes + size > most_bytes or number - first == most_samples):
            stops.append(number)
            first, held_bytes = number, 0
        held_bytes += size
    return [*stops, number + 1] if number >= 0 else []


def new_shards(stops: Sequence[int], suffix: str) -> list[NewShard]:
    """The shards, by number: ``shard-00000.tar`` and so on."""
    width = max(5, len(str(len(stops) - 1)))
    bounds = enumerate(pairwise([0, *stops]))
    return [NewShard(f"shard-{number:0{width}d}{suffix}", first, stop) for number, (first, stop) in bounds]


def runs_of(
    shards: Sequence[NewShard], made: Collection[str], dropped_before: Callable[[int], int]
) -> Iterator[list[NewShard]]:
    """The missing shards, in runs that one process makes one after another.

    Args:
        shards: All shards.
        made: Names of the existing ones.
        dropped_before: How many samples must be dropped if reading begins at a sample, by its number.
    """
    run: list[NewShard] = []
    for shard in shards:
        if run and (shard.name in made or dropped_before(shard.first) <= _MOST_DROPPED * shard.samples):
            yield run
            run = []
        if shard.name not in made:
            run.append(shard)
    if run:
        yield run


class Conversion:
    """One job at its destination. No other run writes there.

    Args:
        destination: Where its shards go.
        target: What to make.
        source: What to make it of.
        overwrite: Whether to remove the shards of another job.

    Raises:
        ValueError: There are shards of another job, or other files.
    """

    def __init__(
        self, destination: Destination, target: ShardTarget, source: Source, overwrite: bool
    ) -> None:
        self.destination, self.target = destination, target
        self._options, self._sources = {**source.describe(), **asdict(target)}, [*source.versions]
        #: How an earlier run has cut it; None if none came so far.
        self.cuts: Cuts | None = None
        noted, wrong = destination.read(_JOB), None
        if noted is not None:
            try:
                before = decode_note(noted, _Job)
            except ValueError:
                wrong = "was made by another version of convert"
            else:
                wrong = self._difference(before)
                self.cuts = before.cuts if wrong is None else None
        self._found = names = [*destination.sizes()]
        # A reader of the folder would take a foreign shard for one of the job.
        foreign = [name for name in names if not _is_ours(name) and (self.cuts is None or has_format(name))]
        if foreign:
            raise ValueError(
                f"{destination.shown} has {foreign[0]!r} in it, which convert has not made: move it "
                "elsewhere, or write to another folder"
            )
        if names and self.cuts is None and not overwrite:
            raise ValueError(
                f"{destination.shown} {wrong or 'has shards of another program in it'}; call it again as it "
                "was called, write to another folder, or pass overwrite (--overwrite) to remove what is there"
            )

    def begin(self, cuts: Cuts) -> None:
        """Remove what another job has left, and note this one for a run that continues it.

        Raises:
            ValueError: Files have come since this was made.
        """
        if new := self.destination.sizes().keys() - self._found:
            raise ValueError(
                f"{self.destination.shown} has got {min(new)!r} while the samples were counted; convert into "
                "another folder"
            )
        # The note of the job last: while it is there, it says what the other files belong to.
        self.destination.remove(sorted(self._found, key=lambda name: name == _JOB))
        self.destination.write(_JOB, encode_note(_Job(4, self._options, self._sources, cuts)))

    def _difference(self, before: _Job) -> str | None:
        """How the job that was noted differs from this one; None if it does not."""
        for name, value in self._options.items():
            if (old := before.options.get(name)) != value:
                return f"was made with {name}={old!r}, and is now to be made with {value!r}"
        if before.sources == self._sources:
            return None
        olds = {source.name: source for source in before.sources}
        for source in self._sources:
            if source.name not in olds:
                return f"was made of other sources: {source.name!r} is new"
            if olds[source.name] != source:
                return f"was made of other sources: {source.name!r} has changed since"
        return "was made of other sources, or of the same in another order"

    @property
    def is_finished(self) -> bool:
        """Whether an earlier run has finished, and so has verified the sources."""
        return self.destination.read(INDEX_NAME) is not None

    def made(self, shards: Sequence[NewShard]) -> dict[str, Expected]:
        """The finished shards, by name: they have a note, and a file of the same length."""
        sizes = self.destination.sizes()
        noted: dict[str, Expected] = {}
        if INDEX_NAME in sizes:
            with suppress(FormatError):
                noted.update(parse_index(self.destination.read(INDEX_NAME) or b""))
        unlisted = [
            shard.name for shard in shards if _note_of(shard.name) in sizes and shard.name not in noted
        ]
        for name, content in zip(
            unlisted, self.destination.read_each([*map(_note_of, unlisted)]), strict=True
        ):
            with suppress(ValueError):
                noted[name] = decode_note(content or b"", Expected)
        return {
            shard.name: found
            for shard in shards
            if (found := noted.get(shard.name)) is not None
            and sizes.get(shard.name) == found.size_bytes
            and found.samples == shard.samples
        }

    def finish(self, made: Mapping[str, Expected]) -> None:
        """Write the index, and remove the notes that it replaces."""
        self.destination.write(INDEX_NAME, format_index(made))
        notes = {*map(_note_of, made)}
        self.destination.remove([name for name in self.destination.sizes() if name in notes])


def note_shard(destination: Destination, name: str, made: Expected) -> None:
    """Note a finished shard."""
    destination.write(_note_of(name), encode_note(made))


def _note_of(name: str) -> str:
    return f"{NOTES}{name}.json"


def _is_ours(name: str) -> bool:
    """Whether a file is one that convert makes."""
    return name.startswith(NOTES) or name == INDEX_NAME or _SHARD.fullmatch(name) is not None
