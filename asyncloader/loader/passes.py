"""The passes of a loader: the latest, where the next begins, and what they are counted and traced with."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeAlias

from ..errors import users_level
from ..observe.report import Setup, judge
from ..observe.statistics import Meter, Statistics
from ..observe.trace_file import check_run_path, run_path
from ..observe.trace_keeping import Trace
from ..plan.lanes import Cursor, check_epoch
from ..plan.topology import World
from ..stores.expanding import expand_home
from .kind import Loader
from .run import Run

CountBatches: TypeAlias = Callable[[int], int]
"""The number of batches of an epoch; TypeError, with the reason, where that is not known."""

KnownBatches: TypeAlias = Callable[[int], int | None]
"""The number of batches of an epoch; None where that is not known."""


class Passes:
    """The latest pass and the next.

    Copied and pickled, it is where the next pass of the original would begin, with nothing that runs.

    Args:
        lanes: The rank's.
    """

    def __init__(self, lanes: Sequence[int]) -> None:
        self.latest: Run | None = None
        #: How many there were, with the latest one.
        self.begun = 0
        self._next = Cursor(0, lanes)
        #: Whether a state or an epoch was set since the latest pass began.
        self._next_counts = False
        #: Whether that is a state which was loaded.
        self._is_loaded = False
        #: What was said of epochs' lengths.
        self._lengths: dict[int, int] = {}
        #: What was said of the latest pass before its first batch: whoever asks then goes by it, and never
        #: asks for what comes after the last batch. Lightning does, and opens passes that it does not read.
        self._promised: int | None = None

    # --- the next pass ---

    def begin(self, count_batches: CountBatches) -> Cursor:
        """Where the next pass begins, which is being opened: see to the latest one."""
        cursor, unread = self._following(), self._unread()
        if unread is None:
            self._warn_of_cut_epoch(count_batches)
        else:
            unread.close()  # whoever still reads it is told, and does not get the same samples again
        cursor.is_stopped = False  # it goes on
        return cursor

    def began(self, run: Run) -> None:
        """``run`` is the latest pass now."""
        self.latest = run
        self.begun += 1
        self._promised = None
        self._next_counts = self._is_loaded = False
        self._next = Cursor(run.cursor.epoch + 1, run.cursor.lanes)

    def go_to(self, cursor: Cursor) -> None:
        """Make the next pass begin at ``cursor``, as loaded, which may be of another number of lanes."""
        if len(cursor.lanes) != len(self._next.lanes):
            self._lengths = {}
        self._next = cursor
        self._next_counts = self._is_loaded = True

    def go_to_epoch(self, epoch: int, known_batches: KnownBatches) -> None:
        """Make the next pass that of ``epoch``: from where it would begin, if that is in this very epoch.

        Raises:
            ValueError: See ``check_epoch``.
        """
        following = self._following()
        if following.epoch != epoch:
            if self._is_loaded and following.batches:
                length = known_batches(following.epoch)
                check_epoch(epoch, following.epoch, following.batches, length)
            following, self._is_loaded = Cursor(epoch, following.lanes), False
        self._next, self._next_counts = following, True

    @property
    def next_epoch(self) -> int:
        """The epoch of the pass that begins next."""
        return self._following().epoch

    # --- what is told ---

    def reached(self) -> Cursor:
        """Where the consumer stands; of an epoch that is over, the beginning of the next one.

        Of one that was ended with samples left that is not yet known: whoever goes on may want those.
        """
        run = self.latest
        if run is None or self._next_counts:
            return self._next
        if run.was_stopped:
            stopped = run.cursor.copy()
            stopped.is_stopped = True
            return stopped
        return self._next if self._is_read_out(run) else run.cursor

    def length(self, count_batches: CountBatches) -> int:
        """The length of the running pass, or of the next one if there is none."""
        run = self.latest
        cursor = self._following() if run is None or run.is_over or self._next_counts else run.cursor
        if cursor.epoch not in self._lengths:
            self._lengths[cursor.epoch] = count_batches(cursor.epoch)
        length = self._lengths[cursor.epoch]
        if run is not None and cursor is run.cursor and not run.counters.batches:
            self._promised = length
        return length

    def __getstate__(self) -> dict[str, Any]:
        # The cursor of a running pass moves; a copy's must stay where it is.
        return {
            **self.__dict__,
            "latest": None,
            "begun": 0,
            "_promised": None,
            "_next": self._following().copy(),
        }

    # --- the parts ---

    def _following(self) -> Cursor:
        """Where the next pass begins."""
        unread = self._unread()
        return self._next if unread is None else unread.cursor.copy()

    def _unread(self) -> Run | None:
        """The latest pass, if none of the batches that it has was used.

        Its length was asked for and then no batch; or all that was asked for is still held by its consumer.
        """
        run = self.latest
        if run is None or self._next_counts or self._is_read_out(run):
            return None
        if run.is_deferred:
            return run if run.cursor.batches == run.batches_before else None
        return None if self._promised is None or run.counters.batches else run

    def _is_read_out(self, run: Run) -> bool:
        """Whether a pass is at its end, or at what its consumer takes for it."""
        return run.exhausted or run.cursor.batches == self._promised

    def _warn_of_cut_epoch(self, count_batches: CountBatches) -> None:
        """Say so if the latest pass was left where another epoch ends: somebody takes all to be alike."""
        run = self.latest
        if run is None or run.exhausted or run.cursor.batches not in self._lengths.values():
            return
        epoch, delivered = run.cursor.epoch, run.cursor.batches
        if delivered < (length := count_batches(epoch)):
            warnings.warn(
                f"epoch {epoch} was left after {delivered} of its {length} batches, where another epoch "
                "ends: whoever asked for len(loader) takes it for the length of all epochs, as Lightning's "
                "Trainer does. They are of one length if the shards are",
                stacklevel=users_level(),
            )


# What a loader counts its passes with: where the file of a traced one goes, and what stands in it.


def close_unbegun(counters: Meter) -> Callable[..., None]:
    """What closes the counters of a pass that does not begin, on the way out of a context.

    What kept it from beginning is what the user has to know; that the file cannot be written either, as on a
    full disk, is a note to it.
    """

    def leave(kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        try:
            counters.close()
        except OSError as at_close:
            if error is None:
                raise
            error.add_note(f"then, while the pass was closed: {type(at_close).__name__}: {at_close}")

    return leave


class Traces:
    """The traces of one loader's passes, each of which has a file of its own."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def counting(self, loader: Loader[Any], world: World, setup: Setup) -> Callable[..., Meter]:
        """What makes the counters of a pass, given their options; it holds no loader.

        Args:
            loader: Says whether its passes are traced, and where to.
            world: Its rank.
            setup: What the verdict on the pass goes by.

        Raises:
            ValueError: There is no folder for the file.
        """
        if loader.trace is None:
            return Meter
        path = os.path.abspath(expand_home(os.fspath(loader.trace)))
        if not os.path.isdir(folder := os.path.dirname(path)):
            raise ValueError(
                f"trace should be the path of a file in a folder that is there, but got trace={path!r}, and "
                f"{folder} is no folder; make it, or name another"
            )
        about = {
            "loader": repr(loader),
            "rank": world.rank,
            "world_size": world.size,
            "replica": world.replica,
            "replicas": world.replicas,
            "num_workers": loader.num_workers,
            "batch_size": loader.batch_size,
        }
        return _Traced(path, about, setup, world, self._taken)


@dataclass(frozen=True)
class _Traced:
    """Makes the counters of traced passes.

    Attributes:
        path: As the user said it.
        about: What the file says of the loader.
        setup: What the verdict goes by.
        world: Whose they are.
        taken: The files of its passes before.
    """

    path: str
    about: Mapping[str, Any]
    setup: Setup
    world: World
    taken: set[str]

    def __call__(self, **options: Any) -> Meter:
        epoch, passes, about = options["epoch"], options["passes"], self.about
        # Where a loader has no such number, its passes are counted.
        number = passes - 1 if epoch is None else epoch
        whose = self.world.name if self.world.processes > 1 else ""
        place = run_path(self.path, epoch=number, whose=whose, taken=self.taken)
        check_run_path(place)
        self.taken.add(place)
        told = {**about, "epoch": epoch, "passes": passes}
        trace = Trace(place, told, partial(_judged, self.setup), self.world.process, self.world.name)
        return Meter(trace=trace, **options)


def _judged(setup: Setup, statistics: Statistics) -> dict[str, Any]:
    return {"report": asdict(judge(statistics, setup)), "setup": asdict(setup)}
