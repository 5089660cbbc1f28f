"""Ways in which resuming is known to go wrong elsewhere, each as a test of streams."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any

import pytest
from corpus import Corpus, keys_of

import asyncloader as al
from asyncloader import testing

from .harness import drained, recipe_of

pytestmark = pytest.mark.usefixtures("fork_server")


def numbered(folder: Path, shards: int, samples: int, padding: int = 0) -> None:
    """JSON Lines of rising numbers, with so many bytes beside each."""
    with al.ShardWriter(folder / "shard-{:02d}.jsonl", samples_per_shard=samples) as writer:
        for number in range(shards * samples):
            writer.write({"number": number, "padding": "x" * padding})


# --- another world size costs no reading: not of what was delivered, and nothing to plan it ---


def test_another_world_reads_what_is_left_and_the_open_windows_alone(tmp_path: Path) -> None:
    shards, samples, window, kilobytes = 8, 40, 4, 50
    numbered(tmp_path, shards, samples, kilobytes * 1000)
    with testing.serve(tmp_path) as server:
        urls = [server.url_of(f"shard-{shard:02d}.jsonl") for shard in range(shards)]
        recipe = al.from_urls(urls).shuffle(window, seed=0).select_columns("number")

        def make(rank: int, size: int) -> al.DataLoader[Any]:
            return al.DataLoader(recipe, 4, lanes=4, rank=rank, world_size=size)

        came: list[int] = []
        states = []
        for rank in range(4):
            with make(rank, 4) as loader:
                came += _numbers(islice(loader, 15))
                states.append(loader.state_dict())
        merged = al.merge_states(states)
        before = server.counters.bytes_sent, len(server.requests)
        loaders = [make(rank, 2) for rank in range(2)]
        for loader in loaders:
            loader.load_state_dict(merged)
        assert (server.counters.bytes_sent, len(server.requests)) == before, "loading a state reads nothing"
        came += [number for loader in loaders for number in _numbers(loader)]
        sent = server.counters.bytes_sent - before[0]
    assert sorted(came) == list(range(shards * samples))
    left = shards * samples - 4 * 15 * 4
    assert sent < (left + 4 * window) * (kilobytes + 1) * 1000


def _numbers(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch["number"].tolist()]


# --- a shuffle buffer that is broken off loses and repeats nothing, however often ---


@pytest.mark.parametrize("sizes", [(1,), (1, 2, 4)], ids=["one rank", "another number of ranks each time"])
def test_ten_thousand_shuffled_samples_come_once_with_a_restart_every_thousand(
    sizes: tuple[int, ...], tmp_path: Path
) -> None:
    numbered(tmp_path, 8, 1250)
    recipe = (
        al.from_urls(str(tmp_path / "shard-{00..07}.jsonl")).select_columns("number").shuffle(1000, seed=0)
    )
    came: list[int] = []
    state: Any = None
    for size in islice(cycle(sizes), 10):
        states = []
        for rank in range(size):
            with al.DataLoader(recipe, 50, lanes=4, rank=rank, world_size=size) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                came += _numbers(islice(loader, 20 // size))
                states.append(loader.state_dict())
        state = json.loads(json.dumps(al.merge_states(states)))
    assert sorted(came) == list(range(10_000))


# --- ranks whose number does not divide that of shards read no more than they deliver ---


def test_ranks_of_seven_shards_request_each_shard_once_between_them(
    make_corpus: Callable[..., Corpus], served: testing.Server
) -> None:
    corpus = make_corpus("jsonl", (20,) * 7)
    recipe = recipe_of(corpus, served)
    before = len(served.requests)
    keys = [keys_of(al.DataLoader(recipe, 4, rank=rank, world_size=4, lanes=4)) for rank in range(4)]
    assert sorted(chain(*keys)) == corpus.keys
    requested = [request.path for request in served.requests[before:] if request.method == "GET"]
    assert len(requested) == len(set(requested)) == 7


# --- an asynchronous function goes on while the consumer computes; what it has made is in no state ---


def test_async_calls_go_on_while_the_consumer_computes_and_are_made_again_after_a_resume(
    make_corpus: Callable[..., Corpus],
) -> None:
    calls: list[int] = []
    ahead = threading.Event()

    async def fetch(sample: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(0)
        calls.append(sample["number"])
        if len(calls) >= 8:
            ahead.set()
        return sample

    recipe = recipe_of(make_corpus("jsonl", (20, 20))).map(fetch, concurrency=4)
    whole = drained(al.DataLoader(recipe, 2, lanes=2))
    calls.clear()
    ahead.clear()
    with al.DataLoader(recipe, 2, lanes=2) as loader:
        batches = iter(loader)
        next(batches)
        assert ahead.wait(30), "calls beyond the batch are made although nobody asks for more"
        state = loader.state_dict()
    resumed = al.DataLoader(recipe, 2, lanes=2)
    resumed.load_state_dict(state)
    assert drained(resumed) == whole[1:]


# --- the number of workers changes between save and resume ---


@pytest.mark.parametrize(("before", "after"), [(3, 1), (1, 0), (0, 2)])
def test_a_state_goes_on_with_another_number_of_workers(
    before: int, after: int, make_corpus: Callable[..., Corpus]
) -> None:
    recipe = recipe_of(make_corpus("jsonl")).shuffle(4)
    whole = drained(al.DataLoader(recipe, 3, lanes=3))
    with al.DataLoader(recipe, 3, num_workers=before, lanes=3) as loader:
        batches = iter(loader)
        for _ in range(4):
            next(batches)
        state = loader.state_dict()
    resumed = al.DataLoader(recipe, 3, num_workers=after)  # the lanes come with the state
    resumed.load_state_dict(state)
    assert drained(resumed) == whole[4:]


# --- going on deep in the data costs what is left, and no replay ---


def test_resuming_deep_in_a_stream_opens_no_shard_before_the_position(tmp_path: Path) -> None:
    numbered(tmp_path, 20, 10)
    with testing.serve(tmp_path) as server:
        urls = [server.url_of(f"shard-{shard:02d}.jsonl") for shard in range(20)]
        recipe = al.from_urls(urls).select_columns("number")
        with al.DataLoader(recipe, 10) as loader:
            batches = iter(loader)
            for _ in range(15):
                next(batches)
            state = loader.state_dict()
        before = len(server.requests)
        resumed = al.DataLoader(recipe, 10)
        resumed.load_state_dict(state)
        assert _numbers(resumed) == list(range(150, 200))
        opened = {request.path.rpartition("-")[2] for request in server.requests[before:]}
    # Of the shard that ended with the last batch it must be seen that there is no more.
    assert min(opened) >= "14.jsonl"


# --- short last batches are left out by lane, and not by worker ---


def test_what_drop_last_leaves_out_does_not_depend_on_workers_or_a_resume(
    make_corpus: Callable[..., Corpus],
) -> None:
    recipe = recipe_of(make_corpus("jsonl", (5, 9, 6, 2, 7, 4)))

    def make(workers: int, **options: Any) -> al.DataLoader[Any]:
        return al.DataLoader(recipe, 4, drop_last=True, num_workers=workers, **{"lanes": 6, **options})

    kept = sorted(keys_of(make(0)))
    assert len(kept) == 4 + 8 + 4 + 0 + 4 + 4
    assert sorted(keys_of(make(3))) == kept
    states, came = [], []
    for rank in range(3):
        with make(0, rank=rank, world_size=3) as loader:
            came += keys_of(islice(loader, 1))
            states.append(loader.state_dict())
    resumed = make(2)
    resumed.load_state_dict(al.merge_states(states))
    assert sorted(came + keys_of(resumed)) == kept


# --- after an error there is no next item: the epoch is resumed, or it is over ---


def test_an_iterator_that_raised_gives_nothing_more_and_its_state_goes_on_at_the_failed_batch(
    make_corpus: Callable[..., Corpus],
) -> None:
    broken = True

    def refuse(sample: dict[str, Any]) -> dict[str, Any]:
        if broken and sample["number"] == 5:
            raise LookupError("refused")
        return sample

    corpus = make_corpus("jsonl", (12,))
    loader = al.DataLoader(recipe_of(corpus).map(refuse), 4)
    batches = iter(loader)
    came = keys_of([next(batches)])
    with pytest.raises(LookupError, match="refused"):
        next(batches)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="closed before the end of its epoch, by an error"):
            next(batches)
    broken = False
    resumed = al.DataLoader(recipe_of(corpus).map(refuse), 4)
    resumed.load_state_dict(loader.state_dict())
    assert sorted(came + keys_of(resumed)) == corpus.keys
