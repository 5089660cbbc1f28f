"""torch's loader and ours over the same inputs from the same random state, for generated arguments."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import asyncloader as al

from .pairs import STOPPED, run_epochs, seed_all, tell_apart

# --- datasets ---


class Fields:
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "id": index,
            "half": index / 2,
            "name": f"n{index}",
            "pair": (torch.full((2,), float(index)), np.array([index], dtype=np.int16)),
        }


class Together(Fields):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [("together", int(index), len(indices)) for index in indices]


class Noise(Fields):
    """Draws from all three generators, which workers seed."""

    def __getitem__(self, index: int) -> Any:
        return index, torch.rand(()), random.random(), np.random.rand(2)


class Failing(Fields):
    def __getitem__(self, index: int) -> Any:
        if index % 5 == 3:
            raise KeyError(index)
        if index % 7 == 6:
            raise StopIteration
        return index


class Sizeless:
    def __getitem__(self, index: int) -> int:
        if index >= 6:
            raise IndexError(f"no index {index}")
        return index


class Numbers(IterableDataset[Any]):
    def __init__(self, size: int, split: bool) -> None:
        self.size, self.split = size, split

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info() if self.split else None
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(start, self.size, step):
            yield number, torch.rand(()), f"s{number}"


class Counted(Numbers):
    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"<repr of {self.size}>"

    def __str__(self) -> str:
        return f"<str of {self.size}>"


class Underreported(Counted):
    def __len__(self) -> int:
        return self.size // 3


MAPS: dict[str, Callable[[int], Any]] = {
    "list": lambda size: list(range(size)),
    "range": range,
    "text": lambda size: "abcdefghijklmnopqrstuvwxyz"[:size],
    "tensor": lambda size: torch.arange(size * 2).reshape(size, 2),
    "TensorDataset": lambda size: TensorDataset(torch.arange(size) / 4, torch.arange(size) % 3),
    "fields": Fields,
    "together": Together,
    "noise": Noise,
    "failing": Failing,
    "sizeless": lambda size: Sizeless(),
    "None": lambda size: None,
}
ITERABLES: dict[str, Callable[[int], Any]] = {
    "iterable": lambda size: Numbers(size, split=False),
    "split": lambda size: Numbers(size, split=True),
    "counted": lambda size: Counted(size, split=True),
    "unsplit counted": lambda size: Counted(size, split=False),
    "underreported": lambda size: Underreported(size, split=True),
}

# --- samplers ---


class Lengthless:
    """A sampler without a length, iterated anew in each epoch."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.size - 1, -1, -2))


def distributed(dataset: Any, shuffle: bool, drop_last: bool) -> Any:
    return DistributedSampler(dataset, num_replicas=3, rank=1, shuffle=shuffle, seed=11, drop_last=drop_last)


SAMPLERS: dict[str, Callable[[Any, int, Any], Any]] = {
    "none": lambda dataset, size, generator: None,
    "sequential": lambda dataset, size, generator: SequentialSampler(dataset),
    "random": lambda dataset, size, generator: RandomSampler(dataset, generator=generator),
    "replacement": lambda dataset, size, generator: RandomSampler(dataset, replacement=True),
    "many": lambda dataset, size, generator: RandomSampler(
        dataset, num_samples=2 * size + 1, generator=generator
    ),
    "few": lambda dataset, size, generator: RandomSampler(
        dataset, replacement=True, num_samples=5, generator=generator
    ),
    "subset": lambda dataset, size, generator: SubsetRandomSampler(range(0, size, 2), generator),
    "weighted": lambda dataset, size, generator: WeightedRandomSampler(
        [1.0 + index % 4 for index in range(size)], 9, generator=generator
    ),
    "distributed": lambda dataset, size, generator: distributed(dataset, False, False),
    "distributed shuffled": lambda dataset, size, generator: distributed(dataset, True, False),
    "distributed cut": lambda dataset, size, generator: distributed(dataset, True, True),
    "list": lambda dataset, size, generator: list(range(size))[::-2],
    "tensor": lambda dataset, size, generator: torch.randperm(size),
    "array": lambda dataset, size, generator: np.arange(size)[::-1],
    "generator": lambda dataset, size, generator: (index for index in range(size)),
    "lengthless": lambda dataset, size, generator: Lengthless(size),
    "empty": lambda dataset, size, generator: [],
}
BATCH_SAMPLERS: dict[str, Callable[[int], Any]] = {
    "none": lambda size: None,
    "BatchSampler": lambda size: BatchSampler(RandomSampler(range(size)), 3, False),
    "lists": lambda size: [list(range(size))[at : at + 4] for at in range(0, size, 4)],
    "tuples": lambda size: [(index, index) for index in range(size)],
    "by length": lambda size: [list(range(step)) for step in range(1, min(size, 5))],
    "with an empty batch": lambda size: [[0], [], [0]],
}


