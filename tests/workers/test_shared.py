"""What all workers are given is stored once: large arrays are the same pages, until somebody writes."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest

from asyncloader.errors import WorkerDiedError
from asyncloader.flow.channel import ChannelClosed
from asyncloader.observe.stopwatch import Stopwatch
from asyncloader.testing import check_leaks
from asyncloader.workers.by_value import dumps_with_modules
from asyncloader.workers.pool import WorkerPool
from asyncloader.workers.slots import load_shared, store_shared
from asyncloader.workers.worker import Work

from .receiving import receive

pytestmark = [
    pytest.mark.usefixtures("server"),
    pytest.mark.parametrize("platform", ["native", "portable"], indirect=True),
]


def test_what_was_stored_is_loaded_with_its_buffers() -> None:
    fixed = np.arange(100_000)
    fixed.flags.writeable = False
    held = {
        "columns": [np.arange(50_000) + number for number in range(3)],
        "transposed": np.arange(100_000.0).reshape(100, 1000).T,
        "small": np.arange(3),
        "fixed": fixed,
        "text": "x",
    }
    pickled, buffers, _ = dumps_with_modules(held)
    assert len(pickled) < 5000 and len(buffers) == 5
    with check_leaks():
        store = store_shared(pickled, buffers)
        first, second = load_shared(os.dup(store.fileno())), load_shared(os.dup(store.fileno()))
        store.close()
        store.close()
        for found in (first, second):
            assert found.keys() == held.keys()
            assert all(np.array_equal(found[name], held[name]) for name in ("transposed", "small", "fixed"))
            assert not found["fixed"].flags.writeable
        first["columns"][0][:] = 0  # a function may write to what it refers to
        assert np.array_equal(second["columns"], held["columns"])
        assert not first["columns"][0].any()
        del first, second, found


def test_whoever_loads_it_neither_moves_nor_minds_the_others_place_in_the_file() -> None:
    """All workers begin at once, with duplicates of one descriptor."""
    store = store_shared(pickle.dumps("x" * 100_000, protocol=5), [])
    other = os.dup(store.fileno())
    os.lseek(other, 7, os.SEEK_SET)
    assert load_shared(os.dup(store.fileno())) == "x" * 100_000
    assert os.lseek(other, 0, os.SEEK_CUR) == 7
    os.close(other)
    store.close()


def test_nothing_large_is_stored_without_buffers() -> None:
    store = store_shared(pickle.dumps([1, 2], protocol=5), [])
    assert load_shared(os.dup(store.fileno())) == [1, 2]
    store.close()


def test_every_worker_and_who_replaces_one_has_the_same_job() -> None:
    array = np.arange(1 << 20)

    def job(number: int, given: str) -> Work:
        def batches() -> Generator[tuple[Any, Any], None, None]:
            array[0] += 1  # in its own pages
            yield int(array[0]), (number, given)
            yield int(array.sum()), None

        return Work(batches(), Stopwatch())

    pickled, buffers, _ = dumps_with_modules(job)
    total = int(array.sum()) + 1
    with check_leaks(), WorkerPool((pickled, buffers), ["a", "b"], prefetch=1) as pool:
        array[:] = 0  # they have it as it was when they were started
        assert [receive(worker) for worker in pool.workers] == [(1, (0, "a")), (1, (1, "b"))]
        assert receive(pool.workers[0])[0] == total
        os.kill(pool.workers[1].pid or 0, signal.SIGKILL)
        with pytest.raises(WorkerDiedError):
            while True:
                receive(pool.workers[1])
        pool.replace(1, "c")
        replaced = pool.workers[1]
        assert [receive(replaced), receive(replaced)] == [(1, (1, "c")), (total, None)]
    with pytest.raises(ChannelClosed):
        pool.replace(1, "d")
