"""A pass in worker processes: which lanes each of them reads, and what it is to the user's code."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter, time
from typing import Any

from .._flow.engine import Engine
from ..by_value import dumps_outward, dumps_with_modules, find_unpicklable
from ..memory import keep_freed_pages, share_arenas
from ..ops.op import Source
from ..plan.lanes import worker_lanes
from ..program_settings import ProgramSettings
from ..ray_workers.bench import Bench
from ..seeding import seed_worker
from ..sources.components import leaves_of
from ..sources.shards import Shards
from ..statistics import Meter
from ..stopwatch import Stopwatch
from ..stream import Collated, Job, Note, Turns, read_lanes
from ..tensors import when_torch_is_here
from ..tracebacks import add_note, leads_through_users_code
from ..workers import AnyPool, ForkServer, WorkerPool
from .fleet import AsDone, Fleet, InTurn
from .intake import Intake
from .needs import modules_to_preload
from .post import Post, Restarts

__all__ = ["WorkerSetting", "stream_in_workers"]

_NOTE = (
    "raised in a worker process: if it is not with num_workers=0, what the program has set in a module since "
    "its import (an attribute, a logger's handler) may be missing there; set that in worker_init_fn"
)

# For a worker to leave the user's contexts, which may have something to flush or to sign off; as long as an
# engine has for it. Without contexts nothing in a worker needs its clean-up to be whole.
_CONTEXT_GRACE_S = 5.0


@dataclass(frozen=True)
class WorkerSetting:
    """What a worker process is to the user's code.

    Attributes:
        num_workers: As the user said it, also when there are fewer lanes to read.
        base_seed: Worker ``i`` is seeded with ``base_seed + i``.
        init_fn: The user's ``worker_init_fn``.
        prefetch: Batches that each worker makes ahead of the consumer.
        restarts: How many that have died may be replaced in a pass.
        in_order: Whether lanes take turns, whoever has done a batch.
        program: What the program has set, which holds in each worker.
        start_timeout_s: How long their start may take; None for as long as it takes.
        clock_s: How far the time of day is ahead of ``time.perf_counter()`` where batches are received, if
            the worker may be on another machine, which has another such number.
    """

    num_workers: int
    base_seed: int
    init_fn: Callable[[int], object] | None
    prefetch: int
    restarts: int
    in_order: bool
    program: ProgramSettings
    start_timeout_s: float | None
    clock_s: float | None = None


def stream_in_workers(
    job: Job,
    setting: WorkerSetting,
    batch_bytes: int,
    counters: Meter,
    stack: ExitStack,
    on_ray: Bench | None = None,
) -> Fleet:
    """Read the lanes in worker processes; see ``stream_in_thread``.

    Args:
        job: See there.
        setting: What each process is to the user's code.
        batch_bytes: See there.
        counters: See there.
        stack: See there.
        on_ray: What to ask Ray for, and where to keep that; None has them run on this machine.
    """
    keep_freed_pages()  # byte strings come out of the workers' shared memory as copies
    dealt = worker_lanes(sorted(lane for lane, _ in job.turns), setting.num_workers)
    # The order of turns is the rank's, cut down to the worker's own lanes.
    turns_of = [tuple(turn for turn in job.turns if turn[0] in mine) for mine in dealt]
    makers = [partial(_WorkerJob, worker) for worker in range(len(dealt))]
    prefetch = setting.prefetch if job.ahead is None else _batches_of_a_worker(job, dealt)
    jobs = [make(turns) for make, turns in zip(makers, turns_of, strict=True)]
    open_pool = _open_local if on_ray is None else partial(_open_on_ray, on_ray)
    pool = open_pool(job, setting, jobs, prefetch, batch_bytes // len(dealt), stack)
    restarts = Restarts(setting.restarts, counters)
    posts = [
        Post(worker, pool, replace(job, turns=turns), make, restarts)
        for worker, (turns, make) in enumerate(zip(turns_of, makers, strict=True))
    ]
    intake = Intake(job, counters, dealt)
    stack.callback(intake.warn_of_shortfalls)
    # Batches that are made only when asked for come in turn: asking every worker would make more of them.
    in_turn = setting.in_order or prefetch == 0
    return Fleet(
        posts,
        InTurn(job.rotation(), posts) if in_turn else AsDone(posts),
        intake,
        pool.close,
        awaits_ends=job.recipe.has_context,
    )


def _open_local(
    job: Job,
    setting: WorkerSetting,
    jobs: list[_WorkerJob],
    prefetch: int,
    batch_bytes: int,
    stack: ExitStack,
) -> AnyPool:
    """Start processes on this machine, each of which may hold so many bytes of batches."""
    pickled, buffers, modules = _pickled(job, setting, len(jobs))
    server = ForkServer.shared()
    server.preload(modules_to_preload(modules, job.collate_fn))
    pool = WorkerPool(
        jobs,
        prefetch=prefetch,
        prefetch_bytes=batch_bytes,
        # All of the worker's share: less, and each of a few large batches would be written to new pages.
        spare_bytes=job.read_bytes // len(jobs) + batch_bytes,
        grace_s=_grace_s(job),
        start_timeout_s=setting.start_timeout_s,
        server=server,
        shared=(pickled, buffers),
    )
    return stack.enter_context(pool)


def _open_on_ray(
    bench: Bench,
    job: Job,
    setting: WorkerSetting,
    jobs: list[_WorkerJob],
    prefetch: int,
    batch_bytes: int,
    stack: ExitStack,
) -> AnyPool:
    """Likewise of Ray's actors, wherever they are placed."""
    from ..ray_workers.pool import RayPool  # of which whoever has no cluster needs nothing

    setting = replace(setting, clock_s=time() - perf_counter())
    pickled, buffers, _ = _pickled(job, setting, len(jobs))
    pool = RayPool(
        jobs,
        bench,
        prefetch=prefetch,
        prefetch_bytes=batch_bytes,
        grace_s=_grace_s(job),
        shared=(pickled, buffers),
    )
    return stack.enter_context(pool)


