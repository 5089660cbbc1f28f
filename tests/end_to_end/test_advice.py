"""Advice of ``report()``, followed: the pass becomes faster by a fifth at least, or nothing was to change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import asyncloader as al

from . import test_verdicts as verdicts
from .test_verdicts import CACHE, CASES, TORCHS, Case, numbers, serve, tars

pytestmark = [
    pytest.mark.usefixtures("fork_server"),
    pytest.mark.slow,
    # torch's, of more workers than processors: these wait most of the time.
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return verdicts.write_lines(tmp_path_factory.mktemp("lines"))


#: A quarter of what `large_batch` returns.
LITTLE = np.zeros(6 << 20, np.uint8)


class Followed(NamedTuple):
    """What somebody who follows the advice changes of a case.

    Attributes:
        advice: How the advice begins, or a part of it.
        dataset: Made in place of the case's, if that is what changes.
        options: Of the loader, which change.
        server: In place of the case's.
        whole: Whether a pass counts with the start of its workers.
        passes: The last one counts.
    """

    advice: str
    dataset: Callable[[str], Any] | None = None
    options: MappingProxyType[str, Any] | dict[str, Any] = MappingProxyType({})
    server: Any = None
    whole: bool = False
    passes: int = 1


class Even(verdicts.Stream):
    """The same samples, of which each worker has its part of the slow ones."""

    def __iter__(self) -> Iterator[int]:
        info = al.get_worker_info()
        assert info is not None
        for number in range(info.id, 320, info.num_workers):
            if number // info.num_workers % 2:
                time.sleep(0.003)
            yield number


def each_lane_is_as_slow(topology: Any) -> Iterator[int]:
    """The slow half of the samples that `one_lane_is_slow` has, dealt evenly."""
    for count, number in enumerate(topology.split(range(800))):
        if count % 2:
            time.sleep(0.004)
        yield number


class Decoded(verdicts.Numbers):
    """What a slow dataset of numbers makes, stored beforehand."""


class Asked(verdicts.Numbers):
    """The items of `Sleepy`, a batch's at a time."""

    async def __getitem__(self, index: int) -> int:  # type: ignore[override]
        await asyncio.sleep(0.002)
        return index


def workers(count: int, advice: str = "raise num_workers") -> Followed:
    """With so many workers; those of the pass before go on, since a long pass is what they are for."""
    return Followed(advice, options={"num_workers": count, "persistent_workers": True}, passes=2)


# Every processor has a worker, or one of its threads.
STORED = "do less work per sample, or store"
WORKERS = "Try num_workers=2"

