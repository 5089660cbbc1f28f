"""However a loop is left, within a second no task, thread, descriptor, process or shared memory is there."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from itertools import product
from pathlib import Path
from types import coroutine
from typing import Any

import pytest
from corpus import Corpus, keys_of
from programs import Programs
from waiting import AT_ONCE_S, opened

import asyncloader as al
from asyncloader import testing

from .harness import recipe_of

pytestmark = pytest.mark.usefixtures("platform", "fork_server")

WORKERS = pytest.mark.parametrize("workers", [0, 2])

MakeLoader = Callable[[int], al.DataLoader[Any]]


async def _later(sample: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(0)
    return sample


@pytest.fixture
def make_loader(make_corpus: Callable[..., Corpus], served: testing.Server) -> MakeLoader:
    """A loader over HTTP with everything that holds something: sockets, map threads, coroutines."""
    corpus = make_corpus("jsonl", (6, 6, 6, 6, 6, 6))

    def make_loader(workers: int) -> al.DataLoader[Any]:
        recipe = recipe_of(corpus, served).shuffle(4).map(dict, concurrency=2).map(_later, concurrency=4)
        return al.DataLoader(recipe, 4, num_workers=workers, lanes=2)

    return make_loader


class Left(Exception):
    pass


def leave_by_break(loader: al.DataLoader[Any], at: int) -> None:
    for number, _ in enumerate(loader):
        if number == at:
            break


def leave_by_exception(loader: al.DataLoader[Any], at: int) -> None:
    with suppress(Left):
        for number, _ in enumerate(loader, 1):
            if number >= at:
                raise Left


def leave_by_close(loader: al.DataLoader[Any], at: int) -> None:
    batches = iter(loader)
    for _ in zip(range(at), batches, strict=False):
        pass
    batches.close()
    if at < 9:
        with pytest.raises(RuntimeError, match="closed before the end"):
            next(batches)


def leave_by_closing_the_loader(loader: al.DataLoader[Any], at: int) -> None:
    batches = iter(loader)
    for _ in zip(range(at), batches, strict=False):
        pass
    loader.close()
    loader.close()


def leave_by_end_of_with(loader: al.DataLoader[Any], at: int) -> None:
    with loader:
        batches = iter(loader)
        for _ in zip(range(at), batches, strict=False):
            pass
    assert batches is not None, "still referred to"


def leave_by_garbage_collection(loader: al.DataLoader[Any], at: int) -> None:
    batches = iter(loader)
    for _ in zip(range(at), batches, strict=False):
        pass
    cycle: list[Any] = [batches, loader]
    cycle.append(cycle)
    del batches, loader, cycle
    gc.collect()


SYNC = [
    leave_by_break,
    leave_by_exception,
    leave_by_close,
    leave_by_closing_the_loader,
    leave_by_end_of_with,
    leave_by_garbage_collection,
]


def _cases(ways: list[Callable[..., Any]]) -> list[Any]:
    """Each way at each moment without workers; with workers moments take turns, but in the slow tests."""
    moments = (0, 3, 9)
    return [
        pytest.param(
            leave,
            at,
            workers,
            marks=pytest.mark.slow if workers and at != moments[nth % 3] else [],
            id=f"{leave.__name__}-{at}-{workers}",
        )
        for (nth, leave), at, workers in product(enumerate(ways), moments, (0, 2))
    ]


#: The moment is how many batches the loop has had when it is left: none, some, all.
@pytest.mark.parametrize(("leave", "at", "workers"), _cases(SYNC))
def test_leaving_a_for_loop_frees_everything(
    leave: Callable[[al.DataLoader[Any], int], None], at: int, workers: int, make_loader: MakeLoader
) -> None:
    with testing.check_leaks():
        leave(make_loader(workers), at)


async def leave_async_by_break(loader: al.DataLoader[Any], at: int) -> None:
    number = 0
    async for _ in loader:
        number += 1
        if number > at:
            break


async def leave_async_by_exception(loader: al.DataLoader[Any], at: int) -> None:
    number = 0
    with suppress(Left):
        async for _ in loader:
            number += 1
            if number >= at:
                raise Left


async def leave_async_by_aclosing(loader: al.DataLoader[Any], at: int) -> None:
    async with aclosing(aiter(loader)) as batches:
        await _some(batches, at)


async def leave_async_by_end_of_with(loader: al.DataLoader[Any], at: int) -> None:
    async with loader:
        batches = aiter(loader)
        await _some(batches, at)
    assert batches is not None, "still referred to"


async def leave_async_by_cancellation_in_the_body(loader: al.DataLoader[Any], at: int) -> None:
    reached = asyncio.Event()

    async def consume() -> None:
        number = 0
        async for _ in loader:
            number += 1
            if number > at:
                reached.set()
                await asyncio.sleep(3600)
        reached.set()

    task = asyncio.create_task(consume())
    await reached.wait()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def leave_async_by_garbage_collection(loader: al.DataLoader[Any], at: int) -> None:
    batches = aiter(loader)
    await _some(batches, at)
    cycle: list[Any] = [batches, loader]
    cycle.append(cycle)
    del batches, loader, cycle
    gc.collect()


async def _some(batches: AsyncIterator[Any], count: int) -> None:
    for _ in range(count):
        with suppress(StopAsyncIteration):
            await anext(batches)


ASYNC = [
    leave_async_by_break,
    leave_async_by_exception,
    leave_async_by_aclosing,
    leave_async_by_end_of_with,
    leave_async_by_cancellation_in_the_body,
    leave_async_by_garbage_collection,
]


@pytest.mark.parametrize(("leave", "at", "workers"), _cases(ASYNC))
async def test_leaving_an_async_for_loop_frees_everything(
    leave: Callable[..., Any], at: int, workers: int, make_loader: MakeLoader
) -> None:
    async with testing.check_leaks():
        await leave(make_loader(workers), at)


@WORKERS
def test_a_whole_epoch_leaves_nothing_though_iterator_and_loader_are_kept(
    workers: int, make_loader: MakeLoader
) -> None:
    loader = make_loader(workers)
    with testing.check_leaks():
        batches = iter(loader)
        assert len(keys_of(batches)) == 36
    assert next(batches, None) is None, "an ended iterator stays ended"


@WORKERS
def test_two_iterators_of_one_loader_do_not_disturb_each_other(workers: int, make_loader: MakeLoader) -> None:
    loader = make_loader(workers)
    with testing.check_leaks():
        first, second = iter(loader), iter(loader)
        taken = [next(first), next(second)]
        first.close()
        assert len(keys_of([taken[1], *second])) == 36


def test_an_error_in_the_users_function_frees_everything(make_corpus: Callable[..., Corpus]) -> None:
    recipe = recipe_of(make_corpus("jsonl")).map(lambda sample: 1 // (sample["number"] - 205))
    with testing.check_leaks():
        batches = iter(al.DataLoader(recipe, 4, num_workers=2))
        with pytest.raises(ZeroDivisionError):
            list(batches)
        with pytest.raises(RuntimeError, match="closed before the end"):
            next(batches)


# --- while nothing comes ---


@pytest.fixture
def stalled(make_corpus: Callable[..., Corpus]) -> Iterator[testing.Server]:
    """A server that sends the beginning of each shard and then nothing for an hour."""
    corpus = make_corpus("tar", (4, 4))
    with testing.serve(corpus.folder, [testing.Stall(byte=1024, seconds=3600)]) as server:
        yield server


def stalled_loader(server: testing.Server, workers: int) -> al.DataLoader[Any]:
    urls = [server.url_of(f"shard-{number:03d}.tar") for number in range(2)]
    return al.DataLoader(al.from_urls(urls), 4, num_workers=workers)


@contextmanager
def within_a_second() -> Iterator[None]:
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < AT_ONCE_S


@WORKERS
def test_closing_a_loader_whose_server_stalls_takes_less_than_a_second(
    workers: int, stalled: testing.Server
) -> None:
    with testing.check_leaks():
        loader = stalled_loader(stalled, workers)
        batches = iter(loader)
        wait_for_requests(stalled)
        with within_a_second():
            loader.close()
        del batches


@WORKERS
def test_closing_from_another_thread_wakes_the_one_that_waits(workers: int, stalled: testing.Server) -> None:
    with testing.check_leaks():
        loader = stalled_loader(stalled, workers)
        batches = iter(loader)
        outcome: list[BaseException] = []

        def consume() -> None:
            try:
                next(batches)
            except BaseException as error:
                outcome.append(error)

        thread = threading.Thread(target=consume)
        thread.start()
        wait_for_requests(stalled)
        with within_a_second():
            loader.close()
            thread.join()
    assert len(outcome) == 1
    assert not isinstance(outcome[0], StopIteration), "a cut pass is no ended one"


@WORKERS
async def test_cancelling_a_wait_for_a_stalled_server_takes_less_than_a_second(
    workers: int, stalled: testing.Server
) -> None:
    async with testing.check_leaks():
        await cancel_within_a_second(stalled_loader(stalled, workers))


async def cancel_within_a_second(loader: al.DataLoader[Any]) -> None:
    """Cancel a wait for the first batch."""
    task = asyncio.create_task(anext(aiter(loader)))
    await asyncio.sleep(0.3)  # the loop turns while the loader comes to wait
    with within_a_second():
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@WORKERS
async def test_a_cancelled_async_for_frees_everything_though_its_error_is_kept(
    workers: int, stalled: testing.Server
) -> None:
    kept: list[BaseException] = []

    async def consume() -> None:
        try:
            async for _ in stalled_loader(stalled, workers):
                pass
        except asyncio.CancelledError as error:
            kept.append(error)
            raise

    async with testing.check_leaks():
        task = asyncio.create_task(consume())
        await asyncio.sleep(0.3)  # the loop turns while the loader comes to wait
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(kept) == 1


@WORKERS
async def test_asyncio_timeout_around_a_stalled_server_frees_everything(
    workers: int, stalled: testing.Server
) -> None:
    async with testing.check_leaks():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await anext(aiter(stalled_loader(stalled, workers)))


@WORKERS
def test_the_timeout_option_raises_and_closing_then_frees_everything(
    workers: int, stalled: testing.Server
) -> None:
    with testing.check_leaks():
        loader = stalled_loader(stalled, workers)
        loader.timeout = 0.2
        batches = opened(loader)
        for _ in range(2):
            with pytest.raises(TimeoutError):
                next(batches)
        batches.close()


@WORKERS
async def test_the_timeout_option_holds_in_an_async_loop_too(workers: int, stalled: testing.Server) -> None:
    async with testing.check_leaks():
        loader = stalled_loader(stalled, workers)
        loader.timeout = 0.2
        batches = opened(loader)
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await anext(batches)
        await batches.aclose()


@WORKERS
def test_a_batch_that_came_late_is_delivered_after_the_timeout(workers: int) -> None:
    recipe = al.from_iterable(lambda topology: topology.split(range(4))).map(_after_half_a_second)
    batches = opened(al.DataLoader(recipe, 2, num_workers=workers, lanes=1, timeout=0.3))
    delivered, timeouts = [], 0
    while len(delivered) < 2:
        try:
            delivered.append(next(batches).tolist())
        except TimeoutError:
            timeouts += 1
    assert delivered == [[0, 1], [2, 3]] and timeouts >= 1
    batches.close()


def _after_half_a_second(number: int) -> int:
    if number == 0:
        time.sleep(0.5)
    return number


def wait_for_requests(server: testing.Server) -> None:
    deadline = time.monotonic() + 10
    while server.counters.concurrent < 1:
        assert time.monotonic() < deadline
        time.sleep(0.005)


# --- cancelled at every await ---


@coroutine
def cancel_at(await_number: int, work: Any) -> Any:
    """Run a coroutine and cancel its task at the given wait, as seen from the task itself."""
    value, number = None, 0
    while True:
        try:
            waited_for = work.send(value)
        except StopIteration as end:
            return end.value
        if number == await_number:
            asyncio.current_task().cancel()
        number += 1
        try:
            value = yield waited_for
        except BaseException as error:
            return work.throw(error)


async def _slowly(sample: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(0.002)  # so that the consumer has to wait for each batch
    return sample


@WORKERS
async def test_cancelled_at_every_await_nothing_is_left_and_no_batch_is_lost(
    workers: int, make_corpus: Callable[..., Corpus], served: testing.Server
) -> None:
    recipe = recipe_of(make_corpus("jsonl", (6, 6, 6)), served).shuffle(4).map(_slowly)

    def make_loader() -> al.DataLoader[Any]:
        return al.DataLoader(recipe, 2, num_workers=workers, lanes=2)

    whole = keys_of(make_loader())
    cancelled_at, ended = 0, False
    while not ended:
        loader = make_loader()
        delivered: list[Any] = []
        async with testing.check_leaks():
            task = asyncio.create_task(_awaited(cancel_at(cancelled_at, _consume(loader, delivered))))
            with suppress(asyncio.CancelledError):
                ended = await task
            del task
        rest = make_loader()
        rest.load_state_dict(loader.state_dict())
        assert ended or keys_of(delivered) + keys_of(rest) == whole
        cancelled_at += 1
    assert cancelled_at > 4, "it had to wait for most batches"


async def _consume(loader: al.DataLoader[Any], to: list[Any]) -> bool:
    async with aclosing(aiter(loader)) as batches:
        async for batch in batches:
            to.append(batch)
    return True


async def _awaited(work: Any) -> Any:
    return await work


# --- the process ends ---

_PROGRAM = """
import sys
import asyncloader as al

