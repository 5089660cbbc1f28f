"""A loader over a dataset of the torch kind goes on exactly where it was, also in its following epochs."""

from __future__ import annotations

import asyncio
import copy
import io
import json
import pickle
import random
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import asyncloader as al

from .pairs import plain

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

COUNT, BATCH, EPOCHS = 14, 4, 3
NUMBERS = list(range(COUNT))


def listed(samples: Any) -> Any:
    return samples


def read(loader: Any, batches: int) -> list[Any]:
    """So many batches, over as many epochs as it takes; an empty one counts as its end."""
    got: list[Any] = []
    while len(got) < batches:
        before = len(got)
        for batch in loader:
            got.append(plain(batch))
            if len(got) == batches:
                return got
        assert len(got) > before or batches > COUNT * EPOCHS, "an empty epoch"
    return got


def run_saving(loader: Any, epochs: int = EPOCHS) -> tuple[list[Any], list[tuple[int, str]]]:
    """The batches of some epochs, and a state after each and after each epoch, with how many came before."""
    batches: list[Any] = []
    states = [(0, json.dumps(loader.state_dict()))]
    for _ in range(epochs):
        for batch in loader:
            batches.append(plain(batch))
            torch.rand(3)  # a training step draws too
            states.append((len(batches), json.dumps(loader.state_dict())))
        states.append((len(batches), json.dumps(loader.state_dict())))
    return batches, states


def tail(loader: Any, state: str, count: int) -> list[Any]:
    """The next ``count`` batches of a loader that goes on from ``state`` after other draws."""
    torch.manual_seed(999)
    random.seed(999)
    loader.load_state_dict(json.loads(state))
    got: list[Any] = []
    for _ in range(EPOCHS + 1):
        for batch in loader:
            got.append(plain(batch))
            torch.rand(3)
    return got[:count]


# --- map style: torch's samplers ---

SAMPLERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "in order": lambda g: {"batch_size": BATCH},
    "shuffled": lambda g: {"batch_size": BATCH, "shuffle": True},
    "shuffled by a generator": lambda g: {"batch_size": BATCH, "shuffle": True, "generator": g},
    "single samples": lambda g: {"batch_size": None, "shuffle": True},
    "drop_last": lambda g: {"batch_size": BATCH, "shuffle": True, "drop_last": True},
    "sequential": lambda g: {"batch_size": BATCH, "sampler": SequentialSampler(NUMBERS)},
    "random by a generator of its own": lambda g: {
        "batch_size": BATCH,
        "sampler": RandomSampler(NUMBERS, generator=g),
    },
    "with replacement": lambda g: {
        "batch_size": BATCH,
        "sampler": RandomSampler(NUMBERS, replacement=True, num_samples=40, generator=g),
    },
    "more than there are": lambda g: {
        "batch_size": BATCH,
        "sampler": RandomSampler(NUMBERS, num_samples=2 * COUNT + 3, generator=g),
    },
    "subset": lambda g: {"batch_size": BATCH, "sampler": SubsetRandomSampler(range(0, COUNT, 2))},
    "weighted": lambda g: {
        "batch_size": BATCH,
        "sampler": WeightedRandomSampler([1.0 + n % 4 for n in NUMBERS], 11, generator=g),
    },
    "batch sampler": lambda g: {"batch_sampler": BatchSampler(RandomSampler(NUMBERS), 3, True)},
    "lists of indices": lambda g: {"batch_sampler": [[0, 1], [2], [3, 4, 5], [6]]},
    "drawn by iter": lambda g: {"batch_size": None, "sampler": DrawsInIter()},
}


class DrawsInIter:
    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(COUNT).tolist())

    def __len__(self) -> int:
        return COUNT


def make(kind: str, workers: int, dataset: Any = NUMBERS, **more: Any) -> Any:
    options = SAMPLERS[kind](torch.Generator().manual_seed(7))
    return al.DataLoader(dataset, num_workers=workers, collate_fn=listed, **options, **more)


