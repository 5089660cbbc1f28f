"""Whatever a seed lets go wrong, every sample is delivered exactly once, in order, in bounded time."""

from __future__ import annotations

import json
import re
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from corpus import in_turn

import asyncloader as al
from asyncloader import testing
from asyncloader.observe.statistics import NetworkCounts
from asyncloader.shards.index_entries import format_index, parse_index

from .random_faults import Scenario, draw_faults, draw_scenario
from .shards import Sample, Shards, loader_of, make_shards, sample_of, samples_of

pytestmark = pytest.mark.usefixtures("fork_server")

# Each that ends in an error has used up a fault; none has so many.
_MOST_PASSES = 80


@dataclass
class Tally:
    """What all seeds of a session have met."""

    seeds: int = 0
    passes: int = 0
    samples: int = 0
    took_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    network: NetworkCounts = field(default_factory=NetworkCounts)


@pytest.fixture(scope="module")
def tally() -> Iterator[Tally]:
    """Prints the sums, to be seen with ``pytest -s``."""
    tally = Tally()
    yield tally
    print(f"\n{tally}")


@pytest.mark.parametrize("seed", range(12))
def test_random_faults_lose_and_repeat_nothing(seed: int, tally: Tally, tmp_path: Path) -> None:
    run(draw_scenario(seed), tally, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000))
def test_a_thousand_runs_lose_and_repeat_nothing(seed: int, tally: Tally, tmp_path: Path) -> None:
    run(draw_scenario(seed), tally, tmp_path)


def run(scenario: Scenario, tally: Tally, folder: Path) -> None:
    shards = make_shards(scenario.kind, scenario.sizes, folder / "shards", scenario.seed)
    others = cache(lambda: make_shards(scenario.kind, scenario.sizes, folder / "others", scenario.seed + 1))
    faults = draw_faults(scenario, shards, others)
    expected = in_order(scenario, shards)
    objects = {**shards.contents, **{f"elsewhere/{name}": text for name, text in shards.contents.items()}}
    unleaking = testing.check_leaks()
    with unleaking, testing.serve(objects, faults, **scenario.server) as server:
        began = time.monotonic()
        reading = Reading(scenario, server, shards, folder, tally)
        delivered = [sample for _ in range(scenario.epochs) for sample in reading.epoch()]
        took_s = time.monotonic() - began
    assert [key for key, _ in delivered] == [key for key, _ in expected]
    damaged = {fault.key.strip("*") for fault in faults if isinstance(fault, testing.FlipBit)}
    replaced = {fault.key for fault in faults if isinstance(fault, testing.ChangeObject)}
    texts = dict(shards.samples)
    other_texts = dict(others().samples) if replaced else {}
    for key, text in delivered:
        shard = f"{key.partition('-')[0]}.{scenario.kind}"
        if shard not in damaged:
            assert text == texts[key] or (shard in replaced and text == other_texts[key])
    hits = Counter(name for request in server.requests for name in request.faults)
    # Each hit costs a time-out or a pause, as if all of them came one after another.
    assert took_s < 5 + 3 * reading.passes + 3 * hits.total()
    tally.seeds += 1
    tally.took_s += took_s
    tally.samples += len(delivered)
    tally.passes += reading.passes
    tally.faults += hits


def in_order(scenario: Scenario, shards: Shards) -> list[Sample]:
    """What the epochs are to deliver."""
    recipe = al.from_urls(shards.paths)
    if not scenario.index:
        recipe = in_turn(recipe)  # as the server's are, of which nothing is known
    loader = loader_of(shuffled(scenario, recipe), **scenario.loader)
    found = [sample for _ in range(scenario.epochs) for sample in samples_of(loader)]
    assert Counter(found) == Counter(shards.samples * scenario.epochs), "the data set itself is read wrongly"
    return found


def shuffled(scenario: Scenario, recipe: al.Dataset) -> al.Dataset:
    return recipe.shuffle(scenario.window, seed=scenario.seed) if scenario.window else recipe


class Reading:
    """Passes over the shards of a server, each of which goes on where the one before was left or failed."""

    def __init__(
        self, scenario: Scenario, server: testing.Server, shards: Shards, folder: Path, tally: Tally
    ) -> None:
        self.passes = 0
        self._scenario = scenario
        self._tally = tally
        self._urls = [server.url_of(name) for name in shards.contents]
        self._options: dict[str, Any] = {"network": scenario.network, "index": None}
        if scenario.index:
            self._options["index"] = folder / "asyncloader-index.json"
            entries = parse_index((shards.folder / "asyncloader-index.json").read_bytes())
            of_urls = {server.url_of(name): entry for name, entry in entries.items()}
            (folder / "asyncloader-index.json").write_bytes(format_index(of_urls))
        if scenario.cached:
            self._options["cache_dir"] = folder / "cache"
        self._workers = cycle(scenario.workers)
        self._stops = list(scenario.stops)
        self._state: dict[str, Any] | None = None

    def epoch(self) -> Iterator[Sample]:
        """The samples of one epoch, in as many passes as it takes."""
        ended = False
        while not ended:
            self.passes += 1
            assert self.passes < _MOST_PASSES, "it never comes to an end"
            stop = self._stops.pop() if self._stops else None
            with warnings.catch_warnings(), self._loader() as loader:
                # That something was read past the cache.
                warnings.simplefilter("ignore", RuntimeWarning)
                try:
                    for count, batch in enumerate(loader):
                        yield from map(sample_of, batch)
                        if count == stop:
                            break
                    else:
                        ended = True
                except al.StoreError as error:
                    if self._scenario.passing:
                        raise
                    self._tally.errors[re.sub(r"\d+", "N", error.args[0])[:50]] += 1
                self._state = json.loads(json.dumps(loader.state_dict()))
                self._tally.network.add(loader.statistics.network)

    def _loader(self) -> al.DataLoader[Any]:
        scenario = self._scenario
        # Made anew, as by a program that is started again.
        recipe = al.from_urls(self._urls, **self._options)
        loader = loader_of(shuffled(scenario, recipe), next(self._workers), **scenario.loader)
        if self._state is not None:
            loader.load_state_dict(self._state)
        return loader
