"""Lightning makes loaders anew, of whatever subclass and signature: torch's and ours alike."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler

import asyncloader as al

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what it imports is deprecated here and there
    pytest.importorskip("lightning", reason="lightning is in the dependency group 'interop'")
    from lightning.fabric.utilities.data import (
        _get_dataloader_init_args_and_kwargs,
        _replace_dunder_methods,
        _update_dataloader,
        has_len,
    )
    from lightning.fabric.utilities.exceptions import MisconfigurationException

TORCH: Any = torch.utils.data.DataLoader
OURS: Any = al.DataLoader


def recipe() -> al.Dataset:
    return al.from_iterable(lambda topology: topology.split(range(10)))


#: Each with ten numbers: torch's class, ours, and ours over a stream.
KINDS: dict[str, tuple[Any, Callable[[], Any]]] = {
    "torch": (TORCH, lambda: range(10)),
    "ours": (OURS, lambda: range(10)),
    "stream": (OURS, recipe),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """A class of loaders to inherit from, and a dataset."""
    base, make = KINDS[request.param]
    return base, make()


def numbers_of(loader: Any) -> list[int]:
    return sorted(number for batch in loader for number in batch.tolist())


def remade(make: Callable[[], Any], in_hook: bool, base: Any = TORCH) -> tuple[Any, Any]:
    """A loader, and the one that Lightning makes in its place; in a hook it notes the arguments."""
    with _replace_dunder_methods(base, "dataset") if in_hook else contextlib.nullcontext():
        loader = make()
    return loader, _update_dataloader(loader, loader.sampler)


@pytest.mark.parametrize("in_hook", [False, True])
def test_a_loader_of_the_plain_class_keeps_its_options(kind: tuple[Any, Any], in_hook: bool) -> None:
    base, dataset = kind
    loader, again = remade(lambda: base(dataset, batch_size=3, drop_last=True, collate_fn=sum), in_hook)
    assert type(again) is base
    assert (again.dataset, again.batch_size, again.drop_last, again.collate_fn) == (dataset, 3, True, sum)
    assert list(again) == list(loader)


@pytest.mark.parametrize("in_hook", [False, True])
def test_a_stream_keeps_the_options_that_are_ours(in_hook: bool) -> None:
    options = {"lanes": 4, "rank": 1, "world_size": 2, "memory_limit": 1 << 25, "progress": False}
    loader, again = remade(lambda: al.DataLoader(recipe(), **options), in_hook)
    assert {name: getattr(again, name) for name in options} == options
    assert numbers_of(again) == numbers_of(loader) == [1, 3, 5, 7, 9]


@pytest.mark.parametrize("in_hook", [False, True])
def test_a_stream_keeps_its_batching(in_hook: bool) -> None:
    batching = al.TokenBatches(length=lambda number: number, max_tokens=12, pool=10)
    loader, again = remade(lambda: al.DataLoader(recipe(), batching=batching), in_hook)
    assert (again.batching, again.batch_size) == (batching, None)
    assert [batch.tolist() for batch in again] == [batch.tolist() for batch in loader]
    packed, again = remade(lambda: al.DataLoader(recipe(), batching=al.Pack()), in_hook)
    assert again.batching == packed.batching and again.collate_fn is packed.collate_fn


@pytest.mark.parametrize("by_name", [False, True])
def test_an_argument_before_the_dataset(kind: tuple[Any, Any], by_name: bool) -> None:
    base, dataset = kind

    class Labelled(base):  # type: ignore[misc]
        def __init__(self, label: str, *args: Any, **options: Any) -> None:
            self.label = label
            super().__init__(*args, **options)

    class Twice(Labelled):
        def __init__(self, other: str, *args: Any, **options: Any) -> None:
            self.other = other
            super().__init__(other + "-2", *args, **options)

    given: dict[str, Any] = {"dataset": dataset} if by_name else {}
    for loader in remade(
        lambda: Twice("a", *([] if by_name else [dataset]), batch_size=2, **given), in_hook=True
    ):
        assert type(loader) is Twice
        assert (loader.other, loader.label, loader.batch_size) == ("a", "a-2", 2)
        assert loader.dataset is dataset
        assert numbers_of(loader) == list(range(10))


def test_an_attribute_set_after_the_constructor_of_its_base(kind: tuple[Any, Any]) -> None:
    base, dataset = kind

    class Late(base):  # type: ignore[misc]
        def __init__(self, options: int, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            self._options = options

        @property
        def options(self) -> int:
            return self._options

    for loader in remade(lambda: Late(123, dataset), in_hook=True):
        assert loader.options == 123
        assert numbers_of(loader) == list(range(10))


@pytest.mark.parametrize("in_hook", [False, True])
def test_a_dataset_of_another_name(kind: tuple[Any, Any], in_hook: bool) -> None:
    base, dataset = kind

    class Renamed(base):  # type: ignore[misc]
        def __init__(self, first: int, source: Any, **options: Any) -> None:
            self.first, self.source = first, source
            super().__init__(source, **options)

    if not in_hook:  # torch's own answer: the dataset goes to both parameters
        with pytest.raises(MisconfigurationException, match=r"implementation has an error.*`dataset`"):
            remade(lambda: Renamed(1, dataset), in_hook)
        return
    for loader in remade(lambda: Renamed(1, dataset, batch_size=4), in_hook):
        assert (loader.first, loader.batch_size) == (1, 4)
        assert numbers_of(loader) == list(range(10))


@pytest.mark.parametrize("base", [TORCH, OURS], ids=["torch", "ours"])
def test_a_dataset_made_in_the_constructor(base: Any) -> None:
    class FromTensor(base):  # type: ignore[misc]
        def __init__(self, data: torch.Tensor, *args: Any, **options: Any) -> None:
            self.data = data
            super().__init__(range(data.size(0)), *args, **options)

    class FromParts(base):  # type: ignore[misc]
        def __init__(self, first: Any, second: Any, **options: Any) -> None:
            super().__init__([*first, *second], **options)

    class Extended(base):  # type: ignore[misc]
        def __init__(self, dataset: Any, **options: Any) -> None:
            super().__init__([*dataset, *range(5, 10)], **options)

    data = torch.randn(10, 2)
    for make in (
        lambda: FromTensor(data, batch_size=2),
        lambda: FromParts(range(4), range(4, 10), batch_size=2),
        lambda: Extended(range(5), batch_size=2),
    ):
        for loader in remade(make, in_hook=True):
            assert len(loader) == 5
            assert numbers_of(loader) == list(range(10))


@pytest.mark.parametrize("base", [TORCH, OURS], ids=["torch", "ours"])
def test_a_recipe_made_in_the_constructor_and_a_dataset_of_none(base: Any) -> None:
    class Whatever(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)

    for loader in remade(lambda: Whatever(None), in_hook=True):
        assert loader.dataset is None

    class OfRange(al.DataLoader[Any]):
        def __init__(self, count: int, **options: Any) -> None:
            super().__init__(al.from_iterable(lambda lane: lane.split(range(count))), **options)

    for stream in remade(lambda: OfRange(10, batch_size=5, lanes=2), in_hook=True):
        assert (stream.batch_size, stream.lanes) == (5, 2)
        assert numbers_of(stream) == list(range(10))


def test_a_changed_batch_size_is_changed_once(kind: tuple[Any, Any]) -> None:
    base, dataset = kind

    class Smaller(base):  # type: ignore[misc]
        def __init__(self, dataset: Any, batch_size: int, **options: Any) -> None:
            super().__init__(dataset, batch_size=batch_size - 5, **options)

    for loader in remade(lambda: Smaller(dataset, batch_size=10), in_hook=True):
        assert loader.batch_size == 5


def test_arguments_defaults_and_later_changes_are_noted(kind: tuple[Any, Any]) -> None:
    base, dataset = kind

    class Loader(base):  # type: ignore[misc]
        def __init__(self, dataset: Any, *args: Any, batch_size: int = 5, **options: Any) -> None:
            super().__init__(dataset, *args, batch_size=batch_size, **options)

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value + 2 if name == "custom" else value)

    with _replace_dunder_methods(base, "dataset"):
        loader: Any = Loader(dataset)
        loader.custom = 5
        loader.mine = 10
        del loader.dataset
    noted = vars(loader)
    assert noted["__pl_saved_args"] == (dataset,)
    assert noted["__pl_saved_kwargs"] == {}
    assert noted["__pl_saved_default_kwargs"] == {"batch_size": 5}
    assert noted["__dataset"] is dataset
    assert [arguments for arguments, _ in noted["__pl_attrs_record"]] == [
        ("custom", 5),
        ("mine", 10),
        ("dataset",),
    ]
    again: Any = _update_dataloader(loader, loader.sampler)
    assert (again.custom, again.mine, again.batch_size) == (7, 10, 5)
    assert not hasattr(again, "dataset")


def test_iterating_is_no_later_change(kind: tuple[Any, Any]) -> None:
    base, dataset = kind
    with _replace_dunder_methods(base, "dataset"):
        loader = base(dataset)
        list(loader)
        getattr(loader, "close", lambda: None)()
    assert "__pl_attrs_record" not in vars(loader)


def test_constructors_are_put_back(kind: tuple[Any, Any]) -> None:
    base, _ = kind
    inherits = type("Inherits", (base,), {})
    defines = type("Defines", (inherits,), {"__init__": lambda self, *args: base.__init__(self, *args)})
    before = [each.__init__ for each in (base, inherits, defines)]
    with _replace_dunder_methods(base, "dataset"):
        assert "__old__init__" in vars(base) and "__old__init__" in vars(defines)
        assert "__old__init__" not in vars(inherits)
    assert [each.__init__ for each in (base, inherits, defines)] == before


def test_an_option_given_twice_is_named(kind: tuple[Any, Any]) -> None:
    base, dataset = kind

    class Bad(base):  # type: ignore[misc]
        def __init__(self, randomize: bool, *args: Any, **options: Any) -> None:
            self.randomize = randomize
            super().__init__(*args, num_workers=0, shuffle=randomize, **options)

    if not isinstance(dataset, al.Dataset):  # which is not shuffled by the loader
        with pytest.raises(MisconfigurationException, match=r"implementation has an error.*`shuffle`"):
            remade(lambda: Bad(False, dataset), in_hook=False)

    class Good(base):  # type: ignore[misc]
        def __init__(self, dataset: Any, mark: str = "none", **options: Any) -> None:
            self.mark = mark
            super().__init__(dataset, **options)

    for loader in remade(lambda: Good(dataset, "a", batch_size=2), in_hook=False):
        assert (loader.mark, loader.batch_size) == ("a", 2)
        assert numbers_of(loader) == list(range(10))


@pytest.mark.parametrize("base", [TORCH, OURS], ids=["torch", "ours"])
def test_a_sampler_is_put_into_a_batch_sampler_of_one_s_own(base: Any) -> None:
    class Mine(BatchSampler):
        def __init__(self, sampler: Any, extra: str, drop_last: bool = True) -> None:
            self.extra = extra
            super().__init__(sampler, 10, drop_last)

    sampler: Any = RandomSampler(range(10))
    with _replace_dunder_methods(BatchSampler):
        batch_sampler = Mine(sampler, "random")
    other: Any = RandomSampler(range(10))
    again = _update_dataloader(base(range(10), batch_sampler=batch_sampler), other)
    assert isinstance(again.batch_sampler, Mine)
    assert again.batch_sampler.extra == "random"
    assert again.batch_sampler.sampler is other


def test_what_is_iterable_gets_no_sampler(kind: tuple[Any, Any]) -> None:
    base, _ = kind

    class Numbers(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(10))

    for dataset in (Numbers(), *([recipe()] if base is OURS else [])):
        loader = base(dataset, batch_size=32)
        _, arguments = _get_dataloader_init_args_and_kwargs(loader, loader.sampler)
        assert arguments["sampler"] is None and arguments["batch_sampler"] is None
        assert arguments["dataset"] is dataset
        assert arguments["collate_fn"] is loader.collate_fn
        assert not has_len(loader)
