"""The kind of all other datasets: torch's own loop reads them, over adapters where it must.

Its position is what its passes delivered, or what was loaded.
"""

from __future__ import annotations

import copy
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import torch.utils.data
from torch.utils.data import IterDataPipe

from ..errors import Line, users_level
from ..observe.report import Report, judge
from ..observe.statistics import Meter, Statistics
from ..plan.lanes import check_epoch
from ..plan.topology import World
from ..torch_compat import stateful
from ..torch_compat.adapt import for_torch, is_iterable
from ..torch_compat.indices import Indices
from ..torch_compat.loop import close_torch_iterator, open_torch_iterator
from ..torch_compat.passes import TorchPass
from ..torch_compat.saved import Saved, SavedPart, check_workers, load_saved, save_saved
from ..torch_compat.timing import LoopStats, stage_of
from ..torch_private import HereIterator, WorkersIterator, forget_iterator
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
        self._traces: set[str] = set()
        self._latest: TorchPass | None = None
        self._iterator: weakref.ref[Any] | None = None
        #: Of the latest pass, and how many there were with it.
        self._counters: Meter | None = None
        self._begun = 0
        #: What was loaded, until a pass continues from there.
        self._loaded: Saved | None = None
        self._loaded_state: dict[str, Any] | None = None
        #: The epoch given to ``set_epoch``, for loaders without a part that takes it.
        self._told_epoch: int | None = None
        #: Filled once the user was warned that several workers read all of the dataset.
        self._warned: list[Line] = []

    def check(self, loader: DataLoader[Any], **torchs: Any) -> None:
        if isinstance(self._dataset, PurePath) or (isinstance(self._dataset, str) and "/" in self._dataset):
            raise TypeError(  # not which name: it may be a URL with a signature
                f"expected a dataset, but got a name, of type {type(self._dataset).__name__}; to read the "
                "shards of that name, write DataLoader(from_urls(name), ...)"
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

    def open(self, loader: DataLoader[Any]) -> HereIterator | WorkersIterator:
        """torch's iterator over ``loader``, from its position; see ``open_torch_iterator``."""
        # An adapter stands in for its dataset; all else is what the loader has, which may be replaced.
        dataset = self.seen if self.seen is not self._dataset else loader.dataset
        generators = stateful.generators_of(loader)
        resumed = self._resumed(loader)
        if resumed is None and self._loaded is not None:
            _pass_over(self._loaded, loader, generators)
        if resumed is not None:
            check_workers(resumed, loader)
            before = resumed
        else:
            left = Saved() if self._latest is None else self._latest.left()
            before = replace(left, now=stateful.read_states(generators))
        indices = Indices(_index_sampler(loader), generators, resumed)
        counting = meter_maker(loader, self._world, setup_of_torch(loader, self._dataset), self._traces)
        begin = partial(self._count, counting, _with_epoch(loader))
        traced = loader.trace is not None
        tally = LoopStats(begin, stage_of(dataset), loader.num_workers, loader.pin_memory, traced)
        told = TorchPass(
            indices, before, resumed=resumed is not None, loader=loader, tally=tally, warned=self._warned
        )
        draws_default = stateful.DEFAULT in generators
        in_the_middle = resumed is not None and resumed.in_the_middle
        # Loading has set the default generator. In the middle of a pass it stays as it is. At the beginning
        # torch draws a seed from it, which a dataset's load_state_dict must not undo.
        keeps = draws_default and not in_the_middle
        parts = () if resumed is None else _tell_here(resumed, loader, keeps)
        with stateful.default_kept(draws_default and in_the_middle):
            iterator = open_torch_iterator(loader, dataset, self._world, told, parts, keeps)
            # A trace is written also where the loop's error ends the program.
            weakref.finalize(iterator, tally.end).atexit = traced
            if in_the_middle:
                indices.begin()
        self._latest, self._loaded, self._loaded_state = told, None, None
        self._iterator = weakref.ref(iterator)
        tally.waited()  # for the workers, too
        return iterator

    def length(self, loader: DataLoader[Any]) -> int:
        length = torch.utils.data.DataLoader.__len__(loader)
        if self._latest is not None and self._loaded is None:
            self._latest.promise(length)
        return length

    def set_epoch(self, loader: DataLoader[Any], epoch: int) -> None:
        saved = self._loaded
        if saved is not None and saved.in_the_middle and saved.epoch not in (None, epoch):
            check_epoch(epoch, saved.epoch, saved.batches, _length_of(loader))
        self._told_epoch = epoch
        batch_sampler = loader.batch_sampler
        parts = [loader.sampler, batch_sampler, getattr(batch_sampler, "sampler", None), self._dataset]
        for part in {id(part): part for part in parts}.values():
            told = getattr(part, "set_epoch", None)
            if callable(told):
                told(epoch)

    def follow_epoch(self, loader: DataLoader[Any], epoch: int) -> None:
        """Set the epoch of a sampler that has one before a trainer reads the pass.

        Lightning sets it after a resume, when workers may have drawn the order already.
        """
        sampler, saved = _with_epoch(loader), self._loaded
        if sampler is None:
            return
        if saved is not None and saved.finished and saved.epoch is not None:
            epoch = max(epoch, saved.epoch + 1)
        if sampler.epoch < epoch:
            sampler.set_epoch(epoch)

    def defer(self, holds: Callable[[], bool]) -> None:
        if self._latest is not None:
            self._latest.defer(holds)

    def statistics(self) -> Statistics:
        return Statistics() if self._counters is None else self._counters.snapshot()

    def report(self, loader: DataLoader[Any]) -> Report:
        return judge(self.statistics(), setup_of_torch(loader, self._dataset))

    def state_dict(self, loader: DataLoader[Any]) -> dict[str, Any]:
        if self._loaded_state is not None:
            return copy.deepcopy(self._loaded_state)
        if self._latest is None:
            saved = Saved(now=stateful.read_states(stateful.generators_of(loader)), parts=_parts_here(loader))
        else:
            saved = self._latest.saved()
        return save_saved(replace(saved, epoch=self._epoch_of(loader)), loader, self._world)

    def load_state_dict(self, loader: DataLoader[Any], state: Mapping[str, Any]) -> None:
        if state == {}:
            forget_iterator(loader)
            self._latest = self._loaded = self._loaded_state = self._told_epoch = None
            return
        saved = load_saved(state, loader, self._world)
        if saved.in_the_middle and isinstance(loader.dataset, IterDataPipe):
            warnings.warn(
                f"the state was saved after {saved.batches} batches of an epoch, but torch's data pipes "
                "have no positions: the next epoch begins at the beginning. Other datasets resume exactly",
                stacklevel=users_level(),
            )
            saved = Saved(now=saved.now)
        _warn_of_reading_again(saved, loader)
        stateful.set_states(stateful.generators_of(loader), saved.now)
        sampler = _with_epoch(loader)
        if sampler is not None and saved.epoch is not None:
            sampler.set_epoch(saved.epoch)
        self._told_epoch = saved.epoch
        if saved.finished and saved.base_seed is not None:
            # Its workers persisted: the next epoch draws no seed for them. New ones draw one, which is not
            # used.
            saved = replace(saved, start=saved.now)
        forget_iterator(loader)  # persistent workers have begun elsewhere
        self._loaded, self._loaded_state = saved, copy.deepcopy(dict(state))

    def describe(self, loader: DataLoader[Any]) -> list[str]:
        return [str(self._world)] if loader.mesh is not None else []

    def close(self, loader: DataLoader[Any]) -> None:
        latest, self._iterator = self._iterator, None
        if latest is not None and (iterator := latest()) is not None:
            close_torch_iterator(iterator)
        forget_iterator(loader)

    def __getstate__(self) -> dict[str, Any]:
        nothing_runs: dict[str, Any] = {
            "_latest": None,
            "_iterator": None,
            "_counters": None,
            "_begun": 0,
            "_traces": set(),
        }
        return {**self.__dict__, **nothing_runs}

    # --- the parts ---

    def _count(self, counting: Callable[..., Meter], sampler: Any) -> Meter:
        """Meter of the next pass."""
        self._begun += 1
        epoch = None if sampler is None else int(sampler.epoch)
        self._counters = counting(passes=self._begun, epoch=epoch, earlier=self._counters)
        return self._counters

    def _resumed(self, loader: Any) -> Saved | None:
        """Where the next pass continues; None if it begins an epoch."""
        saved, latest = self._loaded, self._latest
        if saved is None and latest is not None and latest.is_unread():
            saved = latest.resumed  # Lightning opens a pass, and then another to read it
        if saved is None or not saved.in_the_middle or saved.epoch is None:
            return saved
        epoch = self._epoch_of(loader)
        if epoch == saved.epoch or epoch is None:
            return saved
        # Set on the sampler itself, as by Fabric, which counts from 0 after a resume.
        check_epoch(epoch, saved.epoch, saved.batches, _length_of(loader))
        return None

    def _epoch_of(self, loader: Any) -> int | None:
        sampler = _with_epoch(loader)
        return self._told_epoch if sampler is None else int(sampler.epoch)


def _parts_here(loader: Any) -> tuple[SavedPart, ...]:
    """The state of the loader's own dataset, before any pass."""
    if isinstance(loader.dataset, IterDataPipe):
        return ()
    said = stateful.where(loader.dataset, None)
    # A dataset that has no position before it is iterated has nothing to restore.
    return (SavedPart(said),) if isinstance(said, bytes) else ()


def _tell_here(resumed: Saved, loader: Any, keeps_default: bool) -> Sequence[SavedPart]:
    """The parts for the workers, or for an iterable in this process; restores the loader's own dataset.

    At the beginning of a pass workers get copies of it, and a map-style dataset without workers is read.
    """
    workers, parts = loader.num_workers, resumed.parts
    if len(parts) != max(workers, 1) and len(parts) != 1:
        return ()
    here = len(parts) == 1 and not resumed.in_the_middle
    if not here or (is_iterable(loader.dataset) and (not workers or parts[0].finished)):
        return parts if len(parts) == max(workers, 1) else ()
    if parts[0].state is not None:
        # Copies in workers have generators of their own.
        with stateful.default_kept(keeps_default or workers > 0):
            stateful.tell_part("owner", loader.dataset, parts[0].state)
    return ()


def _warn_of_reading_again(saved: Saved, loader: Any) -> None:
    """Warn if a dataset has no state to continue from."""
    every = loader.snapshot_every_n_steps or 1
    again = [part.batches for part in saved.parts if part.state is None and part.batches >= every]
    if saved.in_the_middle and again:
        warnings.warn(
            f"{type(loader.dataset).__name__} has no state_dict and load_state_dict: to continue where it "
            f"was, it is read again from its beginning, and the first {max(again)} batches of each worker "
            "are dropped. Give it, or its iterator, the two methods to continue at once",
            stacklevel=users_level(),
        )


def _with_epoch(loader: Any) -> Any:
    """The sampler that has ``set_epoch`` and ``epoch``, if there is one."""
    for sampler in (loader.batch_sampler, stateful.innermost_sampler(loader), loader.sampler):
        if callable(getattr(sampler, "set_epoch", None)) and isinstance(getattr(sampler, "epoch", None), int):
            return sampler
    return None


def _length_of(loader: Any) -> int | None:
    """How many batches an epoch has, if that is known."""
    return None if is_iterable(loader.dataset) else torch.utils.data.DataLoader.__len__(loader)


def _pass_over(saved: Saved, loader: Any, generators: Mapping[str, torch.Generator]) -> None:
    """Advance the loader's own generators to the end of the loaded epoch, which is over."""
    if is_iterable(loader.dataset):
        return
    with stateful.default_kept():
        deque(iter(Indices(_index_sampler(loader), generators, saved)), maxlen=0)


def _index_sampler(loader: Any) -> Any:
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler
