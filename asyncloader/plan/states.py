"""States of loaders: a rank's, saved and loaded; those of all ranks, merged; what makes one not fit."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from ..types import Position, with_entry
from .lanes import Cursor, Row, rank_lanes
from .topology import World

# The saved form of cursors: plain JSON, versioned, a few KB for each rank.
#
# Laws:
#
# * Under ``"ranks"`` each rank has its own entry, of its own lanes. Everything else is the same for all
#   ranks. So the union of all entries is the state of the whole epoch, and every world takes its lanes from
#   it.
# * Every dict in a state has the same keys in the loader that saves it and in the one that loads it:
#   ``torch.distributed.checkpoint`` saves dicts key by key, and loads only the keys that the loading one has.
#   Half a description would look like a whole one, so the dataset is described in one text.

# Versions 1 and 2 called the dataset by another name; 1 had a turn instead of rows; 3 had nested positions.
_VERSION = 4

# Ranks in a message: enough to see a pattern, such as every eighth, which is one machine's.
_NAMED = 16


@dataclass(frozen=True, slots=True)
class StatePart:
    """The state of one rank.

    Attributes:
        epoch: Which one it is in.
        rows: Of its lanes that have begun.
        replicas: How many processes it was; each of them has the same state.
        is_stopped: See ``Cursor``.
    """

    epoch: int
    rows: Mapping[int, Row]
    replicas: int = 1
    is_stopped: bool = False


@dataclass(frozen=True, slots=True)
class State:
    """A state, read and checked; see ``save_state``."""

    dataset: Mapping[str, Any]
    world_size: int
    parts: Mapping[int, StatePart]

    @property
    def is_whole(self) -> bool:
        """Whether it has all ranks, so that every world can take its lanes from it."""
        return len(self.parts) == self.world_size

    def joined(self, ranks: Iterable[int]) -> StatePart:
        """The states of these ranks as one.

        A rank may be at the beginning of the next epoch while others are still in this one: then its lanes
        are done.

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
                lanes = rank_lanes(self.dataset["lanes"], World(rank, self.world_size))
                rows |= dict.fromkeys(lanes, Row(done=True))
            else:
                raise ValueError(
                    f"expected states of one epoch, but found {_name_epochs(parts)}; save those of all ranks "
                    "at the same step"
                )
        return StatePart(epoch, rows, is_stopped=any(part.is_stopped for part in parts.values()))


def _name_epochs(parts: Mapping[int, StatePart]) -> str:
    ranks_in: dict[int, list[int]] = {}
    for rank, part in sorted(parts.items()):
        ranks_in.setdefault(part.epoch, []).append(rank)
    return ", ".join(f"{name_ranks(ranks)} in {epoch}" for epoch, ranks in sorted(ranks_in.items()))


def name_ranks(ranks: Sequence[int]) -> str:
    """Ranks in words, for messages; only the first of very many."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    more = f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""
    return f"ranks {', '.join(map(str, ranks[:_NAMED]))}{more}"


def refuse_torchdatas(state: object) -> None:
    """Refuse a state that torchdata's loader has saved.

    Raises:
        ValueError: It is one.
    """
    if isinstance(state, Mapping) and "_iterator_finished" in state:
        raise ValueError(
            "expected a state of asyncloader.DataLoader, but got one of torchdata's StatefulDataLoader, "
            "which has another format: finish the epoch with that loader, and begin the next one with this, "
            "or load nothing and start the epoch again"
        )


def read_state(state: Any) -> State:
    """Read what ``save_state`` wrote.

    Raises:
        ValueError: It is not a state, lacks entries, or was edited.
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
    if state["version"] != _VERSION:
        raise ValueError(
            f"expected a state of version {_VERSION}, but got version {state['version']!r}; "
            "load it with the release that saved it"
        )
    missing = {"dataset", "world_size", "ranks"} - state.keys()
    if missing:
        raise ValueError(f"the state lacks {sorted(missing)}; was it cut or edited?")
    try:
        read = _read_entries(state)
        fits = _fits(read)
    except (AttributeError, LookupError, TypeError, ValueError):
        fits = False
    if not fits:
        raise ValueError("the state's rows do not fit its own lanes and ranks; was it edited?")
    return read