@pytest.mark.parametrize("kind", SAMPLERS)
def test_every_position_of_every_sampler_is_resumed(kind: str) -> None:
    torch.manual_seed(5)
    batches, states = run_saving(make(kind, 0))
    theirs = torch.utils.data.DataLoader(
        NUMBERS, collate_fn=listed, **SAMPLERS[kind](torch.Generator().manual_seed(7))
    )
    torch.manual_seed(5)
    undisturbed = []
    for _ in range(EPOCHS):
        for batch in theirs:
            undisturbed.append(plain(batch))
            torch.rand(3)
    assert batches == undisturbed, "saving a state changed the order"
    for done, state in states:
        assert tail(make(kind, 0), state, len(batches) - done) == batches[done:]
        assert len(state) < 11_000


# To fork a process as large as this one is slow: with workers one state of so many is resumed from.
over_workers = pytest.mark.parametrize("step", [11, pytest.param(4, marks=pytest.mark.slow)])


@over_workers
@pytest.mark.parametrize("kind", ["shuffled", "with replacement", "weighted", "more than there are"])
@pytest.mark.parametrize(("saved_with", "loaded_with"), [(0, 2), (2, 0), (2, 3)])
def test_a_map_style_dataset_resumes_with_any_number_of_workers(
    kind: str, saved_with: int, loaded_with: int, step: int
) -> None:
    torch.manual_seed(5)
    batches, states = run_saving(make(kind, saved_with), 2)
    # Another one for each sampler.
    for done, state in states[1 + len(kind) % 5 :: step if loaded_with else 4]:
        assert tail(make(kind, loaded_with), state, len(batches) - done) == batches[done:]


def test_persistent_workers_draw_no_seed_in_later_epochs_also_after_a_resume() -> None:
    options = {"persistent_workers": True}
    torch.manual_seed(5)
    batches, states = run_saving(make("shuffled", 2, **options))
    for done, state in [states[2], *states[4:8]]:
        assert tail(make("shuffled", 2, **options), state, len(batches) - done) == batches[done:]


class Fetched:
    def __init__(self) -> None:
        self.fetched: list[int] = []

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        self.fetched.append(index)
        return index


def test_what_was_delivered_is_not_fetched_again() -> None:
    torch.manual_seed(5)
    loader = make("shuffled", 0)
    batches = iter(loader)
    done = [*next(batches), *next(batches)]
    dataset = Fetched()
    resumed = make("shuffled", 0, dataset)
    resumed.load_state_dict(loader.state_dict())
    rest = [index for batch in resumed for index in batch]
    assert dataset.fetched == rest
    assert sorted(done + rest) == NUMBERS


def test_the_default_generator_is_as_it_was_after_the_batch() -> None:
    torch.manual_seed(5)
    loader = make("shuffled", 0)
    for number, _ in enumerate(loader):
        torch.rand(number)
        if number == 1:
            break
    state = loader.state_dict()
    expected = torch.rand(4)
    torch.manual_seed(1)
    resumed = make("shuffled", 0)
    resumed.load_state_dict(state)
    next(iter(resumed))
    assert torch.equal(torch.rand(4), expected)


def test_a_loader_whose_order_has_its_own_generator_leaves_the_default_one_alone() -> None:
    loader = make("shuffled by a generator", 0)
    next(iter(loader))
    state = loader.state_dict()
    assert set(state["generators"]["start"]) == {"loader"}
    before = torch.get_rng_state()
    resumed = make("shuffled by a generator", 0)
    resumed.load_state_dict(state)
    list(resumed)
    assert torch.equal(torch.get_rng_state(), before)


# --- map style: epochs, ranks ---


def dealt(rank: int = 1, ranks: int = 2) -> al.DataLoader[Any]:
    sampler: Any = DistributedSampler(NUMBERS, ranks, rank, seed=3)  # type: ignore[arg-type]  # a list will do
    return al.DataLoader(NUMBERS, 2, sampler=sampler, collate_fn=listed, rank=rank, world_size=ranks)


def test_a_distributed_sampler_goes_on_in_the_epoch_that_it_was_told() -> None:
    loader = dealt()
    loader.set_epoch(4)
    epoch = [batch for batch in loader]
    batches = iter(loader)
    assert [next(batches), next(batches)] == epoch[:2]
    state = loader.state_dict()
    told, untold, otherwise = dealt(), dealt(), dealt()
    for resumed in (told, untold, otherwise):
        resumed.load_state_dict(state)
    told.set_epoch(4)
    otherwise.set_epoch(5)
    assert list(told) == list(untold) == epoch[2:]
    loader.set_epoch(5)
    assert list(otherwise) == list(loader)


