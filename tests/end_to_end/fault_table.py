"""What a row of the table of faults is, and the table as docs/reference/faults.md shows it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import asyncloader as al
from asyncloader.testing import Fault

from .shards import Shards

__all__ = [
    "BIG",
    "DAMAGED",
    "DELIVERED",
    "GAVE_UP",
    "IMPATIENT",
    "IMPATIENT_THRICE",
    "KINDS",
    "QUICK",
    "SIZES",
    "THRICE",
    "Faults",
    "Row",
    "bound_s",
    "cases",
    "render",
]

# Name, samples, bytes of a sample. The big one takes three requests.
SIZES = (
    ("small", 6, 1000),
    ("tail", 5, 1000),
    ("big", 40, 64 << 10),
    ("empty", 0, 0),
    ("great", 12, 64 << 10),
)
BIG = "big.*"

KINDS = ("tar", "jsonl", "parquet")

DELIVERED = "delivered"
DAMAGED = "delivered, with the bit flipped"

# In which something happens that is seen within a second.
QUICK = al.NetworkPolicy(connect_s=2, first_byte_s=3, stall_s=3, attempts=6, deadline_s=20, backoff_s=0.02)
IMPATIENT = replace(QUICK, connect_s=0.2, first_byte_s=0.2, stall_s=0.3)
THRICE = replace(QUICK, attempts=3)
IMPATIENT_THRICE = replace(IMPATIENT, attempts=3)

GAVE_UP = "; gave up after 3 attempts"

Faults = Callable[[Shards], Sequence[Fault]]


@dataclass(frozen=True)
class Row:
    """One fault.

    Attributes:
        name: In the words of the documentation.
        faults: What the server does, given what it serves.
        tar: What the user sees of tar: ``DELIVERED``, ``DAMAGED``, or what the one error says.
        jsonl: The same of JSONL; as ``tar`` if left out.
        parquet: The same of Parquet.
        error: Type of the error.
        jsonl_error: The same of JSONL, if that is another one.
        parquet_error: The same of Parquet.
        shard: The one that the error is about.
        network: How patient the reading is.
        server: More options of the server.
        query: That the URLs have.
        renewed: The query that a callback renews it to; none without a callback.
        index: Whether there is an index.
        cache: What is wrong with the cache that it is read through: ``damaged`` or ``small``. None is used
            if left out.
    """

    name: str
    faults: Faults
    tar: str
    jsonl: str = ""
    parquet: str = ""
    error: type[Exception] = al.StoreError
    jsonl_error: type[Exception] | None = None
    parquet_error: type[Exception] | None = None
    shard: str = "big"
    network: al.NetworkPolicy = QUICK
    server: Mapping[str, Any] = field(default_factory=dict)
    query: str = ""
    renewed: str = ""
    index: bool = False
    cache: str = ""

    def says(self, kind: str) -> str:
        return {"jsonl": self.jsonl, "parquet": self.parquet}.get(kind) or self.tar

    def error_of(self, kind: str) -> type[Exception]:
        return {"jsonl": self.jsonl_error, "parquet": self.parquet_error}.get(kind) or self.error

    @property
    def differs(self) -> bool:
        """Whether some format sees another thing than another."""
        return bool(self.jsonl or self.parquet or self.jsonl_error or self.parquet_error)


def cases(rows: Sequence[Row]) -> list[tuple[Row, str, int]]:
    """What is tested: each row without workers and with two.

    What a store, a client or the network does knows of no format: there rows take turns, with two of them
    each. Where formats differ all are tested.
    """
    found: list[tuple[Row, str, int]] = []
    for nth, row in enumerate(rows):
        kinds = [KINDS[(nth + step) % len(KINDS)] for step in range(len(KINDS))]
        found += [(row, kind, (0, 2)[step % 2]) for step, kind in enumerate(kinds) if step < 2 or row.differs]
    return found


def bound_s(network: al.NetworkPolicy) -> float:
    """The longest that a pass may take over one part that fails, and a few seconds for a busy machine."""
    attempt_s = network.connect_s + network.first_byte_s + network.stall_s
    return 6 + min(network.attempts * attempt_s, network.deadline_s + attempt_s)


def render(sections: Mapping[str, Sequence[Row]]) -> str:
    """The lists and tables of the documentation."""
    return "\n".join(f"## {title}\n\n{_section(rows)}" for title, rows in sections.items())


def _section(rows: Sequence[Row]) -> str:
    """The faults without an error in a sentence, the others in a table, with a line for each outcome."""
    recovered, failed = [], dict[str, list[str]]()
    for row in rows:
        if {row.says(kind) for kind in KINDS} == {DELIVERED}:
            recovered.append(row.name)
        else:
            failed.setdefault(_outcome(row), []).append(row.name)
    lines = [f"Recovered: {'; '.join(recovered)}."]
    if failed:
        lines += ["", "|fault|outcome|", "|---|---|"]
    lines += [f"|{'; '.join(names)}|{outcome}|" for outcome, names in failed.items()]
    return "\n".join(lines) + "\n"


def _outcome(row: Row) -> str:
    """What the user sees, with the formats where more than numbers differ."""
    kinds: dict[tuple[str, str], list[str]] = {}
    first: dict[str, tuple[str, str]] = {}
    for kind in KINDS:
        seen = _seen(row, kind)
        kinds.setdefault(first.setdefault(re.sub(r"\d", "", str(seen)), seen), []).append(kind)
    errors = {error for error, _ in kinds}
    if len(errors) == 1:
        return ": ".join(filter(None, (*errors, "; ".join(message for _, message in kinds))))
    return "; ".join(f"{', '.join(names)}: {': '.join(filter(None, seen))}" for seen, names in kinds.items())


def _seen(row: Row, kind: str) -> tuple[str, str]:
    """The error and its message; no error if the samples are delivered."""
    says = row.says(kind)
    if says in (DELIVERED, DAMAGED):
        return "", says
    return f"`{row.error_of(kind).__name__}`", says.removesuffix(GAVE_UP)
