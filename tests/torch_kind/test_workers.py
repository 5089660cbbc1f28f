"""Worker processes: what they know of themselves, how they start, fail, wait, live on and end."""

from __future__ import annotations

import copy
import gc
import math
import multiprocessing
import os
import pickle
import random
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset
from waiting import until

import asyncloader as al
from asyncloader import testing

from .pairs import plain, seed_all

TORCH = torch.utils.data.DataLoader

# These tests start more workers than there are cores on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


class Told:
    """Map style; each item is what its worker knows."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, Any]:
        info, ours = torch.utils.data.get_worker_info(), al.get_worker_info()
        assert info is ours
        assert ours is not None
        found: dict[str, Any] = {
            "id": info.id,
            "workers": info.num_workers,
            "seed": info.seed == torch.initial_seed(),
            "rank": (ours.rank, ours.world_size),
            "own": info.dataset is self,
            "rest": (info.rng, info.worker_method),
        }
        try:
            info.id = 5
        except Exception as error:
            found["frozen"] = type(error).__name__
        return found


def whole(samples: Any) -> Any:
    return samples


@pytest.mark.parametrize("batch_size", [1, None])
def test_a_worker_knows_its_number_its_dataset_and_its_rank(batch_size: int | None) -> None:
    loader = al.DataLoader(
        Told(),
        batch_size,
        num_workers=2,
        collate_fn=whole,
        rank=3,
        world_size=5,
        multiprocessing_context="fork",
    )
    found = [batch if batch_size is None else batch[0] for batch in loader]
    assert [told["id"] for told in found] == [0, 1, 0, 1]
    for told in found:
        assert told | {"id": 0} == {
            "id": 0,
            "workers": 2,
            "seed": True,
            "rank": (3, 5),
            "own": True,
            "rest": (None, "multiprocessing"),
            "frozen": "FrozenInstanceError",
        }
    assert torch.utils.data.get_worker_info() is None
    assert al.get_worker_info() is None


class Plain:
    """Iterable, of no class of torch's."""

    def __iter__(self) -> Iterator[Any]:
        info = al.get_worker_info()
        yield None if info is None else (info.id, info.dataset is self)


def test_a_plain_iterable_sees_itself_as_the_workers_dataset() -> None:
    assert list(al.DataLoader(Plain(), None)) == [None]
    assert list(al.DataLoader(Plain(), None, num_workers=2)) == [[0, True], [1, True]]


class SplitInIter(IterableDataset[int]):
    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        if info is None:
            return iter(range(self.start, self.end))
        per_worker = math.ceil((self.end - self.start) / info.num_workers)
        start = self.start + info.id * per_worker
        return iter(range(start, min(start + per_worker, self.end)))


class NotSplit(SplitInIter):
    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end))


def split_in_init(worker: int) -> None:
    info = torch.utils.data.get_worker_info()
    assert info is not None
    dataset: Any = info.dataset
    start, end = dataset.start, dataset.end
    per_worker = math.ceil((end - start) / info.num_workers)
    dataset.start = start + info.id * per_worker
    dataset.end = min(dataset.start + per_worker, end)


@pytest.mark.parametrize("workers", [0, 2, 3, 10])
@pytest.mark.parametrize("idiom", ["in __iter__", "in worker_init_fn"])
def test_both_documented_idioms_give_each_number_once(idiom: str, workers: int) -> None:
    dataset, init = (SplitInIter, None) if idiom == "in __iter__" else (NotSplit, split_in_init)
    orders = []
    for loader_class in (al.DataLoader, TORCH):
        loader = loader_class(dataset(3, 100), num_workers=workers, worker_init_fn=init)
        orders.append([int(batch) for batch in loader])
    assert sorted(orders[0]) == list(range(3, 100))
    assert orders[0] == orders[1]


# --- several workers and a dataset that is not split ---


@pytest.mark.parametrize("batch_size", [None, 3])
def test_an_unsplit_dataset_is_warned_of_once_in_the_consumers_process(batch_size: int | None) -> None:
    loader = al.DataLoader(NotSplit(0, 6), batch_size, num_workers=2)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        first = [plain(batch) for batch in loader]
        assert [plain(batch) for batch in loader] == first
    (warning,) = warned
    assert "NotSplit is read by several workers but never called" in str(warning.message)
    assert "asyncloader.split_iterable(dataset)" in str(warning.message)
    assert warning.filename == __file__
    assert first == [plain(batch) for batch in TORCH(NotSplit(0, 6), batch_size, num_workers=2)]


