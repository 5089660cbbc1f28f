from __future__ import annotations

import _thread
import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest
from waiting import AT_ONCE_S, until

from asyncloader import testing
from asyncloader.flow import engine as engine_module
from asyncloader.flow.channel import Channel, EndOfChannel
from asyncloader.flow.engine import Engine, EngineStopped, Scope


@pytest.fixture
def engine() -> Iterator[Engine]:
    with testing.check_leaks(), Engine() as engine:
        yield engine


def test_constructing_starts_nothing() -> None:
    before = threading.active_count()
    engine = Engine()
    assert threading.active_count() == before
    engine.stop()


def test_work_runs_on_the_engines_thread_and_its_end_ends_the_channel(engine: Engine) -> None:
    out = Channel[str](1)

    async def work() -> None:
        await out.send_async(threading.current_thread().name)

    engine.submit(work, out)
    assert out.receive() == "asyncloader-engine"
    with pytest.raises(EndOfChannel):
        out.receive()


def test_an_error_of_the_work_is_the_error_of_its_channel_and_of_no_other(engine: Engine) -> None:
    out, other = Channel[str](1), Channel[str](1)

    async def fail() -> None:
        raise KeyError("why")

    async def work() -> None:
        await asyncio.sleep(0.05)
        await other.send_async("done")

    engine.submit(work, other)
    engine.submit(fail, out)
    with pytest.raises(KeyError, match="why"):
        out.receive()
    assert other.receive() == "done"


def test_closing_the_channel_cancels_the_work_that_waits_for_something_else(engine: Engine) -> None:
    out = Channel[str](1)
    cancelled = threading.Event()

    async def work() -> None:
        await out.send_async("started")
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    engine.submit(work, out)
    assert out.receive() == "started"
    out.close()
    assert cancelled.wait(1)


def test_the_loop_turns_while_the_consumer_computes(engine: Engine) -> None:
    out = Channel[float](1000)

    async def tick() -> None:
        for _ in range(20):
            await out.send_async(time.monotonic())
            await asyncio.sleep(0.005)

    engine.submit(tick, out)
    until(lambda: len(out) == 20)


def test_stopping_cancels_every_task_and_ends_its_channel_as_cut() -> None:
    engine = Engine()
    outs = [Channel[str](1) for _ in range(5)]
    cleaned = []

    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    with testing.check_leaks():
        engine.start()
        for out in outs:
            engine.submit(work, out)
        begun = time.monotonic()
        engine.stop()
        assert time.monotonic() - begun < AT_ONCE_S
    assert len(cleaned) == 5
    for out in outs:
        with pytest.raises(EngineStopped):  # never EndOfChannel: a cut stream did not end
            out.receive()


def test_stopping_twice_does_nothing_and_work_is_refused_afterwards() -> None:
    engine = Engine()
    engine.start()
    engine.stop()
    engine.stop()

    async def work() -> None: ...

    with pytest.raises(EngineStopped):
        engine.submit(work, Channel[str](1))


def test_work_submitted_while_the_engine_is_stopped_ends_as_cut() -> None:
    for _ in range(20):
        engine = Engine()
        engine.start()
        outs = [Channel[str](1) for _ in range(20)]

        async def work() -> None:
            await asyncio.sleep(3600)

        stopper = threading.Thread(target=engine.stop)
        stopper.start()
        for out in outs:
            try:
                engine.submit(work, out)
            except EngineStopped:
                out.finish(EngineStopped())
        stopper.join()
        for out in outs:
            if out._finished:
                with pytest.raises(EngineStopped):
                    out.receive()
            else:
                pytest.fail("a channel was left without an end")


def test_resources_are_closed_after_the_last_task() -> None:
    order = []
    with Engine() as engine:
        out = Channel[str](1)

        async def work() -> None:
            engine.resources.callback(order.append, "resource")
            try:
                await out.send_async("started")
                await asyncio.sleep(3600)
            finally:
                await asyncio.sleep(0.01)
                order.append("task")

        engine.submit(work, out)
        out.receive()
    assert order == ["task", "resource"]


