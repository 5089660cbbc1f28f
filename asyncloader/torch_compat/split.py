"""``split_iterable``: an iterable dataset dealt exactly to workers and ranks; and a warning where none is.

Only the worker sees whether the dataset asked for its number, and only a warning in the consumer's process is
shown and can be filtered: so a flag is sent with the first batch of worker 0.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from torch.utils.data import IterableDataset

from ..errors import Line
from ..plan.topology import process_group, resolve_world
from .stateful import is_stateful, load_into, pass_over
from .worker_info import WorkerInfo, get_worker_info, reading_world


class Split(IterableDataset[Any]):
    """See ``split_iterable``."""

    def __init__(self, dataset: Iterable[Any], rank: int | None, world_size: int | None) -> None:
        self.dataset = dataset
        self._given = (rank, world_size)

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        rank, size = self._place(info)
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        first, step = rank * workers + worker, size * workers
        items = iter(self.dataset)
        if is_stateful(self.dataset) or is_stateful(items):
            return _Dealt(self.dataset, items, first, step)
        return islice(items, first, None, step)

    def _place(self, info: WorkerInfo | None) -> tuple[int, int]:
        """Rank and world size: as given, else those of the loader that reads, else this process's own."""
        if self._given == (None, None):
            if isinstance(info, WorkerInfo):  # another loader's has torch's own
                return info.rank, info.world_size
            reader = reading_world() if info is None else None
            # A loader that does not split ignores an inconsistent environment; here it is an error.
            if reader is not None and reader.origin != "alone":
                return reader.rank, reader.size
        world = resolve_world(*self._given, process_group, os.environ)
        return world.rank, world.size


class _Dealt:
    """Every so many items of a stateful dataset; stateful itself."""

    def __init__(self, dataset: Iterable[Any], items: Iterator[Any], first: int, step: int) -> None:
        self._dataset = dataset
        self._items = items
        self._step = step
        self._others = first

    def __iter__(self) -> _Dealt:
        return self

    def __next__(self) -> Any:
        pass_over(self._items, self._others)
        self._others = 0  # also if what comes next fails
        item = next(self._items)
        self._others = self._step - 1
        return item

    def state_dict(self) -> dict[str, Any]:
        parts: dict[str, Any] = {"dataset": self._dataset, "items": self._items}
        told = {name: part.state_dict() for name, part in parts.items() if is_stateful(part)}
        return {"others": self._others, **told}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._others = state["others"]
        if "dataset" in state:
            load_into(self._dataset, state["dataset"])
            self._items = iter(self._dataset)
        if "items" in state:
            load_into(self._items, state["items"])


def split_iterable(
    dataset: Iterable[Any], *, rank: int | None = None, world_size: int | None = None
) -> Split:
    """Split an iterable dataset over ranks and workers, so that each sample goes to exactly one of them.

    Every worker iterates the whole dataset and keeps its own part. The iterable must yield the same sequence
    everywhere, and samples should be cheap to skip.

    Example:
        ```python
        import asyncloader as al

        dataset = al.split_iterable(range(1000))
        loader = al.DataLoader(dataset, batch_size=50, num_workers=2)
        print(sum(len(batch) for batch in loader))  # 1000: without split_iterable 2000
        ```

    Args:
        dataset: An iterable with a fixed order. If it, or its iterator, has ``state_dict`` and
            ``load_state_dict``, the result has them too.
        rank: The rank of this process, together with ``world_size``. None: that of the loader; outside of a
            loader, that of ``torch.distributed`` or of the launcher's environment.
        world_size: The number of ranks.

    Returns:
        An ``IterableDataset``.
    """
    return Split(dataset, rank, world_size)


def warn_of_unsplit(dataset: object, warned: list[Line], line: Line) -> None:
    """Warn at ``line`` of the user's that several workers read all of a dataset, unless that was done before.

    Args:
        dataset: Which one.
        warned: Where it was done.
        line: Where to do it.
    """
    if warned:
        return
    warned.append(line)
    warnings.warn_explicit(
        f"{type(dataset).__name__} is read by several workers but never called get_worker_info(): "
        "each worker yields all of it, so that every sample comes once for each worker. Wrap it in "
        "asyncloader.split_iterable(dataset), or split it in its __iter__",
        UserWarning,
        *line,
    )
