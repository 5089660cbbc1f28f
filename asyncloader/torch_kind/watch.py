"""Where the time goes of those who fetch and collate for torch's loop, and what they have made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from typing import Any, NamedTuple

from ..blocks import bytes_of
from ..stopwatch import COLLATE, PINNING, RESTING, SENDING, Spent, Stopwatch
from ..tensors import borrowing
from ..trace.stopwatch import TracingStopwatch
from .reading import Carried

__all__ = ["NOTHING", "Collating", "Watch", "Worked", "watch_worker"]


class Worked(NamedTuple):
    """What a worker tells beside a batch.

    Attributes:
        samples: In the batch.
        size_bytes: Likewise.
        spent: Where its time has gone since it told before; now and then.
        is_batch: Whether there is one, rather than an error, or the worker's end.
    """

    samples: int = 0
    size_bytes: int = 0
    spent: Spent | None = None
    is_batch: bool = False


NOTHING = Worked()
"""What is told where nothing was made; here once, since each batch takes the place of it."""


class Watch:
    """Divides the time of a worker, which fetches and collates.

    Args:
        stage: That of the dataset.
        stopwatch: Of that thread.

    Attributes:
        stopwatch: Likewise.
        pins: Whether ``pin`` is to be told.
    """

    pins = False

    def __init__(self, stage: str, stopwatch: Stopwatch) -> None:
        self._stage = stage
        self._made = NOTHING
        self._has_begun = False
        self.stopwatch = stopwatch

    def fetch(self) -> None:
        """The dataset is asked, for all that comes until a batch is collated."""
        if self._has_begun:
            self.stopwatch.enter(self._stage)
        else:
            self._has_begun = True
            self.stopwatch.begin(self._stage)

    def rest(self) -> None:
        """Nothing is asked for. Before anything was, this is still the start."""
        if self._has_begun:
            self.stopwatch.enter(RESTING)

    def send(self) -> None:
        """What was made is handed over."""
        self.stopwatch.enter(SENDING)

    def collate(self) -> None:
        """It has given what becomes a batch."""
        self.stopwatch.enter(COLLATE)

    def pin(self) -> None:
        """A batch is copied to page-locked memory."""
        self.stopwatch.enter(PINNING)

    def made(self, batch: Any, samples: int) -> None:
        """There is a batch, of so many samples."""
        if isinstance(self.stopwatch, TracingStopwatch):
            self.stopwatch.made(batch.batch if isinstance(batch, Carried) else batch)
        self._made = Worked(samples, _size(batch), is_batch=True)

    def worked(self) -> Worked:
        """What is to be told beside the batch, once."""
        made, self._made = self._made, NOTHING
        spent = self.stopwatch.news(at_once=not made.is_batch)
        return made if spent is None else made._replace(spent=spent)


# The watch of this process, if it is a worker: one process is one worker, for life. The transport and
# collate_fn reach it on separate roads and meet here.
_of_worker: Watch | None = None


def watch_worker(stage: str, began_s: float, kind: type[Stopwatch]) -> Watch:
    """Begin to watch this process, a worker that was begun to be made at a time by ``perf_counter()``."""
    global _of_worker
    # That clock is one for all processes of the system, so that starting them is in it.
    _of_worker = Watch(stage, kind(began_s))
    return _of_worker


class Collating:
    """The ``collate_fn`` that torch is given: the user's, watched; in workers with lent memory.

    Args:
        collate_fn: The user's.
        watch: Of the loop's own thread; None for that of the worker it is called in.
        is_batch: Whether it is given lists of samples.
    """

    def __init__(self, collate_fn: Callable[[Any], Any], watch: Watch | None, is_batch: bool) -> None:
        self._collate_fn = collate_fn
        self._watch = watch
        self._is_batch = is_batch

    def __call__(self, samples: Any) -> Any:
        watch = self._watch or _of_worker
        assert watch is not None, "a worker is watched before it collates"
        watch.collate()
        count = _count(samples) if self._is_batch else 1  # now: they are the user's to change
        if self._watch is None:
            with borrowing():
                batch = self._collate_fn(samples)
        else:
            batch = self._collate_fn(samples)
        watch.made(batch, count)
        if watch.pins:
            watch.pin()
        return batch


def _count(samples: Any) -> int:
    """How many samples a dataset has given for a batch, which need not be a list."""
    if isinstance(samples, Mapping):
        samples = next(iter(samples.values()), ())
    return len(samples) if isinstance(samples, Sized) else 0


def _size(batch: Any) -> int:
    """As ``bytes_of``, and 0 for what does not tell: nothing of the user's fails for being counted."""
    try:
        return bytes_of(batch.batch if isinstance(batch, Carried) else batch)
    except Exception:
        return 0
