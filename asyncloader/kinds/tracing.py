"""What a loader counts its passes with: where the file of a traced one goes, and what stands in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from ..plan.topology import World
from ..report import Setup, judge
from ..statistics import Meter, Statistics
from ..stores.expanding import expand_home
from ..trace.files import check_run_path, run_path
from ..trace.keeping import TracedMeter, Tracing
from .kind import Loader

__all__ = ["Traces", "close_unbegun"]


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
        tracing = Tracing(place, told, partial(_judged, self.setup), self.world.process, self.world.name)
        return TracedMeter(tracing, **options)


def _judged(setup: Setup, statistics: Statistics) -> dict[str, Any]:
    return {"report": asdict(judge(statistics, setup)), "setup": asdict(setup)}
