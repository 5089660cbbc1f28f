"""A pass in worker processes: their jobs, their seeds, and what the process they come from imports."""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter, time
from typing import Any

from ..blocks.memory import when_torch_is_here
from ..collate.default import does_without_torch
from ..errors import add_note, leads_through_users_code
from ..flow.engine import Engine
from ..flow.process import keep_freed_pages, share_arenas
from ..observe.statistics import Meter
from ..observe.stopwatch import Stopwatch
from ..pipeline.components import Recipe, leaves_of
from ..pipeline.op import Source
from ..pipeline.shards import Shards
from ..pipeline.stream import Collated, LanesJob, Note, Turns, read_lanes
from ..plan.lanes import worker_lanes
from ..stores.urls import scheme_of
from ..workers import AnyPool, AnyWorker, ForkServer, WorkerPool
from ..workers.by_value import ProgramSettings, dumps_outward, dumps_with_modules, find_unpicklable
from ..workers.ray.actor import Bench
from .fleet import AsDone, Fleet, InTurn, NoteSink, Restarts, WorkerLanes

# What the process that workers come from should import before it forks them.
#
# torch takes longer to import than all else before a first batch, and a job that runs no code but ours does
# without it. It is left out only where nothing that the workers will run can want it, as far as what they
# are sent tells; if it does, they import it themselves.

_PACKAGE = __name__.partition(".")[0]

# Packages that import no torch. The main module is sent by value: what it uses is named with it.
_WITHOUT_TORCH = sys.stdlib_module_names | {
    "PIL", "__main__", "aiohttp", "cloudpickle", "cv2", "msgspec", "numpy", "obstore", "orjson", "pandas",
    "pyarrow", "uvloop",
}  # fmt: skip

# Each worker seeds NumPy's generators, whose modules are imported with the first use.
_ALWAYS = (
    f"{_PACKAGE}.loader.workers",
    f"{_PACKAGE}.pipeline.pack",
    f"{_PACKAGE}.formats",
    "numpy.random",
    "uvloop",
)

_WITH_TORCH = ("torch", f"{_PACKAGE}.torch_compat.worker_info", f"{_PACKAGE}.collate.default")


def start_server(recipe: Recipe, *functions: Any) -> ForkServer:
    """The process that workers will come from, started early: it takes a while.

    Args:
        recipe: What to stream.
        functions: ``collate_fn``, ``worker_init_fn`` and whatever else the user may have given.
    """
    server = ForkServer.shared()
    server.preload(expected_modules(recipe, *functions))
    return server


def modules_to_preload(sent: Collection[str], collate_fn: Callable[[Any], Any]) -> list[str]:
    """What to import once for all workers.

    Args:
        sent: The modules that a pickled job names.
        collate_fn: What makes the batches.
    """
    # Our own name alone is user's code that looks up something of ours, whatever it is.
    ours = [name for name in sent if name.startswith(f"{_PACKAGE}.")]
    others = {name.partition(".")[0] for name in sent if name not in ours}
    needs_torch = not others <= _WITHOUT_TORCH or (
        _is_ours(collate_fn) and not does_without_torch(collate_fn)
    )
    return [*(_WITH_TORCH if needs_torch else ()), *_ALWAYS, *ours]


def expected_modules(recipe: Recipe, *functions: Any) -> list[str]:
    """The same, before there is a job: functions and operators are looked at, but not what is read."""
    clients: list[str] = []
    for source in leaves_of(recipe):
        if not isinstance(source, Shards):
            return [*_WITH_TORCH, *_ALWAYS]
        # By the first shard: the others are of the same store, or the workers import what they want.
        clients += [f"{_PACKAGE}.stores.{scheme_of(url).client}" for url in source.urls[:1]]
    try:
        _, _, sent = dumps_with_modules((*recipe.all_ops, *functions))
    except Exception:  # to be told when workers are started, and not before
        sent = set()
    return [*clients, *modules_to_preload(sent, functions[0])]


def _is_ours(fn: Callable[[Any], Any]) -> bool:
    module = getattr(fn, "__module__", None) or type(fn).__module__
    return module.partition(".")[0] == _PACKAGE


# Random numbers in worker processes, seeded as torch's DataLoader seeds its own.
#
# A worker that inherited its parent's generators would augment its samples exactly as the others do.


def draw_base_seed(generator: Any, again: bool = False) -> int:
    """One int64 of ``generator``, or of torch's default one, as torch draws at each start of an epoch.

    Args:
        generator: A ``torch.Generator``, or None.
        again: Whether that was done for this epoch, which goes on now: the generator is then left where it
            was. A trainer has set it to where it stood behind the last batch, and a model with dropout draws
            from it next.
    """
    import torch

    drawn_from = torch.default_generator if generator is None else generator
    before = drawn_from.get_state()
    seed = int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
    if again:
        drawn_from.set_state(before)
    return seed


