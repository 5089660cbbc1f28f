"""The position of a loader of the torch kind: what its passes delivered, or what was loaded."""

from __future__ import annotations

import copy
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils.data import IterDataPipe

from ..errors import Line, users_level
from ..observe.statistics import Meter, Statistics
from ..plan.lanes import check_epoch
from ..plan.topology import World
from ..torch_private import HereIterator, WorkersIterator, forget_iterator
from . import stateful
from .adapt import is_iterable
from .indices import Indices
from .loop import open_torch_iterator
from .passes import TorchPass
from .saved import Saved, SavedPart, check_workers, load_saved, save_saved
from .timing import LoopStats, stage_of


class TorchState:
    """Opens passes, and knows the position of the latest one. Copies, and pickled ones, have none."""

    def __init__(self) -> None:
        self._latest: TorchPass | None = None
        #: Of the latest pass, and how many there were with it.
        self._counters: Meter | None = None
        self._begun = 0
        #: What was loaded, until a pass continues from there.
        self._loaded: Saved | None = None
        self._loaded_state: dict[str, Any] | None = None
        #: The epoch given to ``set_epoch``, for loaders without a part that takes it.
        self._told_epoch: int | None = None

    def open(
        self,
        loader: Any,
        dataset: Any,
        world: World,
        tell_unsplit: Callable[[Line], None],
        counting: Callable[..., Meter],
    ) -> HereIterator | WorkersIterator:
        """torch's iterator over ``loader``, from its position; see ``open_torch_iterator``."""
        generators = stateful.generators_of(loader)
        resumed = self._resumed(loader)
        if resumed is None and self._loaded is not None:
            _pass_over(self._loaded, loader, generators)
        latest = self._latest
        if resumed is not None:
            check_workers(resumed, loader)
            before = resumed
        else:
            before = replace(
                Saved() if latest is None else latest.left(), now=stateful.read_states(generators)
            )
        indices = Indices(_index_sampler(loader), generators, resumed)
        stage = stage_of(dataset)
        begin = partial(self._count, counting, _with_epoch(loader))
        traced = loader.trace is not None
        tally = LoopStats(begin, stage, loader.num_workers, loader.pin_memory, traced)
        told = TorchPass(
            indices,
            before,
            resumed=resumed is not None,
            loader=loader,
            tally=tally,
            tell_unsplit=tell_unsplit,
        )
        draws_default, in_the_middle = (
            stateful.DEFAULT in generators,
            resumed is not None and resumed.in_the_middle,
        )
        # Loading has set the default generator. In the middle of a pass it stays as it is. At the beginning
        # torch draws a seed from it, which a dataset's load_state_dict must not undo.
        keeps = draws_default and not in_the_middle
        parts = () if resumed is None else _tell_here(resumed, loader, keeps)
        with stateful.default_kept(draws_default and in_the_middle):
            iterator = open_torch_iterator(loader, dataset, world, told, parts, keeps)
            # A trace is written also where the loop's error ends the program.
            weakref.finalize(iterator, tally.end).atexit = traced
            if in_the_middle:
                indices.begin()
        self._latest, self._loaded, self._loaded_state = told, None, None
        tally.waited()  # for the workers, too
        return iterator

    def _count(self, counting: Callable[..., Meter], sampler: Any) -> Meter:
        """Meter of the next pass."""
        self._begun += 1
        epoch = None if sampler is None else int(sampler.epoch)
        self._counters = counting(passes=self._begun, epoch=epoch, earlier=self._counters)
        return self._counters

    def statistics(self) -> Statistics:
        """Of the latest pass."""
        return Statistics() if self._counters is None else self._counters.snapshot()

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

    def tell_epoch(self, epoch: int, loader: Any) -> None:
        """The next pass is of this epoch.

        Raises:
            ValueError: See ``check_epoch``.
        """
        saved = self._loaded
        if saved is not None and saved.in_the_middle and saved.epoch not in (None, epoch):
            check_epoch(epoch, saved.epoch, saved.batches, _length_of(loader))
        self._told_epoch = epoch

    def follow_epoch(self, epoch: int, loader: Any) -> None:
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

    def _epoch_of(self, loader: Any) -> int | None:
        sampler = _with_epoch(loader)
        return self._told_epoch if sampler is None else int(sampler.epoch)

    def promise(self, length: int) -> None:
        """See ``TorchPass.promise``."""
        if self._latest is not None and self._loaded is None:
            self._latest.promise(length)

    # --- state ---

    def save(self, loader: Any, world: World) -> dict[str, Any]:
        """The state as a new dict."""
        if self._loaded_state is not None:
            return copy.deepcopy(self._loaded_state)
        if self._latest is None:
            saved = Saved(now=stateful.read_states(stateful.generators_of(loader)), parts=_parts_here(loader))
        else:
            saved = self._latest.saved()
        return save_saved(replace(saved, epoch=self._epoch_of(loader)), loader, world)

    def load(self, state: Mapping[str, Any], loader: Any, world: World) -> None:
        """Continue from ``state`` with the next pass.

        Raises:
            ValueError: See ``load_saved``.
        """
        if state == {}:
            forget_iterator(loader)
            self._latest = self._loaded = self._loaded_state = self._told_epoch = None
            return
        saved = load_saved(state, loader, world)
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

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_latest": None, "_counters": None, "_begun": 0}


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
