"""States of loaders: a rank's, saved and loaded; those of all ranks, merged; what makes one not fit."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .cursor import Cursor
from .state_form import Part, State, name_ranks, read_state, write_state
from .topology import World

__all__ = ["load_state", "merge_states", "save_state", "saved_recipe", "without", "without_places"]

# What a state need not have: saved before there was an index, it goes on with one, and is not held
# against it. Saved with one, it wants it again.
_OPTIONAL = frozenset(("contents_sha256",))

# By what shards were dealt to lanes: runs of samples, or whole ones by their sizes.
_DEALT = frozenset(("dealt", "sizes_sha256"))

# What is not told of other shards.
_OF_SHARDS = _DEALT | {"shards", "contents_sha256"}


def save_state(cursor: Cursor, recipe: Mapping[str, Any], world: World) -> dict[str, Any]:
    """The state of a rank as a new JSON-plain dict.

    Args:
        cursor: Where the rank stands.
        recipe: What a loader must agree on to go on from there; has ``"lanes"``.
        world: The rank and the number of ranks.
    """
    part = Part(cursor.epoch, cursor.rows, world.replicas, cursor.is_stopped)
    return write_state(State(recipe, world.size, {world.rank: part}))


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One state of the states of all ranks, which goes on with any number of ranks that divides the lanes.

    It is their union: a few KB for each rank. Each loader takes from it what belongs to its own lanes, so
    that every rank is given the same merged state. Where all ranks had taken as many steps, the batches that
    are left come in the same global order, whatever the new number of ranks; else each once all the same.

    Args:
        states: What ``state_dict()`` gave on each rank, in any order, saved at the same step. One that is
            merged already counts for all of its ranks. Of ranks that are several processes
            (``mesh=``) the state of one is enough, and those of all may be there.

    Returns:
        A new dict of JSON values.

    Raises:
        ValueError: The states are of different datasets, world sizes or epochs; a rank is there twice, or
            is lacking; processes of one rank tell different things; or one of them is no state of a stream. A
            rank at the beginning of the next epoch goes with others that are not through with this one: it
            has delivered all that it had.
    """
    if isinstance(states, Mapping) or not isinstance(states, Iterable):
        raise ValueError(
            "expected a list of states, one of each rank, but got a "
            f"{type(states).__name__}; pass [state, ...]"
        )
    read = [read_state(state) for state in states]
    if not read:
        raise ValueError("expected the state of each rank, but got none")
    if any(state.recipe != read[0].recipe for state in read):  # ranks may run in folders of their own
        read = [replace(state, recipe=without_places(state.recipe)) for state in read]
    first = read[0]
    parts: dict[int, Part] = {}
    told: Counter[int] = Counter()
    for state in read:
        ours, theirs = ({"world_size": each.world_size, **each.recipe} for each in (first, state))
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
    merged = State(first.recipe, first.world_size, parts)
    if not merged.is_whole:
        raise ValueError(
            f"expected the states of all {merged.world_size} ranks, but of {name_ranks(merged.lacking)} "
            "there is none: what was delivered there would come again"
        )
    merged.joined(parts)
    return write_state(merged)


def _check_again(before: Mapping[int, Part], parts: Mapping[int, Part], told: Mapping[int, int]) -> None:
    """Refuse ranks that have told more often than they have processes, or not the same.

    Raises:
        ValueError: That is so.
    """
    doubled = [rank for rank, part in sorted(parts.items()) if told[rank] > part.replicas]
    if doubled:
        most = parts[doubled[0]].replicas
        often = "twice" if most == 1 else f"more often than {most} times, for the processes that it is"
        raise ValueError(f"expected one state of each rank, but {name_ranks(doubled)} came {often}")
    differing = [rank for rank, part in sorted(parts.items()) if before.get(rank, part) != part]
    if differing:
        raise ValueError(
            f"expected the same of all processes of a rank, but those of {name_ranks(differing)} differ; "
            "save the states of all processes at the same step"
        )


def load_state(
    state: Mapping[str, Any], recipe: Mapping[str, Any], world: World, lanes: Sequence[int]
) -> Cursor:
    """The cursor of a rank out of ``state``.

    Args:
        state: Of this rank alone, or merged of all ranks of any world.
        recipe: What the loader reads; has ``"lanes"``.
        world: The rank and the number of ranks.
        lanes: The rank's.

    Raises:
        ValueError: The state is not one of ours, or was saved by another dataset, shard list or number of
            lanes, or by one rank of another world; the message names each difference.
    """
    saved = read_state(state)
    has_begun = any(part.rows for part in saved.parts.values())
    differences = _differences(_named_alike(saved.recipe, recipe), without_places(recipe), has_begun)
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
            "this state was saved by another loader; make the two agree, or start anew without it:\n  "
            + "\n  ".join(differences)
        )
    part = saved.joined(saved.parts if saved.is_whole else [world.rank])
    rows = {lane: part.rows[lane] for lane in lanes if lane in part.rows}
    return Cursor(part.epoch, lanes, rows, part.is_stopped)


