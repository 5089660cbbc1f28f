"""A map-style dataset whose order is a sampler of torch's goes on exactly where it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler, RandomSampler

import asyncloader as al

from .pairs import plain
from .resuming import COUNT, EPOCHS, NUMBERS, SAMPLERS, listed, make, over_workers, run_saving, tail

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


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


# --- epochs, ranks ---


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
    with pytest.raises(ValueError, match=r"in epoch 4 after 2 of \d+ batches, but set_epoch"):
        otherwise.set_epoch(5)
    assert list(told) == list(untold) == list(otherwise) == epoch[2:]


@pytest.mark.parametrize("kind", ["default", "generator", "sampler's generator", "DistributedSampler"])
def test_behind_the_last_batch_of_an_epoch_the_next_one_may_be_asked_for(kind: str) -> None:
    # transformers' Trainer saves there, and asks for the next epoch when it goes on.
    def make() -> al.DataLoader[Any]:
        torch.manual_seed(1)
        generator = torch.Generator().manual_seed(2)
        if kind == "default":
            return al.DataLoader(NUMBERS, 2, shuffle=True, collate_fn=listed)
        if kind == "generator":
            return al.DataLoader(NUMBERS, 2, shuffle=True, generator=generator, collate_fn=listed)
        if kind == "DistributedSampler":
            return dealt()
        sampler = RandomSampler(NUMBERS, generator=generator)
        return al.DataLoader(NUMBERS, 2, sampler=sampler, collate_fn=listed)

    loader = make()
    loader.set_epoch(0)
    for _ in loader:
        state = loader.state_dict()
    loader.set_epoch(1)
    following = list(loader)
    stays, goes_on = make(), make()
    for resumed, epoch in ((stays, 0), (goes_on, 1)):
        resumed.load_state_dict(state)
        with pytest.raises(ValueError, match=r"but set_epoch\(3\) would begin epoch 3"):
            resumed.set_epoch(3)
        resumed.set_epoch(epoch)
        if epoch == 0:
            assert list(resumed) == []
            resumed.load_state_dict(state)
    assert list(goes_on) == following


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