def test_one_rank_s_state_does_for_all_whose_sampler_deals_one_order() -> None:
    first, other = (dealt(rank) for rank in (0, 1))
    next(iter(first))
    whole = list(other)
    before = torch.get_rng_state()
    other.load_state_dict(first.state_dict())
    assert torch.equal(torch.get_rng_state(), before), "the other rank's generator is not this one's"
    assert list(other) == whole[1:]


def test_another_number_of_ranks_is_refused_with_the_numbers() -> None:
    loader = dealt(0, 2)
    next(iter(loader))
    with pytest.raises(ValueError, match=r"samples: saved 7, now 5"):
        dealt(0, 3).load_state_dict(loader.state_dict())


def test_one_rank_s_random_order_is_refused_on_another() -> None:
    loader = al.DataLoader(NUMBERS, 2, shuffle=True, rank=0, world_size=2)
    next(iter(loader))
    with pytest.raises(ValueError, match=r"rank: saved 0, now 1"):
        al.DataLoader(NUMBERS, 2, shuffle=True, rank=1, world_size=2).load_state_dict(loader.state_dict())


# --- map style: samplers of the user's ---


class Countdown:
    """A sampler that knows where it is; its order is in no generator of torch's."""

    def __init__(self, seed: int) -> None:
        self.order = random.Random(seed).sample(NUMBERS, COUNT)
        self.done = 0

    def __iter__(self) -> Iterator[int]:
        while self.done < COUNT:
            self.done += 1
            yield self.order[self.done - 1]
        self.done = 0
        random.Random(self.order[0]).shuffle(self.order)

    def __len__(self) -> int:
        return COUNT

    def state_dict(self) -> dict[str, Any]:
        return {"order": self.order, "done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order, self.done = state["order"], state["done"]


class OwnIterator:
    """A sampler whose iterator knows where it is."""

    def __iter__(self) -> Any:
        return Position()

    def __len__(self) -> int:
        return COUNT


class Position:
    def __init__(self) -> None:
        self.at, self.draws = 0, 0

    def __iter__(self) -> Position:
        return self

    def __next__(self) -> int:
        if self.at == COUNT:
            raise StopIteration
        self.at += 1
        self.draws += 1
        return COUNT - self.at

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("sampler", [Countdown, OwnIterator])
@pytest.mark.parametrize("batched", [True, False])
@over_workers
def test_a_stateful_sampler_is_asked_after_each_batch_drawn(
    sampler: Any, batched: bool, workers: int, step: int
) -> None:
    def made(seed: int) -> Any:
        given = sampler(seed) if sampler is Countdown else sampler()
        size = BATCH if batched else None
        return al.DataLoader(NUMBERS, size, sampler=given, num_workers=workers, collate_fn=listed)

    batches, states = run_saving(made(1), 2)
    for done, state in states[1 :: step if workers else 1]:
        assert tail(made(2), state, len(batches) - done) == batches[done:]


class NamedBatches:
    """A batch sampler that knows where it is."""

    def __init__(self) -> None:
        self.done = 0

    def __iter__(self) -> Iterator[list[int]]:
        done, self.done = self.done, 0
        for first in range(done, COUNT, 3):
            self.done = first + 3
            yield NUMBERS[first : first + 3]
        self.done = 0

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = state["done"]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_batch_sampler_is_resumed(workers: int) -> None:
    def made() -> Any:
        return al.DataLoader(NUMBERS, batch_sampler=NamedBatches(), num_workers=workers, collate_fn=listed)

    batches, states = run_saving(made(), 2)
    for done, state in states[:: 1 if not workers else 4]:
        assert tail(made(), state, len(batches) - done) == batches[done:]


# --- the life of a state ---


def test_a_state_just_loaded_is_the_state() -> None:
    loader = make("shuffled", 0)
    next(iter(loader))
    state = loader.state_dict()
    resumed = make("shuffled", 0)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    resumed.state_dict()["generators"].clear()
    batches = iter(resumed)
    assert resumed.state_dict()["batches"] == 1, "nothing was delivered yet"
    next(batches)
    assert resumed.state_dict()["batches"] == 2


def test_a_state_is_not_changed_by_what_comes_later() -> None:
    loader = al.DataLoader(NUMBERS, 2, sampler=Countdown(1))
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    kept = copy.deepcopy(state)
    list(batches)
    assert state == kept


def test_inside_the_loop_after_the_last_batch_there_is_nothing_left_of_the_epoch() -> None:
    torch.manual_seed(5)
    loader = make("shuffled", 0)
    for _ in loader:
        state = loader.state_dict()
    resumed = make("shuffled", 0)
    resumed.load_state_dict(state)
    assert list(resumed) == []
    after = torch.get_rng_state()
    following = list(resumed)
    torch.set_rng_state(after)
    assert following == list(loader) != []


def test_who_asked_for_the_length_first_is_told_the_next_epoch_after_the_last_batch() -> None:
    loader = make("shuffled", 0)
    batches = iter(loader)
    for _ in range(len(loader)):
        next(batches)
    resumed = make("shuffled", 0)
    resumed.load_state_dict(loader.state_dict())
    state = torch.get_rng_state()
    after = list(resumed)
    torch.set_rng_state(state)
    assert after == list(loader) != []


def test_a_loop_that_was_left_goes_on_where_it_was_with_its_own_state() -> None:
    loader = make("shuffled", 0)
    first = []
    for batch in loader:
        first += batch
        if len(first) == 2 * BATCH:
            break
    loader.load_state_dict(loader.state_dict())
    assert sorted(first + [index for batch in loader for index in batch]) == NUMBERS


class FailsOnce:
    def __init__(self) -> None:
        self.failed = False

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        if index == 9 and not self.failed:
            self.failed = True
            raise LookupError(index)
        return index


@pytest.mark.parametrize("workers", [0, 2])
def test_after_an_error_the_state_is_that_of_the_last_batch_delivered(workers: int) -> None:
    loader = al.DataLoader(FailsOnce(), BATCH, num_workers=workers, collate_fn=listed)
    batches = iter(loader)
    assert [next(batches), next(batches)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(LookupError):
        next(batches)
    state = loader.state_dict()
    assert state["batches"] == 2
    assert next(batches) == [12, 13]
    assert loader.state_dict()["batches"] == 4, "whoever goes on after an error is past it"
    resumed = al.DataLoader(NUMBERS, BATCH, collate_fn=listed)
    resumed.load_state_dict(state)
    assert list(resumed) == [[8, 9, 10, 11], [12, 13]]


@pytest.mark.parametrize("way", [pickle.dumps, copy.copy, copy.deepcopy], ids=["pickle", "copy", "deepcopy"])
def test_a_copy_goes_on_from_what_was_loaded(way: Any) -> None:
    loader = make("in order", 0)
    batches = iter(loader)
    next(batches)
    resumed = make("in order", 0)
    resumed.load_state_dict(loader.state_dict())
    other = pickle.loads(way(resumed)) if way is pickle.dumps else way(resumed)
    assert list(other) == list(resumed) == list(batches)


def test_whoever_seeds_after_loading_has_the_last_word() -> None:
    torch.manual_seed(5)
    loader = make("shuffled", 0)
    batches = iter(loader)
    next(batches)
    state, rest = loader.state_dict(), list(batches)
    resumed = make("shuffled", 0)
    resumed.load_state_dict(state)
    torch.manual_seed(77)
    assert list(resumed) == rest
    seeded = list(resumed)
    torch.manual_seed(77)
    assert seeded == list(make("shuffled", 0))


def test_a_state_goes_through_torch_save() -> None:
    loader = make("shuffled", 0)
    batches = iter(loader)
    next(batches)
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    file.seek(0)
    resumed = make("shuffled", 0)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert list(resumed) == list(batches)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"kind": "stream"}, "was it saved by a stream's loader"),
        ({"version": 1}, "expected a state of version 2, but got version 1"),
        ({"workers": None}, "lacks or garbles an entry"),
        ({"batches": -1}, "lacks or garbles an entry"),
        ({"batches": "five"}, "lacks or garbles an entry"),
        ({"turn": 1}, "lacks or garbles an entry"),
        ({"early": {"a": 1}}, "lacks or garbles an entry"),
        ({"loader": "x"}, "lacks or garbles an entry"),
        ({"sampler": {"state": 5, "ended": False}}, "lacks or garbles an entry"),
        ({"generators": {"start": {"default": "?"}, "now": {}}}, "generator's state in it cannot be read"),
        ({"generators": {"start": {"default": "AAAA"}, "now": {}}}, "generator's state in it cannot be read"),
    ],
)
def test_what_is_no_state_is_refused_and_changes_nothing(change: dict[str, Any], told: str) -> None:
    loader = make("shuffled", 0)
    batches = iter(loader)
    next(batches)
    state = {**loader.state_dict(), **change}
    with pytest.raises(ValueError, match=told):
        loader.load_state_dict(state)
    assert loader.state_dict()["batches"] == 1


