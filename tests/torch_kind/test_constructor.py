"""The constructor, the attributes, the length: the same answers and the same errors as torch's."""

from __future__ import annotations

import copy
import inspect
import multiprocessing
import pickle
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, SequentialSampler

import asyncloader as al

from .pairs import attributes, failure

TORCH = torch.utils.data.DataLoader


class Numbers(IterableDataset[int]):
    def __init__(self, size: int = 5, said: int | None = None) -> None:
        self.size, self.said = size, said

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.size))

    def __len__(self) -> int:
        if self.said is None:
            raise TypeError("no length")
        return self.said


class Lengthless:
    def __getitem__(self, index: int) -> int:
        return index


ITEMS = list(range(7))
STREAM = Numbers()
EMPTY: list[int] = []

# Each row is wrong in one way, or in several: then the first of torch's checks must win.
WRONG: list[tuple[Any, dict[str, Any]]] = [
    (ITEMS, {"num_workers": -1}),
    (ITEMS, {"num_workers": -1, "timeout": -1, "prefetch_factor": 2, "batch_size": 0}),
    (ITEMS, {"num_workers": "2"}),
    (ITEMS, {"num_workers": None}),
    (ITEMS, {"timeout": -1}),
    (ITEMS, {"timeout": -1, "prefetch_factor": 2}),
    (ITEMS, {"timeout": None}),
    (ITEMS, {"prefetch_factor": 2}),
    (ITEMS, {"prefetch_factor": 0}),
    (ITEMS, {"prefetch_factor": 2, "persistent_workers": True}),
    (ITEMS, {"num_workers": 1, "prefetch_factor": -1}),
    (ITEMS, {"persistent_workers": True}),
    (ITEMS, {"persistent_workers": True, "multiprocessing_context": "fork"}),
    (ITEMS, {"multiprocessing_context": "fork"}),
    (ITEMS, {"num_workers": 1, "multiprocessing_context": "thread"}),
    (ITEMS, {"num_workers": 1, "multiprocessing_context": ""}),
    (ITEMS, {"num_workers": 1, "multiprocessing_context": torch.multiprocessing}),
    (ITEMS, {"num_workers": 1, "multiprocessing_context": 3}),
    (STREAM, {"multiprocessing_context": "fork", "shuffle": True}),
    (STREAM, {"shuffle": True}),
    (STREAM, {"shuffle": "x", "sampler": []}),
    (STREAM, {"shuffle": []}),
    (STREAM, {"sampler": []}),
    (STREAM, {"sampler": [1], "batch_sampler": [[1]]}),
    (STREAM, {"batch_sampler": [[1]]}),
    (STREAM, {"batch_sampler": [[1]], "batch_size": 0}),
    (STREAM, {"batch_size": None, "drop_last": True}),
    (STREAM, {"batch_size": 0}),
    (ITEMS, {"sampler": [1], "shuffle": True}),
    (ITEMS, {"sampler": [1], "shuffle": True, "batch_sampler": [[1]], "batch_size": None}),
    (ITEMS, {"batch_sampler": [[1]], "batch_size": 2}),
    (ITEMS, {"batch_sampler": [[1]], "batch_size": None}),
    (ITEMS, {"batch_sampler": [[1]], "shuffle": True}),
    (ITEMS, {"batch_sampler": [[1]], "sampler": [1]}),
    (ITEMS, {"batch_sampler": [[1]], "drop_last": True}),
    (ITEMS, {"batch_size": None, "drop_last": True}),
    (ITEMS, {"batch_size": None, "drop_last": True, "num_workers": -2}),
    (EMPTY, {"shuffle": True}),
    (EMPTY, {"shuffle": True, "batch_size": 0}),
    (Lengthless(), {"shuffle": True}),
    (None, {"shuffle": True}),
    (ITEMS, {"batch_size": 0}),
    (ITEMS, {"batch_size": -3}),
    (ITEMS, {"batch_size": True}),
    (ITEMS, {"batch_size": 2.0}),
    (ITEMS, {"batch_size": torch.tensor(2)}),
    (ITEMS, {"batch_size": "2"}),
    (ITEMS, {"drop_last": 1}),
    (ITEMS, {"drop_last": None}),
    (ITEMS, {"batch_size": 0, "drop_last": 1}),
    (ITEMS, {"no_such_option": 1}),
]


@pytest.mark.parametrize("row", range(len(WRONG)), ids=lambda row: ",".join(WRONG[row][1]))
def test_wrong_arguments_give_torchs_error(row: int) -> None:
    dataset, options = WRONG[row]
    with pytest.raises(Exception) as theirs:
        TORCH(dataset, **options)
    with pytest.raises(type(theirs.value)) as ours:
        al.DataLoader(dataset, **options)
    assert failure(ours.value) == failure(theirs.value)


