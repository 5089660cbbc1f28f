"""Data sets, servers and loaders drawn from a seed: what goes wrong, and how it is read all the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import asyncloader as al
from asyncloader.testing import (
    ChangeObject,
    CutAt,
    Delay,
    Drip,
    Fault,
    FlipBit,
    GzipEncoding,
    HangUp,
    Headers,
    IgnoreRange,
    Latency,
    NoLength,
    Redirect,
    Reset,
    Stall,
    Status,
    WrongETag,
    WrongLength,
    WrongRange,
)

from .shards import Shards

__all__ = ["Scenario", "draw_faults", "draw_scenario"]

KINDS = ("tar", "jsonl", "tar", "jsonl", "tar.gz", "jsonl.gz", "tar.zst", "jsonl.zst")

Draw = Callable[..., Fault]
Others = Callable[[], Shards]

# A busy machine alone must not use the attempts up: five faults a shard, and as many more of its own.
PATIENT = al.NetworkPolicy(
    connect_s=0.15, first_byte_s=0.15, stall_s=0.2, attempts=10, deadline_s=30, backoff_s=0.01
)
HASTY = replace(PATIENT, attempts=3)

_MANY = 25

# Hits on one shard. Less than the attempts at a part, whichever parts they fall on.
_MOST_HITS = 5


@dataclass(frozen=True)
class Scenario:
    """One seed's run, but for its faults.

    Attributes:
        seed: What it was drawn from.
        kind: Suffix of the shards.
        sizes: As ``make_shards`` takes them.
        passing: Whether every fault goes away when asked again, so that no pass may fail. If not, a pass may
            end with a ``StoreError``, and the next one goes on from the state.
        index: Whether the recipe has one.
        cached: Whether it has a cache.
        window: Of the shuffle; 0 for none.
        epochs: To read.
        workers: Of each pass in turn.
        stops: After so many batches a pass is left, and the next one goes on from the state.
        loader: More arguments of the loader.
        network: How patient the reading is.
        server: More arguments of the server.
    """

    seed: int
    kind: str
    sizes: tuple[tuple[str, int, int], ...]
    passing: bool
    index: bool
    cached: bool
    window: int
    epochs: int
    workers: tuple[int, ...]
    stops: tuple[int, ...]
    loader: dict[str, Any]
    network: al.NetworkPolicy
    server: dict[str, Any]


def draw_scenario(seed: int) -> Scenario:
    source = random.Random(f"scenario {seed}")
    kind = source.choice(KINDS)
    sizes = _sizes(source, least=1 if kind.endswith("zst") else 0)
    passing = source.random() < 0.6
    cached = source.random() < 0.2
    workers = source.choice([(0,), (0,), (0,), (0,), (2,), (0, 2)])
    return Scenario(
        seed=seed,
        kind=kind,
        sizes=sizes,
        passing=passing,
        index=source.random() < 0.3,
        cached=cached,
        window=source.choice([0, 0, 1, 8, 1000]),
        epochs=2 if cached and source.random() < 0.7 else 1,
        workers=workers,
        stops=tuple(source.choices(range(12), k=source.choice([0, 0, 1, 3]))),
        loader={"lanes": source.randrange(max(workers), 5) or 1, "batch_size": source.choice([1, 3, 4, 16])},
        network=replace(PATIENT if passing else HASTY, hedge=source.random() < 0.7),
        server={
            "seed": seed,
            # The rare answer that never comes is for hedging, which takes many requests to begin.
            "latency_s": Latency(
                source.choice([0.0, 0.002, 0.01]), 0.5, 0.02 if len(sizes) >= _MANY else 0.0, stall_s=60
            ),
            "rate_bytes_s": source.choice([None, None, 2e7]),
        },
    )


def draw_faults(scenario: Scenario, shards: Shards, others: Others) -> list[Fault]:
    """What goes wrong in the scenario.

    Args:
        scenario: Of the same seed.
        shards: What is served.
        others: Makes shards of the same names and keys, that objects may be replaced with.
    """
    source = random.Random(f"faults {scenario.seed}")
    if scenario.passing:
        faults = [fault for name in shards.contents for fault in _passing_faults(source, name)]
    else:
        faults = _lasting_faults(source, scenario, shards, others)
    if source.random() < 0.2:
        name = source.choice(list(shards.contents))
        faults.append(Redirect(f"/elsewhere/{name}", key=name))
    return faults


def _sizes(source: random.Random, least: int) -> tuple[tuple[str, int, int], ...]:
    """A few shards of any size, or many small ones; at most two take several requests."""
    if source.random() < 0.2:
        counts = [source.randint(least, 4) for _ in range(source.randint(_MANY, 40))]
        return tuple((f"s{nth:02d}", count, 400) for nth, count in enumerate(counts))
    drawn = [
        source.choice([(least, 10), (1, 200_000), (source.randint(1, 30), source.randrange(2, 5000, 2))])
        for _ in range(source.randint(1, 5))
    ]
    for _ in range(source.randint(0, 2)):
        drawn[source.randrange(len(drawn))] = source.randint(20, 45), 64 << 10
    return tuple((f"s{nth:02d}", *size) for nth, size in enumerate(drawn))


def _slow(source: random.Random) -> Draw:
    """A fault that costs a time-out."""
    byte = int(2 ** source.uniform(0, 20))
    draws: list[Draw] = [
        lambda **scope: Stall(byte, 60, **scope),
        lambda **scope: Drip(800, **scope),
        lambda **scope: Delay(60, **scope),
    ]
    return source.choice(draws)


def _quick(source: random.Random) -> Draw:
    """A fault that is seen at once, and that another answer would not have."""
    byte = int(2 ** source.uniform(0, 20))
    draws: list[Draw] = [
        lambda **scope: CutAt(byte, **scope),
        lambda **scope: Reset(byte, **scope),
        lambda **scope: HangUp(**scope),
        lambda **scope: Status(source.choice([408, 429, 500, 502, 503, 504]), **scope),
        lambda **scope: Status(source.choice([429, 503]), 0.2, **scope),
        lambda **scope: WrongRange(source.choice([-1, 1, 700]), **scope),
        lambda **scope: WrongRange(1, "header", **scope),
        lambda **scope: WrongLength(source.choice([-7, 9, 100_000]), **scope),
        lambda **scope: NoLength(byte, **scope),
        lambda **scope: Headers({"x-goog-hash": "md5=?"}, **scope),
    ]
    return source.choice(draws)


def _passing_faults(source: random.Random, name: str) -> list[Fault]:
    """At most so many hits on one shard that each of its parts may have them all."""
    faults: list[Fault] = []
    left = source.choice([0, 0, 1, 2, _MOST_HITS])
    if source.random() < 0.2:
        # A whole object of which headers lie is another one: nothing is left to tell the truth by.
        faults.append(IgnoreRange(key=f"*{name}", probability=source.choice([0.3, 1.0])))
        draws: Sequence[Draw] = [lambda **scope: CutAt(500, **scope), lambda **scope: Status(503, **scope)]
    else:
        draws = [_quick(source), _quick(source), _slow(source)]
    while left:
        draw = source.choice(draws)
        times = source.randint(1, 1 if draw is draws[-1] else left)
        left -= times
        faults.append(draw(key=f"*{name}", times=times, after=source.choice([0, 0, 1, 2])))
    return faults


def _lasting_faults(source: random.Random, scenario: Scenario, shards: Shards, others: Others) -> list[Fault]:
    """Some that end a pass; all of them end some time."""
    faults: list[Fault] = []
    for _ in range(source.randint(1, 3)):
        slow = source.random() < 0.25
        faults.append(
            (_slow(source) if slow else _quick(source))(
                key=source.choice(["*", f"*{source.choice(list(shards.contents))}"]),
                times=source.randint(1, 4 if slow else 20),
                after=source.choice([0, 3]),
                probability=source.choice([0.3, 0.8, 1.0]),
            )
        )
    if source.random() < 0.6:
        faults += _final_faults(source, scenario, shards, others)
    return faults


def _final_faults(source: random.Random, scenario: Scenario, shards: Shards, others: Others) -> list[Fault]:
    """Of those that are an error at once."""
    name = source.choice(list(shards.contents))
    scope: dict[str, Any] = {
        "key": f"*{name}",
        "times": source.randint(1, 3),
        "after": source.choice([0, 1, 2]),
    }
    drawn = source.randrange(8)
    if drawn == 0:
        return [Status(source.choice([400, 401, 403, 404, 412, 416]), **scope)]
    if drawn == 1:
        return [GzipEncoding(**scope)]
    if drawn == 2:
        return [WrongETag(**scope)]
    if drawn == 3:
        return [IgnoreRange(**scope), NoLength(**scope)]
    if drawn == 4:
        return [Redirect(f"/{name}", **scope)]
    texts = [
        text for key, text in shards.samples if key.startswith(name.partition(".")[0]) and len(text) > 30
    ]
    if drawn == 5 and scenario.index and texts and scenario.kind in ("tar", "jsonl"):
        return [FlipBit(shards.contents[name].index(source.choice(texts)) + 11, 0, **scope)]
    if drawn == 6 and not scenario.index:
        return [ChangeObject(others().contents[name], key=name, after=source.randint(1, 4))]
    return [Status(503, 3600, **scope)]
