"""Ray's actors in rare orders of events, with functions in place of a cluster's."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from asyncloader import RayWorkers
from asyncloader.flow.channel import ChannelClosed
from asyncloader.workers.ray import pool as ray_pool
from asyncloader.workers.ray.actor import Bench

ERRORS = (
    "RuntimeEnvSetupError",
    "ActorUnschedulableError",
    "ActorPlacementGroupRemoved",
    "RayTaskError",
    "RayError",
)


def remote(function: Callable[..., Any]) -> Any:
    return SimpleNamespace(remote=function)


def test_a_pool_that_is_closed_while_a_lost_actor_is_replaced_kills_the_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed: list[Any] = []
    calls: list[Future[Any]] = []
    actors: list[Any] = []
    exceptions = SimpleNamespace(**{name: type(name, (Exception,), {}) for name in ERRORS})

    def start(*_: Any) -> Any:
        if len(actors) == 2:
            with ThreadPoolExecutor(1) as other_thread:
                other_thread.submit(pool.close).result()
        calls.append(Future())
        return SimpleNamespace(future=lambda: calls[-1])

    def make_actor(_: str) -> Any:
        actors.append(
            SimpleNamespace(start=remote(start), next=remote(lambda *_: SimpleNamespace(future=Future)))
        )
        return actors[-1]

    ray = SimpleNamespace(
        exceptions=exceptions,
        is_initialized=lambda: True,
        kill=killed.append,
        put=lambda job: job,
        remote=lambda **_: lambda _: SimpleNamespace(options=lambda **_: remote(make_actor)),
    )
    monkeypatch.setattr(ray_pool, "import_ray", lambda: ray)
    monkeypatch.setattr(ray_pool, "connect", lambda: ray)
    bench = Bench(RayWorkers(1), keeps=False)
    pool = ray_pool.RayPool((b"", ()), [None], bench, prefetch=1, prefetch_bytes=1, grace_s=None)
    pool.start()
    calls[0].set_exception(exceptions.RayError())
    with pytest.raises(ChannelClosed):
        pool.workers[0].receive_nowait()
    assert len(actors) == 2 and actors[-1] in killed
