"""A pass in worker processes: their jobs, their seeds, and what the fork server imports."""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from time import perf_counter, time
from typing import TYPE_CHECKING, Any

from ..blocks.memory import when_torch_is_here
from ..collate.default import does_without_torch
from ..errors import add_note, leads_through_users_code
from ..flow.engine import Engine
from ..flow.process import keep_freed_pages, share_arenas
from ..observe.statistics import Meter
from ..observe.stopwatch import Stopwatch
from ..pipeline.components import Stages, leaves_of
from ..pipeline.shards import Shards
from ..pipeline.stream import Collated, LanesJob, read_lanes
from ..plan.lanes import worker_lanes
from ..plan.topology import share_memory
from ..stores.urls import scheme_of
from ..workers import by_value
from ..workers.forkserver import ForkServer
from ..workers.pool import AnyPool, WorkerPool
from ..workers.ray.actor import Bench
from ..workers.worker import Work
from .fleet import Fleet, NoteSink, Share, WorkerLanes

if TYPE_CHECKING:  # it imports torch, which workers may not need
    from .kind import StreamOptions

# What the fork server should import before it forks workers.
#
# torch takes longer to import than everything else before a first batch, and a job that runs only our code
# does not need it. It is left out only where nothing that the workers will run can need it, judging by what
# they are sent; otherwise they import it themselves.

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


def modules_to_preload(sent: Collection[str], collate_fn: Callable[[Any], Any]) -> list[str]:
    """What to import once for all workers.

    Args:
        sent: The modules that a pickled job names.
        collate_fn: What makes the batches.
    """
    # The package's name alone means that user code looks up one of its names, which may be any.
    ours = [name for name in sent if name.startswith(f"{_PACKAGE}.")]
    others = {name.partition(".")[0] for name in sent if name not in ours}
    needs_torch = not others <= _WITHOUT_TORCH or (
        _is_ours(collate_fn) and not does_without_torch(collate_fn)
    )
    return [*(_WITH_TORCH if needs_torch else ()), *_ALWAYS, *ours]


def expected_modules(stages: Stages, *functions: Any) -> list[str]:
    """The same, before there is a job: judged by functions and operators, not by what is read.

    Args:
        stages: What to stream.
        functions: ``collate_fn``, ``worker_init_fn`` and other functions of the user's.
    """
    clients: list[str] = []
    for source in leaves_of(stages):
        if not isinstance(source, Shards):
            return [*_WITH_TORCH, *_ALWAYS]
        # By the first shard: the others are in the same store, or the workers import what they need.
        clients += [f"{_PACKAGE}.stores.{scheme_of(url).client}" for url in source.urls[:1]]
    try:
        _, _, sent = by_value.dumps_with_modules((*stages.all_ops, *functions))
    except Exception:  # raised when workers are started, and not before
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
        again: Whether that was done for this epoch, which goes on now: the generator is then left as it was.
            A trainer has set it to its state behind the last batch, and a model with dropout draws from it
            next.
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

    torch's are seeded when it is imported, if it is not yet.
    """
    import numpy as np

    def seed_torch() -> None:
        import torch

        torch.manual_seed(seed)

    seed = base_seed + worker
    random.seed(seed)
    when_torch_is_here(seed_torch)
    # As torch does: with torch's own seed NumPy's numbers would correlate with torch's.
    entropy = [worker, base_seed & 0xFFFF_FFFF, base_seed >> 32, 0]
    np.random.seed(np.random.SeedSequence(entropy).generate_state(4))
    return seed


_NOTE = (
    "raised in a worker process: if it is not with num_workers=0, what the program has set in a module since "
    "its import (an attribute, a logger's handler) may be missing there; set that in worker_init_fn"
)

# How long a worker may take to leave the user's contexts, which may have something to flush; as long as an
# engine may. Without contexts nothing in a worker depends on its clean-up.
_CONTEXT_GRACE_S = 5.0


def stream_in_workers(
    job: LanesJob,
    options: StreamOptions,
    base_seed: int,
    notes: NoteSink,
    counters: Meter,
    stack: ExitStack,
    on_ray: Bench | None,
) -> Fleet:
    """Read the lanes in worker processes; see ``stream_in_thread``.

    Args:
        job: See there.
        options: See there.
        base_seed: See ``WorkerJob``.
        notes: See there.
        counters: Count the workers that are replaced.
        stack: See there.
        on_ray: Which actors to request, and where to keep them; None runs the workers on this machine.
    """
    keep_freed_pages()  # byte strings are copied out of the workers' shared memory
    clock_s = None if on_ray is None else time() - perf_counter()
    dealt = worker_lanes(sorted(lane for lane, _ in job.turns), options.num_workers)
    began_s = perf_counter()
    # The order of turns is the rank's, restricted to the worker's own lanes.
    shares = [Share(tuple(turn for turn in job.turns if turn[0] in mine), began_s) for mine in dealt]
    workers_job = WorkerJob(
        # Without its lanes, and with a worker's part of the memory.
        replace(job, turns=(), read_bytes=job.read_bytes // len(dealt)),
        options.num_workers,
        base_seed,
        options.worker_init_fn,
        by_value.read_settings(is_local=on_ray is None),
        clock_s,
    )
    pool = stack.enter_context(_open_pool(workers_job, shares, options, on_ray))
    received = job.cursor()
    posts = [
        WorkerLanes(worker, pool, job, mine, received, options.restarts, counters)
        for worker, mine in enumerate(dealt)
    ]
    has_context = job.stages.has_context
    return Fleet(posts, received, notes, pool.close, in_order=options.in_order, awaits_ends=has_context)


def _open_pool(
    job: WorkerJob, shares: Sequence[Share], options: StreamOptions, on_ray: Bench | None
) -> AnyPool[Any]:
    """Processes on this machine, or Ray's actors wherever they are placed; ``with`` starts them."""
    pickled, buffers, modules = _pickled(job)
    batch_bytes = share_memory(options.memory_bytes, pins=False).batch_bytes // len(shares)
    for_any: dict[str, Any] = {
        "prefetch": options.prefetch_factor or 1,
        "prefetch_bytes": batch_bytes,
        "grace_s": _CONTEXT_GRACE_S if options.stages.has_context else None,
    }
    if on_ray is not None:
        from ..workers.ray.pool import RayPool  # imported only where there is a cluster

        return RayPool((pickled, buffers), shares, on_ray, **for_any)
    server = ForkServer.shared()
    server.preload(modules_to_preload(modules, options.collate_fn))
    return WorkerPool(
        (pickled, buffers),
        shares,
        # All of the worker's share: less, and each of a few large batches would be written to new pages.
        spare_bytes=job.lanes.read_bytes + batch_bytes,
        start_timeout_s=float(options.timeout) or None,
        server=server,
        **for_any,
    )