def as_they_are(samples: Any) -> Any:
    return samples


def counted(samples: Any) -> Any:
    return len(samples), samples


COLLATES = {"default": None, "as they are": as_they_are, "counted": counted}

# --- one case ---


@dataclass(frozen=True)
class Case:
    """Arguments by name; everything is made anew for each loader."""

    dataset: str
    size: int
    sampler: str
    batch_sampler: str
    collate: str
    seed: int
    generator: int | None
    given: tuple[tuple[str, Any], ...]

    def make(self, loader_class: Any) -> tuple[Callable[[], Any], Any]:
        """A function that constructs the loader, and the generator that it will draw from."""
        generator = None if self.generator is None else torch.Generator().manual_seed(self.generator)
        dataset = (MAPS | ITERABLES)[self.dataset](self.size)
        kwargs = dict(self.given)
        kwargs["generator"] = generator
        kwargs["collate_fn"] = COLLATES[self.collate]

        def make() -> Any:
            sampler = SAMPLERS[self.sampler](dataset, self.size, generator)
            batch_sampler = BATCH_SAMPLERS[self.batch_sampler](self.size)
            if sampler is not None:
                kwargs["sampler"] = sampler
            if batch_sampler is not None:
                kwargs["batch_sampler"] = batch_sampler
            return loader_class(dataset, **kwargs)

        return make, generator

    def run(self, loader_class: Any, with_async: bool = False) -> dict[str, Any]:
        make, generator = self.make(loader_class)
        seed_all(self.seed)
        did = run_epochs(make, 2, set_epoch, with_async)
        did["generator"] = None if generator is None else generator.get_state().tolist()
        return did


def set_epoch(loader: Any, epoch: int) -> None:
    if hasattr(loader.sampler, "set_epoch"):
        loader.sampler.set_epoch(epoch)


# Mostly what is right, and now and then what is not: the message must be torch's, and come first.
_BATCH_SIZES = st.sampled_from([None, *range(1, 8), *range(1, 8), *range(2, 8), 0, True, 2.0])
_MAYBE_WRONG = st.sampled_from(
    [
        *[()] * 20,
        (("num_workers", -1),),
        (("timeout", -0.5),),
        (("timeout", 3),),
        (("prefetch_factor", 2),),
        (("persistent_workers", True),),
        (("multiprocessing_context", "fork"),),
        (("drop_last", 1),),
        (("pin_memory", True),),
        (("pin_memory", True), ("pin_memory_device", "cuda")),
        (("shuffle", "x"),),
        (("in_order", False),),
    ]
)


@st.composite
def cases(draw: Any, datasets: Any, wrong: Any = _MAYBE_WRONG) -> Case:
    dataset = draw(st.sampled_from(datasets))
    plainly = draw(st.integers(0, 9)) < (9 if dataset in ITERABLES else 5)
    sampler = "none" if plainly else draw(st.sampled_from(list(SAMPLERS)))
    batch_sampler = "none"
    if draw(st.integers(0, 9)) == 0:
        batch_sampler = draw(st.sampled_from(list(BATCH_SAMPLERS)))
    given: dict[str, Any] = {}
    if batch_sampler == "none" or draw(st.integers(0, 4)) == 0:
        given["batch_size"] = draw(_BATCH_SIZES)
        if draw(st.booleans()):
            given["drop_last"] = draw(st.booleans())
    if sampler == "none" and draw(st.booleans()):
        given["shuffle"] = draw(st.sampled_from([True, True, False, None]))
    if dataset in ITERABLES and draw(st.integers(0, 4)):
        given.pop("shuffle", None)
    given.update(draw(wrong))
    return Case(
        dataset=dataset,
        size=draw(st.integers(0, 23)),
        sampler=sampler,
        batch_sampler=batch_sampler,
        collate=draw(st.sampled_from(["default", "default", "as they are", "counted"])),
        seed=draw(st.integers(0, 1000)),
        generator=draw(st.one_of(st.none(), st.integers(0, 1000))),
        given=tuple(given.items()),
    )


