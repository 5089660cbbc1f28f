"""What ``.map(fn, context=...)`` enters is left when the pass ends, however it ends."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import asyncloader as al
from asyncloader import testing

pytestmark = pytest.mark.usefixtures("fork_server")

WORKERS = pytest.mark.parametrize("workers", [0, 2])
WORDS = {f"word-{number}": f"answer {number}".encode() for number in range(40)}


@pytest.fixture
def service() -> Iterator[testing.Server]:
    with testing.serve(WORDS, latency_s=0.01) as server:
        yield server


@asynccontextmanager
async def _logged(log: Path) -> AsyncIterator[Path]:
    """A context that writes down when it is entered and when it has been left, and by which process."""
    with log.open("a") as file:
        file.write(f"entered {os.getpid()}\n")
    try:
        yield log
    finally:
        await asyncio.sleep(0.01)
        with log.open("a") as file:
            file.write(f"left {os.getpid()}\n")


def logged(log: Path) -> tuple[list[str], list[str]]:
    """The processes that entered, and those that left."""
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    entered, left = ([pid for what, pid in lines if what == event] for event in ("entered", "left"))
    assert sorted(entered) == sorted(left) and len(set(entered)) == len(entered), lines
    return entered, left


def numbers(count: int = 40) -> al.Dataset:
    return al.from_iterable(lambda topology: topology.split(range(count)))


@WORKERS
def test_a_session_is_shared_by_the_lanes_of_a_process_and_closed(
    workers: int, service: testing.Server
) -> None:
    base = service.url

    async def ask(number: int, session: aiohttp.ClientSession) -> str:
        async with session.get(f"{base}/word-{number}") as response:
            return await response.text()

    recipe = numbers().map(ask, concurrency=8, context=aiohttp.ClientSession)
    found = [text for batch in al.DataLoader(recipe, 4, num_workers=workers, lanes=4) for text in batch]
    gc.collect()  # an unclosed session would warn now, and warnings are errors
    assert sorted(found) == sorted(text.decode() for text in WORDS.values())


@WORKERS
@pytest.mark.parametrize("plain", [True, False], ids=["plain", "coroutine"])
def test_it_is_entered_once_a_process_and_pass_and_left_at_the_end(
    workers: int, plain: bool, tmp_path: Path
) -> None:
    log = tmp_path / "log"

    def named(number: int, context: Path) -> tuple[int, str]:
        return number, context.name

    async def named_later(number: int, context: Path) -> tuple[int, str]:
        await asyncio.sleep(0)
        return number, context.name

    make = functools.partial(_logged, log)
    recipe = numbers().map(named if plain else named_later, concurrency=3, context=make)
    recipe = recipe.map(lambda pair, _: pair[0], context=make)
    loader = al.DataLoader(recipe, 4, num_workers=workers, lanes=4, collate_fn=list)
    for _ in range(2):
        assert sorted(number for batch in loader for number in batch) == list(range(40))
        entered, _ = logged(log)
        assert len(entered) == max(workers, 1)
        log.unlink()


def _endings() -> dict[str, Any]:
    def stop(loader: al.DataLoader[Any]) -> None:
        for _ in loader:
            break

    def close(loader: al.DataLoader[Any]) -> None:
        with loader:
            next(iter(loader))

    def fail(loader: al.DataLoader[Any]) -> None:
        with pytest.raises(KeyError, match="mine"):
            for _ in loader:
                raise KeyError("mine")

    def cancel(loader: al.DataLoader[Any]) -> None:
        async def read(began: asyncio.Event) -> None:
            async for _ in loader:
                began.set()

        async def main() -> None:
            began = asyncio.Event()
            task = asyncio.ensure_future(read(began))
            await began.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())

    return {"break": stop, "close": close, "an error of the consumer's": fail, "cancellation": cancel}


@WORKERS
@pytest.mark.parametrize("end", _endings().values(), ids=_endings().keys())
def test_it_is_left_when_the_consumer_leaves_while_calls_are_waiting(
    workers: int, end: Any, tmp_path: Path
) -> None:
    log = tmp_path / "log"

    async def slow(number: int, context: Path) -> int:
        await asyncio.sleep(0 if number < 16 else 30)
        return number

    recipe = numbers().map(slow, concurrency=4, context=functools.partial(_logged, log))
    began = time.monotonic()
    end(al.DataLoader(recipe, 4, num_workers=workers))
    gc.collect()
    assert time.monotonic() - began < 25
    assert logged(log)[0], "at least the worker of the first batch has entered"


@WORKERS
def test_it_is_left_when_the_function_fails(workers: int, tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def fails(number: int, context: Path) -> int:
        await asyncio.sleep(0)
        if number == 20:
            raise KeyError("no such number")
        return number

    recipe = numbers().map(fails, concurrency=4, context=functools.partial(_logged, log))
    with pytest.raises(KeyError, match="no such number"):
        list(al.DataLoader(recipe, 4, num_workers=workers))
    logged(log)


@asynccontextmanager
async def _closed_door() -> AsyncIterator[None]:
    raise PermissionError("no key for the service")
    yield


@WORKERS
def test_an_error_on_entering_is_the_consumers_with_a_note(workers: int) -> None:
    recipe = numbers().map(lambda number, _: number, context=_closed_door)
    with pytest.raises(PermissionError, match="no key for the service") as caught:
        list(al.DataLoader(recipe, 4, num_workers=workers))
    assert any("while entering _closed_door" in note for note in caught.value.__notes__)


@asynccontextmanager
async def _unpaid() -> AsyncIterator[None]:
    yield
    raise ConnectionError("the bill could not be sent")


@WORKERS
def test_an_error_on_leaving_is_the_consumers_where_nothing_else_failed(workers: int) -> None:
    async def same(number: int, _: None) -> int:
        return number

    found = []
    with pytest.raises(ConnectionError, match="the bill could not be sent") as caught:
        for batch in al.DataLoader(numbers().map(same, context=_unpaid), 4, num_workers=workers):
            found += batch.tolist()
    assert sorted(found) == list(range(40)), "each batch was delivered before"
    assert any("while leaving _unpaid" in note for note in caught.value.__notes__)

    async def fails(number: int, _: None) -> int:
        raise KeyError("first")

    with pytest.raises(KeyError, match="first"):
        list(al.DataLoader(numbers().map(fails, context=_unpaid), 4, num_workers=workers))


def test_what_makes_no_context_is_refused() -> None:
    with pytest.raises(TypeError, match="such as the class itself, but got a object"):
        numbers().map(print, context=object())  # type: ignore[arg-type]  # the wrong call

    async def opens() -> int:
        return 1

    recipe = numbers().map(lambda number, _: number, context=opens)  # type: ignore[arg-type]  # the wrong call
    with pytest.raises(TypeError, match=r"opens made a coroutine; write it as .* @contextlib"):
        list(al.DataLoader(recipe, 4))
