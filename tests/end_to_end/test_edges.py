"""Edges of a pass: closed by somebody else, in a forked child, before the process group, slow sources."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest
from interrupting import Interrupt, interrupted_at

import asyncloader as al
from asyncloader import testing
from asyncloader.flow.channel import Channel
from asyncloader.flow.engine import EngineStopped, Scope
from asyncloader.plan.topology import Topology
from asyncloader.workers.forkserver import ForkServer


def numbers(count: int) -> al.Dataset:
    return al.from_iterable(lambda topology: ({"n": n} for n in topology.split(range(count))))


def batches(loader: Any) -> list[list[int]]:
    return [batch["n"].tolist() for batch in loader]


def stalling(topology: Topology) -> Iterator[dict[str, int]]:
    yield {"n": 0}
    threading.Event().wait(0.6)
    yield {"n": 1}


@pytest.mark.parametrize("workers", [0, 1])
def test_closing_a_pass_that_is_waited_for_is_an_error_and_never_an_end(
    workers: int, fork_server: ForkServer
) -> None:
    loader = al.DataLoader(al.from_iterable(stalling), 1, num_workers=workers)
    iterator = iter(loader)
    next(iterator)
    timer = threading.Timer(0.2, loader.close)
    timer.start()
    with pytest.raises(RuntimeError, match="closed before the end of its epoch"):
        next(iterator)
    timer.join()
    assert loader.state_dict()["epoch"] == 0


def test_a_time_out_of_the_users_own_is_never_taken_for_the_loaders(monkeypatch: pytest.MonkeyPatch) -> None:
    def source(topology: Topology) -> Iterator[dict[str, int]]:
        yield from ({"n": n} for n in range(4))
        raise TimeoutError("of the user's own")

    loader = al.DataLoader(al.from_iterable(source), 2, timeout=30)
    iterator = iter(loader)
    assert [next(iterator)["n"].tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    state = loader.state_dict()
    real = time.perf_counter
    # The clock is read long after the error has come, as by a thread that had to wait for a processor.
    monkeypatch.setattr(time, "perf_counter", lambda: real() * 1e9)
    with pytest.raises(TimeoutError, match="of the user's own"):
        next(iterator)
    with pytest.raises(RuntimeError, match="closed before the end of its epoch"):
        next(iterator)
    assert loader.state_dict() == state


@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_of_a_signals_handler_within_next_loses_no_batch(
    workers: int, fork_server: ForkServer
) -> None:
    def make(num_workers: int) -> al.DataLoader[Any]:
        return al.DataLoader(numbers(12), 2, num_workers=num_workers, lanes=2)

    everything = batches(make(0))
    outcomes = set()
    # With workers, which take longer to start, only some places.
    for nth in range(1, 2000, 1 + 4 * (workers > 0)):
        with make(workers) as loader:
            iterator = iter(loader)
            got = [next(iterator)["n"].tolist() for _ in range(2)]
            try:
                # Not next(): what is raised behind its return is too late.
                batch = interrupted_at(nth, lambda: iterator.__next__())  # noqa: B023
            except Interrupt:
                with make(0) as other:
                    other.load_state_dict(loader.state_dict())
                    assert got + batches(other) == everything, nth
                try:
                    assert got + batches(iterator) == everything, nth
                    outcomes.add("goes on")
                except RuntimeError as error:
                    assert "closed before the end of its epoch" in str(error)
                    outcomes.add("is closed")
            else:
                assert [*got, batch["n"].tolist(), *batches(iterator)] == everything
                break
    assert nth > 5
    assert outcomes == {"goes on", "is closed"}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_forked_child_cannot_take_its_parents_batches(workers: int, fork_server: ForkServer) -> None:
    iterator = iter(al.DataLoader(numbers(6), 2, num_workers=workers))
    assert next(iterator)["n"].tolist() == [0, 1]
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            next(iterator)
            os.write(writing, b"took a batch")
        except RuntimeError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    said = os.read(reading, 1000).decode()
    os.close(reading)
    os.close(writing)
    assert f"belongs to process {os.getpid()}" in said
    assert batches(iterator) == [[2, 3], [4, 5]]


def test_a_loader_made_before_the_process_group_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = al.DataLoader(numbers(6), 2)
    monkeypatch.setattr("asyncloader.loader.kind.process_group", lambda: (1, 2))
    with pytest.raises(RuntimeError, match=r"made for rank 0 of 1, but .* says rank 1 of 2"):
        iter(loader)


def test_a_loop_that_sets_each_epoch_does_not_undo_a_resume() -> None:
    loader = al.DataLoader(numbers(8), 2)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    resumed = al.DataLoader(numbers(8), 2)
    resumed.load_state_dict(state)
    resumed.set_epoch(0)
    assert resumed.state_dict() == state
    assert batches(resumed) == [[2, 3], [4, 5], [6, 7]]
    resumed.set_epoch(0)
    assert len(batches(resumed)) == 4
    iterator.close()


def test_a_with_block_closes_a_pass_whose_loader_was_given_a_state() -> None:
    with testing.check_leaks(), al.DataLoader(numbers(100), 2) as loader:
        iterator = iter(loader)
        next(iterator)
        loader.load_state_dict(loader.state_dict())
        assert loader.statistics.batches == 1
    with pytest.raises(RuntimeError, match="closed"):
        next(iterator)


def test_samples_before_a_failing_source_are_delivered_and_none_is_held_back() -> None:
    def failing(topology: Topology) -> Iterator[dict[str, int]]:
        yield from ({"n": n} for n in range(5))
        raise KeyError("source")

    async def failing_async(topology: Topology) -> AsyncIterator[dict[str, int]]:
        for n in range(5):
            yield {"n": n}
        raise KeyError("source")

    makes: list[Callable[[Topology], Any]] = [failing, failing_async]
    for make in makes:
        seen: list[int] = []
        with pytest.raises(KeyError):
            seen.extend(batch["n"].item() for batch in al.DataLoader(al.from_iterable(make), 1))
        assert seen == [0, 1, 2, 3, 4]


def test_a_live_asynchronous_source_holds_nothing_back() -> None:
    async def live(topology: Topology) -> AsyncIterator[dict[str, int]]:
        for n in range(40):
            await asyncio.sleep(0)
            yield {"n": n}
        await asyncio.Event().wait()

    iterator = iter(al.DataLoader(al.from_iterable(live), 1, timeout=5))
    time.sleep(0.2)  # nobody reads meanwhile: every buffer fills
    assert [next(iterator)["n"].item() for _ in range(40)] == list(range(40))
    iterator.close()


def test_a_slow_source_gives_each_sample_as_it_comes() -> None:
    def slow(topology: Topology) -> Iterator[dict[str, int]]:
        for n in range(5):
            time.sleep(0.1)
            yield {"n": n}
        wanted.wait(60)  # a block of more samples than these would wait for the rest
        yield {"n": 5}

    wanted = threading.Event()
    iterator = iter(al.DataLoader(al.from_iterable(slow), 1, timeout=30))
    assert [next(iterator)["n"].item() for _ in range(5)] == list(range(5))
    wanted.set()
    assert [batch["n"].item() for batch in iterator] == [5]


def test_a_collection_on_the_engines_thread_does_not_wait_for_itself() -> None:
    async def collect(sample: dict[str, int]) -> dict[str, int]:
        if sample["n"] == 3:
            gc.collect()
        return sample

    loader = al.DataLoader(numbers(50).map(collect), 1)
    iterator = iter(loader)
    next(iterator)
    cycle: list[Any] = [iterator]
    cycle.append(cycle)
    began = time.monotonic()
    del iterator, cycle
    gc.collect()
    assert time.monotonic() - began < 3


async def test_a_task_cancelled_before_its_first_step_ends_its_channel() -> None:
    outlet = Channel[None](1)

    async def work() -> None:
        raise AssertionError("never begun")

    with pytest.raises(ZeroDivisionError):
        async with Scope() as scope:
            scope.start(work, outlet)
            raise ZeroDivisionError
    with pytest.raises(EngineStopped):
        await asyncio.wait_for(outlet.receive_async(), 5)


def test_what_cannot_be_sent_to_workers_is_named(fork_server: ForkServer) -> None:
    lock = threading.Lock()
    loader = al.DataLoader(numbers(4).map(lambda sample: (lock, sample)[1]), 2, num_workers=1)
    with pytest.raises(TypeError, match="pickle") as caught:
        iter(loader)
    assert any(".map(" in note and "lock" in note for note in caught.value.__notes__)


def test_a_renew_or_a_provider_that_holds_a_client_is_named(fork_server: ForkServer) -> None:
    client = threading.Lock()  # as a client of boto3 holds one

    def sign(url: str) -> str:
        return url if client else ""

    def provide() -> dict[str, str]:
        return {"client": str(client)}

    options = {"endpoint": "http://127.0.0.1:9", "credential_provider": provide}
    for recipe, named in (
        (al.from_urls("http://127.0.0.1:9/x.jsonl", renew=sign, index=None), "renew cannot"),
        (al.from_urls("s3://b/x.jsonl", storage_options=options), "storage_options['credential_provider']"),
    ):
        with pytest.raises(TypeError, match="pickle") as caught:
            iter(al.DataLoader(recipe, 2, num_workers=1))
        assert any(note.startswith(named) for note in caught.value.__notes__)
        assert not any("the source" in note for note in caught.value.__notes__)
    with pytest.raises(TypeError, match="pickle") as caught:
        al.from_urls("s3://b/prefix/", storage_options=options)
    assert any("storage_options['credential_provider']" in note for note in caught.value.__notes__)


def test_numbers_of_numpy_make_a_state_of_plain_json() -> None:
    options: list[dict[str, Any]] = [
        {"num_workers": np.int64(2)},
        {"rank": np.int32(1), "world_size": np.int64(2)},
        {"lanes": np.int64(2), "timeout": np.float32(20), "num_workers": 1, "prefetch_factor": np.int8(1)},
    ]
    for given in options:
        with al.DataLoader(numbers(12), 2, **given) as loader:
            next(iter(loader))
            saved = json.dumps(loader.state_dict())
        al.DataLoader(numbers(12), 2, **given).load_state_dict(json.loads(saved))


def test_a_whole_checkpoint_in_the_place_of_a_state_is_told_apart() -> None:
    loader = al.DataLoader(numbers(4), 2)
    with pytest.raises(ValueError, match="did you mean the one under 'loader'"):
        loader.load_state_dict({"loader": loader.state_dict()})