def test_a_stuck_task_is_reported_and_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_STOP_DEADLINE_S", 0.2)
    release = threading.Event()
    engine = Engine("stuck-engine")
    out = Channel[str](1)

    async def work() -> None:
        out.send("started")
        release.wait()  # blocks the loop, as a function of the user's may

    engine.start()
    engine.submit(work, out)
    out.receive()
    with pytest.raises(RuntimeError, match=r"stuck-engine did not stop within 0\.2 s: a task is stuck"):
        engine.stop()
    release.set()
    assert engine._thread is not None
    engine._thread.join(5)
    assert not engine._thread.is_alive()


def test_an_engine_can_be_stopped_by_a_garbage_collection_in_a_thread_that_is_starting() -> None:
    """The loop may have started it, and then waits for it."""
    engine = Engine()
    engine.start()
    out, stopped = Channel[bool](1), threading.Event()

    def stop() -> None:
        engine.stop()
        threading._active.pop(threading.get_ident())  # type: ignore[attr-defined]  # nothing else ends it
        stopped.set()

    async def work() -> None:
        _thread.start_new_thread(stop, ())
        out.send(stopped.wait(3))

    engine.submit(work, out)
    assert out.receive()
    engine.stop()


def test_an_engine_can_be_stopped_by_a_garbage_collection_on_its_own_thread() -> None:
    engine = Engine()
    engine.start()
    out = Channel[str](1)

    async def work() -> None:
        engine.stop()
        gc.collect()

    engine.submit(work, out)
    with pytest.raises((EndOfChannel, EngineStopped)):
        out.receive()
    engine.stop()


def test_a_garbage_collection_under_a_lock_that_the_loop_waits_for_does_not_wait_for_the_loop() -> None:
    engine, lock, out = Engine(), threading.Lock(), Channel[str](1)
    errors = []

    async def work() -> None:
        await out.send_async("started")
        with lock:  # as a reader gives its bytes back
            pass

    def collect() -> None:
        with lock:
            engine.submit(work, out)
            out.receive()
            try:
                engine.stop()
            except RuntimeError as error:
                errors.append(error)

    engine.start()
    thread = threading.Thread(target=collect, name="asyncloader-batches")
    thread.start()
    thread.join()
    assert not errors
    engine.stop()


# --- scopes ---


async def test_leaving_a_scope_waits_for_its_tasks() -> None:
    done = []

    async def work() -> None:
        await asyncio.sleep(0.02)
        done.append(True)

    async with Scope() as scope:
        scope.start(work)
        scope.start(work)
    assert len(done) == 2


async def test_an_error_in_a_scope_cancels_the_rest_and_comes_out_alone() -> None:
    cancelled = []

    async def wait() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def fail() -> None:
        await asyncio.sleep(0)
        raise KeyError("why")

    with pytest.raises(KeyError, match="why"):
        async with Scope() as scope:
            scope.start(wait)
            scope.start(fail)
    assert cancelled


async def test_an_error_that_comes_out_alone_keeps_where_it_came_from() -> None:
    async def fail(explicitly: bool) -> None:
        try:
            raise OSError("first")
        except OSError as first:
            if explicitly:
                raise KeyError("second") from first
            raise KeyError("second")  # noqa: B904 - what is tested

    for explicitly in (True, False):
        with pytest.raises(KeyError, match="second") as caught:
            async with Scope() as scope:
                scope.start(partial(fail, explicitly))
                await asyncio.sleep(3600)
        assert str(caught.value.__context__) == "first"
        assert (caught.value.__cause__ is not None) is explicitly
        assert caught.value.__suppress_context__ is explicitly


async def test_two_errors_at_once_come_out_together() -> None:
    async def fail() -> None:
        raise KeyError("why")

    with pytest.raises(ExceptionGroup):
        async with Scope() as scope:
            scope.start(fail)
            scope.start(fail)


async def test_an_error_with_an_outlet_stays_on_it() -> None:
    out = Channel[str](1)

    async def fail() -> None:
        raise KeyError("why")

    async with Scope() as scope:
        scope.start(fail, out)
    with pytest.raises(KeyError):
        out.receive()
