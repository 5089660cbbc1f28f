"""Datasets with coroutines, and ``async for`` over every kind of dataset."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, IterableDataset, Subset, WeightedRandomSampler

import asyncloader as al
from asyncloader import testing

from .pairs import plain

WORKERS = pytest.mark.parametrize("workers", [0, 2])


class Fetches:
    """An async map-style dataset that counts how many items are under way."""

    def __init__(self, size: int = 50, wait_s: float = 0.02) -> None:
        self.size, self.wait_s = size, wait_s
        self.now = self.most = 0

    def __len__(self) -> int:
        return self.size

    async def __getitem__(self, index: int) -> Any:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            # The later an item stands, the sooner it is there.
            await asyncio.sleep(self.wait_s * (1 - index / (2 * self.size)))
            if index == 33:
                raise KeyError("no such object")
            return index, self.most
        finally:
            self.now -= 1


class Gathers:
    """Fetches a batch with one call."""

    def __len__(self) -> int:
        return 10

    async def __getitems__(self, indices: list[int]) -> list[int]:
        await asyncio.sleep(0)
        if 7 in indices:
            raise OSError("the answer is no")
        return [10 * index for index in indices]

    def __getitem__(self, index: int) -> int:
        return 10 * index


class Counts:
    """An async iterable of no class of ours or torch's; split by worker."""

    def __init__(self, size: int = 9) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    async def __aiter__(self) -> AsyncIterator[int]:
        info = al.get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(start, self.size, step):
            await asyncio.sleep(0)
            yield number


class OfTorch(torch.utils.data.Dataset[int], Counts):
    """An async iterable that inherits torch's ``__getitem__``, which only raises."""


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        info = al.get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(start, 9, step))


def whole(samples: Any) -> Any:
    return samples


def firsts(batches: Any) -> list[list[int]]:
    return [[index for index, _ in batch] for batch in batches]


@WORKERS
@pytest.mark.parametrize("sampler", ["none", "shuffle", "list", "weighted", "batches"])
def test_items_come_in_the_samplers_order(sampler: str, workers: int) -> None:
    options: dict[str, Any] = {
        "none": {"batch_size": 4},
        "shuffle": {"batch_size": 4, "shuffle": True},
        "list": {"batch_size": 2, "sampler": [3, 1, 3, 0]},
        "weighted": {"batch_size": 5, "sampler": WeightedRandomSampler([1.0] * 10, 12)},
        "batches": {"batch_sampler": [[1], [2, 0], [9, 8, 7]]},
    }[sampler]
    torch.manual_seed(3)
    got = firsts(al.DataLoader(Fetches(10), num_workers=workers, collate_fn=whole, **options))
    torch.manual_seed(3)
    theirs = torch.utils.data.DataLoader(range(10), num_workers=workers, collate_fn=whole, **options)
    assert got == list(theirs)


@WORKERS
def test_the_items_of_a_batch_are_fetched_at_the_same_time(workers: int) -> None:
    loader = al.DataLoader(Fetches(), 34, sampler=[*range(33), 0], num_workers=workers, collate_fn=whole)
    (batch,) = loader
    assert len(batch) == 34
    assert batch[-1][1] == 34, "so many were under way at once"


def test_no_more_than_48_items_are_under_way() -> None:
    dataset = Fetches(200, wait_s=0.01)
    indices = [index for index in range(200) if index != 33]
    (batch,) = al.DataLoader(dataset, 200, sampler=indices, collate_fn=whole)
    assert [index for index, _ in batch] == indices
    assert dataset.most == 48


def test_single_samples_are_fetched_one_by_one() -> None:
    dataset = Fetches(5)
    assert [index for index, _ in al.DataLoader(dataset, None)] == [0, 1, 2, 3, 4]
    assert dataset.most == 1


@WORKERS
@pytest.mark.parametrize("batch_size", [None, 11])
def test_an_error_names_the_index_and_iteration_goes_on(workers: int, batch_size: int | None) -> None:
    batches = iter(al.DataLoader(Fetches(44, 0), batch_size, num_workers=workers))
    found: list[Any] = []
    while True:
        try:
            found.append(next(batches))
        except StopIteration:
            break
        except KeyError as error:
            text = str(error) + "".join(getattr(error, "__notes__", []))
            assert "while fetching index 33" in text
            assert "no such object" in text
            found.append("error")
    assert found.index("error") == (33 if batch_size is None else 3)
    assert len(found) == (44 if batch_size is None else 4)


