"""A job as it is noted beside its shards: what it is, how it was planned, and which shards are made.

Whoever calls ``convert`` again with the same sources and options finds it, and goes on; with others he hears
what is different, before anything is touched.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..errors import FormatError
from ..formats import has_format
from ..index.entries import entry_of, format_index, parse_entry, parse_index
from ..index.expectations import Expected
from ..stores.urls import INDEX_NAME
from .material import Version
from .outlets import NOTES, Outlet
from .plan import Shard, shards_of
from .tables import Schema
from .target import Target

__all__ = ["COUNTED", "Job", "Plan", "finish", "note_shard"]

_JOB, _PLAN, COUNTED = f"{NOTES}job.json", f"{NOTES}plan.json", f"{NOTES}counted.lines"
_SHARD = re.compile(r"shard-\d{5,}(\.[a-z0-9]+){1,2}")
_VERSION_KEY, _VERSION = "asyncloader_convert", 1


@dataclass(frozen=True)
class Plan:
    """What is to be made of a job's material.

    Attributes:
        stops: Numbers of samples at which shards stop.
        schema: Of Parquet.
    """

    stops: Sequence[int]
    schema: Schema | None


class Job:
    """One job in its outlet, which nobody else writes to.

    Args:
        outlet: Where its shards go.
        target: What they are to be.
        described: The material, but for its versions.
        versions: What it is made of.
        overwrite: Whether to remove what another job has made.

    Raises:
        ValueError: There is another job's work, or something else.
    """

    def __init__(
        self,
        outlet: Outlet,
        target: Target,
        described: Mapping[str, Any],
        versions: Sequence[Version],
        overwrite: bool,
    ) -> None:
        self._outlet = outlet
        self._target = target
        self._options = {**described, **target.describe()}
        self._versions = [list(version) for version in versions]
        noted = outlet.read(_JOB)
        before = None if noted is None else _parse(noted)
        wrong = self._difference(before)
        if before is None or wrong is not None:
            self._begin(None if before is None else wrong, overwrite)
        # Whoever reads the folder would take it for one of the job's.
        elif foreign := [name for name in outlet.sizes() if not _is_made(name) and has_format(name)]:
            raise ValueError(
                f"{outlet.shown} has {foreign[0]!r} in it, which convert has not made: move it elsewhere, "
                "and call this again"
            )

    def _begin(self, wrong: str | None, overwrite: bool) -> None:
        """Note the job in an outlet without one."""
        sizes = self._outlet.sizes()
        made = [name for name in sizes if _is_made(name)]
        foreign = [name for name in sizes if name not in made]
        if foreign:
            raise ValueError(
                f"{self._outlet.shown} should be empty, but has {foreign[0]!r} in it, which convert has not "
                "made: write to another folder"
            )
        # A job without a plan has made nothing, and is in nobody's way.
        if {*made} - {_JOB, COUNTED} and not overwrite:
            why = wrong or "has shards of another program in it"
            raise ValueError(
                f"{self._outlet.shown} {why}; call it again as it was called, write to another folder, or "
                "pass overwrite (--overwrite) to remove what is there"
            )
        # The job's own note last: as long as it is there, it says what the others are of.
        self._outlet.remove(sorted(made, key=lambda name: name == _JOB))
        content = {_VERSION_KEY: _VERSION, "options": self._options, "sources": self._versions}
        self._outlet.write(_JOB, json.dumps(content).encode())

    def _difference(self, before: Mapping[str, Any] | None) -> str | None:
        """What another job differs in; None if it is this one."""
        if before is None:
            return None
        for name, value in self._options.items():
            if before["options"].get(name) != value:
                old = before["options"].get(name)
                return f"was made with {name}={old!r}, and is now to be made with {value!r}"
        if before["sources"] == self._versions:
            return None
        olds = {source[0]: source for source in before["sources"]}
        for source in self._versions:
            if (old := olds.get(source[0])) is None:
                return f"was made of other sources: {source[0]!r} is new"
            if old != source:
                return f"was made of other sources: {source[0]!r} has changed since"
        return "was made of other sources, or of the same in another order"

    def plan(self) -> Plan | None:
        """How it was planned by a run before; None if it was not."""
        noted = self._outlet.read(_PLAN)
        if noted is None:
            return None
        content = json.loads(noted)
        schema = content["schema"]
        if schema is not None:
            schema = Schema(base64.b64decode(schema["encoded"]), schema["group_rows"])
        return Plan(content["stops"], schema)

    def note_plan(self, plan: Plan) -> None:
        """Keep the plan for a run that goes on."""
        schema = None
        if plan.schema is not None:
            encoded = base64.b64encode(plan.schema.encoded).decode()
            schema = {"encoded": encoded, "group_rows": plan.schema.group_rows}
        content = json.dumps({"stops": [*plan.stops], "schema": schema})
        self._outlet.write(_PLAN, content.encode())

    def shards(self, plan: Plan) -> list[Shard]:
        """The shards of the plan."""
        return shards_of(plan.stops, self._target.suffix)

    def withdraw(self) -> None:
        """Forget a job of which nothing was made, as if it had never been begun."""
        self._outlet.remove([COUNTED, _JOB])

    def is_finished(self) -> bool:
        """Whether a run has seen it to its end, where the sources are proved."""
        return self._outlet.read(INDEX_NAME) is not None

    def made(self, shards: Sequence[Shard]) -> dict[str, Expected]:
        """The shards that are whole, by name, and what each is: noted, and there, in their length."""
        sizes = self._outlet.sizes()
        noted: dict[str, Expected] = {}
        if INDEX_NAME in sizes:
            with suppress(FormatError):
                noted.update(parse_index(self._outlet.read(INDEX_NAME) or b""))
        notes = [_note_of(shard.name) for shard in shards if shard.name not in noted]
        for content in self._outlet.read_each([note for note in notes if note in sizes]):
            with suppress(FormatError, ValueError):
                name, expected = parse_entry(json.loads(content or b""))
                noted[name] = expected
        return {
            shard.name: found
            for shard in shards
            if (found := noted.get(shard.name)) is not None
            and sizes.get(shard.name) == found.size_bytes
            and found.samples == len(shard)
        }


def note_shard(outlet: Outlet, name: str, made: Expected) -> None:
    """Note that a shard is whole."""
    outlet.write(_note_of(name), json.dumps(entry_of(name, made)).encode())


def finish(outlet: Outlet, made: Mapping[str, Expected]) -> None:
    """Write the index, and drop the notes that it takes the place of."""
    outlet.write(INDEX_NAME, format_index(made))
    notes = {*map(_note_of, made)}
    outlet.remove([name for name in outlet.sizes() if name in notes])


def _note_of(name: str) -> str:
    return f"{NOTES}{name}.json"


def _is_made(name: str) -> bool:
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