workers, *urls = sys.argv[1:]
loader = al.DataLoader(al.from_urls(urls), 1, num_workers=int(workers))
"""

_BLOCKED = (
    _PROGRAM
    + """
print("waiting", flush=True)
for batch in loader:
    print("a batch came", flush=True)
"""
)

_BLOCKED_ASYNC = (
    _PROGRAM
    + """
import asyncio

async def main():
    print("waiting", flush=True)
    async for batch in loader:
        print("a batch came", flush=True)

asyncio.run(main())
"""
)


@WORKERS
@pytest.mark.parametrize("program", [_BLOCKED, _BLOCKED_ASYNC], ids=["for", "async for"])
def test_ctrl_c_ends_a_blocked_program_promptly_with_a_readable_traceback(
    program: str, workers: int, stalled: testing.Server, tmp_path: Path, programs: Programs
) -> None:
    script = tmp_path / "train.py"
    script.write_text(program)
    urls = [stalled.url_of(f"shard-{number:03d}.tar") for number in range(2)]
    with testing.check_leaks(), programs.started(script, workers, *urls, new_session=True) as process:
        assert process.read_line() == "waiting\n"
        wait_for_requests(stalled)
        begun = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers as well
        out, err = process.communicate(timeout=10)
        took_s = time.monotonic() - begun
    assert took_s < AT_ONCE_S
    assert process.returncode == -signal.SIGINT
    assert out == ""
    assert err.count("Traceback") <= 2 and err.rstrip().endswith("KeyboardInterrupt")
    assert "Exception ignored" not in err and "Error in" not in err
    assert "for batch in loader" in err


_LEFT_OPEN = (
    _PROGRAM
    + """
