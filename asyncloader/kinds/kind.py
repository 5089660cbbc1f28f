"""What a kind is, and what it is told of the loader that it serves."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import torch.utils.data

from .._flow.aside import run_aside
from ..ops.batching import Batching
from ..ops.skips import SkipErrors
from ..plan.topology import process_group, resolve_world
from ..ray_workers import RayWorkers
from ..report import Report
from ..statistics import Statistics

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["Kind", "Loader"]

T = TypeVar("T", covariant=True)


class Loader(torch.utils.data.DataLoader[T]):
    """What kinds know of a loader: torch's attributes, and the library's own options as they were given.

    Most may change between two passes, so that a kind reads them when it opens one. A ``with`` block
    closes it at its end.
    """

    device: str | torch.device | None
    lanes: int | None
    rank: int | None
    world_size: int | None
    mesh: DeviceMesh | None
    memory_limit: int | str | None
    progress: bool
    batching: Batching | None
    uneven: str | None
    worker_restarts: int | None
    workers: RayWorkers | None
    snapshot_every_n_steps: int
    audit: str | os.PathLike[str] | None
    on_error: str | SkipErrors
    trace: str | os.PathLike[str] | None

    def close(self) -> None:
        """Stop the latest iteration and free what it holds. Idempotent."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await run_aside(self.close, "asyncloader-close")

    @property
    def use_stateful_dataloader(self) -> bool:
        """What accelerate asks, for a loader that it hands on as it is: whether to save and load its state.

        It has one file for all ranks, which all write, so that it must not where there are several.
        """
        return resolve_world(None, None, lambda: process_group(sys.modules), {}).size == 1


class Kind(Protocol):
    """A kind of dataset, for one loader.

    It holds no loader, which would be a cycle, but is given it. Copied and pickled, it is a kind of which
    nothing runs.
    """

    #: What torch's constructor is shown in the dataset's place, to tell map style from iterable style.
    seen: Any

    #: Whether torch's own loop reads the dataset, so that torch's methods hold.
    torchs_loop: bool

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
        """Refuse what torch would not, before torch looks at its parameters; only ours are set as yet."""
        ...

    def default_collate(
        self, batch_size: int | None, batching: Batching | None
    ) -> Callable[[Any], Any] | None:
        """What makes batches where the user names no function; None for torch's."""
        ...

    def attach(self, loader: Loader[Any]) -> None:
        """Take in what was given, all of which torch has found good."""
        ...

    def open(self, loader: Loader[Any]) -> Any:
        """Start a pass; an iterator over its batches."""
        ...

    def length(self, loader: Loader[Any]) -> int:
        """How many batches a pass has; TypeError, with the reason, where that is not known."""
        ...

    def set_epoch(self, loader: Loader[Any], epoch: int) -> None:
        """Make the next pass that of ``epoch``."""
        ...

    def follow_epoch(self, loader: Loader[Any], epoch: int) -> None:
        """Make the next pass no earlier one than that of ``epoch``, which a trainer has come to."""
        ...

    def defer(self, holds: Callable[[], bool]) -> None:
        """Count a batch of the latest pass as delivered when the next one is asked for.

        Args:
            holds: Asked when a state is saved: whether the consumer has that batch in hand and not used it.
        """
        ...

    def statistics(self) -> Statistics:
        """Counts of the latest pass; AttributeError if the kind counts nothing."""
        ...

    def report(self, loader: Loader[Any]) -> Report:
        """What limits the latest pass; AttributeError if the kind counts nothing."""
        ...

    def state_dict(self, loader: Loader[Any]) -> dict[str, Any]:
        """The position after the last batch delivered, as a new dict."""
        ...

    def load_state_dict(self, loader: Loader[Any], state: Mapping[str, Any]) -> None:
        """Go on from ``state`` with the next pass."""
        ...

    def describe(self, loader: Loader[Any]) -> list[str]:
        """What the loader's repr says beside dataset, batch size and workers."""
        ...

    def close(self, loader: Loader[Any]) -> None:
        """Stop the latest pass and free what it holds. Idempotent."""
        ...