def _pickled(job: WorkerJob) -> tuple[bytes, list[pickle.PickleBuffer], set[str]]:
    """The workers' job, its large buffers, and the modules that it names.

    Pickled once, and kept for workers that replace others: what the dataset refers to may change meanwhile.
    """
    try:
        return by_value.dumps_with_modules(job)
    except Exception as error:
        error.add_note("while pickling the job of the workers, to send it to their processes")
        _note_unpicklable(job, error)
        raise


def _note_unpicklable(job: WorkerJob, error: Exception) -> None:
    """Add to ``error`` which part of the dataset cannot be sent to a worker, if that is the cause."""
    parts: list[tuple[str, object]] = []
    stages = job.lanes.stages
    for source in leaves_of(stages):
        if isinstance(source, Shards):  # URLs and numbers always pickle
            access = source.access
            parts += [(f"storage_options[{name!r}]", value) for name, value in access.options.items()]
            parts += [("renew", access.renew)]
        else:
            parts += [("the source", source)]
    parts += [
        (f".{op.describe()['op']}({op.describe().get('fn', '...')})", op) for op in job.lanes.stages.all_ops
    ]
    parts += [("collate_fn", job.lanes.collate_fn), ("worker_init_fn", job.init_fn)]
    for name, part in parts:
        try:
            by_value.dumps_with_modules(part)
        except Exception:
            found = by_value.find_unpicklable(getattr(part, "fn", part)) or by_value.find_unpicklable(part)
            what = found or "something, such as a lock, an open file or a client"
            error.add_note(
                f"{name} cannot be sent to a worker process: it holds {what}, which does not pickle: make "
                "that in the worker, where it is first needed"
            )


@dataclass(frozen=True)
class WorkerJob:
    """What each worker of a pass does, called in its own process; see ``workers.worker.Job``.

    Attributes:
        lanes: The rank's job, without its lanes.
        num_workers: As the user gave it, also when there are fewer lanes to read.
        base_seed: Worker ``i`` is seeded with ``base_seed + i``.
        init_fn: The user's ``worker_init_fn``.
        program: What the program has set, which holds in each worker.
        clock_s: How far the time of day is ahead of ``time.perf_counter()`` where batches are received, if
            the worker may be on another machine, which has another such number.
    """

    lanes: LanesJob
    num_workers: int
    base_seed: int
    init_fn: Callable[[int], object] | None
    program: by_value.ProgramSettings
    clock_s: float | None

    def __call__(self, worker: int, share: Share) -> Work:
        job = replace(self.lanes, turns=share.turns)
        # Processes of one machine share that clock, so the time to start this one counts as well.
        engine, stopwatch = Engine(), job.open_stopwatch(share.began_s if self.clock_s is None else None)
        batches = self._batches(job, worker, engine, stopwatch)
        if self.clock_s is not None and job.is_traced:
            batches = _by_clock(batches, time() - perf_counter() - self.clock_s)
        return Work(batches, stopwatch, engine.stop if job.stages.has_context else None)

    def _batches(self, job: LanesJob, worker: int, engine: Engine, stopwatch: Stopwatch) -> Collated:
        self.program.apply()
        if job.stages.runs_on_threads:
            share_arenas()
        seed = seed_worker(worker, self.base_seed)
        world = job.world

        def enter() -> None:
            from ..torch_compat.worker_info import enter_worker

            enter_worker(worker, self.num_workers, seed, job.stages, world.rank, world.size)

        when_torch_is_here(enter)
        if self.init_fn is not None:
            self.init_fn(worker)
        with engine, closing(read_lanes(job, engine, stopwatch)) as items:
            try:
                yield from items
            except Exception as error:
                if leads_through_users_code(error):
                    add_note(error, _NOTE)
                raise


def _by_clock(batches: Collated, by_s: float) -> Collated:
    """The same, with times of another machine's clock, as exact as the clocks of both agree."""
    with closing(batches):
        for batch, note in batches:
            spent = note.spent
            if spent is not None and spent.traced is not None:
                note = note._replace(spent=spent._replace(traced=spent.traced.shifted(by_s)))
            yield batch, note
