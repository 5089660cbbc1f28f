"""Passes of torch's loop are counted as they are delivered, whoever makes them and however they are left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import asyncloader as al
from asyncloader import testing

COUNT = 50


class Arrays(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return np.full(10, index, np.float32)


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        info = al.get_worker_info()
        return iter(range(0 if info is None else info.id, COUNT, 1 if info is None else info.num_workers))


class Odd:
    """Whoever asks for its size is told off."""

    @property
    def nbytes(self) -> int:
        raise ValueError


class Odds(Arrays):
    def __getitem__(self, index: int) -> Any:
        return Odd()


def counts(loader: Any) -> tuple[int, int, int]:
    told = loader.statistics
    return told.batches, told.samples, told.size_bytes


@pytest.mark.parametrize(
    ("workers", "options"),
    [
        (0, {}),
        (2, {}),
        (2, {"in_order": False}),
        (2, {"persistent_workers": True}),
        pytest.param(2, {"multiprocessing_context": "spawn"}, marks=pytest.mark.slow),
    ],
)
def test_batches_are_counted_as_they_are_delivered(workers: int, options: dict[str, Any]) -> None:
    loader = al.DataLoader(Arrays(), 4, num_workers=workers, **options)
    assert loader.statistics.state == "none"
    for passes in (1, 2):
        for number, _ in enumerate(loader, 1):
            told = loader.statistics
            assert (told.batches, told.state) == (number, "running")
            if loader.in_order:
                assert told.samples == min(4 * number, COUNT)
            assert told.size_bytes == 40 * told.samples
        told = loader.statistics
        assert (told.state, told.passes, counts(loader)) == ("ended", passes, (13, 50, 2000))
        assert 0 < (told.first_batch_s or 0) <= told.elapsed_s
        assert [maker.worker for maker in told.makers] == list(range(max(workers, 1)))
        assert "Arrays.__getitem__" in told.makers[0].stages_s
    loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterable_is_counted_with_its_short_batches(workers: int) -> None:
    loader = al.DataLoader(Stream(), 4, num_workers=workers)
    batches = list(loader)
    assert counts(loader) == (len(batches), COUNT, COUNT * 8)
    assert {"Stream.__iter__", "collate"} <= loader.statistics.makers[-1].stages_s.keys()


@pytest.mark.parametrize("workers", [0, 2])
def test_single_samples_are_counted(workers: int) -> None:
    loader = al.DataLoader(Arrays(), None, num_workers=workers)
    list(loader)
    assert counts(loader) == (COUNT, COUNT, 40 * COUNT)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_does_not_tell_its_size_is_delivered_all_the_same(workers: int) -> None:
    loader = al.DataLoader(Odds(), 10, num_workers=workers, collate_fn=list)
    assert len(list(loader)) == 5
    assert counts(loader) == (5, COUNT, 0)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pass_that_is_left_stands_still(workers: int) -> None:
    with testing.check_leaks():
        loader = al.DataLoader(Arrays(), 4, num_workers=workers)
        for _ in loader:
            break
        told = loader.statistics
        time.sleep(0.01)
        assert loader.statistics == told
        assert (told.state, told.batches) == ("ended", 1)


def test_persistent_workers_that_are_left_tell_nothing_of_the_pass_before() -> None:
    with al.DataLoader(Arrays(), 4, num_workers=2, persistent_workers=True, in_order=False) as loader:
        for _ in loader:
            break
        list(loader)
        assert counts(loader) == (13, 50, 2000)
        told = loader.statistics
        assert all(sum(maker.stages_s.values()) <= told.elapsed_s for maker in told.makers)


async def test_what_is_not_handed_over_is_not_counted() -> None:
    loader = al.DataLoader(Arrays(), 4)
    batches = aiter(loader)
    await anext(batches)
    assert counts(loader) == (1, 4, 160)
    await batches.aclose()  # type: ignore[attr-defined]
    assert loader.statistics.state == "ended"


@pytest.mark.parametrize("workers", [0, 2])
def test_the_stages_of_a_maker_are_its_time(workers: int) -> None:
    def slow(samples: Any) -> Any:
        time.sleep(0.05)
        return samples

    loader = al.DataLoader(Arrays(), 4, num_workers=workers, collate_fn=slow)
    list(loader)
    told = loader.statistics
    for maker in told.makers:
        # What a worker did after its last report, it tells nobody; it reports every tenth of a second.
        assert told.elapsed_s / 5 < sum(maker.stages_s.values()) <= told.elapsed_s
        assert maker.stages_s["collate"] >= 0.05 * (13 // max(workers, 1) - 1) - 0.1
        assert maker.cpu_s < told.elapsed_s
