"""A pass in worker processes: which lanes each of them reads, and what it is to the user's code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import cloudpickle

from .._flow.channel import Receiver
from .._flow.engine import Engine
from ..memory import keep_freed_pages, share_arenas
from ..ops.op import Source
from ..plan.lanes import worker_lanes
from ..progress import NetworkCounts
from ..seeding import seed_worker
from ..sources.components import leaves_of
from ..sources.shards import Shards
from ..stream import Collated, Job, MergedLanes, Note, read_lanes
from ..torch_kind.worker_info import enter_worker
from ..workers import WorkerPool
from .shortfalls import warn_of_shortfalls

__all__ = ["WorkerSetting", "stream_in_workers"]

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
        prefetch: Collated that each worker makes ahead of the consumer.
    """

    num_workers: int
    base_seed: int
    init_fn: Callable[[int], object] | None
    prefetch: int


def stream_in_workers(
    job: Job, setting: WorkerSetting, batch_bytes: int, network: NetworkCounts, stack: ExitStack
) -> Receiver[tuple[Any, Note]]:
    """Read the lanes in worker processes; see ``stream_in_thread``."""
    keep_freed_pages()  # byte strings come out of the workers' shared memory as copies
    dealt = worker_lanes(sorted(lane for lane, _ in job.turns), setting.num_workers)
    jobs, receivers_of = [], {}
    for worker, mine in enumerate(dealt):
        # The order of turns is the rank's, cut down to the worker's own lanes.
        turns = tuple((lane, row) for lane, row in job.turns if lane in mine)
        share = replace(job, turns=turns, read_bytes=job.read_bytes // len(dealt))
        jobs.append(partial(_run_worker, share, worker, setting))
        receivers_of.update(dict.fromkeys(mine, worker))
    pool = WorkerPool(
        jobs,
        prefetch=setting.prefetch if job.ahead is None else _batches_of_a_worker(job, dealt),
        prefetch_bytes=batch_bytes // len(dealt),
        # All of the worker's share: less, and each of a few large batches would be written to new pages.
        spare_bytes=(job.read_bytes + batch_bytes) // len(dealt),
        grace_s=_CONTEXT_GRACE_S if job.recipe.has_context else None,
    )
    try:
        stack.enter_context(pool)
    except Exception as error:
        _note_unpicklable(job, setting, error)
        raise
    receivers = {lane: pool.workers[worker] for lane, worker in receivers_of.items()}
    ends = pool.workers if job.recipe.has_context else []
    merged = MergedLanes(job.rotation(), receivers, pool.close, network, ends)
    stack.callback(warn_of_shortfalls, merged)
    return merged


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
            cloudpickle.dumps(part)
        except Exception:
            error.add_note(
                f"{name} cannot be sent to a worker process: it holds something that does not pickle, such "
                "as a lock, an open file or a client. Make that in the worker, where it is first needed"
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


def _run_worker(job: Job, worker: int, setting: WorkerSetting) -> Iterator[tuple[Any, Note]]:
    """A worker's job, in its own process."""
    engine = Engine()
    batches = _worker_batches(job, worker, setting, engine)
    return _Interruptible(batches, engine.stop) if job.recipe.has_context else batches


def _worker_batches(job: Job, worker: int, setting: WorkerSetting, engine: Engine) -> Collated:
    if job.recipe.runs_on_threads:
        share_arenas()
    seed = seed_worker(worker, setting.base_seed)
    world = job.world
    enter_worker(worker, setting.num_workers, seed, job.recipe, world.rank, world.size)
    if setting.init_fn is not None:
        setting.init_fn(worker)
    with engine, closing(read_lanes(job, engine)) as items:
        yield from items


@dataclass(frozen=True)
class _Interruptible:
    """Collated which the worker need not wait for when the parent lets go: contexts want to be left in time.

    Attributes:
        batches: Made by a worker.
        let_go: Ends a wait for the next one, from another thread.
    """

    batches: Collated
    let_go: Callable[[], None]

    def __iter__(self) -> Iterator[tuple[Any, Note]]:
        return self

    def __next__(self) -> tuple[Any, Note]:
        return next(self.batches)

    def close(self) -> None:
        self.batches.close()