@pytest.mark.parametrize("name", ["loader", "rank", "world_size", "workers"])
def test_a_state_that_lacks_an_entry_is_refused(name: str) -> None:
    loader = make("shuffled", 0)
    state = loader.state_dict()
    del state[name]
    with pytest.raises(ValueError, match=f"lacks or garbles an entry .*{name}"):
        loader.load_state_dict(state)


def test_another_loader_s_state_is_refused_with_each_difference() -> None:
    loader = al.DataLoader(NUMBERS, 2, shuffle=True)
    next(iter(loader))
    other = al.DataLoader(NUMBERS[1:], 3)
    with pytest.raises(ValueError) as refused:
        other.load_state_dict(loader.state_dict())
    for difference in (
        "batch_size: saved 2, now 3",
        "sampler: saved 'RandomSampler', now 'SequentialSampler'",
        f"samples: saved {COUNT}, now {COUNT - 1}",
    ):
        assert difference in str(refused.value)
    list(loader)
    other.load_state_dict(loader.state_dict())  # between epochs there is nothing to agree on


class SlowOnce:
    """Its first index is late, so that with ``in_order=False`` others come before it."""

    def __init__(self, late: bool) -> None:
        self.late = late

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> int:
        if index == 0 and self.late:
            import time

            time.sleep(0.7)
        return index


