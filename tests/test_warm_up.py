"""``warm_up()``: the pass of the next loop is begun before it, and is the same pass."""

from __future__ import annotations

import copy
import os
import pickle
from typing import Any

import pytest
from waiting import until

import asyncloader as al
from asyncloader import testing

pytestmark = pytest.mark.usefixtures("fork_server")

WORKERS = pytest.mark.parametrize("workers", [0, 2])
OBJECTS = {
    f"{shard}.jsonl": b"".join(b'{"number": %d}\n' % number for number in range(shard * 50, shard * 50 + 50))
    for shard in range(4)
}


def loader_of(server: testing.Server, workers: int, **options: Any) -> al.DataLoader[Any]:
    dataset = al.from_urls([server.url_of(key) for key in OBJECTS], index=None).shuffle(100, seed=3)
    return al.DataLoader(dataset, 10, num_workers=workers, lanes=2, collate_fn=numbers, **options)


def numbers(samples: list[dict[str, int]]) -> list[int]:
    return [sample["number"] for sample in samples]


def epochs_of(loader: al.DataLoader[Any], count: int) -> list[list[list[int]]]:
    return [[*loader] for _ in range(count)]


@WORKERS
def test_reading_begins_before_the_loop_and_gives_the_same_epochs(workers: int) -> None:
    with testing.serve(OBJECTS) as server:
        expected = epochs_of(loader_of(server, workers), 3)
        asked = len(server.requests)
        loader = loader_of(server, workers)
        loader.warm_up()
        until(lambda: len(server.requests) > asked)
        assert loader.state_dict() == loader_of(server, workers).state_dict()
        first = [*loader]
        loader.warm_up()
        loader.warm_up()  # once is enough
        assert [first, *epochs_of(loader, 2)] == expected


@WORKERS
def test_a_loaded_state_is_gone_on_from_also_if_the_loop_sets_its_epoch(workers: int) -> None:
    with testing.serve(OBJECTS) as server:
        loader = loader_of(server, workers)
        expected = [[*loader], [*loader]]
        resumed = loader_of(server, workers)
        for _ in zip(range(7), resumed, strict=False):
            state = resumed.state_dict()
        for ahead in (False, True):  # a state that is loaded counts, whatever was begun
            resumed = loader_of(server, workers)
            if ahead:
                resumed.warm_up()
            resumed.load_state_dict(state)
            resumed.warm_up()
            resumed.set_epoch(0)
            assert [*resumed] == expected[0][7:]
            resumed.warm_up()
            resumed.set_epoch(1)
            assert [*resumed] == expected[1]


def test_another_epoch_is_begun_anew() -> None:
    with testing.serve(OBJECTS) as server:
        expected = epochs_of(loader_of(server, 0), 3)
        loader = loader_of(server, 0)
        loader.warm_up()
        loader.set_epoch(2)
        assert [*loader] == expected[2]


@WORKERS
def test_a_loader_that_is_closed_has_lost_nothing(workers: int) -> None:
    with testing.serve(OBJECTS) as server:
        expected = epochs_of(loader_of(server, workers), 2)
        loader = loader_of(server, workers)
        loader.warm_up()
        loader.close()
        assert epochs_of(loader, 2) == expected


def test_a_copy_has_nothing_that_runs_and_begins_at_the_same_place() -> None:
    with testing.serve(OBJECTS) as server:
        loader = loader_of(server, 0)
        loader.warm_up()
        copies = [copy.copy(loader), pickle.loads(pickle.dumps(loader))]
        assert [[*each] for each in copies] == 2 * [[*loader]]


@WORKERS
def test_nothing_is_left_of_a_loader_that_is_dropped(workers: int) -> None:
    with testing.serve(OBJECTS) as server, testing.check_leaks():
        loader = loader_of(server, workers)
        loader.warm_up()
        loader.close()
        del loader


def test_errors_are_those_of_the_loop() -> None:
    with testing.serve(OBJECTS, [testing.Status(404)]) as server:
        loader = loader_of(server, 0)
        loader.warm_up()
        with pytest.raises(al.StoreError, match="404"):
            next(iter(loader))


async def test_a_loop_in_async_code_takes_it_too() -> None:
    with testing.serve(OBJECTS) as server:
        expected = [*loader_of(server, 0)]
        loader = loader_of(server, 0)
        loader.warm_up()
        assert [batch async for batch in loader] == expected


def test_a_dataset_of_torchs_kinds_is_refused() -> None:
    with pytest.raises(TypeError, match="streams only"):
        al.DataLoader([1, 2, 3]).warm_up()


def test_a_loaded_position_is_protected_as_without_it() -> None:
    with testing.serve(OBJECTS) as server:
        loader = loader_of(server, 0)
        assert len([*loader]) == 20
        for _ in zip(range(3), loader, strict=False):
            state = loader.state_dict()
        for ahead in (False, True):
            loader = loader_of(server, 0)
            loader.load_state_dict(state)
            if ahead:
                loader.warm_up()
            with pytest.raises(ValueError, match="epoch"):
                loader.set_epoch(0)


def test_it_is_refused_while_an_iteration_goes_on() -> None:
    with testing.serve(OBJECTS) as server:
        loader = loader_of(server, 0)
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        with pytest.raises(RuntimeError, match="has not ended"):
            loader.warm_up()
        assert loader.state_dict() == state
        assert len([*batches]) == 19
        loader.warm_up()
        assert len([*loader]) == 20


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a Unix")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_process_begins_its_own_at_the_same_place() -> None:
    loader = al.DataLoader(al.from_iterable(range(100)), None)
    before = loader.state_dict()
    loader.warm_up()
    child = os.fork()
    if child == 0:
        is_same = loader.state_dict() == before and [*loader] == [*range(100)]
        os._exit(0 if is_same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [*loader] == [*range(100)]