batches = iter(loader)
next(batches)
print("done", flush=True)
"""
)

_LEFT_OPEN_ASYNC = (
    _PROGRAM
    + """
import asyncio

async def main():
    global batches
    batches = aiter(loader)
    await anext(batches)
    print("done", flush=True)

asyncio.run(main())
"""
)

_SYS_EXIT = (
    _PROGRAM
    + """
for batch in loader:
    print("done", flush=True)
    sys.exit()
"""
)


@WORKERS
@pytest.mark.parametrize(
    "program",
    [_LEFT_OPEN, _LEFT_OPEN_ASYNC, _SYS_EXIT],
    ids=["an iterator", "an async iterator", "inside the loop"],
)
def test_a_program_ends_quietly_with_an_iterator_left_open(
    program: str, workers: int, make_corpus: Callable[..., Corpus], tmp_path: Path, programs: Programs
) -> None:
    corpus = make_corpus("tar", (40, 40))
    script = tmp_path / "train.py"
    script.write_text(program)
    with testing.check_leaks():
        run = programs.run(script, workers, *corpus.paths)
    assert (run.returncode, run.stdout, run.stderr) == (0, "done\n", "")


_CHECKED = """
import asyncio, sys
import asyncloader as al
import torch
from asyncloader import testing

workers, *urls = sys.argv[1:]