def test_batches_in_any_order_are_neither_lost_nor_doubled_by_a_resume() -> None:
    loader = al.DataLoader(SlowOnce(True), 1, num_workers=2, in_order=False, collate_fn=listed)
    batches = iter(loader)
    done = [next(batches) for _ in range(3)]
    assert [0] not in done
    state = loader.state_dict()
    assert (state["batches"], len(state["early"])) == (0, 3)
    resumed = al.DataLoader(SlowOnce(False), 1, num_workers=2, in_order=False, collate_fn=listed)
    resumed.load_state_dict(json.loads(json.dumps(state)))
    more = iter(resumed)
    done += [next(more) for _ in range(4)]
    third = al.DataLoader(SlowOnce(False), 1, collate_fn=listed)
    third.load_state_dict(resumed.state_dict())
    assert sorted([*done, *third]) == [[index] for index in range(24)]


class Waits:
    def __len__(self) -> int:
        return 4

    async def __getitem__(self, index: int) -> int:
        await asyncio.sleep(0.1)
        return index


async def test_a_batch_that_was_made_and_not_taken_is_not_delivered() -> None:
    loader = al.DataLoader(Waits(), 1, collate_fn=listed)
    batches = aiter(loader)
    assert await anext(batches) == [0]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(batches), 0.02)
    await asyncio.sleep(0.5)  # by now it is made
    assert loader.state_dict()["batches"] == 1
    assert await anext(batches) == [1]
    assert loader.state_dict()["batches"] == 2
    await batches.aclose()  # type: ignore[attr-defined]


# --- iterable style ---


def part_of_worker() -> range:
    info = torch.utils.data.get_worker_info()
    worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
    return range(worker, 3 * COUNT, workers)


class Part(IterableDataset[Any]):
    """Yields its worker's part, which a state begins at; how it is told varies by subclass."""

    def numbers(self) -> range:
        return part_of_worker()


class Stateless(Part):
    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers())


class StatefulDataset(Part):
    at = 0
    runs = 0

    def __iter__(self) -> Iterator[int]:
        numbers = self.numbers()
        while self.at < len(numbers):
            self.at += 1
            yield numbers[self.at - 1] + 1000 * self.runs
        self.at = 0
        self.runs += 1

    def state_dict(self) -> dict[str, int]:
        return self.__dict__  # changes with the dataset

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.__dict__.update(state)


class StatefulIterator(Part):
    def __iter__(self) -> Any:
        return NumbersFrom(self.numbers())