class AsksInStateDict(NotSplit):
    def state_dict(self) -> dict[str, Any]:
        return {"split": torch.utils.data.get_worker_info() is not None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def test_a_dataset_that_asks_for_its_part_in_state_dict_alone_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="AsksInStateDict is read by several workers"):
        list(al.DataLoader(AsksInStateDict(0, 6), None, num_workers=2))


async def test_an_unsplit_dataset_is_warned_of_at_the_line_of_an_async_loop_too() -> None:
    loader = al.DataLoader(NotSplit(0, 6), None, num_workers=2)
    with pytest.warns(UserWarning, match="NotSplit is read by several workers") as warned:
        async for _ in loader:
            pass
    assert [warning.filename for warning in warned] == [__file__]


def test_one_worker_and_a_dataset_that_asked_are_not_warned_of() -> None:
    list(al.DataLoader(NotSplit(0, 6), num_workers=1))
    list(al.DataLoader(SplitInIter(0, 6), num_workers=2))
    list(al.DataLoader(NotSplit(0, 6), num_workers=2, worker_init_fn=split_in_init))


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_split_deals_each_sample_once_over_ranks_and_workers(ranks: int, workers: int) -> None:
    for dataset in (NotSplit(0, 20), dict.fromkeys(range(20)).keys()):
        found: list[int] = []
        for rank in range(ranks):
            loader = (
                al.DataLoader(
                    al.split_iterable(dataset), None, num_workers=workers, rank=rank, world_size=ranks
                )
                if workers
                else al.DataLoader(al.split_iterable(dataset, rank=rank, world_size=ranks), None)
            )
            part = list(loader)
            assert abs(len(part) - 20 / ranks) < max(workers, 1)
            found += part
        assert sorted(found) == list(range(20))


# --- seeds ---


class Draws:
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return torch.rand(2), random.random(), np.random.rand(2)


def reseed(worker: int) -> None:
    # After seeding: what it draws is the worker's; before loading: what it seeds is used.
    torch.manual_seed(int(torch.randint(1 << 30, ())) + worker)
    random.seed(random.random() + worker)


@pytest.mark.parametrize("init", [None, reseed])
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_draw_torchs_random_numbers(init: Any, persistent: bool) -> None:
    found = []
    for loader_class in (al.DataLoader, TORCH):
        seed_all(42)
        loader = loader_class(
            Draws(), 2, num_workers=2, worker_init_fn=init, persistent_workers=persistent, collate_fn=whole
        )
        found.append([plain(batch) for _ in range(2) for batch in loader])
    assert found[0] == found[1]
    assert len({repr(batch) for batch in found[0]}) == len(found[0])


class InitSeen:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return list(self.seen)


def note_init(worker: int) -> None:
    info = torch.utils.data.get_worker_info()
    assert info is not None
    dataset: Any = info.dataset
    dataset.seen.append((worker, info.id, torch.initial_seed() == info.seed))


def test_worker_init_fn_is_called_once_with_the_number_after_seeding_and_before_loading() -> None:
    loader = al.DataLoader(
        InitSeen(), None, num_workers=2, worker_init_fn=note_init, persistent_workers=True, collate_fn=whole
    )
    for _ in range(2):
        assert list(loader) == [[(0, 0, True)], [(1, 1, True)], [(0, 0, True)], [(1, 1, True)]]
    dataset = InitSeen()
    assert list(al.DataLoader(dataset, None, worker_init_fn=note_init)) == [[]] * 4


# --- errors and time-outs ---


class Bad:
    def __init__(self, together: bool = False) -> None:
        if together:
            self.__getitems__ = lambda indices: [self[index] for index in indices]

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        if index == 3:
            raise KeyError(f"nothing at {index}")
        return index


@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize("together", [False, True])
def test_an_error_keeps_its_type_and_names_worker_traceback_and_index(
    batch_size: int | None, together: bool
) -> None:
    batches = iter(al.DataLoader(Bad(together), batch_size, num_workers=2))
    got: list[Any] = []
    while True:
        try:
            got.append(next(batches))
        except KeyError as error:
            text = str(error)
            got.append("error")
        except StopIteration:
            break
    assert got.count("error") == 1, "iteration goes on after the failed batch"
    assert len(got) == (6 if batch_size is None else 3)
    assert "Caught KeyError in DataLoader worker process 1." in text
    assert "Original Traceback (most recent call last):" in text
    assert "in __getitem__" in text and "nothing at 3" in text
    indices = "indices [2, 3]" if together and batch_size else "index 3"
    assert f"while fetching {indices}" in text