def seed_worker(worker: int, base_seed: int) -> int:
    """Seed Python's, torch's and NumPy's generators of this process; returns the worker's seed.

    torch's when it is imported, if it is not yet.
    """
    import numpy as np

    def seed_torch() -> None:
        import torch

        torch.manual_seed(seed)

    seed = base_seed + worker
    random.seed(seed)
    when_torch_is_here(seed_torch)
    # By the sequence that torch has rebuilt: with torch's own seed NumPy's numbers would correlate with its.
    entropy = [worker, base_seed & 0xFFFF_FFFF, base_seed >> 32, 0]
    np.random.seed(np.random.SeedSequence(entropy).generate_state(4))
    return seed


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
    job: LanesJob,
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
    jobs = [make(turns) for make, turns in zip(makers, turns_of, strict=True)]
    open_pool = _open_local if on_ray is None else partial(_open_on_ray, on_ray)
    pool = open_pool(job, setting, jobs, batch_bytes // len(dealt), stack)
    restarts = Restarts(setting.restarts, counters)
    posts = [
        WorkerLanes(worker, pool, replace(job, turns=turns), make, restarts)
        for worker, (turns, make) in enumerate(zip(turns_of, makers, strict=True))
    ]
    intake = NoteSink(job, counters, dealt)
    stack.callback(intake.warn_of_shortfalls)
    return Fleet(
        posts,
        InTurn(job.rotation(), posts) if setting.in_order else AsDone(posts),
        intake,
        pool.close,
        awaits_ends=job.recipe.has_context,
    )


def _open_local(
    job: LanesJob,
    setting: WorkerSetting,
    jobs: list[_WorkerJob],
    batch_bytes: int,
    stack: ExitStack,
) -> AnyPool[AnyWorker]:
    """Start processes on this machine, each of which may hold so many bytes of batches."""
    pickled, buffers, modules = _pickled(job, setting, len(jobs))
    server = ForkServer.shared()
    server.preload(modules_to_preload(modules, job.collate_fn))
    pool = WorkerPool(
        jobs,
        prefetch=setting.prefetch,
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
    job: LanesJob,
    setting: WorkerSetting,
    jobs: list[_WorkerJob],
    batch_bytes: int,
    stack: ExitStack,
) -> AnyPool[AnyWorker]:
    """Likewise of Ray's actors, wherever they are placed."""
    from ..workers.ray.pool import RayPool  # of which whoever has no cluster needs nothing

    setting = replace(setting, clock_s=time() - perf_counter())
    pickled, buffers, _ = _pickled(job, setting, len(jobs))
    pool = RayPool(
        jobs,
        bench,
        prefetch=setting.prefetch,
        prefetch_bytes=batch_bytes,
        grace_s=_grace_s(job),
        shared=(pickled, buffers),
    )
    return stack.enter_context(pool)


def _grace_s(job: LanesJob) -> float | None:
    """How long a worker may take to end."""
    return _CONTEXT_GRACE_S if job.recipe.has_context else None


def _pickled(
    job: LanesJob, setting: WorkerSetting, workers: int
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


def _note_unpicklable(job: LanesJob, setting: WorkerSetting, error: Exception) -> None:
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

    def __call__(self, shared: tuple[LanesJob, WorkerSetting]) -> Iterator[tuple[Any, Note]]:
        job, setting = shared
        # Processes of one machine share that clock, so that starting this one is part of its time.
        engine, stopwatch = Engine(), job.open_stopwatch(self.began_s if setting.clock_s is None else None)
        batches = _worker_batches(replace(job, turns=self.turns), self.worker, setting, engine, stopwatch)
        if setting.clock_s is not None and job.is_traced:
            batches = _by_clock(batches, time() - perf_counter() - setting.clock_s)
        if job.recipe.has_context:
            return _Interruptible(batches, stopwatch, engine.stop)
        return _TimedBatches(batches, stopwatch)


def _worker_batches(
    job: LanesJob, worker: int, setting: WorkerSetting, engine: Engine, stopwatch: Stopwatch
) -> Collated:
    setting.program.apply()
    if job.recipe.runs_on_threads:
        share_arenas()
    seed = seed_worker(worker, setting.base_seed)
    world = job.world

    def enter() -> None:
        from ..torch_compat.worker_info import enter_worker

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
class _TimedBatches:
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
class _Interruptible(_TimedBatches):
    """Likewise, which the worker need not wait for when the parent lets go: contexts want to be left in time.

    Attributes:
        let_go: Ends a wait for the next one, from another thread.
    """

    let_go: Callable[[], None]
