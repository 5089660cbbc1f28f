"""The kind of all other datasets: torch's own loop reads them, over adapters where it must."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import torch.utils.data

from ..observe.report import Report, judge
from ..observe.statistics import Statistics
from ..plan.topology import World
from ..torch_compat.adapt import for_torch, is_iterable
from ..torch_compat.loop import close_torch_iterator
from ..torch_compat.resuming import TorchState
from ..torch_compat.split import UnsplitNotice
from ..torch_private import forget_iterator
from .kind import check_replicas, check_sampler, setup_of_torch, world_of
from .passes import meter_maker

if TYPE_CHECKING:
    from .loader import DataLoader

_STREAM_OPTIONS = ["audit", "batching", "device", "lanes", "memory_limit", "progress", "uneven", "workers"]


class TorchKind:
    """Lets torch's own loop read a dataset; its methods are those of ``StreamKind``.

    Args:
        dataset: Map style, iterable style, or one of their asynchronous forms.
    """

    torchs_loop = True

    def __init__(self, dataset: Any) -> None:
        self.seen = for_torch(dataset)
        self._dataset = dataset
        self._notice = UnsplitNotice()
        self._standing = TorchState()
        self._traces: set[str] = set()
        self._latest: weakref.ref[Any] | None = None

    def check(self, loader: DataLoader[Any], **torchs: Any) -> None:
        if isinstance(self._dataset, PurePath) or (isinstance(self._dataset, str) and "/" in self._dataset):
            raise TypeError(  # not which name: it may be a URL with a signature
                f"expected a dataset, but got the name of one, a {type(self._dataset).__name__}; "
                "DataLoader(from_urls(name), ...) reads the shards that it stands for"
            )
        values = {name: getattr(loader, name) for name in _STREAM_OPTIONS}
        # No restarts is what torch's loop does anyway.
        values["worker_restarts"] = loader.worker_restarts or None
        values["on_error"] = None if loader.on_error == "raise" else loader.on_error
        given = [name for name, value in values.items() if value is not None and value is not False]
        if given:
            raise TypeError(
                f"{', '.join(given)} can be given for streams only (from_urls, from_iterable, "
                f"AsyncIterableDataset), but the dataset is a {type(self._dataset).__name__}"
            )

    def default_collate(self, batch_size: int | None, batching: Any) -> Callable[[Any], Any] | None:
        return None

    def attach(self, loader: DataLoader[Any]) -> None:
        try:
            self._world = world_of(loader)
        except ValueError:
            if (loader.rank, loader.world_size, loader.mesh) != (None, None, None):
                raise
            # Only workers read it here, so an odd environment is no reason to refuse what torch accepts.
            self._world = World(origin="alone")
        if loader.mesh is not None:
            check_replicas(loader, self._world)
            if not is_iterable(loader.dataset):
                check_sampler(loader, self._world)

    def warm_up(self, loader: DataLoader[Any]) -> None:
        raise TypeError(
            "warm_up() is for streams only (from_urls, from_iterable, AsyncIterableDataset), but the dataset "
            f"is a {type(self._dataset).__name__}: torch's loop draws its seeds and its order when it begins"
        )

    def open(self, loader: DataLoader[Any]) -> Any:
        # An adapter stands in for its dataset; all else is what the loader has, which may be replaced.
        dataset = self.seen if self.seen is not self._dataset else loader.dataset
        tell_unsplit = partial(self._notice.tell, loader.dataset)
        counting = meter_maker(loader, self._world, setup_of_torch(loader, self._dataset), self._traces)
        iterator = self._standing.open(loader, dataset, self._world, tell_unsplit, counting)
        self._latest = weakref.ref(iterator)
        return iterator

    def length(self, loader: DataLoader[Any]) -> int:
        length = torch.utils.data.DataLoader.__len__(loader)
        self._standing.promise(length)
        return length

    def set_epoch(self, loader: DataLoader[Any], epoch: int) -> None:
        self._standing.tell_epoch(epoch, loader)
        batch_sampler = loader.batch_sampler
        parts = [loader.sampler, batch_sampler, getattr(batch_sampler, "sampler", None), self._dataset]
        for part in {id(part): part for part in parts}.values():
            told = getattr(part, "set_epoch", None)
            if callable(told):
                told(epoch)

    def follow_epoch(self, loader: DataLoader[Any], epoch: int) -> None:
        self._standing.follow_epoch(epoch, loader)

    def defer(self, holds: Callable[[], bool]) -> None:
        if (latest := self._latest_iterator()) is not None:
            latest.defer(holds)

    def statistics(self) -> Statistics:
        return self._standing.statistics()

    def report(self, loader: DataLoader[Any]) -> Report:
        return judge(self.statistics(), setup_of_torch(loader, self._dataset))

    def state_dict(self, loader: DataLoader[Any]) -> dict[str, Any]:
        return self._standing.save(loader, self._world)

    def load_state_dict(self, loader: DataLoader[Any], state: Mapping[str, Any]) -> None:
        self._standing.load(state, loader, self._world)

    def describe(self, loader: DataLoader[Any]) -> list[str]:
        return [str(self._world)] if loader.mesh is not None else []

    def close(self, loader: DataLoader[Any]) -> None:
        latest, self._latest = self._latest_iterator(), None
        if latest is not None:
            close_torch_iterator(latest)
        forget_iterator(loader)

    def _latest_iterator(self) -> Any:
        return self._latest() if self._latest is not None else None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_latest": None, "_standing": copy.copy(self._standing), "_traces": set()}
