"""What a loader that is traced counts with: where the file of each pass goes, and what stands in it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from typing import Any

from ..counting import Counters
from ..plan.topology import World
from ..report import Setup, judge
from ..statistics import Statistics
from ..stores.expanding import expand_home
from ..trace.counters import TracedCounters, Tracing
from ..trace.files import run_path
from .kind import Loader

__all__ = ["Traces"]


class Traces:
    """The traces of one loader's passes. Copied and pickled, it is one of no passes."""

    def __init__(self) -> None:
        self._paths: set[str] = set()

    def open_counters(
        self,
        loader: Loader[Any],
        world: World,
        setup: Setup,
        options: Mapping[str, Any],
        stack: ExitStack,
    ) -> Counters:
        """What counts a pass that begins.

        Args:
            loader: Says whether, and where to, its passes are traced.
            world: Its rank.
            setup: What the verdict on the pass goes by.
            options: Those of ``Counters``.
            stack: Ends the count, and writes the trace, after all that is put on it later.

        Raises:
            ValueError: There is no folder for the file.
        """
        if loader.trace is None:
            counters = Counters(**options)
            stack.callback(counters.end)
            return counters
        path = expand_home(os.fspath(loader.trace))
        if not os.path.isdir(folder := os.path.dirname(os.path.abspath(path))):
            raise ValueError(
                f"trace should be the path of a file in a folder that is there, but got trace={path!r}, and "
                f"{folder} is no folder; make it, or name another"
            )
        epoch = options["epoch"] if options["epoch"] is not None else options["passes"] - 1
        place = run_path(path, epoch=epoch, rank=world.rank, world_size=world.size, taken=self._paths)
        self._paths.add(place)
        about = {
            "loader": repr(loader),
            "epoch": options["epoch"],
            "passes": options["passes"],
            "rank": world.rank,
            "world_size": world.size,
            "num_workers": loader.num_workers,
            "batch_size": loader.batch_size,
        }
        traced = TracedCounters(Tracing(place, about, partial(_judged, setup)), **options)
        stack.callback(traced.write)
        stack.callback(traced.end)
        return traced

    def __getstate__(self) -> dict[str, Any]:
        return {"_paths": set()}


def _judged(setup: Setup, statistics: Statistics) -> dict[str, Any]:
    return {"report": asdict(judge(statistics, setup)), "setup": asdict(setup)}
