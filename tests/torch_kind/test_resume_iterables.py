"""Iterable datasets go on exactly where they were, by their own states or read again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import torch
from stateful_numbers import part_of_worker

import asyncloader as al

from .iterables import ITERABLES, TOLD, StatefulIterator, Stateless
from .resuming import BATCH, COUNT, NUMBERS, listed, over_workers, run_saving, tail

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

read_again = pytest.mark.filterwarnings("ignore:.*it is read again from its beginning:UserWarning")


def iterate(kind: str, workers: int, **options: Any) -> Any:
    options = {"batch_size": BATCH, "collate_fn": listed, **options}
    return al.DataLoader(ITERABLES[kind](), num_workers=workers, **options)


@read_again
@pytest.mark.parametrize("kind", ITERABLES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_size": None},
        {"drop_last": True},
        {"snapshot_every_n_steps": 3},
        {"snapshot_every_n_steps": 0},
    ],
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


class Takes:
    """Wants arguments for its state, as mosaicml's and LitData's datasets do."""

    def state_dict(self, num_samples: int, from_beginning: bool) -> Any:
        return {"samples": num_samples}

    def load_state_dict(self, state: Any) -> None: ...


class Fails:
    def state_dict(self) -> Any:
        raise LookupError("no position")

    def load_state_dict(self, state: Any) -> None: ...


class DoesNotPickle:
    def state_dict(self) -> Any:
        return {"why": (number for number in ())}

    def load_state_dict(self, state: Any) -> None: ...


class StreamTakes(Takes, Stateless): ...


class StreamFails(Fails, Stateless): ...


class StreamDoesNotPickle(DoesNotPickle, Stateless): ...


class MapTakes(Takes, list[int]): ...


class MapDoesNotPickle(DoesNotPickle, list[int]): ...


class AsyncFails(Fails):
    async def __aiter__(self) -> AsyncIterator[int]:
        for number in part_of_worker(3 * COUNT):
            yield number


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("make", "kind", "note"),
    [
        (
            StreamTakes,
            TypeError,
            "raised by state_dict() of StreamTakes, which the loader calls without arguments",
        ),
        (StreamFails, LookupError, "raised by state_dict() of StreamFails"),
        (StreamDoesNotPickle, TypeError, "while pickling what state_dict() of StreamDoesNotPickle"),
        (AsyncFails, LookupError, "raised by state_dict() of AsyncFails"),
        (lambda: MapTakes(NUMBERS), TypeError, "raised by state_dict() of MapTakes"),
        (
            lambda: MapDoesNotPickle(NUMBERS),
            TypeError,
            "while pickling what state_dict() of MapDoesNotPickle",
        ),
    ],
)
def test_a_dataset_that_cannot_say_where_it_is_fails_only_who_asks(
    make: Any, kind: type[Exception], note: str, workers: int
) -> None:
    plain = NUMBERS if isinstance(make(), list) else list(range(3 * COUNT))
    loader = al.DataLoader(make(), 2, num_workers=workers, collate_fn=listed)
    loader.state_dict()  # one that is not iterated yet has no position
    for _ in range(2):
        seen = []
        for batch in loader:
            seen += batch
            if len(seen) == 6:
                with pytest.raises(kind) as refused:
                    loader.state_dict()
                assert any(note in line for line in refused.value.__notes__)
        assert sorted(seen) == plain


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


@pytest.mark.parametrize("wrong", [-1, True, 1.5, None])
def test_snapshot_every_n_steps_is_a_number_of_batches(wrong: Any) -> None:
    with pytest.raises(ValueError, match="snapshot_every_n_steps should be 0 or a positive integer value"):
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