SLOW = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("count", [150, pytest.param(4000, marks=SLOW)])
def test_without_workers_everything_is_as_in_torch(
    count: int, record_property: Callable[[str, object], None], capsys: pytest.CaptureFixture[str]
) -> None:
    seen: set[Case] = set()
    loaded: set[Case] = set()

    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))
    @given(cases(list(MAPS) + list(ITERABLES) * 2))
    def compare(case: Case) -> None:
        seen.add(case)
        theirs = case.run(torch.utils.data.DataLoader)
        ours = case.run(al.DataLoader)
        is_cut = any(STOPPED in text for text in tell_apart(ours))
        assert is_cut <= (case.dataset == "failing") and ours == theirs
        in_async = case.run(al.DataLoader, with_async=True)
        if is_cut:  # which is no quiet end of an ``async for``
            assert "RuntimeError" in str(in_async)
        else:
            assert in_async == theirs
        if theirs.get("epoch 0", [("iter",)])[:1] not in ([], [("iter",)]):
            loaded.add(case)

    compare()
    show(record_property, capsys, "without workers", seen, loaded)
    assert len(seen) >= count * 2 // 3
    assert len(loaded) >= count // 4


_WITH_WORKERS = st.fixed_dictionaries(
    {
        "num_workers": st.sampled_from([1, 2, 2]),
        "persistent_workers": st.booleans(),
        "prefetch_factor": st.sampled_from([None, 1, 3]),
        "in_order": st.sampled_from([True, True, True, False]),
        "multiprocessing_context": st.sampled_from([None, "fork"]),
        "timeout": st.sampled_from([0, 20]),
    }
).map(lambda chosen: tuple(chosen.items()))


# torch's own iterator, when it was refused: its __del__ misses what its constructor had not come to.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("count", [10, pytest.param(400, marks=SLOW)])
def test_with_workers_everything_is_as_in_torch(
    count: int, record_property: Callable[[str, object], None], capsys: pytest.CaptureFixture[str]
) -> None:
    seen: set[Case] = set()
    loaded: set[Case] = set()

    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))
    @given(cases(list(MAPS) + list(ITERABLES) * 2, _WITH_WORKERS), st.booleans())
    def compare(case: Case, with_async: bool) -> None:
        options = dict(case.given)
        if not options["in_order"] and case.dataset in ("noise", "failing", *ITERABLES):
            # Which worker makes a batch, and so which random numbers go into it, depends on time.
            case = replace(case, dataset="fields")
        seen.add(case)
        theirs = case.run(torch.utils.data.DataLoader)
        # A ``StopIteration`` of a dataset's ends a loop and is an error in an ``async for``: see above.
        ours = case.run(al.DataLoader, with_async and case.dataset != "failing")
        told = [text for text in tell_apart(ours) if STOPPED not in text]
        assert len(told) <= 1
        if told:
            assert case.dataset in ("iterable", "unsplit counted")
        if not options["in_order"]:
            for did in (ours, theirs):
                for epoch in ("epoch 0", "epoch 1"):
                    did[epoch] = sorted(map(repr, did.get(epoch, [])))
        assert ours == theirs
        if theirs.get("epoch 0"):
            loaded.add(case)

    compare()
    show(record_property, capsys, "with workers", seen, loaded)
    assert len(seen) >= count // 2


def show(
    record_property: Callable[[str, object], None],
    capsys: pytest.CaptureFixture[str],
    which: str,
    seen: set[Case],
    loaded: set[Case],
) -> None:
    record_property(f"combinations {which}", len(seen))
    with capsys.disabled():
        print(f"\n{len(seen)} combinations of arguments {which}, of which {len(loaded)} gave batches")