def test_an_iterator_that_gave_an_error_ends_its_workers_without_a_garbage_collection() -> None:
    assert not multiprocessing.active_children()
    gc.disable()
    try:
        batches = iter(al.DataLoader(Bad(), 2, num_workers=2))
        next(batches)
        with suppress(KeyError):
            next(batches)
        del batches
        assert not multiprocessing.active_children()
    finally:
        gc.enable()


class Held:
    """Gives its second item when there is a file of that path."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        until(lambda: index == 0 or self.path.exists())
        return index


def test_a_time_out_says_which_worker_was_at_which_batch_and_the_batch_still_comes(tmp_path: Path) -> None:
    batches = iter(al.DataLoader(Held(tmp_path / "go"), None, num_workers=2, timeout=2))
    assert next(batches) == 0
    with pytest.raises(RuntimeError, match="timed out") as error:
        next(batches)
    assert str(error.value) == "DataLoader timed out after 2 seconds"
    (note,) = error.value.__notes__
    worker = batches._workers[1]
    assert note == f"batch 1 was being made by worker 1 (pid {worker.pid}, alive)"
    del error  # it holds this frame, and the frame the iterator: a cycle that only a collection ends
    (tmp_path / "go").touch()
    assert next(batches) == 1


# --- how workers start ---


def contexts() -> list[Any]:
    """Each by its name, and one that is given as what the name stands for."""
    names = ["fork", "spawn", "forkserver"]
    given = [multiprocessing.get_context(name) for name in names]
    return [*names, given[0], *(pytest.param(each, marks=pytest.mark.slow) for each in given[1:])]


@pytest.mark.parametrize(
    "context", contexts(), ids=lambda it: it if isinstance(it, str) else type(it).__name__
)
def test_lambdas_and_local_classes_reach_workers_of_every_start_method(context: Any) -> None:
    class Local:
        def __init__(self) -> None:
            self.transform = lambda index: index * 10
            self.offset = 0

        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> int:
            return self.transform(index) + self.offset

    def shift(worker: int) -> None:
        info = al.get_worker_info()
        assert info is not None
        info.dataset.offset = 1  # type: ignore[attr-defined]

    loader = al.DataLoader(
        Local(),
        2,
        num_workers=1,
        collate_fn=lambda samples: ("made", samples),
        worker_init_fn=shift,
        multiprocessing_context=context,
    )
    assert list(loader) == [("made", [1, 11]), ("made", [21])]


# Spawned workers of scripts are those of test_travel.
@pytest.mark.parametrize("method", [pytest.param("spawn", marks=pytest.mark.slow), "forkserver"])
def test_a_script_with_everything_in_main_works_with_every_start_method(tmp_path: Path, method: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
        import asyncloader as al
        import torch

        class Squares(torch.utils.data.Dataset):
            def __len__(self):
                return 4
            def __getitem__(self, index):
                return index * index

        class Stream(torch.utils.data.IterableDataset):
            def __iter__(self):
                info = al.get_worker_info()
                yield info.id, info.dataset is self

        if __name__ == "__main__":
            options = dict(num_workers=1, multiprocessing_context={method!r})
            print([b.tolist() for b in al.DataLoader(Squares(), 2, **options)])
            print(list(al.DataLoader(Stream(), None, collate_fn=lambda it: it, **options)))
        """)
    )
    environ = os.environ | {"PYTHONPATH": str(Path(al.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, str(script)], env=environ, capture_output=True, text=True, timeout=120
    )
    assert done.stderr == ""
    assert done.stdout == "[[0, 1], [4, 9]]\n[(0, True)]\n"


class Locked:
    def __init__(self) -> None:
        self.fine = 3
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.filterwarnings("ignore:Got pickle error:UserWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_cannot_be_pickled_is_named() -> None:
    with pytest.raises(TypeError, match=r"cannot pickle '_thread\.lock' object") as error:
        iter(al.DataLoader(Locked(), num_workers=1, multiprocessing_context="spawn"))
    assert error.value.__notes__ == ["while pickling dataset.lock, of type lock, for a worker"]
    lock = threading.Lock()
    with pytest.raises(TypeError) as error:
        iter(
            al.DataLoader(
                [1],
                num_workers=1,
                multiprocessing_context="spawn",
                collate_fn=lambda samples: lock,
            )
        )
    assert error.value.__notes__ == ["while pickling collate_fn, of type function, for a worker"]


class SharedTensor:
    """Holds what only multiprocessing and torch know how to send."""

    def __init__(self) -> None:
        self.tensor = torch.zeros(2).share_memory_()
        self.queue: Any = multiprocessing.get_context("spawn").Queue()

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        self.tensor[index] = 7
        self.queue.put(index)
        return index


def test_shared_tensors_and_queues_in_a_dataset_stay_shared_with_spawned_workers() -> None:
    dataset = SharedTensor()
    assert list(al.DataLoader(dataset, None, num_workers=1, multiprocessing_context="spawn")) == [0, 1]
    assert dataset.tensor.tolist() == [7, 7]
    assert [dataset.queue.get(timeout=5) for _ in range(2)] == [0, 1]
    dataset.queue.close()
    dataset.queue.join_thread()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_torchs_own_data_pipes_are_sharded_with_every_start_method(method: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.utils.data.datapipes.iter import IterableWrapper
    pipe = IterableWrapper(range(8)).shuffle().sharding_filter()
    found = []
    # Torch's own give the same however they start; it takes long to spawn them.
    for loader_class, start in ((al.DataLoader, method), (TORCH, "fork")):
        torch.manual_seed(1)
        loader = loader_class(pipe, None, shuffle=True, num_workers=2, multiprocessing_context=start)
        found.append(list(loader))
    assert found[0] == found[1]
    assert sorted(found[0]) == list(range(8))


# --- life ---


class Pids:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return os.getpid()


def test_persistent_workers_survive_epochs_and_others_do_not() -> None:
    for persistent in (True, False):
        loader = al.DataLoader(Pids(), None, num_workers=2, persistent_workers=persistent)
        first, second = set(loader), set(loader)
        assert len(first) == len(second) == 2
        assert (first == second) is persistent
        assert not persistent or iter(loader) is iter(loader)


def test_a_copy_has_persistent_workers_of_its_own() -> None:
    with al.DataLoader(Pids(), None, num_workers=1, persistent_workers=True) as loader:
        batches = iter(loader)
        own = next(batches)
        for twin in (copy.copy(loader), pickle.loads(pickle.dumps(loader))):
            with twin:
                assert own not in list(twin), "another worker"
        assert list(batches) == [own] * 3, "its pass goes on"
        assert set(loader) == {own}, "and its worker persists"


class Passes(IterableDataset[int]):
    def __init__(self) -> None:
        self.passes = 0

    def __iter__(self) -> Iterator[int]:
        assert al.get_worker_info() is not None
        self.passes += 1
        return iter([self.passes] * 3)


def test_persistent_workers_are_reset_in_the_middle_of_an_epoch() -> None:
    loader = al.DataLoader(Passes(), None, num_workers=1, persistent_workers=True)
    batches = iter(loader)
    assert next(batches) == 1
    assert list(loader) == [2, 2, 2]
    assert list(loader) == [3, 3, 3]


@pytest.mark.parametrize("workers", [0, 2])
def test_several_iterators_of_one_loader_are_independent(workers: int) -> None:
    loader = al.DataLoader(range(5), None, num_workers=workers)
    one, two = iter(loader), iter(loader)
    assert [next(one), next(one), next(two), next(one)] == [0, 1, 0, 2]
    del one
    assert list(two) == [1, 2, 3, 4]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("how", ["break", "del", "end"])
def test_no_worker_outlives_its_loop(how: str, persistent: bool) -> None:
    list(al.DataLoader(range(2), num_workers=1))  # what multiprocessing starts once in a process's life
    with testing.check_leaks(within_s=3):
        loader = al.DataLoader(range(100), 2, num_workers=2, persistent_workers=persistent)
        if how == "break":
            for _batch in loader:
                break
            del _batch  # shares memory with the worker that made it
        elif how == "del":
            batches = iter(loader)
            next(batches)
            del batches
        else:
            assert len(list(loader)) == 50
        del loader


@pytest.mark.parametrize("in_order", [True, False])
def test_completion_order_gives_each_sample_once(in_order: bool) -> None:
    loader = al.DataLoader(FirstSlow(), None, num_workers=2, in_order=in_order)
    got = list(loader)
    assert sorted(got) == list(range(12))
    assert (got == list(range(12))) is in_order


class FirstSlow:
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        time.sleep(0.3 if index == 0 else 0)
        return index


class Frozen:
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return gc.get_freeze_count()


def test_a_collection_in_a_forked_worker_leaves_what_was_there_before_alone() -> None:
    loader = al.DataLoader(Frozen(), None, num_workers=1, multiprocessing_context="fork")
    assert min(loader) > 10_000