def of_loader():
    return al.DataLoader(al.from_urls(urls), 4, num_workers=int(workers))

for batch in al.DataLoader(al.from_urls(urls)):  # what libuv keeps for good, it has by now
    pass

with testing.check_leaks():
    for batch in of_loader():
        pass
    for batch in of_loader():
        break

async def main():
    async with testing.check_leaks():
        async for batch in of_loader():
            break

asyncio.run(main())
"""


@WORKERS
def test_the_last_loader_takes_the_process_that_workers_come_from_with_it(
    workers: int, make_corpus: Callable[..., Corpus], tmp_path: Path, programs: Programs
) -> None:
    script = tmp_path / "train.py"
    script.write_text(_CHECKED)
    run = programs.run(script, workers, *make_corpus("tar").paths)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.parametrize("workers", [0, 2])
def test_kill_9_of_the_program_leaves_no_process_behind(
    workers: int, stalled: testing.Server, tmp_path: Path, programs: Programs
) -> None:
    script = tmp_path / "train.py"
    script.write_text(_BLOCKED)
    urls = [stalled.url_of(f"shard-{number:03d}.tar") for number in range(2)]
    with testing.check_leaks(), programs.started(script, workers, *urls) as process:
        wait_for_requests(stalled)
        process.kill()
        process.communicate()
