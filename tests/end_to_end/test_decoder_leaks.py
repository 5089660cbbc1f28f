"""Shards that are decoded on a thread of their own: however a loop is left, that thread has gone with it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from waiting import opened, until

import asyncloader as al
from asyncloader import testing

from .test_leaks import ASYNC, SYNC, cancel_within_a_second, within_a_second

pytestmark = pytest.mark.usefixtures("fork_server")

WORKERS = pytest.mark.parametrize("workers", [0, 2])


def in_turn(ways: list[Callable[..., Any]]) -> Any:
    """Each way with 0 or 2 workers in turn; with the others in the slow tests."""
    return pytest.mark.parametrize(
        ("leave", "workers"),
        [
            pytest.param(leave, workers, marks=pytest.mark.slow if (nth + workers // 2) % 2 else [])
            for (nth, leave), workers in product(enumerate(ways), (0, 2))
        ],
        ids=lambda value: value.__name__ if callable(value) else str(value),
    )


# A lane decodes 8 MiB ahead; it has two shards.
ROWS, ROW_BYTES = 12, 1 << 20


def decoders() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "asyncloader-decoder"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small shards of which more is decoded than may wait, and large ones."""
    folder = tmp_path_factory.mktemp("shards")
    for shard in range(4):
        rows = pa.array([np.full(ROW_BYTES, row, np.int8) for row in range(ROWS)], pa.list_(pa.int8()))
        table = pa.table({"number": np.arange(ROWS) + shard * ROWS, "field": rows})
        pq.write_table(table, folder / f"shard-{shard}.parquet", row_group_size=1)
        noise = np.random.default_rng(shard).integers(0, 1 << 62, (3, 50_000)).tolist()
        pq.write_table(pa.table({"noise": noise}), folder / f"noise-{shard}.parquet", row_group_size=1)
    return folder


def loader_of(folder: Path, workers: int) -> al.DataLoader[Any]:
    recipe = al.from_urls(f"{folder}/shard-{{0..3}}.parquet")
    return al.DataLoader(recipe, 4, num_workers=workers, lanes=2, collate_fn=al.Pad({"field": 0}))


@in_turn(SYNC)
def test_leaving_a_for_loop_ends_the_decoders(
    leave: Callable[[al.DataLoader[Any], int], None], workers: int, folder: Path
) -> None:
    with testing.check_leaks():
        leave(loader_of(folder, workers), 3)
        gc.collect()
        assert not decoders(), "joined, not left to end"


@in_turn(ASYNC)
async def test_leaving_an_async_for_loop_ends_the_decoders(
    leave: Callable[..., Any], workers: int, folder: Path
) -> None:
    async with testing.check_leaks():
        await leave(loader_of(folder, workers), 3)


def test_the_decoders_work_while_batches_are_held(folder: Path) -> None:
    with loader_of(folder, 0) as loader:
        batches = iter(loader)
        next(batches)
        until(lambda: len(decoders()) == 2)  # one for each lane


@WORKERS
def test_a_whole_epoch_over_decoders_is_complete_and_leaves_nothing(workers: int, folder: Path) -> None:
    with testing.check_leaks():
        found = [number for batch in loader_of(folder, workers) for number in batch["number"].tolist()]
    assert sorted(found) == list(range(4 * ROWS))


def test_an_error_of_the_users_function_ends_the_decoders(folder: Path) -> None:
    def fail(columns: dict[str, Any]) -> Any:
        return {"number": [1 // (number - 2) for number in columns["number"].tolist()]}

    with testing.check_leaks():
        recipe = al.from_urls(f"{folder}/shard-*.parquet").map_batches(fail, batch_size=4)
        loader = al.DataLoader(recipe, 4, lanes=2)
        with pytest.raises(ZeroDivisionError):
            list(loader)
        assert not decoders()


def test_a_damaged_shard_ends_the_decoders(folder: Path, tmp_path: Path) -> None:
    content = bytearray((folder / "noise-0.parquet").read_bytes())
    middle = len(content) // 2
    content[middle - 200_000 : middle + 200_000] = bytes(400_000)
    (tmp_path / "damaged.parquet").write_bytes(content)
    with testing.check_leaks():
        recipe = al.from_urls(str(tmp_path / "damaged.parquet"))
        batches = iter(al.DataLoader(recipe, 1, collate_fn=al.Pad({"noise": 0})))
        with pytest.raises(al.errors.FormatError, match=r"damaged\.parquet"):
            list(batches)
        assert not decoders()


@pytest.fixture
def stalled(folder: Path) -> Iterator[testing.Server]:
    """A server that tells the footers, and of the rows only the beginning."""
    with testing.serve(folder, [testing.Stall(byte=100_000, seconds=3600)]) as server:
        yield server


def stalled_loader(server: testing.Server, workers: int) -> al.DataLoader[Any]:
    urls = [server.url_of(f"noise-{number}.parquet") for number in range(2)]
    recipe = al.from_urls(urls)
    return al.DataLoader(recipe, 4, num_workers=workers, lanes=2, collate_fn=al.Pad({"noise": 0}))


@WORKERS
def test_closing_while_a_decoder_waits_for_bytes_takes_less_than_a_second(
    workers: int, stalled: testing.Server
) -> None:
    with testing.check_leaks():
        loader = stalled_loader(stalled, workers)
        loader.timeout = 0.5
        batches = opened(loader)
        with pytest.raises(TimeoutError):
            next(batches)
        with within_a_second():
            loader.close()
        assert not decoders()


@WORKERS
async def test_cancelling_while_a_decoder_waits_for_bytes_takes_less_than_a_second(
    workers: int, stalled: testing.Server
) -> None:
    async with testing.check_leaks():
        await cancel_within_a_second(stalled_loader(stalled, workers))


def test_closed_at_any_moment_nothing_is_left(folder: Path) -> None:
    for delay in np.linspace(0, 0.05, 15):
        with testing.check_leaks():
            batches = iter(loader_of(folder, 0))
            threading.Event().wait(float(delay))
            batches.close()
            assert not decoders()


def test_for_rows_nothing_is_decoded_ahead(folder: Path) -> None:
    loader = al.DataLoader(al.from_urls(f"{folder}/shard-*.parquet").map(dict), 4, lanes=2, collate_fn=list)
    for _ in loader:
        assert not decoders()