@pytest.mark.parametrize("count", [0, 14])
def test_the_first_thirteen_parameters_are_positional(count: int) -> None:
    in_order = (ITEMS, 2, False, None, None, 0, list, False, True, 0, None, None, None)
    loader = al.DataLoader(*in_order)
    assert attributes(loader) == attributes(TORCH(*in_order))
    arguments = (*in_order, None)[:count]
    with pytest.raises(TypeError) as theirs:
        TORCH(*arguments)
    with pytest.raises(TypeError) as ours:
        al.DataLoader(*arguments)
    assert str(ours.value) == str(theirs.value)


def test_what_torch_accepts_is_accepted_and_fails_only_when_iterated() -> None:
    for dataset, options in [
        (None, {}),
        (ITEMS, {"timeout": 3}),
        (ITEMS, {"generator": "none"}),
        (ITEMS, {"collate_fn": 3}),
        (ITEMS, {"sampler": 3, "batch_size": None}),
    ]:
        found = []
        for loader_class in (TORCH, al.DataLoader):
            loader = loader_class(dataset, **options)
            with pytest.raises(Exception) as error:
                next(iter(loader))
            found.append(failure(error.value))
        assert found[0] == found[1]


def test_a_prefetch_factor_of_zero_fails_when_iterated() -> None:
    with pytest.raises(AssertionError, match="prefetch_factor must be greater than 0 for Multi"):
        iter(al.DataLoader(ITEMS, num_workers=1, prefetch_factor=0))


def test_a_stream_option_for_another_dataset_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="lanes can be given for streams only"):
        al.DataLoader(ITEMS, lanes=2)


SHAPES: list[tuple[Any, dict[str, Any]]] = [
    (ITEMS, {}),
    (ITEMS, {"batch_size": 3, "drop_last": True}),
    (ITEMS, {"batch_size": 3}),
    (ITEMS, {"batch_size": None}),
    (ITEMS, {"shuffle": True, "generator": torch.Generator()}),
    (ITEMS, {"sampler": [1, 2, 3], "batch_size": 2}),
    (ITEMS, {"batch_sampler": [[1], [2, 3]]}),
    (ITEMS, {"sampler": iter([1]), "batch_size": None}),
    (ITEMS, {"batch_sampler": (batch for batch in [[1]])}),
    (EMPTY, {"batch_size": 3}),
    (Lengthless(), {}),
    (ITEMS, {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 5, "in_order": False}),
    (ITEMS, {"num_workers": 1, "multiprocessing_context": "spawn", "timeout": 1.5}),
    (ITEMS, {"pin_memory": True, "pin_memory_device": "cuda"}),
    (Numbers(5, 5), {}),
    (Numbers(5, 5), {"batch_size": 2}),
    (Numbers(5, 5), {"batch_size": 2, "drop_last": True}),
    (Numbers(5, 5), {"batch_size": None}),
    (Numbers(5, 5), {"batch_size": 2, "num_workers": 2}),
    (Numbers(5), {}),
]


@pytest.mark.parametrize("row", range(len(SHAPES)), ids=lambda row: ",".join(SHAPES[row][1]))
def test_attributes_and_length_are_torchs(row: int) -> None:
    dataset, options = SHAPES[row]
    theirs, ours = TORCH(dataset, **options), al.DataLoader(dataset, **options)
    assert attributes(ours) == attributes(theirs)
    assert ours.dataset is dataset
    assert ours.generator is options.get("generator")
    lengths = []
    for loader in (theirs, ours):
        try:
            lengths.append((len(loader), bool(loader)))
        except TypeError as error:
            lengths.append(failure(error))
    assert lengths[0] == lengths[1]


def test_the_page_beside_torchs_names_each_attribute_that_is_ours() -> None:
    page = Path(__file__).parents[2] / "docs/reference/torch-parity.md"
    section = page.read_text().partition("## Attributes\n")[2].partition("\n## ")[0]
    ours = inspect.signature(al.DataLoader).parameters.keys() - inspect.signature(TORCH).parameters.keys()
    assert set(re.findall(r"`(\w+)`", section)) >= ours
    for loader in (al.DataLoader(ITEMS), al.DataLoader(al.from_iterable(ITEMS))):
        assert ours <= vars(loader).keys()


def test_the_length_follows_a_growing_dataset() -> None:
    items = [1, 2]
    loader = al.DataLoader(items, 2)
    assert len(loader) == 1
    items.append(3)
    assert len(loader) == 2


@pytest.mark.parametrize("workers", [0, 1])
def test_more_samples_than_the_length_said_warn_as_in_torch(workers: int) -> None:
    told = []
    for loader_class in (TORCH, al.DataLoader):
        loader = loader_class(Numbers(4, said=2), num_workers=workers)
        before = iter(loader)
        assert len(loader) == 2
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            assert len(list(loader)) == len(list(before)) == 4
        told.append([failure(warning.message) for warning in warned])
    assert told[0] == told[1]
    assert len(told[0]) == 2


def test_more_workers_than_cores_warn_as_in_torch() -> None:
    told = []
    for loader_class in (TORCH, al.DataLoader):
        with pytest.warns(UserWarning, match="will create 100 worker processes") as warned:
            loader_class(ITEMS, num_workers=100)
        told.append([str(warning.message) for warning in warned])
    assert told[0] == told[1]