#: By case and number of workers; a case without an entry has advice which says that nothing is to change.
FOLLOWED: dict[tuple[str, int], Followed] = {
    ("slow store", 0): Followed("cache_dir=", lambda url: tars(url, cache_dir=CACHE[0]), passes=2),
    ("slow store", 2): Followed("cache_dir=", lambda url: tars(url, cache_dir=CACHE[0]), passes=2),
    ("slow decoding", 0): workers(2, WORKERS),
    ("slow decoding", 2): Followed(STORED, lambda folder: al.from_urls(f"{folder}/plain/*.jsonl")),
    ("slow function", 0): workers(2, WORKERS),
    ("slow function", 2): Followed(STORED, lambda _: numbers()),
    ("function with the lock", 0): workers(2, WORKERS),
    ("function with the lock", 2): Followed("do less work, or store its results", lambda _: numbers()),
    **{
        ("function that waits", count): Followed(
            "raise concurrency", lambda _: numbers(2_000).map(verdicts.sleeps, concurrency=16)
        )
        for count in (0, 2)
    },
    **{
        ("function without the lock", count): Followed("do less work", lambda _: numbers(300))
        for count in (0, 2)
    },
    ("slow start of a stream", 2): Followed("num_workers=0", options={"num_workers": 0}, whole=True),
    **{
        ("an outage", count): Followed("cache_dir=", lambda url: tars(url, cache_dir=CACHE[0]), passes=2)
        for count in (0, 2)
    },
    **{
        ("a full cache", count): Followed(
            "Raise cache_limit",
            lambda url: tars(url, cache_dir=CACHE[0], cache_limit="1GB"),
            passes=2,
        )
        for count in (0, 2)
    },
    **{
        ("slow coroutine", count): Followed(
            "Raise concurrency", lambda _: numbers(2_000).map(verdicts.asks, concurrency=32)
        )
        for count in (0, 2)
    },
    ("slow filter", 0): workers(2, WORKERS),
    ("slow filter", 2): Followed(STORED, lambda _: numbers()),
    ("slow collate_fn", 0): workers(4),
    ("slow collate_fn", 2): workers(8),
    ("large batches", 2): Followed("Make batches smaller", options={"collate_fn": lambda samples: LITTLE}),
    ("unbalanced lanes", 2): Followed(
        "all lanes are equal", lambda _: al.from_iterable(each_lane_is_as_slow)
    ),
    **{
        ("a server that refuses", count): Followed("more capacity", server=serve(rate=8e6))
        for count in (0, 2)
    },
    **{
        ("little memory", count): Followed("Raise memory_limit", options={"memory_limit": 256 << 20})
        for count in (0, 2)
    },
    **{("a cold cache", count): Followed("the next epoch reads from the disk", passes=2) for count in (0, 2)},
    ("slow __getitem__", 0): workers(2, WORKERS),
    ("slow __getitem__", 2): Followed(STORED, lambda _: Decoded()),
    ("__getitem__ that waits", 0): workers(8),
    ("__getitem__ that waits", 2): Followed("make it async def", lambda _: Asked()),
    ("slow __getitems__", 0): workers(2, WORKERS),
    ("slow __getitems__", 2): Followed(STORED, lambda _: Decoded()),
    ("remote items", 0): workers(4, "Raise num_workers"),
    ("remote items", 2): workers(4, "Raise num_workers"),
    ("a subset", 0): workers(2, WORKERS),
    ("a subset", 2): Followed(STORED, lambda _: torch.utils.data.Subset(Decoded(), range(300))),
    **{
        ("slow sampler", count): Followed("list of the indices", options={"sampler": list(range(320))})
        for count in (0, 2)
    },
    ("slow collate_fn of a map", 0): workers(4),
    ("slow collate_fn of a map", 2): workers(8),
    ("large batches of a map", 2): Followed(
        "Make batches smaller", options={"collate_fn": lambda samples: LITTLE}
    ),
    ("batches of slow objects", 2): Followed("Return tensors or arrays", lambda _: verdicts.Numbers()),
    ("slow start", 2): Followed(
        "persistent_workers=True", options={"persistent_workers": True}, whole=True, passes=2
    ),
    ("slow iterable", 0): workers(8),
    ("slow iterable", 2): workers(8),
    ("unbalanced workers", 2): Followed("Deal samples evenly", lambda _: Even()),
}


def seconds_of(case: Case, workers: int, folder: Path, followed: Followed | None) -> tuple[float, float, str]:
    """What the last pass takes, whole and from its first batch on; and the advice on it."""
    server = case.server if followed is None or followed.server is None else followed.server
    make = case.recipe if followed is None or followed.dataset is None else followed.dataset
    own = {} if followed is None else followed.options
    options = {"batch_size": 16, "num_workers": workers, **case.options, **own}
    with server() if server is not None else nullcontext() as serving:
        dataset = make(str(folder) if serving is None else serving.url)
        with al.DataLoader(dataset, **options) as loader:
            for _ in range(max(case.passes, 1 if followed is None else followed.passes)):
                began_s, first_s = time.perf_counter(), None
                for _ in loader:
                    first_s = first_s or time.perf_counter()
                    if case.step_s:
                        time.sleep(case.step_s)
                ended_s = time.perf_counter()
            return ended_s - began_s, ended_s - (first_s or began_s), loader.report().lines[2]


@pytest.mark.parametrize(
    ("name", "workers"),
    [(name, workers) for name, case in {**CASES, **TORCHS}.items() for workers in case.workers],
)
def test_advice_that_is_followed_helps_by_a_fifth(
    name: str, workers: int, folder: Path, tmp_path: Path
) -> None:
    CACHE[:] = [tmp_path / "before"]
    case = {**CASES, **TORCHS}[name]
    followed = FOLLOWED.get((name, workers))
    whole_s, steady_s, advice = seconds_of(case, workers, folder, None)
    if followed is None:
        assert advice.startswith("Nothing to change"), advice
        return
    assert followed.advice in advice, advice
    CACHE[:] = [tmp_path / "after"]
    whole_after_s, steady_after_s, _ = seconds_of(case, workers, folder, followed)
    before_s, after_s = (whole_s, whole_after_s) if followed.whole else (steady_s, steady_after_s)
    print(f"{name}, {workers}: {advice}: {before_s:.2f} -> {after_s:.2f} s, {before_s / after_s:.2f} times")
    assert before_s / after_s > 1.2, advice
