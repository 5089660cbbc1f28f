"""The kind of recipes and of ``AsyncIterableDataset``: read in lanes, resumed exactly."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import torch.utils.data

from ..device import check_device, open_stage
from ..errors import StoreError, drop_frames
from ..observe.audit import Recording
from ..observe.report import ProgressBar, Report, Setup, judge
from ..observe.statistics import Meter, Statistics
from ..pipeline.batching import Batching
from ..pipeline.components import Recipe, counted_names, leaves_of
from ..pipeline.dataset import AsyncIterableDataset, Dataset, from_iterable, recipe_of
from ..pipeline.shards import Shards
from ..pipeline.skips import skipped_in
from ..pipeline.stream import LanesJob
from ..plan.lanes import Cursor, check_ranks, choose_lanes, name_world_sizes, rank_lanes
from ..plan.states import load_state, save_state, saved_recipe, without
from ..plan.topology import BATCHES_AHEAD, share_memory
from ..quantity import as_whole
from ..stores.local import check_there
from ..workers import ForkServer
from ..workers.ray.actor import Bench
from .auditing import open_recording
from .fleet import Fleet
from .in_step import keep_in_step, policy_of
from .kind import (
    Loader,
    batching_of,
    budget_of,
    check_replicas,
    check_world,
    memory_of,
    setup_of,
    told_once,
    worker_setting,
    world_of,
)
from .lengths import EpochLengths, check_shares, dealt_as, if_empty_of
from .options import check_audit, check_rest, check_restarts, check_streaming, check_uneven
from .passes import Passes, Traces, close_unbegun
from .run import BatchIterator, LanesInThread, Run, stream_in_thread
from .workers import draw_base_seed, start_server, stream_in_workers

Streamed: TypeAlias = Dataset | AsyncIterableDataset


_log = logging.getLogger("asyncloader.ranks")


class _Stream(torch.utils.data.IterableDataset[Any]):
    """What torch's constructor sees of a stream: a dataset of the iterable kind."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("torch's loop never runs over a stream")


