"""A program that was written for torchdata's StatefulDataLoader runs with ours and gets the same batches."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from stateful_numbers import CountsItems, IteratesItself, StatefulNumbers
from torch.utils.data import RandomSampler

import asyncloader as al

stateful: Any = pytest.importorskip(
    "torchdata.stateful_dataloader", reason="torchdata is in the dependency group 'interop'"
)

# It calls what torch deprecates.
pytestmark = [
    pytest.mark.usefixtures("fork_server"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]

COUNT = 30

KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "in order": lambda: {"dataset": range(COUNT), "batch_size": 4},
    "shuffled": lambda: {"dataset": range(COUNT), "batch_size": 4, "shuffle": True},
    "sampler": lambda: {
        "dataset": range(COUNT),
        "batch_size": 4,
        "sampler": RandomSampler(range(COUNT), generator=torch.Generator().manual_seed(3)),
    },
    "iterable": lambda: {"dataset": StatefulNumbers(COUNT), "batch_size": 4},
    "now and then": lambda: {"dataset": StatefulNumbers(COUNT), "batch_size": 3, "snapshot_every_n_steps": 2},
}


def test_all_of_its_arguments_are_taken_with_its_defaults() -> None:
    theirs = inspect.signature(stateful.StatefulDataLoader).parameters
    ours = inspect.signature(al.DataLoader).parameters
    assert {name: ours[name].default for name in theirs} == {
        name: parameter.default for name, parameter in theirs.items()
    }


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_saved_in_the_middle_it_goes_on_with_the_same_batches(kind: str, workers: int) -> None:
    def whole(loaders: Any) -> list[list[int]]:
        torch.manual_seed(5)
        return [batch.tolist() for batch in loaders(**KINDS[kind](), num_workers=workers)]

    def train(loaders: Any) -> list[list[int]]:
        torch.manual_seed(5)
        loader, seen = loaders(**KINDS[kind](), num_workers=workers), []
        for step, batch in enumerate(loader, 1):
            seen.append(batch.tolist())
            if step == 3:
                break
        state = loader.state_dict()
        resumed = loaders(**KINDS[kind](), num_workers=workers)
        resumed.load_state_dict(state)
        seen += [batch.tolist() for batch in resumed]
        assert sorted(number for batch in resumed for number in batch.tolist()) == list(range(COUNT))
        return seen

    assert train(al.DataLoader) == whole(al.DataLoader)
    theirs = train(stateful.StatefulDataLoader)
    if kind != "shuffled":  # whose seed it draws at another moment than torch's loader, and than ours
        assert train(al.DataLoader) == theirs


STATEFUL: dict[str, Callable[[], Any]] = {
    "map style": lambda: CountsItems(COUNT),
    "its own iterator": lambda: IteratesItself(COUNT),
}


@pytest.mark.filterwarnings("ignore:IteratesItself is read by several workers:UserWarning")
@pytest.mark.parametrize("moment", ["made", "opened", "begun", "in the middle", "at the last batch"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", STATEFUL)
def test_a_dataset_is_told_its_own_state_of_any_moment(kind: str, workers: int, moment: str) -> None:
    def passes(loaders: Any) -> list[Any]:
        dataset = STATEFUL[kind]()
        options = {"batch_size": 4, "num_workers": workers, "collate_fn": lambda samples: samples}
        loader = loaders(dataset, **options)
        if moment == "made":
            state = loader.state_dict()
        batches = iter(loader)
        last = 8 if kind == "map style" else 8 * max(workers, 1)
        done = {"made": 0, "opened": 0, "begun": 1, "in the middle": 3, "at the last batch": last}[moment]
        first = [next(batches) for _ in range(done)]
        if moment != "made":
            state = loader.state_dict()
        rest = list(batches)
        found = [first, rest]
        for again in (dataset, STATEFUL[kind]()):  # one that went on, and one as in a new process
            resumed = loaders(again, **options)
            resumed.load_state_dict(state)
            found.append(list(resumed))
            assert found[-1] == rest
        return found

    assert passes(al.DataLoader) == passes(stateful.StatefulDataLoader)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", ["in order", "iterable", "stream"])
def test_a_state_of_its_own_is_refused_by_name(kind: str, workers: int) -> None:
    source = KINDS["in order" if kind == "stream" else kind]
    theirs = stateful.StatefulDataLoader(**source(), num_workers=workers)
    batches = iter(theirs)
    next(batches)
    ours = al.DataLoader(al.from_iterable(range(COUNT)), 4) if kind == "stream" else al.DataLoader(**source())
    with pytest.raises(ValueError, match=r"one of torchdata's StatefulDataLoader.* start the epoch again"):
        ours.load_state_dict(theirs.state_dict())


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", ["in order", "iterable", "stream"])
def test_an_empty_state_has_the_loader_begin_anew(kind: str, workers: int) -> None:
    def make() -> al.DataLoader[Any]:
        if kind == "stream":
            return al.DataLoader(al.from_iterable(range(COUNT)).shuffle(8), 4, num_workers=workers)
        return al.DataLoader(**KINDS[kind](), num_workers=workers)

    whole = [batch.tolist() for batch in make()]
    loader = make()
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    loader.load_state_dict({})  # while a pass is open
    if kind != "iterable" or workers:  # that is its own iterator, and in this process stays where it is
        assert [batch.tolist() for batch in loader] == whole
    loader = make()
    loader.load_state_dict(state)
    loader.load_state_dict({})
    assert [batch.tolist() for batch in loader] == whole