class NumbersFrom:
    def __init__(self, numbers: range) -> None:
        self.numbers, self.at = numbers, 0

    def __iter__(self) -> NumbersFrom:
        return self

    def __next__(self) -> int:
        if self.at == len(self.numbers):
            raise StopIteration
        self.at += 1
        return self.numbers[self.at - 1]

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class ItsOwnIterator(Part):
    def __iter__(self) -> ItsOwnIterator:
        self.at = 0
        return self

    def __next__(self) -> int:
        numbers = self.numbers()
        if self.at == len(numbers):
            raise StopIteration
        self.at += 1
        return numbers[self.at - 1]

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class AsyncStateless:
    async def __aiter__(self) -> AsyncIterator[int]:
        for number in part_of_worker():
            await asyncio.sleep(0)
            yield number


class AsyncStateful:
    at = 0

    async def __aiter__(self) -> AsyncIterator[int]:
        numbers = part_of_worker()
        at, self.at = self.at, 0
        for place in range(at, len(numbers)):
            self.at = place + 1
            yield numbers[place]
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Whole(StatefulIterator):
    def numbers(self) -> range:
        return range(3 * COUNT)


class Drawing(Part):
    """Draws from torch's default generator, in this process or in its worker."""

    def __iter__(self) -> Iterator[Any]:
        for number in self.numbers():
            yield number, torch.rand(()).item()


class Uneven(Part):
    def numbers(self) -> range:
        info = torch.utils.data.get_worker_info()
        return range(5 if info is None else [1, 12, 6][info.id])

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        for number in self.numbers():
            yield 0 if info is None else info.id, number


ITERABLES: dict[str, Callable[[], Any]] = {
    "stateless": Stateless,
    "stateful dataset": StatefulDataset,
    "stateful iterator": StatefulIterator,
    "its own iterator": ItsOwnIterator,
    "async": AsyncStateless,
    "async stateful": AsyncStateful,
    "split": lambda: al.split(range(3 * COUNT)),
    "split stateful": lambda: al.split(Whole()),
    "plain iterable": lambda: al.split(dict.fromkeys(range(3 * COUNT)).keys()),
    "drawing": Drawing,
    "uneven": Uneven,
}
TOLD = {"stateful dataset", "stateful iterator", "its own iterator", "async stateful", "split stateful"}
read_again = pytest.mark.filterwarnings("ignore:.*it is read again from its beginning:UserWarning")


def iterate(kind: str, workers: int, **options: Any) -> Any:
    options = {"batch_size": BATCH, "collate_fn": listed, **options}
    return al.DataLoader(ITERABLES[kind](), num_workers=workers, **options)


@read_again
@pytest.mark.parametrize("kind", ITERABLES)
@pytest.mark.parametrize(
    "options", [{}, {"batch_size": None}, {"drop_last": True}, {"snapshot_every_n_steps": 3}]
)
def test_every_position_of_every_iterable_is_resumed(kind: str, options: dict[str, Any]) -> None:
    torch.manual_seed(5)
    batches, states = run_saving(iterate(kind, 0, **options), 2)
    for done, state in states[:: 1 if len(states) < 40 else 7]:
        assert tail(iterate(kind, 0, **options), state, len(batches) - done) == batches[done:]


@read_again
@over_workers
@pytest.mark.parametrize("kind", ITERABLES)
def test_every_iterable_is_resumed_with_workers(kind: str, step: int) -> None:
    options = {"snapshot_every_n_steps": 2} if kind == "stateful iterator" else {}
    torch.manual_seed(5)
    batches, states = run_saving(iterate(kind, 3, **options), 2)
    for done, state in states[2::step]:
        assert tail(iterate(kind, 3, **options), state, len(batches) - done) == batches[done:]


@pytest.mark.parametrize("kind", ["stateful dataset", "stateful iterator"])
def test_iterables_in_persistent_workers_are_resumed(kind: str) -> None:
    options = {"persistent_workers": True, "prefetch_factor": 4}
    batches, states = run_saving(iterate(kind, 2, **options), 2)
    half = len(states) // 2
    for done, state in [states[3], *states[half - 1 : half + 3]]:
        assert tail(iterate(kind, 2, **options), state, len(batches) - done) == batches[done:]