@WORKERS
def test_a_batch_can_be_fetched_with_one_coroutine(workers: int) -> None:
    batches = iter(al.DataLoader(Gathers(), 5, num_workers=workers))
    assert next(batches).tolist() == [0, 10, 20, 30, 40]
    with pytest.raises(OSError, match="the answer is no") as error:
        next(batches)
    text = str(error.value) + "".join(getattr(error.value, "__notes__", []))
    assert "while fetching indices [5, 6, 7, 8, 9]" in text
    assert next(batches, None) is None
    assert list(al.DataLoader(Gathers(), None, num_workers=workers)) == list(range(0, 100, 10))


class AwaitsCancelled:
    """One of its items waits for something that was cancelled; a batch may be fetched with one call."""

    def __len__(self) -> int:
        return 6

    async def __getitem__(self, index: int) -> int:
        if index == 3:
            waited_for = asyncio.get_running_loop().create_future()
            waited_for.cancel()
            await waited_for
        return index


class AwaitsCancelledTogether(AwaitsCancelled):
    async def __getitems__(self, indices: list[int]) -> list[int]:
        return [await self[index] for index in indices]


@WORKERS
@pytest.mark.parametrize(
    ("kind", "batch_size", "where"),
    [
        (AwaitsCancelled, None, "index 3"),
        (AwaitsCancelled, 2, "index 3"),
        (AwaitsCancelledTogether, 2, "indices [2, 3]"),
    ],
)
def test_an_item_that_awaits_something_cancelled_is_an_error_and_no_none(
    kind: Any, batch_size: int | None, where: str, workers: int
) -> None:
    batches = iter(al.DataLoader(kind(), batch_size, num_workers=workers, collate_fn=whole))
    good: list[Any] = [next(batches) for _ in range(3 if batch_size is None else 1)]
    with pytest.raises(RuntimeError, match="the function raised CancelledError") as error:
        next(batches)
    assert f"while fetching {where}" in str(error.value) + "".join(getattr(error.value, "__notes__", []))
    good += batches
    assert good == ([0, 1, 2, 4, 5] if batch_size is None else [[0, 1], [4, 5]])


class Ends:
    """Ends in the way of ``kind`` at its item 3: a map-style dataset of coroutines."""

    def __init__(self, kind: type[BaseException]) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 6

    async def __getitem__(self, index: int) -> int:
        if index == 3:
            raise self.kind("own")
        return index


class EndsTogether(Ends):
    async def __getitems__(self, indices: list[int]) -> list[int]:
        return [await self[index] for index in indices]


class SourceEnds(Ends):
    __getitem__ = None  # type: ignore[assignment]

    async def __aiter__(self) -> AsyncIterator[int]:
        al.get_worker_info()
        for number in range(6):
            if number == 3:
                raise self.kind("own")
            yield number


def source_ends(kind: type[BaseException]) -> Any:
    return al.from_iterable(lambda topology: SourceEnds(kind))


ENDINGS = [asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit]


@pytest.mark.filterwarnings("ignore:SourceEnds is read by several workers:UserWarning")
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    ("make", "workers"),
    [
        (Ends, 0),
        (Ends, 1),
        (EndsTogether, 0),
        (SourceEnds, 0),
        (SourceEnds, 1),
        (source_ends, 0),
        (source_ends, 1),
    ],
)
def test_a_coroutine_that_ends_in_no_ordinary_way_is_an_error_that_says_which(
    make: Any, workers: int, ending: type[BaseException]
) -> None:
    batches = iter(al.DataLoader(make(ending), 1, num_workers=workers, collate_fn=whole))
    assert [next(batches), next(batches), next(batches)] == [[0], [1], [2]]
    with pytest.raises(RuntimeError, match=f"the function raised {ending.__name__}: own"):
        next(batches)
    if make in (Ends, EndsTogether):
        assert list(batches) == [[4], [5]], "the event loop lives on"


@dataclass(frozen=True)
class FrozenError(Exception):
    """Takes no attribute, and so no note."""

    text: str


def fail(number: int) -> int:
    if number == 3:
        raise FrozenError("own")
    return number


async def fail_async(number: int) -> int:
    return fail(number)


class Frozen(Ends):
    async def __getitem__(self, index: int) -> int:
        return fail(index)


class FrozenTogether(Frozen):
    async def __getitems__(self, indices: list[int]) -> list[int]:
        return [fail(index) for index in indices]


class FrozenPlain(Frozen):
    def __getitem__(self, index: int) -> int:  # type: ignore[override]
        return fail(index)