def _grace_s(job: Job) -> float | None:
    """How long a worker may take to end."""
    return _CONTEXT_GRACE_S if job.recipe.has_context else None


def _pickled(
    job: Job, setting: WorkerSetting, workers: int
) -> tuple[bytes, list[pickle.PickleBuffer], set[str]]:
    """All of the workers' jobs but their lanes, its large buffers, and the modules that it names.

    Pickled once, and kept for workers that replace others: what the recipe refers to may change meanwhile.
    """
    share = replace(job, turns=(), read_bytes=job.read_bytes // workers)
    try:
        return dumps_with_modules((share, setting))
    except Exception as error:
        error.add_note("while pickling the job of the workers, to send it to their processes")
        _note_unpicklable(job, setting, error)
        raise


def _batches_of_a_worker(job: Job, dealt: list[list[int]]) -> int:
    """How many batches a worker makes unasked, where ``ahead`` counts: the same for all, so the least."""
    assert job.batches_ahead is not None
    return job.batches_ahead // len(job.turns) * min(map(len, dealt))


def _note_unpicklable(job: Job, setting: WorkerSetting, error: Exception) -> None:
    """Say at ``error`` which part of the recipe cannot be sent to a worker, if that is what it is about."""
    parts = [part for source in leaves_of(job.recipe) for part in _source_parts(source)]
    parts += [(f".{op.describe()['op']}({op.describe().get('fn', '...')})", op) for op in job.recipe.all_ops]
    parts += [("collate_fn", job.collate_fn), ("worker_init_fn", setting.init_fn)]
    for name, part in parts:
        try:
            dumps_outward(part)
        except Exception:
            found = find_unpicklable(getattr(part, "fn", part)) or find_unpicklable(part)
            what = found or "something, such as a lock, an open file or a client"
            error.add_note(
                f"{name} cannot be sent to a worker process: it holds {what}, which does not pickle. Make "
                "that in the worker, where it is first needed"
            )


def _source_parts(source: Source) -> list[tuple[str, object]]:
    if not isinstance(source, Shards):
        return [("the source", source)]
    # URLs and numbers always pickle.
    options = source.access.options.items()
    return [
        *((f"storage_options[{name!r}]", value) for name, value in options),
        ("renew", source.access.renew),
    ]


@dataclass(frozen=True)
class _WorkerJob:
    """A worker's job, called in its own process.

    Attributes:
        worker: Its number.
        turns: Its lanes.
        began_s: When it began to be started, by ``time.perf_counter()``.
    """

    worker: int
    turns: Turns
    began_s: float = field(default_factory=perf_counter)

    def __call__(self, shared: tuple[Job, WorkerSetting]) -> Iterator[tuple[Any, Note]]:
        job, setting = shared
        # Processes of one machine share that clock, so that starting this one is part of its time.
        engine, stopwatch = Engine(), job.open_stopwatch(self.began_s if setting.clock_s is None else None)
        batches = _worker_batches(replace(job, turns=self.turns), self.worker, setting, engine, stopwatch)
        if setting.clock_s is not None and job.is_traced:
            batches = _by_clock(batches, time() - perf_counter() - setting.clock_s)
        if job.recipe.has_context:
            return _Interruptible(batches, stopwatch, engine.stop)
        return _Timed(batches, stopwatch)


def _worker_batches(
    job: Job, worker: int, setting: WorkerSetting, engine: Engine, stopwatch: Stopwatch
) -> Collated:
    setting.program.apply()
    if job.recipe.runs_on_threads:
        share_arenas()
    seed = seed_worker(worker, setting.base_seed)
    world = job.world

    def enter() -> None:
        from ..torch_kind.worker_info import enter_worker

        enter_worker(worker, setting.num_workers, seed, job.recipe, world.rank, world.size)

    when_torch_is_here(enter)
    if setting.init_fn is not None:
        setting.init_fn(worker)
    with engine, closing(read_lanes(job, engine, stopwatch)) as items:
        try:
            yield from items
        except Exception as error:
            if leads_through_users_code(error):
                add_note(error, _NOTE)
            raise


def _by_clock(batches: Collated, by_s: float) -> Collated:
    """The same, with times as another machine has them; they are as near as the two times of day."""
    with closing(batches):
        for batch, note in batches:
            spent = note.spent
            if spent is not None and spent.traced is not None:
                note = note._replace(spent=spent._replace(traced=spent.traced.shifted(by_s)))
            yield batch, note


@dataclass(frozen=True)
class _Timed:
    """Batches with the stopwatch of the thread that makes them, for who sends them.

    Attributes:
        batches: Made by a worker.
        stopwatch: Told of what else the thread does.
    """

    batches: Collated
    stopwatch: Stopwatch

    def __iter__(self) -> Iterator[tuple[Any, Note]]:
        return self

    def __next__(self) -> tuple[Any, Note]:
        return next(self.batches)

    def close(self) -> None:
        self.batches.close()


@dataclass(frozen=True)
class _Interruptible(_Timed):
    """Likewise, which the worker need not wait for when the parent lets go: contexts want to be left in time.

    Attributes:
        let_go: Ends a wait for the next one, from another thread.
    """

    let_go: Callable[[], None]
