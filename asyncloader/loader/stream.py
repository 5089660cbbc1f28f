"""The kind of streams: datasets and ``AsyncIterableDataset``, read in lanes and resumed exactly."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch.utils.data

from ..device.stage import check_device, open_stage
from ..errors import StoreError, drop_frames
from ..flow.channel import Producer
from ..observe.report import ProgressBar, Report, judge
from ..observe.statistics import Statistics
from ..pipeline.batching import Batching
from ..pipeline.components import counted_names, leaves_of
from ..pipeline.dataset import AsyncIterableDataset, Dataset, from_iterable, stages_of
from ..pipeline.shards import Shards
from ..pipeline.skips import skipped_in
from ..pipeline.stream import LanesJob, Note
from ..plan.lanes import Cursor, check_ranks, choose_lanes, name_world_sizes, rank_lanes
from ..plan.states import load_state, save_state, saved_dataset
from ..plan.topology import share_memory
from ..quantity import as_whole
from ..stores.local import check_there
from ..workers.forkserver import ForkServer
from ..workers.ray.actor import Bench
from .auditing import open_recording
from .fleet import Fleet, NoteSink
from .in_step import keep_in_step, policy_of
from .kind import StreamOptions, check_replicas, check_world, skips_of, world_of
from .lengths import check_shares, dealt_as, if_empty_of, known_batches, known_samples
from .options import check_attached, check_streaming
from .passes import Passes, close_unbegun, meter_maker
from .run import BatchIterator, Run, stream_in_thread
from .workers import draw_base_seed, expected_modules, stream_in_workers

if TYPE_CHECKING:
    from .loader import DataLoader

Streamed: TypeAlias = Dataset | AsyncIterableDataset


_log = logging.getLogger("asyncloader.ranks")


class _Stream(torch.utils.data.IterableDataset[Any]):
    """What torch's constructor sees of a stream: a dataset of the iterable kind."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("torch's loop never runs over a stream")


