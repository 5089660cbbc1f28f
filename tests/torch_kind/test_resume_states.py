"""The life of a state of the torch kind: what it says at which moment, and which are refused."""

from __future__ import annotations

import asyncio
import copy
import io
import json
import pickle
from collections.abc import AsyncIterator
from typing import Any

import pytest
import torch
from stateful_numbers import CountsItems, IteratesItself, KnowsWhere
from torch.utils.data import IterableDataset

import asyncloader as al

from .resuming import BATCH, COUNT, EPOCHS, NUMBERS, listed, make, run_saving, tail

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


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


# --- map-style datasets with a state of their own ---


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_size": None, "snapshot_every_n_steps": 3},
        {"num_workers": 2},
        {"num_workers": 2, "persistent_workers": True, "snapshot_every_n_steps": 3},
    ],
    ids=str,
)
def test_a_map_style_dataset_is_told_its_own_state(options: dict[str, Any]) -> None:
    def load() -> Any:
        return al.DataLoader(CountsItems(COUNT), **{"batch_size": BATCH, "collate_fn": listed, **options})

    batches, states = run_saving(load(), 2)
    step = 5 if "num_workers" in options else 1
    for done, state in states[::step]:
        assert tail(load(), state, len(batches) - done) == batches[done:]


def test_another_number_of_workers_is_refused_for_states_of_copies_until_the_epoch_s_end() -> None:
    loader = al.DataLoader(CountsItems(COUNT), 2, collate_fn=listed)
    batches = iter(loader)
    next(batches)
    other = al.DataLoader(CountsItems(COUNT), 2, num_workers=2, collate_fn=listed)
    with pytest.raises(ValueError, match=r"what state_dict\(\) of CountsItems returned in 1 worker, but"):
        other.load_state_dict(loader.state_dict())
    list(batches)
    other.load_state_dict(loader.state_dict())
    assert next(iter(other)) == [(0, COUNT), (1, COUNT + 1)], "copies of one that was told"


async def test_a_map_style_dataset_that_async_for_reads_ahead_is_told_where_the_consumer_is() -> None:
    loader = al.DataLoader(CountsItems(COUNT), 2, collate_fn=listed)
    batches = aiter(loader)
    assert await anext(batches) == [(0, 0), (1, 1)]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(batches), 0)
    state = loader.state_dict()
    await batches.aclose()  # type: ignore[attr-defined]
    resumed = al.DataLoader(CountsItems(COUNT), 2, collate_fn=listed)
    resumed.load_state_dict(state)
    assert next(iter(resumed)) == [(2, 2), (3, 3)]


# --- datasets whose state holds torch's default generator ---


class HoldsGenerator(KnowsWhere):
    """Its items are drawn, and its state says where the generator was."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "default": torch.get_rng_state().tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        torch.set_rng_state(torch.tensor(state["default"], dtype=torch.uint8))


class DrawnItems(HoldsGenerator, CountsItems):
    def __getitem__(self, index: int) -> Any:
        return *super().__getitem__(index), torch.rand(()).item()


class DrawnNumbers(HoldsGenerator):
    """Draws with each item, and when it is opened."""

    def __iter__(self) -> DrawnNumbers:
        self.at, self.opened = 0, torch.rand(()).item()
        return self

    def __next__(self) -> Any:
        if self.at == COUNT:
            raise StopIteration
        self.at += 1
        return self.at, torch.rand(()).item()


class DrawnByItself(DrawnNumbers, IterableDataset[Any]): ...


class DrawnByIterator(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(DrawnNumbers())


class DrawnAtFirst(HoldsGenerator):
    async def __aiter__(self) -> AsyncIterator[Any]:
        drawn = torch.rand(()).item()
        for number in self.rest_of(range(COUNT)):
            yield number, drawn


DRAWING: dict[str, tuple[Any, dict[str, Any]]] = {
    "map style": (lambda: DrawnItems(COUNT), {"shuffle": True}),
    "single items": (lambda: DrawnItems(COUNT), {"batch_size": None, "shuffle": True}),
    "its own iterator": (DrawnByItself, {}),
    "stateful iterator": (DrawnByIterator, {}),
    "a state of every third batch": (DrawnByIterator, {"batch_size": 2, "snapshot_every_n_steps": 3}),
    "async": (DrawnAtFirst, {}),
}


def draw(kind: str, **more: Any) -> Any:
    dataset, options = DRAWING[kind]
    # No batch is cut short, so that the end of an epoch is found by asking for more.
    return al.DataLoader(dataset(), **{"batch_size": COUNT // 2, "collate_fn": listed, **options, **more})


@pytest.mark.parametrize("kind", DRAWING)
def test_every_epoch_is_drawn_as_if_the_dataset_had_not_set_the_default_generator(kind: str) -> None:
    torch.manual_seed(5)
    batches, states = run_saving(draw(kind))
    # Those saved before the first epoch and after each.
    for done, state in states[:: len(states) // EPOCHS]:
        assert tail(draw(kind), state, len(batches) - done) == batches[done:]


@pytest.mark.parametrize("kind", ["map style", "its own iterator"])
def test_what_a_dataset_sets_stands_where_the_loader_does_not_draw_from_it(kind: str) -> None:
    torch.manual_seed(5)
    batches, states = run_saving(draw(kind, generator=torch.Generator().manual_seed(7)))
    for done, state in states:
        resumed = draw(kind, generator=torch.Generator().manual_seed(7))
        assert tail(resumed, state, len(batches) - done) == batches[done:]


# --- at which moment a dataset is asked ---


@pytest.mark.parametrize("kind", [CountsItems, IteratesItself])
def test_a_state_that_is_saved_while_a_batch_is_made_is_that_of_the_batch_before(kind: Any) -> None:
    states: list[Any] = []

    class Interrupted(kind):  # type: ignore[misc]
        def save(self) -> None:
            if self.at in (1, 6):  # within the first batch, and within the third
                states.append(loader.state_dict())

        def __getitem__(self, index: int) -> Any:
            self.save()
            return super().__getitem__(index)

        def __next__(self) -> Any:
            self.save()
            return super().__next__()

    loader = al.DataLoader(Interrupted(COUNT), BATCH, collate_fn=listed)
    batches = list(loader)
    for done, state in zip((0, 1), states, strict=True):
        resumed = al.DataLoader(kind(COUNT), BATCH, collate_fn=listed)
        if "dataset" in state["loader"]:  # of an iterable one
            state["loader"]["dataset"] = kind.__name__
        resumed.load_state_dict(state)
        assert list(resumed) == batches[done:]


@pytest.mark.parametrize("moment", ["between two batches", "between two epochs"])
def test_what_the_program_does_to_a_dataset_in_this_process_is_in_the_state(moment: str) -> None:
    dataset = CountsItems(COUNT)
    loader = al.DataLoader(dataset, BATCH, collate_fn=listed)
    batches = iter(loader)
    next(batches)
    if moment == "between two epochs":
        list(batches)
    dataset.at = 1000
    resumed = al.DataLoader(CountsItems(COUNT), BATCH, collate_fn=listed)
    resumed.load_state_dict(loader.state_dict())
    assert next(iter(resumed))[0][1] == 1000