def _read_entries(state: Mapping[str, Any]) -> State:
    dataset = json.loads(state["dataset"])
    stages = len(dataset["ops"]) + 2  # the source, the operators and the batching
    parts = {}
    for rank, (epoch, names, table, *more) in state["ranks"].items():
        if not all(_is_count(stage) and stage < stages and isinstance(name, str) for stage, name in names):
            raise TypeError
        rows = {
            lane: Row(_to_position(names, values), batches, done == 1)
            for lane, batches, done, *values in table
        }
        replicas, is_stopped = more + [1, 0][len(more) :]
        parts[int(rank)] = StatePart(epoch, rows, replicas, is_stopped == 1)
    return State(dataset, state["world_size"], parts)


def _to_position(names: Sequence[tuple[int, str]], values: Sequence[Any]) -> Position:
    position: Position = []
    for (stage, name), value in zip(names, values, strict=True):
        if value is not None:
            position = with_entry(position, stage, {name: deepcopy(value)})
    return position


def _fits(state: State) -> bool:
    """Whether the ranks, lanes and counts of the state can exist."""
    lanes: Any = state.dataset.get("lanes")
    counts = [lanes, state.world_size]
    for part in state.parts.values():
        batches = (row.batches for row in part.rows.values())
        counts += [part.epoch, part.replicas, *part.rows, *batches]
    return (
        all(map(_is_count, counts))
        and 0 < len(state.parts) <= state.world_size <= lanes
        and all(
            rank < state.world_size
            and part.replicas > 0
            and all(lane < lanes and lane % state.world_size == rank for lane in part.rows)
            for rank, part in state.parts.items()
        )
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


# What a state may lack: one that was saved without an index goes on with one, unchecked. One that was saved
# with an index needs it again.
_OPTIONAL = frozenset(("contents_sha256",))

# How shards were dealt to lanes: as runs of samples, or whole by their sizes.
_DEALT = frozenset(("dealt", "sizes_sha256"))

# Differences that are not named where the shards are others.
_OF_SHARDS = _DEALT | {"shards", "contents_sha256"}


def save_state(cursor: Cursor, dataset: Mapping[str, Any], world: World) -> dict[str, Any]:
    """The state of a rank as a new JSON-plain dict.

    Args:
        cursor: Where the rank stands.
        dataset: What a loader must agree on to go on from there; has ``"lanes"``.
        world: The rank and the number of ranks.
    """
    lanes = sorted(cursor.rows.items())
    noted = {
        lane: {(stage, name): entry[name] for stage, entry in enumerate(row.position) for name in entry}
        for lane, row in lanes
    }
    # A row of values for each lane: with the names of entries in each row it would be twice as long.
    names = sorted({name for entries in noted.values() for name in entries})
    rows = [[lane, row.batches, int(row.done), *map(noted[lane].get, names)] for lane, row in lanes]
    more = [world.replicas, 1] if cursor.is_stopped else [world.replicas] if world.replicas > 1 else []
    entry = [cursor.epoch, [list(name) for name in names], deepcopy(rows), *more]
    return {
        "version": _VERSION,
        "dataset": json.dumps(dataset),
        "world_size": world.size,
        "epoch": cursor.epoch,
        "ranks": {str(world.rank): entry},
    }


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the states of all ranks into one, which any number of ranks that divides the lanes can load.

    The result is their union, of a few KB for each rank. Every rank loads the same merged state, and takes
    the part of its own lanes. If all ranks had taken the same number of steps, the remaining batches come in
    the same global order with any new number of ranks; otherwise each batch still comes once.

    Example:
        ```python
        import asyncloader as al

        numbers = al.from_iterable(range(1000))
        loaders = [al.DataLoader(numbers, 10, lanes=12, rank=rank, world_size=2) for rank in range(2)]
        merged = al.merge_states([loader.state_dict() for loader in loaders])
        loader = al.DataLoader(numbers, 10, rank=0, world_size=3)
        loader.load_state_dict(merged)
        ```

    Args:
        states: What ``state_dict()`` returned on each rank, saved at the same step, in any order. A merged
            state counts for all of its ranks. If several processes read the same (``mesh=``), the state of
            one of them is enough.

    Returns:
        A new dict of JSON values.

    Raises:
        ValueError: The states have different datasets, world sizes or epochs; a rank comes twice or is
            missing; the processes of a rank differ; or a state is not that of a stream. A rank that has
            ended the epoch may be merged with others that are still in it.
    """
    if isinstance(states, Mapping) or not isinstance(states, Iterable):
        raise ValueError(
            "expected a list of states, one of each rank, but got a "
            f"{type(states).__name__}; pass [state, ...]"
        )
    given = [*states]
    read = [read_state(state) for state in given]
    if not read:
        raise ValueError("expected the state of each rank, but got none")
    if any(state.dataset != read[0].dataset for state in read):  # ranks may run in folders of their own
        read = [replace(state, dataset=without_places(state.dataset)) for state in read]
    first = read[0]
    parts: dict[int, StatePart] = {}
    told: Counter[int] = Counter()
    for state in read:
        ours, theirs = ({"world_size": each.world_size, **each.dataset} for each in (first, state))
        differences = [
            f"{name}: {ours.get(name)!r} and {theirs.get(name)!r}"
            for name in {**ours, **theirs}
            if ours.get(name) != theirs.get(name)
        ]
        if differences:
            whose = f"{name_ranks(sorted(first.parts))} and of {name_ranks(sorted(state.parts))}"
            shown = "\n  ".join(differences)
            raise ValueError(f"the states of {whose} do not belong together:\n  {shown}")
        told.update(state.parts.keys())
        _check_again(parts, state.parts, told)
        parts |= state.parts
    merged = State(first.dataset, first.world_size, parts)
    if not merged.is_whole:
        lacking = [rank for rank in range(merged.world_size) if rank not in parts]
        raise ValueError(
            f"expected the states of all {merged.world_size} ranks, but got none of {name_ranks(lacking)}: "
            "what was delivered there would be repeated"
        )
    epoch = merged.joined(parts).epoch
    entries = {int(rank): entry for state in given for rank, entry in state["ranks"].items()}
    ranks = {str(rank): deepcopy(entries[rank]) for rank in sorted(entries)}
    return {
        "version": _VERSION,
        "dataset": json.dumps(first.dataset),
        "world_size": first.world_size,
        "epoch": epoch,
        "ranks": ranks,
    }


def _check_again(
    before: Mapping[int, StatePart], parts: Mapping[int, StatePart], told: Mapping[int, int]
) -> None:
    """Check that no rank has more states than processes, and that those of one rank are equal.

    Raises:
        ValueError: One has, or they differ.
    """
    doubled = [rank for rank, part in sorted(parts.items()) if told[rank] > part.replicas]
    if doubled:
        most = parts[doubled[0]].replicas
        often = "twice" if most == 1 else f"more often than {most} times, the number of its processes"
        raise ValueError(f"expected one state of each rank, but {name_ranks(doubled)} came {often}")
    differing = [rank for rank, part in sorted(parts.items()) if before.get(rank, part) != part]
    if differing:
        raise ValueError(
            f"expected the same state of all processes of a rank, but those of {name_ranks(differing)} "
            "differ; save the states of all processes at the same step"
        )


def load_state(
    state: Mapping[str, Any], dataset: Mapping[str, Any], world: World, lanes: Sequence[int]
) -> Cursor:
    """The cursor of a rank out of ``state``.

    Args:
        state: Of this rank alone, or merged of all ranks of any world.
        dataset: What the loader reads; has ``"lanes"``.
        world: The rank and the number of ranks.
        lanes: The rank's.

    Raises:
        ValueError: It is not a state, or was saved with another dataset, shard list or number of lanes, or by
            one rank of another world; the message names each difference.
    """
    saved = read_state(state)
    has_begun = any(part.rows for part in saved.parts.values())
    differences = _differences(_named_alike(saved.dataset, dataset), without_places(dataset), has_begun)
    if not saved.is_whole:
        whose = f"the state of {name_ranks(sorted(saved.parts))} of {saved.world_size} alone"
        if world.size != saved.world_size:
            differences.append(
                f"world_size: saved {saved.world_size}, now {world.size}. This is {whose}; "
                f"asyncloader.merge_states() makes of those of all {saved.world_size} one that loads here"
            )
        elif world.rank not in saved.parts:
            differences.append(
                f"rank: this is {whose}, now it is rank {world.rank}; give each rank its own state, or all "
                "of them what asyncloader.merge_states() makes of all"
            )
    if differences:
        raise ValueError(
            "this state was saved by another loader; make the two agree, or start again without it:\n  "
            + "\n  ".join(differences)
        )
    part = saved.joined(saved.parts if saved.is_whole else [world.rank])
    rows = {lane: part.rows[lane] for lane in lanes if lane in part.rows}
    return Cursor(part.epoch, lanes, rows, part.is_stopped)


def saved_dataset(state: Any) -> Mapping[str, Any]:
    """What a state says of its dataset; nothing if it is no state, which loading it reports."""
    try:
        described = json.loads(state["dataset"])
    except (LookupError, TypeError, ValueError):
        return {}
    return described if isinstance(described, Mapping) else {}


def without(dataset: Mapping[str, Any], is_left_out: Callable[[str], bool]) -> dict[str, Any]:
    """The description of a dataset and of its components, without the entries with such names."""
    told = {name: value for name, value in dataset.items() if not is_left_out(name)}
    if isinstance(parts := told.get("components"), list):
        told["components"] = [
            without(part, is_left_out) if isinstance(part, Mapping) else part for part in parts
        ]
    return told


# --- where shards lie ---


def without_places(dataset: Mapping[str, Any]) -> dict[str, Any]:
    """A description without the places of local shards, which differ on other machines."""
    return without(dataset, "places_sha256".__eq__)


def _named_alike(saved: Mapping[str, Any], mine: Mapping[str, Any]) -> dict[str, Any]:
    """What was saved, without places, and with the present names of shards that are in the same place."""
    alike = without_places(saved)
    if "urls_sha256" in mine and _place(saved) == _place(mine):
        alike["urls_sha256"] = mine["urls_sha256"]
    parts, mine_parts = saved.get("components"), mine.get("components")
    if isinstance(parts, list) and isinstance(mine_parts, list) and len(parts) == len(mine_parts):
        pairs = zip(parts, mine_parts, strict=True)
        alike["components"] = [
            _named_alike(*pair) if all(isinstance(part, Mapping) for part in pair) else pair[0]
            for pair in pairs
        ]
    return alike


def _place(dataset: Mapping[str, Any]) -> Any:
    return dataset.get("places_sha256", dataset.get("urls_sha256"))


# --- what differs ---


def _differences(saved: Mapping[str, Any], mine: Mapping[str, Any], has_begun: bool) -> list[str]:
    if not has_begun:  # nothing is dealt yet
        saved, mine = (without(dataset, _DEALT.__contains__) for dataset in (saved, mine))
    elif saved.get("lanes") == 1:  # which reads all shards, whatever their sizes
        saved, mine = (without(dataset, "sizes_sha256".__eq__) for dataset in (saved, mine))
    are_cut_otherwise = saved.get("dealt") != mine.get("dealt")
    return [
        _difference(name, saved, mine)
        for name in {**saved, **mine}
        if saved.get(name) != mine.get(name)
        and not (name in _OPTIONAL and name not in saved)
        and not (name == "sizes_sha256" and are_cut_otherwise)
        # Other shards differ in number and contents too: that is said once.
        and not (name in _OF_SHARDS and name in mine and _are_other_shards(saved, mine))
    ]


def _difference(name: str, saved: Mapping[str, Any], mine: Mapping[str, Any]) -> str:
    """One entry of the description that has changed; digests in words, since their values say nothing."""
    if name == "contents_sha256":
        if name not in mine:
            return "index: the shards' index was known then and is not now; name it with index="
        return "index: the contents of the shards differ from those in the state; were they written anew?"
    if name == "dealt":
        if name in mine:
            return (
                "dealt: the lanes were dealt whole shards then, and runs of samples now, since the index has "
                "the counts of all shards; finish this epoch without it, or as it was, and use it afterwards"
            )
        return "dealt: the lanes were cut by an index, which is not known now; name it with index="
    if name == "sizes_sha256" or (name == "components" and _differ_in_sizes(saved, mine)):
        return (
            "sizes: the lanes were dealt shards by their sizes, which are others now, or not known; put the "
            "shards back as they were, and name them as then, or begin the next epoch without this state"
        )
    if name == "urls_sha256" and _are_other_shards(saved, mine):
        then, now = saved["shards"], mine["shards"]
        how = ", with other names or in another order; paths and URLs are compared as written" * (then == now)
        return f"other shards: {then} saved, {now} now{how}"
    return f"{name}: saved {saved.get(name)!r}, now {mine.get(name)!r}"


def _differ_in_sizes(saved: Mapping[str, Any], mine: Mapping[str, Any]) -> bool:
    """Whether components of both are the same, but for the sizes of their shards."""
    before, now = (without(dataset, "sizes_sha256".__eq__).get("components") for dataset in (saved, mine))
    return bool(before == now)


def _are_other_shards(saved: Mapping[str, Any], mine: Mapping[str, Any]) -> bool:
    """Whether both are of shards, and not of the same."""
    return "shards" in saved and "shards" in mine and saved.get("urls_sha256") != mine.get("urls_sha256")
