"""The state of a loader of the torch kind: what a resume needs, and its form as a saved dict.

Plain JSON, except for what the user's own ``state_dict`` methods return, which is kept as it is.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..plan.states import refuse_torchdatas
from ..plan.topology import World
from ..quantity import as_whole
from ..workers.raised import load_error
from . import stateful
from .adapt import is_iterable

_VERSION = 2


@dataclass(frozen=True, slots=True)
class SavedPart:
    """Where one worker's copy of a dataset continues.

    Attributes:
        state: What the dataset and its iterator returned last; None for the beginning.
        batches: Of an iterable one: how many came after that, and are read again and dropped.
        ended: Whether it is at its end, as a short batch has shown.
        finished: Whether this was in a pass that is over: reading continues with the next one.
    """

    state: stateful.Said | None = None
    batches: int = 0
    ended: bool = False
    finished: bool = False


@dataclass(frozen=True, slots=True)
class Saved:
    """The position of a loader; by default the beginning of the first pass.

    Attributes:
        batches: How many of the pass were delivered, without a gap from its beginning.
        early: Numbers of those that were delivered after a gap, with ``in_order=False``.
        finished: Whether the pass is over, so that the next one begins.
        base_seed: Of the workers of the pass; in a finished one, that of workers which persist.
        start: The states of the generators that the order was drawn from.
        now: The present states; in the middle of a pass only that of the default one.
        epoch: The sampler's, as set by ``set_epoch``.
        sampler: What a stateful sampler returned.
        sampler_ended: Whether it was at its end then, as a short batch has shown.
        parts: Of an iterable dataset, or one with a state, for each worker; one without workers. Before the
            first batch it is one with workers, too: of the loader's own dataset, which they get copies of.
        turn: Which worker is next.
    """

    batches: int = 0
    early: tuple[int, ...] = ()
    finished: bool = False
    base_seed: int | None = None
    start: stateful.States = field(default_factory=dict)
    now: stateful.States = field(default_factory=dict)
    epoch: int | None = None
    sampler: stateful.Said | None = None
    sampler_ended: bool = False
    parts: tuple[SavedPart, ...] = ()
    turn: int = 0

    @property
    def in_the_middle(self) -> bool:
        """Whether a part of a pass was delivered, and it is not over."""
        return not self.finished and (self.batches > 0 or bool(self.early))


def save_saved(saved: Saved, loader: Any, world: World) -> dict[str, Any]:
    """The state as a new dict.

    Raises:
        Exception: What the ``state_dict`` of a dataset or sampler raised.
    """
    encode = stateful.encode_states
    return {
        "version": _VERSION,
        "kind": "torch",
        "loader": _describe(loader),
        "rank": world.rank,
        "world_size": world.size,
        "batches": saved.batches,
        "early": list(saved.early),
        "finished": saved.finished,
        "epoch": saved.epoch,
        "base_seed": saved.base_seed,
        "generators": {"start": encode(saved.start), "now": encode(saved.now)},
        "sampler": {"state": _plain(saved.sampler), "ended": saved.sampler_ended},
        "workers": [{**asdict(part), "state": _plain(part.state)} for part in saved.parts],
        "turn": saved.turn,
    }


def load_saved(state: Mapping[str, Any], loader: Any, world: World) -> Saved:
    """The position in ``state``, as far as it is valid for ``loader``.

    Raises:
        ValueError: It is not the state of a loader of this kind, or another loader saved it in the middle of
            a pass; the message names each difference.
    """
    refuse_torchdatas(state)
    if not isinstance(state, Mapping) or state.get("kind") != "torch":
        raise ValueError(
            f"expected the state of a loader over a {type(loader.dataset).__name__} or another dataset "
            "that torch's own loop reads, but got another kind of state; was it saved by a stream's loader?"
        )
    if state.get("version") != _VERSION:
        raise ValueError(
            f"expected a state of version {_VERSION}, but got version {state.get('version')!r}; load it with "
            "the release that saved it"
        )
    try:
        saved = _read(state)
        described, whose = dict(state["loader"]), (state["rank"], state["world_size"])
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"the state lacks or garbles an entry ({error}); was it cut or edited?") from error
    if saved.in_the_middle:
        _check_agrees(described, whose, loader, world)
        check_workers(saved, loader)
    if whose == (world.rank, world.size):
        return saved
    return _of_another_rank(saved, keeps_parts=not is_iterable(loader.dataset))


def check_workers(saved: Saved, loader: Any) -> None:
    """Refuse another number of workers for a position that is theirs.

    Raises:
        ValueError: That is so.
    """
    if saved.in_the_middle and saved.parts and len(saved.parts) != max(loader.num_workers, 1):
        then, now = len(saved.parts), loader.num_workers
        name, resume = type(loader.dataset).__name__, f"Resume with num_workers={then} until the epoch's end"
        if not is_iterable(loader.dataset):
            raise ValueError(
                f"this state has what state_dict() of {name} returned in {then} worker{'s' * (then != 1)}, "
                f"but now num_workers={now}: each has a copy of the dataset with a state of its own. {resume}"
            )
        raise ValueError(
            f"this state has the positions of {then} worker{'s' * (then != 1)} in a "
            f"{name}, but now num_workers={now}: each worker reads a part of its own, and what {then} have "
            f"not read cannot be divided among {now}. {resume}, after which any number works, or use a "
            "stream (from_urls, from_iterable), which resumes with any number"
        )


def _read(state: Mapping[str, Any]) -> Saved:
    generators = state["generators"]
    seed, epoch = state["base_seed"], state["epoch"]
    parts = tuple(
        SavedPart(
            _pickled(part["state"]), _count(part["batches"]), bool(part["ended"]), bool(part["finished"])
        )
        for part in state["workers"]
    )
    return Saved(
        batches=_count(state["batches"]),
        early=tuple(map(_count, state["early"])),
        finished=bool(state["finished"]),
        base_seed=None if seed is None else int(seed),
        start=stateful.decode_states(generators["start"]),
        now=stateful.decode_states(generators["now"]),
        epoch=None if epoch is None else int(epoch),
        sampler=_pickled(state["sampler"]["state"]),
        sampler_ended=bool(state["sampler"]["ended"]),
        parts=parts,
        turn=_count(state["turn"], below=max(len(parts), 1)),
    )


def _count(value: Any, below: int = sys.maxsize) -> int:
    count = as_whole(value)
    if count is None or not 0 <= count < below:
        raise TypeError(f"{value!r} where a count should be")
    return count


def _of_another_rank(saved: Saved, keeps_parts: bool) -> Saved:
    """Without what belongs to one process: the program's generator, seeds drawn from it, and parts.

    A map-style dataset gets the state of the other rank's: its sampler decides which samples come.
    """
    start, now = (
        {name: state for name, state in states.items() if name != stateful.DEFAULT}
        for states in (saved.start, saved.now)
    )
    return replace(saved, start=start, now=now, base_seed=None, parts=saved.parts if keeps_parts else ())


def _check_agrees(then: dict[str, Any], whose: tuple[Any, Any], loader: Any, world: World) -> None:
    now = _describe(loader)
    if is_iterable(loader.dataset) or not stateful.leaves_default_alone(loader):
        # Otherwise all ranks draw one order, each its own part of it: a checkpoint of rank 0 works for all.
        then |= dict(zip(("rank", "world_size"), whose, strict=True))
        now |= {"rank": world.rank, "world_size": world.size}
    differences = [
        f"{name}: saved {then.get(name)!r}, now {now.get(name)!r}"
        for name in {**then, **now}
        if then.get(name) != now.get(name)
    ]
    if differences:
        raise ValueError(
            "this state was saved by another loader, in the middle of an epoch; make the two agree, or start "
            "again without it:\n  " + "\n  ".join(differences)
        )


def _describe(loader: Any) -> dict[str, Any]:
    """What two loaders must have in common for a position of one to mean the same in the other."""
    told = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if is_iterable(loader.dataset):
        return {"dataset": type(loader.dataset).__qualname__, **told}
    sampler = stateful.innermost_sampler(loader)
    told["sampler"] = type(sampler).__qualname__
    if type(sampler).__module__.startswith("torch.utils.data"):
        # With another number another order would be drawn. A length of a user's sampler may change by epoch.
        told["samples"] = len(sampler)
    return told


def _plain(said: stateful.Said | None) -> Any:
    if isinstance(said, tuple):
        raise load_error(said)
    return None if said is None else pickle.loads(said)


def _pickled(plain: Any) -> bytes | None:
    if plain is None:
        return None
    if not isinstance(plain, Mapping):
        raise TypeError(f"{plain!r} where the state of a dataset or sampler should be")
    return pickle.dumps(plain, 5)