class FrozenIterable(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        al.get_worker_info()
        return map(fail, range(6))


def numbers() -> Any:
    return al.from_iterable(lambda topology: topology.split(range(6)))


@WORKERS
@pytest.mark.parametrize(
    "make",
    [
        lambda: Frozen(FrozenError),
        lambda: FrozenTogether(FrozenError),
        lambda: FrozenPlain(FrozenError),
        FrozenIterable,
        lambda: numbers().map(fail),
        lambda: numbers().map(fail_async, concurrency=2),
        lambda: numbers().map(fail, concurrency=2),
    ],
    ids=["async", "together", "plain", "iterable", "map", "map async", "map on threads"],
)
@pytest.mark.filterwarnings("ignore:FrozenIterable is read by several workers:UserWarning")
def test_an_error_that_refuses_a_note_stays_itself(make: Any, workers: int) -> None:
    with pytest.raises(FrozenError) as error:
        list(al.DataLoader(make(), 2, num_workers=workers, collate_fn=whole))
    assert "own" in error.value.text


class Stops(Ends):
    def __getitem__(self, index: int) -> int:  # type: ignore[override]
        if index == 3:
            raise self.kind("own")
        return index


@WORKERS
@pytest.mark.parametrize("ending", [StopIteration, StopAsyncIteration])
async def test_a_map_style_dataset_does_not_end_an_async_for_quietly(ending: Any, workers: int) -> None:
    batches = aiter(al.DataLoader(Stops(ending), 1, num_workers=workers, collate_fn=whole))
    assert [await anext(batches) for _ in range(3)] == [[0], [1], [2]]
    with pytest.raises(RuntimeError, match=f"the function raised {ending.__name__}"):
        await anext(batches)
    assert [batch async for batch in batches] == [[4], [5]]


async def test_a_cancellation_out_of_a_map_style_dataset_does_not_cancel_an_async_for() -> None:
    batches = aiter(al.DataLoader(Stops(asyncio.CancelledError), 1, sampler=[3, 4], collate_fn=whole))
    with pytest.raises(RuntimeError, match="the function raised CancelledError: own"):
        await anext(batches)
    assert [batch async for batch in batches] == [[4]]


@WORKERS
def test_a_stop_iteration_out_of_a_map_style_dataset_ends_for_as_in_torch_and_warns(workers: int) -> None:
    loader = al.DataLoader(Stops(StopIteration), 1, num_workers=workers, collate_fn=whole)
    with pytest.warns(
        UserWarning, match="raised StopIteration, which ends this loop after 3 batches"
    ) as warned:
        assert list(loader) == [[0], [1], [2]]
    assert [warning.filename for warning in warned] == [__file__]
    state = loader.state_dict()
    assert (state["batches"], state["finished"]) == (3, False), "no batch that did not come is passed over"


def test_parts_and_sums_of_async_datasets_are_async() -> None:
    part = Subset(Fetches(10), [5, 3, 1])
    assert firsts(al.DataLoader(part, 2, collate_fn=whole)) == [[5, 3], [1]]
    assert next(iter(al.DataLoader(Subset(Gathers(), [2, 1]), 2))).tolist() == [20, 10]
    both: Any = ConcatDataset([Fetches(2), [(7, 0), (8, 0)]])
    assert firsts(al.DataLoader(both, 3, collate_fn=whole)) == [[0, 1, 7], [8]]


def test_async_items_run_on_a_thread_that_ends_with_the_iterator() -> None:
    with testing.check_leaks():
        batches = iter(al.DataLoader(Fetches(10), 2))
        next(batches)
        del batches
    with testing.check_leaks():
        list(al.DataLoader(Fetches(10), 2))
    with testing.check_leaks():
        items = iter(al.DataLoader(Counts(1000), 2))
        next(items)
        del items


# --- async iterables ---


@WORKERS
@pytest.mark.parametrize("kind", [Counts, OfTorch])
@pytest.mark.parametrize("options", [{}, {"batch_size": 2}, {"batch_size": 2, "drop_last": True}])
def test_an_async_iterable_is_an_iterable_dataset(kind: Any, options: Any, workers: int) -> None:
    ours = al.DataLoader(kind(), num_workers=workers, **options)
    theirs = torch.utils.data.DataLoader(Numbers(), num_workers=workers, **options)
    for _ in range(2):
        assert [plain(batch) for batch in ours] == [plain(batch) for batch in theirs]
    assert len(ours) == -(-9 // (ours.batch_size or 1)) - (1 if options.get("drop_last") else 0)
    with pytest.raises(ValueError, match="expected unspecified sampler option"):
        al.DataLoader(kind(), sampler=[1])


def test_iterators_of_an_async_iterable_do_not_end_each_other() -> None:
    loader = al.DataLoader(Counts(500), None)
    one, two = iter(loader), iter(loader)
    assert [next(one), next(two), next(one)] == [0, 0, 1]
    del one
    assert list(two) == list(range(1, 500))


# --- async for ---

KINDS: dict[str, Any] = {
    "map": lambda: list(range(9)),
    "iterable": Numbers,
    "plain iterable": lambda: dict.fromkeys(range(9)).keys(),
    "async map": lambda: Fetches(9, 0),
    "async iterable": Counts,
    "stream": lambda: al.from_iterable(lambda topology: topology.split(range(9))),
}


@WORKERS
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:dict_keys is read by several workers:UserWarning")
async def test_both_loops_give_the_same_batches(kind: str, workers: int) -> None:
    dataset = al.split_iterable(KINDS[kind]()) if kind == "plain iterable" else KINDS[kind]()
    loader = al.DataLoader(dataset, 2, num_workers=workers)
    by_async_for = [plain(batch) async for batch in loader]
    assert by_async_for == [plain(batch) for batch in loader]
    assert len(by_async_for) >= 5


async def test_the_event_loop_turns_while_a_batch_is_made() -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.005)
            turns += 1

    turning = asyncio.ensure_future(turn())
    async for _ in al.DataLoader(Slow(), 1):
        pass
    turning.cancel()
    assert turns > 10


class Sleeps:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        time.sleep(0.1)
        if index == 1:
            raise ValueError("not this one")
        return index


class Slow(Sleeps):
    def __getitem__(self, index: int) -> int:
        time.sleep(0.1)
        return index


@WORKERS
async def test_a_cancelled_wait_loses_no_batch(workers: int) -> None:
    batches = aiter(al.DataLoader(Slow(), None, num_workers=workers))
    got = []
    while True:
        try:
            got.append(await asyncio.wait_for(anext(batches), 0.03))
        except TimeoutError:
            continue
        except StopAsyncIteration:
            break
    assert got == [0, 1, 2]
    with pytest.raises(StopAsyncIteration):
        await anext(batches)


@WORKERS
async def test_after_an_error_async_for_goes_on_as_for_does(workers: int) -> None:
    batches = aiter(al.DataLoader(Sleeps(), None, num_workers=workers))
    assert await anext(batches) == 0
    with pytest.raises(ValueError, match="not this one"):
        await anext(batches)
    assert await anext(batches) == 2
    with pytest.raises(StopAsyncIteration):
        await anext(batches)


@pytest.mark.parametrize("how", ["break", "aclose", "end"])
@WORKERS
async def test_async_for_leaves_nothing_behind(how: str, workers: int) -> None:
    [batch async for batch in al.DataLoader([1], num_workers=1)]  # what starts once in a process's life
    async with testing.check_leaks(within_s=5):
        loader = al.DataLoader(range(20), None, num_workers=workers)
        batches = aiter(loader)
        if how == "break":
            async for _ in batches:
                break
        elif how == "aclose":
            await anext(batches)
            await batches.aclose()  # type: ignore[attr-defined]
            with pytest.raises(StopAsyncIteration):
                await anext(batches)
        else:
            assert [number async for number in batches] == list(range(20))
        del batches


class StuckOnce:
    """Its last item takes a minute, until ``path`` is there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        if index == 2 and not self.path.exists():
            time.sleep(60)
        return index


async def test_persistent_workers_that_were_left_waiting_are_followed_by_new_ones(tmp_path: Path) -> None:
    loader = al.DataLoader(
        StuckOnce(tmp_path / "there"), None, num_workers=2, persistent_workers=True, collate_fn=whole
    )
    got: list[int] = []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.5):
            async for number in loader:
                got.append(number)
    assert got == [0, 1]
    (tmp_path / "there").touch()
    for _ in range(2):
        assert [number async for number in loader] == [0, 1, 2]
    assert iter(loader) is iter(loader)


async def test_plain_for_works_inside_a_running_event_loop() -> None:
    assert firsts(al.DataLoader(Fetches(4, 0), 2, collate_fn=whole)) == [[0, 1], [2, 3]]
    assert list(al.DataLoader(Counts(4), None)) == [0, 1, 2, 3]