class StreamKind:
    """Streams a recipe; see ``Kind``.

    Args:
        dataset: A recipe, or an object that becomes the source of one.
    """

    torchs_loop = False

    def __init__(self, dataset: Streamed) -> None:
        self.seen = _Stream()
        self._made = recipe_of(dataset if isinstance(dataset, Dataset) else from_iterable(dataset))
        #: The same, with shards dealt as in the epoch that a loaded state was saved in.
        self._recipe = self._made
        #: Both held here, so that they serve all epochs.
        self._forkserver: ForkServer | None = None
        self._bench: Bench | None = None
        self._traces = Traces()
        self._has_looked = False
        #: How many batches and samples the latest pass should have, once somebody has asked.
        self._expected: tuple[int | None, int | None] | None = None

    # --- constructing ---

    def check(
        self,
        loader: Loader[Any],
        *,
        shuffle: Any,
        sampler: Any,
        batch_sampler: Any,
        multiprocessing_context: Any,
        collate_fn: Any,
        worker_init_fn: Any,
    ) -> None:
        limit = memory_of(loader)
        check_audit(loader.audit)
        if loader.snapshot_every_n_steps != 1:
            raise TypeError(
                "snapshot_every_n_steps is for iterable datasets of torch's kind, but got "
                f"snapshot_every_n_steps={loader.snapshot_every_n_steps} for a stream, of which each batch "
                "carries its position"
            )
        budget_of(loader)
        check_restarts(loader.worker_restarts)
        check_uneven(loader.uneven)
        functions = collate_fn, worker_init_fn
        check_streaming(shuffle, sampler, batch_sampler, multiprocessing_context, *functions, limit)
        check_device(loader.device)

    def default_collate(self, batch_size: int | None, batching: Batching | None) -> Callable[[Any], Any]:
        from ..collate.default import default_collate, default_convert

        if batching is not None:
            return batching.collate_fn or default_collate
        return default_convert if batch_size is None else default_collate

    def attach(self, loader: Loader[Any]) -> None:
        check_rest(loader.timeout, loader.prefetch_factor, loader.generator)
        self._world = world_of(loader)
        check_replicas(loader, self._world)
        self._lane_count = choose_lanes(loader.lanes, self._world, loader.num_workers)
        source = self._recipe.source
        if source.most_lanes is not None:
            of = "samples" if isinstance(source, Shards) and source.is_indexed else "shards"
            check_ranks(source.most_lanes, self._world, of)
        self._passes = Passes(rank_lanes(self._lane_count, self._world))
        if loader.workers is not None:
            self._bench = Bench(loader.workers, loader.persistent_workers)
        elif loader.num_workers:
            self._forkserver = start_server(self._recipe, loader.collate_fn, loader.worker_init_fn)

    # --- iterating ---

    def open(self, loader: Loader[Any]) -> BatchIterator[Any]:
        check_world(loader, self._world)
        self._check_shares(loader)
        self._look(loader)
        cursor, limit = self._passes.begin(self._lengths(loader).batches), memory_of(loader)
        job = self._job(loader, cursor, limit)
        self._tell_of_lanes(loader, cursor)
        with ExitStack() as undo, ExitStack() as stack:
            counters = self._open_counters(loader, cursor)
            undo.push(close_unbegun(counters))
            stack.callback(counters.end)
            recording = self._recording(loader, cursor, undo)  # before a byte of any shard is read
            # Also without workers, as torch does.
            seed = draw_base_seed(loader.generator, again=cursor.batches > 0)
            lanes = self._open_lanes(loader, job, seed, counters, stack)
            source = keep_in_step(
                lanes,
                loader.uneven,
                self._world,
                partial(self._pass_name, loader, cursor.epoch),
                partial(self._plan_of, loader),
                loader.collate_fn,
                cursor,
                self._lengths(loader).rest,
                counters,
                stack,
            )
            source = open_stage(
                source,
                pin_memory=loader.pin_memory,
                device=loader.device,
                pin_memory_device=loader.pin_memory_device,
                budget_bytes=share_memory(limit, pins=True).pinned_bytes,
            )
            stack.callback(source.close)
            if_empty, timeout_s = if_empty_of(self._recipe), float(loader.timeout) or None
            undo.pop_all()
            run = Run(source, cursor, counters, stack.pop_all(), timeout_s, lanes, if_empty, recording)
        self._passes.began(run)
        self._latest_lengths, self._expected = self._lengths(loader), None
        counters.waited()  # for the workers, which a loop's first step has to start
        return BatchIterator(run)

    def length(self, loader: Loader[Any]) -> int:
        return self._passes.length(self._lengths(loader).batches)

    def set_epoch(self, loader: Loader[Any], epoch: int) -> None:
        number = as_whole(epoch)
        if number is None or number < 0:
            raise ValueError(f"epoch should be a non-negative integer, but got epoch={epoch!r}")
        self._passes.go_to_epoch(number, self._lengths(loader).known_batches)

    def follow_epoch(self, loader: Loader[Any], epoch: int) -> None:
        if self._passes.next_epoch < epoch:
            self.set_epoch(loader, epoch)

    def defer(self, holds: Callable[[], bool]) -> None:
        if self._passes.latest is not None:
            self._passes.latest.defer(holds)

    def statistics(self) -> Statistics:
        run = self._passes.latest
        if run is None:
            return Statistics()
        if self._expected is None:
            lengths, epoch = self._latest_lengths, run.cursor.epoch
            self._expected = lengths.known_batches(epoch), lengths.known_samples(epoch)
        return replace(
            run.counters.snapshot(),
            batches_before=run.batches_before,
            epoch_batches=run.cursor.batches,
            expected_batches=self._expected[0],
            expected_samples=self._expected[1],
            is_over=run.exhausted and not run.was_stopped,
        )

    def report(self, loader: Loader[Any]) -> Report:
        return judge(self.statistics(), self._setup(loader))

    # --- state ---

    def state_dict(self, loader: Loader[Any]) -> dict[str, Any]:
        if self._passes.latest is not None:
            self._passes.latest.save()
        return save_state(self._passes.reached(), self._recipe_of(loader, self._lane_count), self._world)

    def load_state_dict(self, loader: Loader[Any], state: Mapping[str, Any]) -> None:
        if state == {}:
            self._recipe = self._made
            return self._passes.go_to(Cursor(0, rank_lanes(self._lane_count, self._world)))
        lanes, saved = self._lane_count, saved_recipe(state)
        if loader.lanes is None and isinstance(saved.get("lanes"), int):
            lanes = choose_lanes(saved["lanes"], self._world, loader.num_workers)
        recipe = dealt_as(self._made, saved)
        mine = self._describe(recipe, loader, lanes)
        # Nothing is taken over before the whole state was found good: a refused one changes nothing.
        cursor = load_state(state, mine, self._world, rank_lanes(lanes, self._world))
        self._lane_count, self._recipe = lanes, recipe
        if cursor.is_stopped and policy_of(loader.uneven, self._world) in ("stop", "raise"):
            # These ranks do without what was left then.
            cursor = Cursor(cursor.epoch + 1, cursor.lanes)
        self._passes.go_to(cursor)

    # --- life ---

    def describe(self, loader: Loader[Any]) -> list[str]:
        seed = self._recipe.order_seed
        shown = [f"lanes={self._lane_count}", str(self._world)]
        return shown if seed is None else [*shown, f"seed={seed}"]

    def close(self, loader: Loader[Any]) -> None:
        if self._passes.latest is not None:
            self._passes.latest.close()
        self._forkserver = None
        if self._bench is not None:
            self._bench.clear()

    def __getstate__(self) -> dict[str, Any]:
        own = {"_passes": copy.copy(self._passes), "_bench": copy.copy(self._bench)}
        return {**self.__dict__, **own, "_forkserver": None, "_traces": Traces()}

    # --- the parts ---

    def _check_shares(self, loader: Loader[Any]) -> None:
        """Refuse an epoch that the default policy would end with much of it left."""
        if loader.uneven is None and policy_of(None, self._world) == "stop":
            check_shares(self._recipe, self._world, self._lane_count, self._passes.next_epoch)

    def _look(self, loader: Loader[Any]) -> None:
        """See once that local shards are there, before workers start, which takes longer.

        Ray's actors may be on machines with other disks, and what may be skipped may be missing.
        """
        if not self._has_looked and loader.workers is None and budget_of(loader) is None:
            for source in leaves_of(self._recipe):
                if isinstance(source, Shards):
                    try:
                        check_there(source.urls)
                    except StoreError as error:
                        drop_frames(error)
                        raise
        self._has_looked = True

    def _tell_of_lanes(self, loader: Loader[Any], cursor: Cursor) -> None:
        """Say before a first pass which world sizes its states will load into, if nobody has chosen them."""
        is_first = not self._passes.begun and not cursor.rows
        if loader.lanes is None and is_first and self._world.size > 1 and self._world.process == 0:
            _log.info(
                "%d lanes (ranks x workers): what this loader saves goes on with a world size of %s; say "
                "lanes= for others, with a number that all world sizes divide which you may go on with",
                self._lane_count,
                name_world_sizes(self._lane_count),
            )

    def _open_counters(self, loader: Loader[Any], cursor: Cursor) -> Meter:
        counting = self._traces.counting(loader, self._world, self._setup(loader))
        latest = self._passes.latest
        return counting(
            passes=self._passes.begun + 1,
            epoch=cursor.epoch,
            components=counted_names(self._recipe.source),
            bar=self._bar(loader, cursor) if loader.progress else None,
            earlier=None if latest is None else latest.counters,
        )

    def _open_lanes(
        self, loader: Loader[Any], job: LanesJob, seed: int, counters: Meter, stack: ExitStack
    ) -> LanesInThread | Fleet:
        """The job's batches, made in this process or in workers."""
        batch_bytes = share_memory(memory_of(loader), pins=False).batch_bytes
        if loader.num_workers == 0 or not job.turns:
            ahead = loader.prefetch_factor or BATCHES_AHEAD
            return stream_in_thread(job, ahead, batch_bytes, counters, stack)
        if loader.workers is None:
            self._forkserver = ForkServer.shared()
        return stream_in_workers(job, worker_setting(loader, seed), batch_bytes, counters, stack, self._bench)

    def _job(self, loader: Loader[Any], cursor: Cursor, memory_bytes: int) -> LanesJob:
        turns = tuple(cursor.turns())
        pins = loader.pin_memory or loader.device is not None
        return LanesJob(
            recipe=self._recipe,
            turns=turns,
            lane_count=self._lane_count,
            world=self._world,
            epoch=cursor.epoch,
            batching=batching_of(loader),
            collate_fn=loader.collate_fn,
            read_bytes=share_memory(memory_bytes, pins=pins).read_bytes,
            is_audited=self._is_audited(loader),
            budget=told_once(budget_of(loader), self._world),
            is_traced=loader.trace is not None,
            skipped_before=tuple((lane, skipped_in(row.position)) for lane, row in cursor.rows.items()),
        )

    def _lengths(self, loader: Loader[Any]) -> EpochLengths:
        skips = budget_of(loader) is not None
        return EpochLengths(self._recipe, batching_of(loader), self._world, self._lane_count, skips)

    def _bar(self, loader: Loader[Any], cursor: Cursor) -> ProgressBar:
        total = self._lengths(loader).known_batches(cursor.epoch)
        return ProgressBar(f"epoch {cursor.epoch}", self._setup(loader), total, cursor.batches)

    def _setup(self, loader: Loader[Any]) -> Setup:
        return setup_of(loader, self._recipe, self._world)

    def _is_audited(self, loader: Loader[Any]) -> bool:
        """Whether this process records: of replicas the first, since all deliver the same."""
        return loader.audit is not None and self._world.replica == 0

    def _recording(self, loader: Loader[Any], cursor: Cursor, undo: ExitStack) -> Recording | None:
        if loader.audit is None or not self._is_audited(loader):
            return None
        options = self._world, cursor, loader.num_workers, budget_of(loader) is not None
        described = self._recipe_of(loader, self._lane_count)
        recording = open_recording(loader.audit, self._recipe, described, *options)
        undo.callback(recording.close)
        return recording

    def _recipe_of(self, loader: Loader[Any], lanes: int) -> dict[str, Any]:
        """What a saved state and a loader must agree on."""
        return self._describe(self._recipe, loader, lanes)

    @staticmethod
    def _describe(recipe: Recipe, loader: Loader[Any], lanes: int) -> dict[str, Any]:
        return {**recipe.describe(), **batching_of(loader).describe(), "lanes": lanes}

    def _plan_of(self, loader: Loader[Any]) -> str:
        """What ranks must agree on to deal shards alike: what is known of them, wherever they lie."""
        recipe = self._recipe_of(loader, self._lane_count)
        return _short_digest(without(recipe, {"urls_sha256", "places_sha256"}.__contains__))

    def _pass_name(self, loader: Loader[Any], epoch: int) -> str:
        """What tells a pass from those of other loaders, on all ranks alike: shards may lie elsewhere."""
        recipe = self._recipe_of(loader, self._lane_count)
        shape = without(recipe, lambda name: name == "dealt" or name.endswith("_sha256"))
        return f"{_short_digest(shape)}/{epoch}"


def _short_digest(described: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]
