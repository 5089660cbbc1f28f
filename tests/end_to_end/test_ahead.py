"""With ``ahead=``, no more calls are made than for the samples asked for, and so many beyond."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import opened

import asyncloader as al

pytestmark = pytest.mark.usefixtures("fork_server")

WORKERS = pytest.mark.parametrize("workers", [0, 2])
BATCH = 16


class Counter:
    """Functions that write a byte to a file at each call, in whatever process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self) -> None:
        with self.path.open("ab") as file:
            file.write(b".")

    @property
    def calls(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def settled(self) -> int:
        """The calls once no more are made for a while."""
        calls = -1
        while calls != (calls := self.calls):
            time.sleep(0.15)
        return calls


@pytest.fixture
def counter(tmp_path: Path) -> Counter:
    return Counter(tmp_path / "calls")


def numbers(count: int = 256) -> al.Dataset:
    return al.from_iterable(lambda topology: topology.split(range(count)))


def plain(counter: Counter) -> Callable[[al.Dataset], al.Dataset]:
    def call(number: int) -> int:
        counter.note()
        return number

    return lambda ds: ds.map(call)


def threads(counter: Counter) -> Callable[[al.Dataset], al.Dataset]:
    def call(number: int) -> int:
        counter.note()
        time.sleep(0.002)
        return number

    return lambda ds: ds.map(call, concurrency=16)


def coroutines(counter: Counter) -> Callable[[al.Dataset], al.Dataset]:
    async def call(number: int) -> int:
        counter.note()
        await asyncio.sleep(0.002)
        return number

    return lambda ds: ds.map(call, concurrency=16)


def predicate(counter: Counter) -> Callable[[al.Dataset], al.Dataset]:
    def call(number: int) -> bool:
        counter.note()
        return True

    return lambda ds: ds.filter(call)


KINDS = pytest.mark.parametrize("kind", [plain, threads, coroutines, predicate])


@WORKERS
@KINDS
@pytest.mark.parametrize("ahead", [0, 48])
def test_the_calls_stay_within_what_was_asked_for_and_so_many_beyond(
    workers: int, ahead: int, kind: Any, counter: Counter
) -> None:
    recipe = kind(counter)(numbers())
    loader = al.DataLoader(recipe, BATCH, num_workers=workers, ahead=ahead, collate_fn=list)
    found: list[int] = []
    for nth, batch in enumerate(loader):
        found += batch
        calls = counter.settled() if nth in (0, 2) else counter.calls
        assert len(found) <= calls <= len(found) + ahead, f"after {nth + 1} batches"
        if ahead and nth == 0 and kind in (threads, coroutines):
            assert calls > len(found), "what may be made ahead is"
    assert sorted(found) == list(range(256)) and counter.calls == 256


@WORKERS
def test_a_loop_that_is_left_after_one_batch_has_paid_for_one(workers: int, counter: Counter) -> None:
    for _ in al.DataLoader(coroutines(counter)(numbers()), BATCH, num_workers=workers, ahead=0):
        break
    assert counter.settled() == BATCH


@WORKERS
def test_an_iterator_that_is_not_read_calls_for_nothing(workers: int, counter: Counter) -> None:
    with al.DataLoader(coroutines(counter)(numbers()), BATCH, num_workers=workers, ahead=0) as loader:
        iter(loader)
        assert counter.settled() == 0


@WORKERS
def test_maps_in_a_row_are_held_to_the_same_number(workers: int, counter: Counter, tmp_path: Path) -> None:
    second = Counter(tmp_path / "second")
    recipe = threads(second)(coroutines(counter)(numbers()))
    for nth, _ in enumerate(al.DataLoader(recipe, BATCH, num_workers=workers, ahead=32), 1):
        for calls in (counter.calls, second.calls):
            assert nth * BATCH <= calls <= nth * BATCH + 32


@WORKERS
@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("ahead", [0, 32])
def test_whole_chunks_are_held_to_the_same_number(
    workers: int, concurrency: int, ahead: int, counter: Counter, tmp_path: Path
) -> None:
    before = Counter(tmp_path / "before")

    def call(columns: dict[str, Any]) -> dict[str, Any]:
        for _ in columns["number"]:
            counter.note()
        return columns

    recipe = plain(before)(numbers()).map(lambda number: {"number": number})
    recipe = recipe.map_batches(call, batch_size=8, concurrency=concurrency)
    for nth, _ in enumerate(al.DataLoader(recipe, BATCH, num_workers=workers, ahead=ahead), 1):
        for calls in (before.settled() if nth == 2 else before.calls, counter.calls):
            assert nth * BATCH <= calls <= nth * BATCH + ahead, f"after {nth} batches"
    assert before.calls == counter.calls == 256


@pytest.mark.parametrize("kind", [plain, threads, coroutines])
def test_a_take_pays_for_what_it_gives(kind: Any, counter: Counter) -> None:
    loader = al.DataLoader(kind(counter)(numbers()).take(10), 64, ahead=0, collate_fn=list)
    assert [number for batch in loader for number in batch] == list(range(10))
    assert counter.settled() == 10


@WORKERS
@pytest.mark.parametrize("kept", [0, 1, 7])
@pytest.mark.parametrize("batch_size", [None, 4])
def test_a_filter_behind_it_starves_nobody(
    workers: int, kept: int, batch_size: int | None, counter: Counter
) -> None:
    recipe = coroutines(counter)(numbers(64)).filter(lambda number: number % 8 < kept)
    loader = al.DataLoader(recipe, batch_size, num_workers=workers, lanes=4, ahead=0, collate_fn=_listed)
    found = [number for batch in loader for number in batch]
    assert sorted(found) == [number for number in range(64) if number % 8 < kept]
    assert counter.calls == 64


def _listed(samples: Any) -> list[Any]:
    return samples if isinstance(samples, list) else [samples]


@WORKERS
@pytest.mark.parametrize("ahead", [0, 5, 100])
def test_the_batches_and_the_positions_are_the_same(workers: int, ahead: int, counter: Counter) -> None:
    recipe = coroutines(counter)(numbers(100)).shuffle(10).filter(lambda number: number % 3).repeat(2)

    def drained(**options: Any) -> list[Any]:
        loader = al.DataLoader(recipe, 8, lanes=2, collate_fn=list, **options)
        return [(batch, loader.state_dict()) for batch in loader]

    assert drained(num_workers=workers, ahead=ahead) == drained()


@WORKERS
def test_a_loop_of_coroutines_is_served_too(workers: int, counter: Counter) -> None:
    async def read() -> None:
        seen = 0
        async for batch in al.DataLoader(coroutines(counter)(numbers()), BATCH, num_workers=workers, ahead=0):
            seen += len(batch)
            assert counter.calls == seen
        assert seen == 256

    asyncio.run(read())


@WORKERS
def test_a_batch_that_came_too_late_is_not_asked_for_twice(workers: int, counter: Counter) -> None:
    async def slow(number: int) -> int:
        counter.note()
        await asyncio.sleep(1.0)
        return number

    recipe = numbers().map(slow, concurrency=16)
    iterator = opened(al.DataLoader(recipe, BATCH, num_workers=workers, ahead=0, timeout=0.1))
    for _ in range(3):
        with pytest.raises((TimeoutError, RuntimeError)):
            next(iterator)
    iterator.close()
    assert counter.settled() <= BATCH


@pytest.mark.parametrize("wrong", [-1, 2.0, True, "many"])
def test_what_is_no_number_of_samples_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="ahead should be a number of samples"):
        al.DataLoader(numbers(), ahead=wrong)
