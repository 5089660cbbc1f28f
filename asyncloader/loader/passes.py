"""The passes of a loader: the latest one, where the next one begins, and the counters of each."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..errors import users_level
from ..observe.report import Setup, judge
from ..observe.statistics import Meter, Statistics
from ..observe.trace_file import check_run_path, run_path
from ..observe.trace_keeping import Trace
from ..plan.lanes import Cursor, check_epoch
from ..plan.topology import World
from ..stores.expanding import expand_home
from .kind import StreamOptions
from .lengths import count_batches, known_batches
from .run import Run, closing_after

if TYPE_CHECKING:
    from .loader import DataLoader


class Passes:
    """The latest pass and the next.

    Copied and pickled, it is where the next pass of the original would begin, with nothing that runs.

    Args:
        lanes: The rank's.
    """

    def __init__(self, lanes: Sequence[int]) -> None:
        self.latest: Run | None = None
        #: Whether the latest one was begun ahead of its loop, which has not taken it yet.
        self.is_ahead = False
        #: How many there were, with the latest one.
        self.begun = 0
        self._next = Cursor(0, lanes)
        #: Whether a state or an epoch was set since the latest pass began.
        self._next_counts = False
        #: Whether that is a state which was loaded.
        self._is_loaded = False
        #: The lengths of epochs that were returned to the user.
        self._lengths: dict[int, int] = {}
        #: The length of the latest pass, if it was returned before its first batch: a caller may then stop
        #: after that many batches, without a request for what follows the last one. Lightning does, and opens
        #: passes that it does not read.
        self._promised: int | None = None

    # --- the next pass ---

    def begin(self, options: StreamOptions) -> Cursor:
        """Where the next pass begins, which is being opened; closes or checks the latest one."""
        cursor, unread = self._following(), self._unread()
        if unread is None:
            self._warn_of_cut_epoch(options)
        else:
            unread.close()  # its iterator then raises, and does not give the same samples again
        cursor.is_stopped = False  # it goes on
        return cursor

    def began(self, run: Run) -> None:
        """``run`` is the latest pass now."""
        self.latest, self.is_ahead = run, False
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

    def go_to_epoch(self, epoch: int, options: StreamOptions) -> None:
        """Make the next pass that of ``epoch``: from where it would begin, if that is in this very epoch.

        Raises:
            ValueError: See ``check_epoch``.
        """
        following = self._following()
        if self.is_ready and following.epoch == epoch:
            return
        if following.epoch != epoch:
            if (self._is_loaded or self.is_ready) and following.batches:
                length = known_batches(options, following.epoch)
                check_epoch(epoch, following.epoch, following.batches, length)
            following, self._is_loaded = Cursor(epoch, following.lanes), False
        self._next, self._next_counts = following, True

    @property
    def next_epoch(self) -> int:
        """The epoch of the pass that begins next."""
        return self._following().epoch

    # --- questions ---

    @property
    def is_ready(self) -> bool:
        """Whether a pass was begun ahead here, and not closed, and no state or epoch was set since."""
        run = self.latest
        return self.is_ahead and run is not None and run.is_own and not (run.is_over or self._next_counts)

    @property
    def is_running(self) -> bool:
        """Whether batches of the latest pass were used, it has not ended, and no state or epoch was set."""
        is_open = self.latest is not None and not self.latest.is_over
        return is_open and not self._next_counts and self._unread() is None

    def reached(self) -> Cursor:
        """Where the consumer stands; of an epoch that is over, the beginning of the next one.

        If all ranks were stopped with samples left, it stays in that epoch: the user may want those samples.
        """
        run = self.latest
        if run is None or self._next_counts:
            return self._next
        if run.was_stopped:
            stopped = run.cursor.copy()
            stopped.is_stopped = True
            return stopped
        return self._next if self._is_read_out(run) else run.cursor

    def length(self, options: StreamOptions) -> int:
        """The length of the running pass, or of the next one if there is none."""
        run = self.latest
        cursor = self._following() if run is None or run.is_over or self._next_counts else run.cursor
        if cursor.epoch not in self._lengths:
            self._lengths[cursor.epoch] = count_batches(options, cursor.epoch)
        length = self._lengths[cursor.epoch]
        if run is not None and cursor is run.cursor and not run.counters.batches:
            self._promised = length
        return length

    def __getstate__(self) -> dict[str, Any]:
        # The cursor of a running pass moves; a copy's must stay where it is.
        return {
            **self.__dict__,
            "latest": None,
            "is_ahead": False,
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
        """The latest pass, if none of its batches was used.

        It was begun ahead, or its length was requested and then no batch, or its consumer still holds all
        batches unused.
        """
        run = self.latest
        if run is None or self._next_counts or self._is_read_out(run):
            return None
        if self.is_ahead:
            return run
        if run.holds is not None:
            return run if run.cursor.batches == run.batches_before else None
        return None if self._promised is None or run.counters.batches else run

    def _is_read_out(self, run: Run) -> bool:
        """Whether a pass is at its end, or at the length that its consumer knows."""
        return run.exhausted or run.cursor.batches == self._promised

    def _warn_of_cut_epoch(self, options: StreamOptions) -> None:
        """Warn if the latest pass was left where another epoch ends: its consumer takes all to be alike."""
        run = self.latest
        if run is None or run.exhausted or run.cursor.batches not in self._lengths.values():
            return
        epoch, delivered = run.cursor.epoch, run.cursor.batches
        if delivered < (length := count_batches(options, epoch)):
            warnings.warn(
                f"epoch {epoch} was left after {delivered} of its {length} batches, where another epoch "
                "ends: the loop uses one len(loader) for all epochs, as Lightning's Trainer does. All epochs "
                "have the same length if all shards have",
                stacklevel=users_level(),
            )


# The counters of a loader's passes, and the files of traced ones.


def close_unbegun(counters: Meter) -> Callable[..., None]:
    """What closes the counters of a pass that does not begin, on the way out of a context."""

    def leave(kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        with closing_after(error):
            counters.close()

    return leave


def meter_maker(
    loader: DataLoader[Any], world: World, setup: Setup, written: set[str]
) -> Callable[..., Meter]:
    """A function that makes the counters of a pass from their options; it does not refer to the loader.

    Args:
        loader: Says whether its passes are traced, and where to.
        world: Its rank.
        setup: What the verdict on the pass depends on.
        written: The files of the loader's traces: each pass has one of its own.

    Raises:
        ValueError: There is no folder for the file.
    """
    if loader.trace is None:
        return Meter
    path = os.path.abspath(expand_home(os.fspath(loader.trace)))
    if not os.path.isdir(folder := os.path.dirname(path)):
        raise ValueError(
            f"trace should be the path of a file in an existing folder, but got trace={path!r}, and "
            f"{folder} is not a folder; make it, or pass another path"
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

    def judged(statistics: Statistics) -> dict[str, Any]:
        return {"report": asdict(judge(statistics, setup)), "setup": asdict(setup)}

    def traced(**options: Any) -> Meter:
        epoch, passes = options["epoch"], options["passes"]
        # Where a loader has no such number, its passes are counted.
        number = passes - 1 if epoch is None else epoch
        whose = world.name if world.processes > 1 else ""
        place = run_path(path, epoch=number, whose=whose, taken=written)
        check_run_path(place)
        written.add(place)
        of_pass = {**about, "epoch": epoch, "passes": passes}
        return Meter(trace=Trace(place, of_pass, judged, world.process, world.name), **options)

    return traced
