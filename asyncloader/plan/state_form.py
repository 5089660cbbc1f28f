"""The saved form of cursors: plain JSON, versioned, a few KB for each rank.

Laws:

* Under ``"ranks"`` each rank has an entry of its own, of its own lanes. What else there is, is the same for
  all ranks. So the union of all entries is the state of the whole epoch, of which every world takes its
  own lanes.
* No dict in it, and no list of dicts, could have other keys in a loader that a rank loads it into.
  ``torch.distributed.checkpoint`` saves such values key by key, and loads those keys alone that the loader
  has at that moment: half a recipe would look like a whole one. Hence the recipe is a text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..types import Position
from .cursor import Row
from .lanes import rank_lanes
from .topology import World

__all__ = ["Part", "State", "name_ranks", "read_state", "refuse_torchdatas", "write_state"]

_VERSION = 2

# Enough to see a pattern in, such as every eighth, which is one machine's.
_NAMED = 16


@dataclass(frozen=True, slots=True)
class Part:
    """What a rank has to say.

    Attributes:
        epoch: Which one it is in.
        rows: Of its lanes that have begun.
        replicas: How many processes it was, each of which says the same.
        is_stopped: See ``Cursor``.
    """

    epoch: int
    rows: Mapping[int, Row]
    replicas: int = 1
    is_stopped: bool = False


@dataclass(frozen=True, slots=True)
class State:
    """A state, read and found to be one; see ``save_state``."""

    recipe: Mapping[str, Any]
    world_size: int
    parts: Mapping[int, Part]

    @property
    def is_whole(self) -> bool:
        """Whether it tells of all ranks, so that every world can take its lanes from it."""
        return len(self.parts) == self.world_size

    @property
    def lacking(self) -> list[int]:
        """The ranks that it tells nothing of."""
        return [rank for rank in range(self.world_size) if rank not in self.parts]

    def joined(self, ranks: Iterable[int]) -> Part:
        """What these ranks say together.

        A rank may be at the untouched beginning of the next epoch while others are not through with this
        one: then its lanes are done.

        Raises:
            ValueError: They are in different epochs otherwise.
        """
        parts = {rank: self.parts[rank] for rank in ranks}
        epoch = min(part.epoch for part in parts.values())
        rows: dict[int, Row] = {}
        for rank, part in parts.items():
            if part.epoch == epoch:
                rows |= part.rows
            elif part.epoch == epoch + 1 and not part.rows:
                lanes = rank_lanes(self.recipe["lanes"], World(rank, self.world_size))
                rows |= dict.fromkeys(lanes, Row(done=True))
            else:
                raise ValueError(
                    f"expected states of one epoch, but found {_name_epochs(parts)}; save those of all ranks "
                    "at the same step"
                )
        return Part(epoch, rows, is_stopped=any(part.is_stopped for part in parts.values()))


def _name_epochs(parts: Mapping[int, Part]) -> str:
    ranks_in: dict[int, list[int]] = {}
    for rank, part in sorted(parts.items()):
        ranks_in.setdefault(part.epoch, []).append(rank)
    return ", ".join(f"{name_ranks(ranks)} in {epoch}" for epoch, ranks in sorted(ranks_in.items()))


def name_ranks(ranks: Sequence[int]) -> str:
    """Ranks in words, for messages; the first of very many."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    more = f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""
    return f"ranks {', '.join(map(str, ranks[:_NAMED]))}{more}"


def write_state(state: State) -> dict[str, Any]:
    """The state as a new dict of JSON values."""
    return {
        "version": _VERSION,
        "recipe": json.dumps(state.recipe),
        "world_size": state.world_size,
        "epoch": min(part.epoch for part in state.parts.values()),
        "ranks": {str(rank): _to_entry(part) for rank, part in sorted(state.parts.items())},
    }


def _to_entry(part: Part) -> list[Any]:
    """A row of values for each lane: nested dicts would repeat their names in each, 200 bytes a lane."""
    leaves = {lane: dict(_leaves(row.position, ())) for lane, row in sorted(part.rows.items())}
    paths = sorted({path for values in leaves.values() for path in values})
    rows = [
        [lane, part.rows[lane].batches, int(part.rows[lane].done), *map(values.get, paths)]
        for lane, values in leaves.items()
    ]
    # Of a rank that was one process and not stopped, as most are, the first releases read it too.
    more = [part.replicas, 1] if part.is_stopped else [part.replicas] if part.replicas > 1 else []
    return [part.epoch, [list(path) for path in paths], rows, *more]


def _leaves(position: Position, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in position.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), value