FIXED = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")


@pytest.mark.parametrize("name", FIXED)
def test_what_torch_fixes_at_construction_cannot_be_set(name: str) -> None:
    found = []
    for loader in (TORCH(ITEMS), al.DataLoader(ITEMS), al.DataLoader({1, 2})):
        with pytest.raises(ValueError) as error:
            setattr(loader, name, getattr(loader, name))
        found.append(str(error.value))
    assert found[0] == found[1] == found[2]


def test_what_torch_lets_change_takes_effect_at_the_next_iteration() -> None:
    for loader_class in (TORCH, al.DataLoader):
        loader = loader_class(ITEMS, 2, shuffle=True)
        loader.collate_fn = sum
        loader.num_workers, loader.prefetch_factor = 1, 1
        loader.multiprocessing_context = "fork"
        loader.generator = torch.Generator().manual_seed(3)
        loader.my_own = 5
        assert sum(loader) == sum(ITEMS)
        assert loader.multiprocessing_context.get_start_method() == "fork"
        with pytest.raises(ValueError, match="should specify a valid start method"):
            loader.multiprocessing_context = "no such"


def test_a_context_given_by_name_or_as_an_object_reads_back_as_an_object() -> None:
    for context in ("fork", multiprocessing.get_context("fork"), torch.multiprocessing.get_context("fork")):
        ours = al.DataLoader(ITEMS, num_workers=1, multiprocessing_context=context)
        theirs = TORCH(ITEMS, num_workers=1, multiprocessing_context=context)
        assert ours.multiprocessing_context is theirs.multiprocessing_context


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
@pytest.mark.parametrize("dataset", [ITEMS, Numbers(7), {3, 4, 5}], ids=["map", "iterable", "plain"])
def test_a_loader_can_be_copied_and_pickled(copied: Any, dataset: Any) -> None:
    loader = al.DataLoader(dataset, 2)
    twin = copied(loader)
    assert type(twin) is al.DataLoader
    assert attributes(twin) == attributes(loader)
    assert [batch.tolist() for batch in twin] == [batch.tolist() for batch in loader]
    with pytest.raises(ValueError, match="should not be set after DataLoader is initialized"):
        twin.batch_size = 3


def test_an_iterator_refuses_to_be_pickled() -> None:
    for loader_class in (TORCH, al.DataLoader):
        with pytest.raises(NotImplementedError):
            pickle.dumps(iter(loader_class(ITEMS)))


def test_the_loader_is_one_of_torchs_and_generic() -> None:
    loader = al.DataLoader[int](ITEMS)
    assert isinstance(loader, TORCH)
    assert issubclass(al.DataLoader, TORCH)
    with pytest.raises(TypeError, match="not an iterator"):
        next(loader)  # type: ignore[call-overload]


def test_an_iterator_is_its_own_and_stays_exhausted() -> None:
    batches = iter(al.DataLoader(ITEMS, 4))
    assert iter(batches) is batches
    assert len(batches) == 2
    assert len(list(batches)) == 2
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(batches)


def test_a_loader_can_be_rebuilt_from_its_attributes() -> None:
    """What Lightning and Accelerate do to replace the sampler."""
    loader = al.DataLoader(ITEMS, 2, shuffle=True, drop_last=True, generator=torch.Generator())
    assert isinstance(loader.batch_sampler, BatchSampler)
    assert isinstance(loader.sampler, RandomSampler)
    again = type(loader)(
        loader.dataset,
        batch_sampler=BatchSampler(SequentialSampler(loader.dataset), loader.batch_size, loader.drop_last),
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        generator=loader.generator,
    )
    assert [batch.tolist() for batch in again] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("device", ["", "cuda"])
def test_pinning_without_an_accelerator_warns_as_torch_does(workers: int, device: str) -> None:
    if torch.accelerator.is_available():
        pytest.skip("says what happens without an accelerator")
    told = []
    for loader_class in (TORCH, al.DataLoader):
        loader = loader_class(ITEMS, 4, num_workers=workers, pin_memory=True, pin_memory_device=device)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            assert [batch.is_pinned() for batch in loader] == [False, False]
        told.append([failure(warning.message) for warning in warned])
    assert told[0] == told[1]
    assert len(told[0]) == (2 if device else 1)


@pytest.mark.parametrize("name", ["s3://b/x-{0..9}.tar?sig=SENTINEL", "/d/train/", Path("/d/x.tar")])
def test_the_name_of_shards_is_no_dataset(name: Any) -> None:
    with pytest.raises(TypeError, match=r"got a name, of type \w+; .*from_urls\(name\)") as caught:
        al.DataLoader(name)
    assert "SENTINEL" not in str(caught.value)
    assert list(al.DataLoader("abc", 3)) == [["a", "b", "c"]], (
        "a text is torch's map-style dataset of its letters"
    )