def saved_recipe(state: Any) -> Mapping[str, Any]:
    """What a state says of its dataset; nothing where it is no state, which loading it will refuse."""
    try:
        recipe = state["recipe"]
        recipe = json.loads(recipe) if isinstance(recipe, str) else recipe
    except (LookupError, TypeError, ValueError):
        return {}
    return recipe if isinstance(recipe, Mapping) else {}


def without(recipe: Mapping[str, Any], is_left_out: Callable[[str], bool]) -> dict[str, Any]:
    """What is said of a dataset and of its components, but for what has these names."""
    told = {name: value for name, value in recipe.items() if not is_left_out(name)}
    if isinstance(parts := told.get("components"), list):
        told["components"] = [
            without(part, is_left_out) if isinstance(part, Mapping) else part for part in parts
        ]
    return told


# --- where shards lie ---


def without_places(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A dataset without where its local shards lie, which is another place on other machines."""
    return without(recipe, "places_sha256".__eq__)


def _named_alike(saved: Mapping[str, Any], mine: Mapping[str, Any]) -> dict[str, Any]:
    """What was saved, without places, and with the present names of shards that lie where they lay then."""
    alike = without_places(saved)
    if "urls_sha256" in mine and _place(saved) == _place(mine):
        alike["urls_sha256"] = mine["urls_sha256"]
    parts, mine_parts = saved.get("components"), mine.get("components")
    if isinstance(parts, list) and isinstance(mine_parts, list) and len(parts) == len(mine_parts):
        pairs = zip(parts, mine_parts, strict=True)
        alike["components"] = [_named_alike(*pair) if _are_mappings(pair) else pair[0] for pair in pairs]
    return alike


def _are_mappings(values: Iterable[Any]) -> bool:
    return all(isinstance(value, Mapping) for value in values)


def _place(recipe: Mapping[str, Any]) -> Any:
    return recipe.get("places_sha256", recipe.get("urls_sha256"))


# --- what differs ---


def _differences(saved: Mapping[str, Any], mine: Mapping[str, Any], has_begun: bool) -> list[str]:
    if not has_begun:  # nothing is dealt yet
        saved, mine = (without(recipe, _DEALT.__contains__) for recipe in (saved, mine))
    elif saved.get("lanes") == 1:  # which reads all shards, whatever their sizes
        saved, mine = (without(recipe, "sizes_sha256".__eq__) for recipe in (saved, mine))
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
    """One entry of the dataset that is not as it was; digests in words, since nobody can compare them."""
    if name == "contents_sha256":
        if name not in mine:
            return "index: the shards' index was known then and is not now; name it with index="
        return "index: it tells of other contents of the shards than then; were they written anew?"
    if name == "dealt":
        if name in mine:
            return (
                "dealt: the lanes were dealt whole shards then, and runs of samples now, since the index "
                "has become an index; finish this epoch without it, or as it was, and go on with it then"
            )
        return "dealt: the lanes were cut by an index, which is not known now; name it with index="
    if name == "sizes_sha256" or (name == "components" and _differ_in_sizes(saved, mine)):
        return (
            "sizes: the lanes were dealt shards by their sizes, which are others now, or not known; put the "
            "shards back as they were, and name them as then, or begin the next epoch without this state"
        )
    if name == "urls_sha256" and _are_other_shards(saved, mine):
        then, now = saved["shards"], mine["shards"]
        how = ", of other names or in another order; paths and URLs count as they are written" * (then == now)
        return f"other shards: {then} then, {now} now{how}"
    return f"{name}: saved {saved.get(name)!r}, now {mine.get(name)!r}"


def _differ_in_sizes(saved: Mapping[str, Any], mine: Mapping[str, Any]) -> bool:
    """Whether components of both are the same, but for the sizes of their shards."""
    before, now = (without(recipe, "sizes_sha256".__eq__).get("components") for recipe in (saved, mine))
    return bool(before == now)


def _are_other_shards(saved: Mapping[str, Any], mine: Mapping[str, Any]) -> bool:
    """Whether both are of shards, and not of the same."""
    return "shards" in saved and "shards" in mine and saved.get("urls_sha256") != mine.get("urls_sha256")
