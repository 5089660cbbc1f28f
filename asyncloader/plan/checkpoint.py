"""The cursor of one rank, and its form as a saved state: plain JSON, versioned, a few KB."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..types import Position
from .topology import World

__all__ = ["Cursor", "load_cursor", "save_cursor"]

_VERSION = 1

# What a state need not have: saved before there was a manifest, it goes on with one, and is not held
# against it. Saved with one, it wants it again.
_OPTIONAL = frozenset(("contents_sha256",))


@dataclass(slots=True)
class Cursor:
    """Where a rank stands in an epoch: what was delivered, whatever was prefetched.

    Attributes:
        epoch: Number of the pass.
        lanes: The rank's lanes, in the order of their turns.
        turn: Index into ``lanes`` of the lane that delivers next.
        positions: The position of each lane that has delivered a batch, after that batch.
        batches: How many were delivered.
    """

    epoch: int
    lanes: Sequence[int]
    turn: int = 0
    positions: dict[int, Position] = field(default_factory=dict)
    batches: int = 0

    def delivered(self, lane: int, position: Position) -> None:
        """The consumer has been given a batch of ``lane`` which ends at ``position``."""
        self.positions[lane] = position
        self.turn = (self.lanes.index(lane) + 1) % len(self.lanes)
        self.batches += 1

    def turns(self) -> list[tuple[int, Position]]:
        """The lanes in the order of their next turns, each with the position to open it at."""
        order = [*self.lanes[self.turn :], *self.lanes[: self.turn]]
        return [(lane, self.positions.get(lane, {})) for lane in order]


def save_cursor(cursor: Cursor, recipe: Mapping[str, Any], world: World) -> dict[str, Any]:
    """The state of a rank as a new JSON-plain dict.

    Args:
        cursor: Where the rank stands.
        recipe: What a loader must agree on to go on from there; has ``"lanes"``.
        world: The rank and the number of ranks.
    """
    return {
        "version": _VERSION,
        "recipe": dict(recipe),
        "rank": world.rank,
        "world_size": world.size,
        "epoch": cursor.epoch,
        "turn": cursor.turn,
        "batches": cursor.batches,
        "positions": _to_table(cursor.positions),
    }


def load_cursor(
    state: Mapping[str, Any], recipe: Mapping[str, Any], world: World, lanes: Sequence[int]
) -> Cursor:
    """The cursor that ``state`` describes.

    Raises:
        ValueError: The state is not one of ours, or was saved by another recipe, shard list, number
            of lanes, rank or world size; the message names each difference.
    """
    if not isinstance(state, Mapping) or "version" not in state:
        whole = state if isinstance(state, Mapping) else {}
        inner = [name for name, value in whole.items() if isinstance(value, Mapping) and "version" in value]
        hint = f"; did you mean the one under {inner[0]!r}?" if inner else ""
        raise ValueError(f"expected a dict made by state_dict(), but found no 'version' in it{hint}")
    if state["version"] != _VERSION:
        raise ValueError(
            f"expected a state of version {_VERSION}, but got version {state['version']!r}; "
            "load it with the release that saved it"
        )
    missing = {"recipe", "rank", "world_size", "epoch", "turn", "positions"} - state.keys()
    if missing:
        raise ValueError(f"the state lacks {sorted(missing)}; was it cut or edited?")
    saved = {"world_size": state["world_size"], "rank": state["rank"], **state["recipe"]}
    mine = {"world_size": world.size, "rank": world.rank, **recipe}
    differences = [
        _difference(name, saved, mine)
        for name in {**saved, **mine}
        if saved.get(name) != mine.get(name)
        and not (name in _OPTIONAL and name not in saved)
        # Between two epochs nothing is dealt yet.
        and not (name == "dealt" and not _has_begun(state))
        # Other shards differ in number and contents too: that is said once.
        and not (name in ("shards", "contents_sha256") and name in mine and _are_other_shards(saved, mine))
    ]
    if differences:
        raise ValueError(
            "this state was saved by another loader; make the two agree, or start anew without it:\n  "
            + "\n  ".join(differences)
        )
    try:
        positions = _from_table(state["positions"])
        batches = state.get("batches", 0)  # a state need not have it: bars start at it
        fits = 0 <= state["turn"] < len(lanes) and positions.keys() <= set(lanes) and batches >= 0
    except (AttributeError, LookupError, TypeError, ValueError):
        fits = False
    if not fits:
        raise ValueError("the state's turn or positions do not fit its own lanes; was it edited?")
    return Cursor(state["epoch"], lanes, state["turn"], positions, batches)


def _has_begun(state: Mapping[str, Any]) -> bool:
    """Whether some lane has delivered something of the epoch."""
    positions = state["positions"]
    return not isinstance(positions, Mapping) or bool(positions.get("lanes"))


def _difference(name: str, saved: Mapping[str, Any], mine: Mapping[str, Any]) -> str:
    """One entry of the recipe that is not as it was; digests in words, since nobody can compare them."""
    if name == "contents_sha256":
        if name not in mine:
            return "manifest: the shards' manifest was known then and is not now; name it with manifest="
        return "manifest: it tells of other contents of the shards than then; were they written anew?"
    if name == "dealt":
        if name in mine:
            return (
                "dealt: the lanes were dealt whole shards then, and runs of samples now, since the manifest "
                "has become an index; finish this epoch without it, or as it was, and go on with it then"
            )
        return "dealt: the lanes were cut by an index, which is not known now; name it with manifest="
    if name == "urls_sha256" and _are_other_shards(saved, mine):
        then, now = saved["shards"], mine["shards"]
        how = ", of other names or in another order" if then == now else ""
        return f"other shards: {then} then, {now} now{how}"
    return f"{name}: saved {saved.get(name)!r}, now {mine.get(name)!r}"


def _are_other_shards(saved: Mapping[str, Any], mine: Mapping[str, Any]) -> bool:
    """Whether both are of shards, and not of the same."""
    return "shards" in saved and "shards" in mine and saved.get("urls_sha256") != mine.get("urls_sha256")


def _to_table(positions: Mapping[int, Position]) -> dict[str, Any]:
    """A row of values for each lane: nested dicts would repeat their names in each, 200 bytes a lane."""
    leaves = {lane: dict(_leaves(position, ())) for lane, position in sorted(positions.items())}
    paths = sorted({path for row in leaves.values() for path in row})
    return {
        "fields": [list(path) for path in paths],
        "lanes": {str(lane): [row.get(path) for path in paths] for lane, row in leaves.items()},
    }


def _from_table(table: Mapping[str, Any]) -> dict[int, Position]:
    return {int(lane): _from_row(table["fields"], row) for lane, row in table["lanes"].items()}


def _from_row(paths: Sequence[Sequence[str]], row: Sequence[Any]) -> Position:
    position: dict[str, Any] = {}
    for path, value in zip(paths, row, strict=True):
        if value is not None:
            inner = position
            for name in path[:-1]:
                inner = inner.setdefault(name, {})
            inner[path[-1]] = value
    return position


def _leaves(position: Position, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in position.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), value