def refuse_torchdatas(state: object) -> None:
    """Refuse a state that torchdata's loader has saved.

    Raises:
        ValueError: It is one.
    """
    if isinstance(state, Mapping) and "_iterator_finished" in state:
        raise ValueError(
            "expected a state of asyncloader.DataLoader, but got one of torchdata's StatefulDataLoader, "
            "which has another form: finish the epoch with that loader, and begin the next one with this, or "
            "load nothing and begin the epoch anew"
        )


def read_state(state: Any) -> State:
    """What ``write_state`` wrote, now or in the first release.

    Raises:
        ValueError: It is nothing of the kind, lacks entries, or was edited.
    """
    if not isinstance(state, Mapping):
        raise ValueError(f"expected a dict made by state_dict(), but got {type(state).__name__}")
    refuse_torchdatas(state)
    if "version" not in state:
        inner = [name for name, value in state.items() if isinstance(value, Mapping) and "version" in value]
        hint = f"; did you mean the one under {inner[0]!r}?" if inner else ""
        raise ValueError(f"expected a dict made by state_dict(), but found no 'version' in it{hint}")
    if "kind" in state:
        raise ValueError(
            "expected the state of a stream (from_urls, from_iterable), but got that of a dataset that "
            "torch's own loop reads, which has no lanes"
        )
    if state["version"] not in (1, _VERSION):
        raise ValueError(
            f"expected a state of version {_VERSION}, but got version {state['version']!r}; "
            "load it with the release that saved it"
        )
    missing = _KEYS[state["version"]] - state.keys()
    if missing:
        raise ValueError(f"the state lacks {sorted(missing)}; was it cut or edited?")
    try:
        read = _read_first_version(state) if state["version"] == 1 else _read_entries(state)
        fits = _fits(read)
    except (AttributeError, LookupError, TypeError, ValueError):
        fits = False
    if not fits:
        raise ValueError("the state's rows do not fit its own lanes and ranks; was it edited?")
    return read


_KEYS = {
    1: {"recipe", "rank", "world_size", "epoch", "turn", "positions"},
    2: {"recipe", "world_size", "ranks"},
}


def _read_entries(state: Mapping[str, Any]) -> State:
    parts = {}
    for rank, (epoch, paths, table, *more) in state["ranks"].items():
        if not all(isinstance(name, str) for path in paths for name in path):
            raise TypeError
        rows = {
            lane: Row(_to_position(paths, values), batches, done == 1)
            for lane, batches, done, *values in table
        }
        replicas, is_stopped = more + [1, 0][len(more) :]
        parts[int(rank)] = Part(epoch, rows, replicas, is_stopped == 1)
    return State(json.loads(state["recipe"]), state["world_size"], parts)


def _read_first_version(state: Mapping[str, Any]) -> State:
    """A state with a turn among the rank's lanes, where now there are rows.

    It says how many batches the lanes have delivered together. They are dealt so that the turns go on as
    they did; where a lane had run dry the sum may come out smaller, which a progress bar shows.
    """
    rank, turn, table = state["rank"], state["turn"], state["positions"]
    lanes = rank_lanes(state["recipe"]["lanes"], World(rank, state["world_size"]))
    starts = {int(lane): _to_position(table["fields"], values) for lane, values in table["lanes"].items()}
    if not 0 <= turn < len(lanes) or (batches := state.get("batches", 0)) < 0:
        raise ValueError
    had_their_turn = starts.keys() & set(lanes[:turn])
    rounds = max(batches - len(had_their_turn), 0) // max(len(starts), 1)
    rows = {lane: Row(start, rounds + (lane in had_their_turn)) for lane, start in starts.items()}
    return State(state["recipe"], state["world_size"], {rank: Part(state["epoch"], rows)})


def _to_position(paths: Sequence[Sequence[str]], values: Sequence[Any]) -> Position:
    position: dict[str, Any] = {}
    for path, value in zip(paths, values, strict=True):
        if value is not None:
            inner = position
            for name in path[:-1]:
                inner = inner.setdefault(name, {})
            inner[path[-1]] = value
    return position


def _fits(state: State) -> bool:
    """Whether the state is of ranks, lanes and counts that there can be."""
    lanes: Any = state.recipe.get("lanes")
    return (
        _is_count(lanes)
        and _is_count(state.world_size)
        and 0 < len(state.parts) <= state.world_size <= lanes
        and all(
            rank < state.world_size
            and _is_count(part.epoch)
            and _is_count(part.replicas)
            and part.replicas > 0
            and all(
                _is_count(lane)
                and lane < lanes
                and lane % state.world_size == rank
                and _is_count(row.batches)
                for lane, row in part.rows.items()
            )
            for rank, part in state.parts.items()
        )
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