class StreamKind:
    """Streams a dataset for one loader.

    A kind of dataset (this class, or ``TorchKind`` with the same methods) does not hold its loader, which
    would be a cycle, but gets it with each call. Its copy, also through pickle, runs nothing.

    Args:
        dataset: A stream, or an object that becomes the source of one.

    Attributes:
        seen: What torch's constructor gets in the dataset's place, which shows it map or iterable style.
    """

    #: Whether torch's own loop reads the dataset, so that torch's methods hold.
    torchs_loop = False

    def __init__(self, dataset: Streamed) -> None:
        self.seen = _Stream()
        self._made = stages_of(dataset if isinstance(dataset, Dataset) else from_iterable(dataset))
        #: The same, with shards dealt as in the epoch that a loaded state was saved in.
        self._stages = self._made
        #: Held here, so that it serves all epochs.
        self._bench: Bench | None = None
        #: Of the pass that was begun ahead of its loop.
        self._ahead: BatchIterator[Any] | None = None
        self._traces: set[str] = set()
        self._has_looked = False
        #: How many batches and samples the latest pass should have; worked out with the first question.
        self._expected: tuple[int | None, int | None] | None = None

    # --- constructing ---

    def check(self, loader: DataLoader[Any], **torchs: Any) -> None:
        """Refuse what torch would accept, before torch looks at its parameters; only ours are set yet."""
        skips_of(loader)
        check_streaming(loader, **torchs)
        check_device(loader.device)

    def default_collate(self, batch_size: int | None, batching: Batching | None) -> Callable[[Any], Any]:
        """What makes batches where the user names no function; None for torch's."""
        from ..collate.default import default_collate, default_convert

        if batching is not None:
            return batching.collate_fn or default_collate
        return default_convert if batch_size is None else default_collate

    def attach(self, loader: DataLoader[Any]) -> None:
        """Take over what torch has checked."""
        check_attached(loader.timeout, loader.prefetch_factor, loader.generator)
        self._world = world_of(loader)
        check_replicas(loader, self._world)
        self._lane_count = choose_lanes(loader.lanes, self._world, loader.num_workers)
        source = self._stages.source
        if source.most_lanes is not None:
            of = "samples" if isinstance(source, Shards) and source.is_indexed else "shards"
            check_ranks(source.most_lanes, self._world, of)
        self._passes = Passes(rank_lanes(self._lane_count, self._world))
        if loader.workers is not None:
            self._bench = Bench(loader.workers, loader.persistent_workers)
        elif loader.num_workers:
            # Started early, since that takes a while.
            functions = loader.collate_fn, loader.worker_init_fn
            ForkServer.shared().preload(expected_modules(self._stages, *functions))

    # --- iterating ---

    def warm_up(self, loader: DataLoader[Any]) -> None:
        """Begin the next pass ahead of its loop, unless that was done."""
        if self._passes.is_ready:
            return
        if self._passes.is_running:
            raise RuntimeError(
                "warm_up() begins the next iteration, but the latest one has not ended, and its state would "
                "be lost. Call it before the loop, or when the loop has ended"
            )
        self._ahead = self.open(loader)
        self._passes.is_ahead = True

    def open(self, loader: DataLoader[Any]) -> BatchIterator[Any]:
        """Start a pass, or take the one that was begun ahead; an iterator over its batches."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            if self._passes.is_ready:
                self._passes.is_ahead = False
                return ahead
            ahead.close()
        return self._begin(loader)

    def _begin(self, loader: DataLoader[Any]) -> BatchIterator[Any]:
        check_world(loader, self._world)
        options = self._options(loader)
        if options.uneven is None and policy_of(options) == "stop":
            check_shares(options, self._passes.next_epoch)
        self._look(options)
        cursor = self._passes.begin(options)
        if loader.lanes is None and not cursor.rows:
            self._log_lanes()
        setup, latest, bar = options.setup(), self._passes.latest, None
        if options.progress:
            total = known_batches(options, cursor.epoch)
            bar = ProgressBar(f"epoch {cursor.epoch}", setup, total, cursor.batches)
        with ExitStack() as undo, ExitStack() as stack:
            counters = meter_maker(loader, self._world, setup, self._traces)(
                passes=self._passes.begun + 1,
                epoch=cursor.epoch,
                components=counted_names(self._stages.source),
                bar=bar,
                earlier=None if latest is None else latest.counters,
            )
            undo.push(close_unbegun(counters))
            stack.callback(counters.end)
            recording = None
            if options.is_audited:
                recording = open_recording(options, cursor)  # before a byte of any shard is read
                undo.callback(recording.close)
            job = _job(options, cursor)
            notes = NoteSink(job, counters)
            # Drawn also without workers, as torch does.
            seed = draw_base_seed(options.generator, again=cursor.batches > 0)
            lanes: Producer[tuple[Any, Note]] | Fleet
            if options.num_workers and job.turns:
                lanes = stream_in_workers(job, options, seed, notes, counters, stack, self._bench)
            else:
                lanes = stream_in_thread(job, options, notes, counters, stack)
            source = open_stage(
                keep_in_step(lanes, options, cursor, counters, stack),
                pin_memory=options.pin_memory,
                device=options.device,
                pin_memory_device=options.pin_memory_device,
                budget_bytes=share_memory(options.memory_bytes, pins=True).pinned_bytes,
            )
            undo.pop_all()
            run = Run(
                source,
                cursor,
                counters,
                stack.pop_all(),
                timeout_s=float(options.timeout) or None,
                describe_wait=lanes.describe_wait,
                left_at_ends=notes.left_at_ends,
                shortfalls=notes.shortfalls,
                if_empty=if_empty_of(self._stages),
                recording=recording,
            )
        self._passes.began(run)
        self._latest_options, self._expected = options, None
        counters.waited()  # for the workers, which a loop's first step has to start
        return BatchIterator(run)

    def length(self, loader: DataLoader[Any]) -> int:
        """How many batches a pass has; TypeError, with the reason, where that is not known."""
        return self._passes.length(self._options(loader))

    def set_epoch(self, loader: DataLoader[Any], epoch: int) -> None:
        """Make the next pass that of ``epoch``."""
        number = as_whole(epoch)
        if number is None or number < 0:
            raise ValueError(f"epoch should be a non-negative integer, but got epoch={epoch!r}")
        self._passes.go_to_epoch(number, self._options(loader))

    def follow_epoch(self, loader: DataLoader[Any], epoch: int) -> None:
        """Make the next pass that of ``epoch``, which a trainer has reached, unless it is a later one."""
        if self._passes.next_epoch < epoch:
            self.set_epoch(loader, epoch)

    def defer(self, holds: Callable[[], bool]) -> None:
        """Count a batch of the latest pass as delivered when the next one is requested.

        Args:
            holds: Called when a state is saved: whether the consumer has received that batch and not used it.
        """
        if self._passes.latest is not None:
            self._passes.latest.holds = holds

    def statistics(self) -> Statistics:
        """Counts of the latest pass."""
        run = self._passes.latest
        if run is None:
            return Statistics()
        if self._expected is None:
            options, epoch = self._latest_options, run.cursor.epoch
            self._expected = known_batches(options, epoch), known_samples(options, epoch)
        return replace(
            run.counters.snapshot(),
            batches_before=run.batches_before,
            epoch_batches=run.cursor.batches,
            expected_batches=self._expected[0],
            expected_samples=self._expected[1],
            is_over=run.exhausted and not run.was_stopped,
        )

    def report(self, loader: DataLoader[Any]) -> Report:
        """What limits the latest pass."""
        return judge(self.statistics(), self._options(loader).setup())

    # --- state ---

    def state_dict(self, loader: DataLoader[Any]) -> dict[str, Any]:
        """The position after the last batch delivered, as a new dict."""
        if self._passes.latest is not None:
            self._passes.latest.save()
        return save_state(self._passes.reached(), self._options(loader).described, self._world)

    def load_state_dict(self, loader: DataLoader[Any], state: Mapping[str, Any]) -> None:
        """Go on from ``state`` with the next pass."""
        if state == {}:
            self._stages = self._made
            return self._passes.go_to(Cursor(0, rank_lanes(self._lane_count, self._world)))
        lanes, saved = self._lane_count, saved_dataset(state)
        if loader.lanes is None and isinstance(saved.get("lanes"), int):
            lanes = choose_lanes(saved["lanes"], self._world, loader.num_workers)
        options = StreamOptions.of(loader, dealt_as(self._made, saved), self._world, lanes)
        # Nothing is taken over before the whole state was checked: a refused one changes nothing.
        cursor = load_state(state, options.described, self._world, rank_lanes(lanes, self._world))
        self._lane_count, self._stages = lanes, options.stages
        if cursor.is_stopped and policy_of(options) in ("stop", "raise"):
            # These ranks do without what was left then.
            cursor = Cursor(cursor.epoch + 1, cursor.lanes)
        self._passes.go_to(cursor)

    # --- life ---

    def describe(self, loader: DataLoader[Any]) -> list[str]:
        """What the loader's repr says beside dataset, batch size and workers."""
        seed = self._stages.order_seed
        described = [f"lanes={self._lane_count}", str(self._world)]
        return described if seed is None else [*described, f"seed={seed}"]

    def close(self, loader: DataLoader[Any]) -> None:
        """Stop the latest pass and free what it holds. Idempotent."""
        if self._passes.latest is not None:
            self._passes.latest.close()
        if self._bench is not None:
            self._bench.clear()

    def __getstate__(self) -> dict[str, Any]:
        own = {"_passes": copy.copy(self._passes), "_bench": copy.copy(self._bench)}
        return {**self.__dict__, **own, "_ahead": None, "_latest_options": None, "_traces": set()}

    # --- the parts ---

    def _options(self, loader: DataLoader[Any]) -> StreamOptions:
        return StreamOptions.of(loader, self._stages, self._world, self._lane_count)

    def _look(self, options: StreamOptions) -> None:
        """Check once that local shards exist, before workers start, which takes longer.

        Ray's actors may be on machines with other disks, and what may be skipped may be missing.
        """
        if not self._has_looked and not options.on_cluster and options.skips is None:
            for source in leaves_of(self._stages):
                if isinstance(source, Shards):
                    try:
                        check_there(source.urls)
                    except StoreError as error:
                        drop_frames(error)
                        raise
        self._has_looked = True

    def _log_lanes(self) -> None:
        """Log before a first pass which world sizes its states will load into, if they were not chosen."""
        if not self._passes.begun and self._world.size > 1 and self._world.process == 0:
            _log.info(
                "%d lanes (ranks x workers): states of this loader can be loaded with a world size of %s; "
                "for other world sizes, pass lanes= with a number that they divide",
                self._lane_count,
                name_world_sizes(self._lane_count),
            )


def _job(options: StreamOptions, cursor: Cursor) -> LanesJob:
    pins = options.pin_memory or options.device is not None
    return LanesJob(
        stages=options.stages,
        turns=tuple(cursor.turns()),
        lane_count=options.lane_count,
        world=options.world,
        epoch=cursor.epoch,
        batching=options.batching,
        collate_fn=options.collate_fn,
        read_bytes=share_memory(options.memory_bytes, pins=pins).read_bytes,
        is_audited=options.is_audited,
        budget=options.skips,
        is_traced=options.is_traced,
        skipped_before=tuple((lane, skipped_in(row.position)) for lane, row in cursor.rows.items()),
    )
