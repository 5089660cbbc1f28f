"""A job: its plan, and what is noted of it beside its shards, so that a run that was killed can go on.

All samples, one source after another, are cut into shards. Which sample goes into which shard depends on the
sources and the options alone, not on the number of processes, nor on how far an earlier run came.

A second call of ``convert`` with the same sources and options goes on with the job. With others it is
refused, with what is different, before anything is touched.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from ..errors import FormatError
from ..formats import has_format
from ..formats.arrow_columns import arrow
from ..shards.destinations import Destination
from ..shards.expectations import Expected
from ..shards.index_entries import entry_of, format_index, parse_entry, parse_index
from ..stores.urls import INDEX_NAME
from .convert_sources import Source
from .convert_target import ShardTarget

#: The folder of notes, below the destination's own.
NOTES = ".convert/"

_JOB, _PLAN = f"{NOTES}job.json", f"{NOTES}plan.json"
_SHARD = re.compile(r"shard-\d{5,}(\.[a-z0-9]+){1,2}")
_VERSION_KEY, _VERSION = "asyncloader_convert", 2

# A run begins where at most this part of its first shard's samples has to be read and dropped. Where it takes
# more, as inside of what is compressed, one process makes the shard and the one before it.
_MOST_DROPPED = 0.5


class NewShard(NamedTuple):
    """A shard to be made: its name, the number of its first sample among all, and that behind its last."""

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
        schema: Of Parquet, a ``pyarrow.Schema``.
        counted: What was found of sources that had to be read to be counted, by number.
    """

    stops: Sequence[int]
    schema: Any
    counted: Mapping[int, Expected]