@read_again
def test_iterables_in_any_order_are_neither_lost_nor_doubled() -> None:
    loader = iterate("stateful iterator", 2, in_order=False, batch_size=None)
    batches = iter(loader)
    done = [next(batches) for _ in range(9)]
    resumed = iterate("stateful iterator", 2, in_order=False, batch_size=None)
    resumed.load_state_dict(loader.state_dict())
    assert sorted([*done, *resumed]) == list(range(3 * COUNT))


@pytest.mark.parametrize("kind", ITERABLES)
def test_reading_again_is_told_once_and_only_where_it_happens(kind: str) -> None:
    loader = iterate(kind, 0)
    batches = iter(loader)
    next(batches)
    resumed = iterate(kind, 0)
    if kind in TOLD:
        resumed.load_state_dict(loader.state_dict())
    else:
        with pytest.warns(UserWarning, match=r"has no state_dict and load_state_dict") as warned:
            resumed.load_state_dict(loader.state_dict())
        assert [warning.filename for warning in warned] == [__file__]
    list(resumed)


def test_another_number_of_workers_is_refused_with_the_numbers_until_the_epoch_s_end() -> None:
    loader = iterate("stateful iterator", 2)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    for workers in (0, 1, 3):
        resumed = iterate("stateful iterator", workers)
        with pytest.raises(
            ValueError, match=rf"positions of 2 workers in a StatefulIterator.*num_workers={workers}"
        ):
            resumed.load_state_dict(state)
    changed = iterate("stateful iterator", 2)
    changed.load_state_dict(state)
    changed.num_workers = 3
    with pytest.raises(ValueError, match=r"positions of 2 workers"):
        iter(changed)
    list(batches)
    resumed = iterate("stateful iterator", 0)
    resumed.load_state_dict(loader.state_dict())
    assert sorted(number for batch in resumed for number in batch) == list(range(3 * COUNT))


@read_again
def test_an_iterable_s_state_is_of_one_rank() -> None:
    loader = al.DataLoader(Stateless(), 2, rank=0, world_size=2)
    next(iter(loader))
    with pytest.raises(ValueError, match=r"rank: saved 0, now 1"):
        al.DataLoader(Stateless(), 2, rank=1, world_size=2).load_state_dict(loader.state_dict())


class Unpicklable(Stateless):
    def state_dict(self) -> Any:
        return {"why": lambda: None}

    def load_state_dict(self, state: Any) -> None: ...


@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_that_does_not_pickle_is_an_error_that_says_whose_it_is(workers: int) -> None:
    with pytest.raises(Exception, match=r"(?i)pickle") as refused:
        next(iter(al.DataLoader(Unpicklable(), 2, num_workers=workers)))
    text = str(refused.value) + str(getattr(refused.value, "__notes__", ""))
    assert "state_dict() of Unpicklable" in text


@pytest.mark.filterwarnings("ignore:.*pipe:UserWarning")
def test_data_pipes_begin_anew_and_say_so() -> None:
    from torch.utils.data.datapipes.iter import IterableWrapper

    loader = al.DataLoader(IterableWrapper(range(8)), 2)
    next(iter(loader))
    resumed = al.DataLoader(IterableWrapper(range(8)), 2)
    with pytest.warns(
        UserWarning, match=r"after 1 batches of an epoch, but torch's data pipes have no positions"
    ):
        resumed.load_state_dict(loader.state_dict())
    assert len(list(resumed)) == 4


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, None])
def test_snapshot_every_n_steps_is_a_number_of_batches(wrong: Any) -> None:
    with pytest.raises(ValueError, match="snapshot_every_n_steps should be a positive integer value"):
        al.DataLoader(NUMBERS, snapshot_every_n_steps=wrong)
    fives: list[Any] = [5, np.int64(5)]
    for five in fives:
        assert al.DataLoader(NUMBERS, snapshot_every_n_steps=five).snapshot_every_n_steps == 5


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_spawned_worker_is_told_where_to_go_on(method: str) -> None:
    options = {"multiprocessing_context": method, "num_workers": 1, "collate_fn": lambda samples: samples}
    loader = al.DataLoader(StatefulIterator(), BATCH, **options)
    batches = iter(loader)
    done = [*next(batches), *next(batches)]
    resumed = al.DataLoader(StatefulIterator(), BATCH, **options)
    resumed.load_state_dict(loader.state_dict())
    assert done + [number for batch in resumed for number in batch] == list(range(3 * COUNT))