def cut_evenly(samples: int, most_samples: int) -> list[int]:
    """Where shards stop that have ``most_samples`` at most, and are equal but for one sample."""
    count = -(-samples // most_samples)
    share, longer = divmod(samples, count) if count else (0, 0)
    return [*accumulate(share + (number < longer) for number in range(count))]


def cut_by_sizes(sizes: Iterable[int], most_bytes: int, most_samples: int | None) -> list[int]:
    """Where shards stop that have as many samples as fit; one that is larger has a shard of its own.

    Args:
        sizes: Of each sample, in bytes.
        most_bytes: Of a shard.
        most_samples: Of a shard; None for any number.
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
    """The shards that are missing, in runs that one process makes one after another.

    Args:
        shards: All of them.
        made: Names of those that are there.
        dropped_before: How many samples have to be read before one, by its number, if reading begins there.
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
    """One job at its destination, which no other run writes to.

    Args:
        destination: Where its shards go.
        target: What they are to be.
        source: What they are made of.
        overwrite: Whether to remove what another job has made.

    Raises:
        ValueError: There is another job's work, or something else.
    """

    def __init__(
        self, destination: Destination, target: ShardTarget, source: Source, overwrite: bool
    ) -> None:
        self._destination = destination
        self._options = {**source.describe(), **target.describe()}
        self._versions = [list(version) for version in source.versions]
        noted = destination.read(_JOB)
        before = None if noted is None else _parse(noted)
        wrong = None if before is None else self._difference(before)
        if before is None or wrong is not None:
            self._begin(wrong, overwrite)
        # Else a reader of the folder would take it for one of the job's.
        elif foreign := [name for name in destination.sizes() if not _is_ours(name) and has_format(name)]:
            raise ValueError(
                f"{destination.shown} has {foreign[0]!r} in it, which convert has not made: move it "
                "elsewhere, and call this again"
            )

    def _begin(self, wrong: str | None, overwrite: bool) -> None:
        """Note the job at a destination without one."""
        made = [*self._destination.sizes()]
        if foreign := [name for name in made if not _is_ours(name)]:
            raise ValueError(
                f"{self._destination.shown} should be empty, but has {foreign[0]!r} in it, which convert has "
                "not made: write to another folder"
            )
        # A job without a plan has made nothing, and prevents no other.
        if {*made} - {_JOB} and not overwrite:
            why = wrong or "has shards of another program in it"
            raise ValueError(
                f"{self._destination.shown} {why}; call it again as it was called, write to another folder, "
                "or pass overwrite (--overwrite) to remove what is there"
            )
        # The job's own note last: as long as it is there, it says what the others are of.
        self._destination.remove(sorted(made, key=lambda name: name == _JOB))
        content = {_VERSION_KEY: _VERSION, "options": self._options, "sources": self._versions}
        self._destination.write(_JOB, json.dumps(content).encode())

    def _difference(self, before: Mapping[str, Any]) -> str | None:
        """What another job differs in; None if it is this one."""
        for name, value in self._options.items():
            if (old := before["options"].get(name)) != value:
                return f"was made with {name}={old!r}, and is now to be made with {value!r}"
        if before["sources"] == self._versions:
            return None
        olds = {source[0]: source for source in before["sources"]}
        for source in self._versions:
            if source[0] not in olds:
                return f"was made of other sources: {source[0]!r} is new"
            if olds[source[0]] != source:
                return f"was made of other sources: {source[0]!r} has changed since"
        return "was made of other sources, or of the same in another order"

    def cuts(self) -> Cuts | None:
        """How a run before has cut it; None if none came so far."""
        noted = self._destination.read(_PLAN)
        if noted is None:
            return None
        content = json.loads(noted)
        schema = content["schema"]
        if schema is not None:
            schema = arrow().ipc.read_schema(arrow().py_buffer(base64.b64decode(schema)))
        counted = {
            number: Expected(size_bytes, samples, offsets=tuple(map(tuple, offsets)))
            for number, size_bytes, samples, offsets in content["counted"]
        }
        return Cuts(content["stops"], schema, counted)

    def note_cuts(self, cuts: Cuts) -> None:
        """Keep them for a run that goes on."""
        schema = cuts.schema and base64.b64encode(cuts.schema.serialize().to_pybytes()).decode()
        counted = [
            [number, found.size_bytes, found.samples, found.offsets] for number, found in cuts.counted.items()
        ]
        content = json.dumps({"stops": [*cuts.stops], "schema": schema, "counted": counted})
        self._destination.write(_PLAN, content.encode())

    def withdraw(self) -> None:
        """Forget a job that has made nothing."""
        self._destination.remove([_JOB])

    @property
    def is_finished(self) -> bool:
        """Whether a run has come to its end, where the sources are verified."""
        return self._destination.read(INDEX_NAME) is not None

    def made(self, shards: Sequence[NewShard]) -> dict[str, Expected]:
        """The shards that are whole, by name, and what each is: noted, and there, in their length."""
        sizes = self._destination.sizes()
        noted: dict[str, Expected] = {}
        if INDEX_NAME in sizes:
            with suppress(FormatError):
                noted.update(parse_index(self._destination.read(INDEX_NAME) or b""))
        notes = [_note_of(shard.name) for shard in shards if shard.name not in noted]
        for content in self._destination.read_each([note for note in notes if note in sizes]):
            with suppress(FormatError, ValueError):
                name, expected = parse_entry(json.loads(content or b""))
                noted[name] = expected
        return {
            shard.name: found
            for shard in shards
            if (found := noted.get(shard.name)) is not None
            and sizes.get(shard.name) == found.size_bytes
            and found.samples == shard.samples
        }

    def finish(self, made: Mapping[str, Expected]) -> None:
        """Write the index, and drop the notes that it replaces."""
        self._destination.write(INDEX_NAME, format_index(made))
        notes = {*map(_note_of, made)}
        self._destination.remove([name for name in self._destination.sizes() if name in notes])


def note_shard(destination: Destination, name: str, made: Expected) -> None:
    """Note that a shard is whole."""
    destination.write(_note_of(name), json.dumps(entry_of(name, made)).encode())


def _note_of(name: str) -> str:
    return f"{NOTES}{name}.json"


def _is_ours(name: str) -> bool:
    """Whether a file is one that convert makes."""
    return name.startswith(NOTES) or name == INDEX_NAME or _SHARD.fullmatch(name) is not None


def _parse(noted: bytes) -> dict[str, Any]:
    try:
        content = json.loads(noted)
        if content[_VERSION_KEY] == _VERSION and content["options"].keys() and content["sources"] is not None:
            return dict(content)
    except (ValueError, TypeError, LookupError, AttributeError):
        pass
    return {"options": {}, "sources": []}
