from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.plan.lanes import Cursor, Row, rank_lanes
from asyncloader.plan.states import load_state, merge_states, save_state, saved_dataset
from asyncloader.plan.topology import World

RECIPE = {"source": "shards", "urls_sha256": "ab", "ops": [{"op": "take", "count": 3}], "lanes": 8}
WORLD = World(1, 2)
LANES = [1, 3, 5, 7]
SIZES = [1, 2, 4, 8]

names = st.sampled_from(["pool", "emitted", "taken", "shard", "byte", "a.b"])
numbers = st.integers(0, 2**62)
of_components = st.lists(st.just([]) | st.just([{"sample": 3}, {"taken": 4}]), max_size=3)
entries = st.dictionaries(names, numbers, max_size=3)
# A source, an operator and a batching; nothing is noted of the last one that has nothing to remember.
positions = st.builds(
    lambda first, others: [first, *others],
    st.builds(lambda entry, of: {**entry, "of": of}, entries, of_components) | entries.filter(bool),
    st.lists(entries, max_size=1) | st.tuples(entries, entries.filter(bool)),
).map(lambda position: position if position[-1] else position[:-1])
rows = st.builds(Row, positions, st.integers(1, 10_000), st.booleans())
cursors = st.builds(
    Cursor,
    epoch=st.integers(0, 1000),
    lanes=st.just(LANES),
    rows=st.dictionaries(st.sampled_from(LANES), rows),
)
epochs_rows = st.dictionaries(st.sampled_from(range(8)), rows)
"""Rows of all lanes, as all ranks together have them."""


def through_json(state: dict[str, Any]) -> Any:
    return json.loads(json.dumps(state))


def states_of(size: int, rows: dict[int, Row], epoch: int = 3) -> list[dict[str, Any]]:
    """What the ranks of a world save where all lanes together have these rows."""
    return [
        save_state(cursor_of(World(rank, size), rows, epoch), RECIPE, World(rank, size))
        for rank in range(size)
    ]


def cursor_of(world: World, rows: dict[int, Row], epoch: int = 3) -> Cursor:
    lanes = rank_lanes(8, world)
    return Cursor(epoch, lanes, {lane: rows[lane] for lane in lanes if lane in rows})


def load(state: Any, world: World = WORLD) -> Cursor:
    return load_state(state, RECIPE, world, rank_lanes(8, world))


# --- one rank's ---


@given(cursors)
def test_a_cursor_comes_back_from_its_state_as_it_was(cursor: Cursor) -> None:
    assert load(through_json(save_state(cursor, RECIPE, WORLD))) == cursor


@given(cursors)
def test_a_state_shares_nothing_with_its_cursor(cursor: Cursor) -> None:
    state = save_state(cursor, RECIPE, WORLD)
    expected = copy.deepcopy(state)
    loaded = load(state)
    for other in (cursor, loaded):
        other.move(LANES[0], [{"shard": 99}])
    assert state == expected


def test_entries_of_a_stage_are_those_of_the_same_stage_again() -> None:
    cursor = Cursor(0, LANES, {1: Row([{}, {"pool": 0, "emitted": 3}], 1), 3: Row([{"shard": 1}], 1)})
    assert load(through_json(save_state(cursor, RECIPE, WORLD))) == cursor


def test_delivering_moves_the_lane_and_the_turn() -> None:
    cursor = Cursor(4, LANES)
    cursor.move(1, [{"shard": 0}])
    cursor.move(3, [{"shard": 1}])
    cursor.move(7, [{"shard": 2}])  # 5 has run dry
    assert [lane for lane, _ in cursor.turns()] == [5, 1, 3, 7]
    assert dict(cursor.turns())[3] == Row([{"shard": 1}], 1)
    cursor.move(1, [{"shard": 5}])
    assert [lane for lane, _ in cursor.turns()] == [5, 3, 7, 1]
    assert cursor.batches == 4


def test_a_lane_that_is_done_has_no_turn() -> None:
    assert Cursor(0, [0, 1], {0: Row(done=True)}).turns() == [(1, Row())]


def test_each_difference_is_named_with_both_values() -> None:
    state = save_state(Cursor(0, LANES), RECIPE, WORLD)
    with pytest.raises(ValueError) as caught:
        load_state(state, {**RECIPE, "urls_sha256": "cd", "extra": 1}, World(0, 2), [0, 2, 4, 6])
    lines = str(caught.value).splitlines()[1:]
    assert lines == [
        "  urls_sha256: saved 'ab', now 'cd'",
        "  extra: saved None, now 1",
        "  rank: this is the state of rank 1 of 2 alone, now it is rank 0; give each rank its own state, or "
        "all of them what asyncloader.merge_states() makes of all",
    ]


def test_other_shards_and_an_index_that_is_gone_are_told_in_words() -> None:
    saved = {**RECIPE, "shards": 8, "contents_sha256": "ef"}
    state = save_state(Cursor(0, LANES), saved, WORLD)
    with pytest.raises(ValueError) as caught:
        load_state(state, {**RECIPE, "shards": 7, "urls_sha256": "cd"}, WORLD, LANES)
    assert str(caught.value).splitlines()[1:] == [
        "  other shards: 8 saved, 7 now",
        "  index: the shards' index was known then and is not now; name it with index=",
    ]


def test_a_thousand_lanes_take_less_than_fifty_bytes_each() -> None:
    deep = [{"shard": 6789, "sample": 9999, "byte": 1 << 33}, {"pool": 123, "emitted": 45}]
    lanes = range(1000)
    rows = dict.fromkeys(lanes, Row(deep, 1_234))
    state = save_state(Cursor(0, lanes, rows), {**RECIPE, "lanes": 1000}, World())
    assert len(json.dumps(state)) < 50 * 1000


# --- those of all ranks ---


@given(epochs_rows, st.sampled_from(SIZES), st.sampled_from(SIZES), st.randoms())
def test_a_merged_state_gives_each_rank_of_any_world_its_own_rows(
    rows: dict[int, Row], before: int, after: int, random: Any
) -> None:
    states = [through_json(state) for state in states_of(before, rows)]
    random.shuffle(states)
    merged = through_json(merge_states(states))
    for rank in range(after):
        assert load(merged, World(rank, after)) == cursor_of(World(rank, after), rows)


@given(epochs_rows, st.lists(st.sampled_from(SIZES), max_size=4))
def test_worlds_resized_one_after_the_other_lose_no_row(rows: dict[int, Row], sizes: list[int]) -> None:
    merged = merge_states(states_of(4, rows))
    for size in sizes:
        cursors = [load(merged, World(rank, size)) for rank in range(size)]
        merged = merge_states(
            save_state(cursor, RECIPE, World(rank, size)) for rank, cursor in enumerate(cursors)
        )
    assert load(merged, World()) == cursor_of(World(), rows)


def test_merging_changes_nothing_that_it_is_given_and_what_is_merged_merges_again() -> None:
    states = states_of(2, {lane: Row([{"shard": lane}], 1) for lane in range(8)})
    before = copy.deepcopy(states)
    merged = merge_states(states)
    assert states == before
    assert merge_states([merged]) == merged
    assert merge_states([{**states[0], "of the user": []}, states[1]]) == merged
    merged["ranks"]["0"].clear()
    assert states == before


def test_a_world_of_one_needs_no_merging() -> None:
    rows = {lane: Row([{"shard": lane}], 1) for lane in range(8)}
    (alone,) = states_of(1, rows)
    assert load(alone, World(3, 4)) == cursor_of(World(3, 4), rows)


def test_a_rank_that_has_begun_the_next_epoch_is_done_with_the_one_that_others_are_in() -> None:
    slow = save_state(Cursor(3, [0, 2, 4, 6], {2: Row([{"shard": 1}], 5)}), RECIPE, World(0, 2))
    fast = save_state(Cursor(4, LANES), RECIPE, World(1, 2))
    merged = merge_states([slow, fast])
    assert merged["epoch"] == 3
    cursor = load(merged, World(0, 1))
    assert cursor.epoch == 3
    assert [lane for lane, _ in cursor.turns()] == [0, 4, 6, 2]
    again = load(merged, World(1, 2))
    assert (again.epoch, again.turns()) == (3, [])


# --- what does not merge, and what does not load ---


def with_rank(state: dict[str, Any], number: int) -> dict[str, Any]:
    (entry,) = state["ranks"].values()
    return {**state, "ranks": {str(number): entry}}


ROWS = {lane: Row([{"shard": lane}], 1) for lane in range(8)}
four = states_of(4, ROWS)


@pytest.mark.parametrize(
    ("states", "named"),
    [
        ([], "expected the state of each rank, but got none"),
        (four[0], r"expected a list of states, one of each rank, but got a dict; pass \[state, \.\.\.\]"),
        (None, "expected a list of states, one of each rank, but got a NoneType"),
        (four[:3], "expected the states of all 4 ranks, but got none of rank 3: what was delivered"),
        ([four[1]], "all 4 ranks, but got none of ranks 0, 2, 3"),
        ([*four, four[2]], "expected one state of each rank, but rank 2 came twice"),
        ([merge_states(four), four[2]], "rank 2 came twice"),
        (
            [four[0], states_of(2, ROWS)[1]],
            "the states of rank 0 and of rank 1 do not belong together:\n  world_size: 4 and 2",
        ),
        (
            [*four[:3], states_of(4, ROWS, epoch=5)[3]],
            "expected states of one epoch, but found ranks 0, 1, 2 in 3, rank 3 in 5; save those of all",
        ),
        ([*four[:3], states_of(4, ROWS, epoch=4)[3]], "found ranks 0, 1, 2 in 3, rank 3 in 4"),
        ([{}], "no 'version'"),
        (["state"], "but got str"),
        ([{"version": 1, "kind": "torch", "batches": 2}], "expected the state of a stream"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_states_that_do_not_belong_together_are_refused(states: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        merge_states(states)


def test_states_of_two_recipes_are_refused_with_the_difference_named() -> None:
    other = save_state(Cursor(3, LANES), {**RECIPE, "ops": []}, WORLD)
    with pytest.raises(ValueError, match=r"  ops: \[{'op': 'take', 'count': 3}\] and \[\]"):
        merge_states([states_of(2, ROWS)[0], other])


@pytest.mark.parametrize("size", [1, 2, 8])
def test_one_rank_s_state_in_another_world_is_refused_with_the_numbers(size: int) -> None:
    message = (
        rf"world_size: saved 4, now {size}\. This is the state of rank 0 of 4 alone; "
        r"asyncloader\.merge_states\(\) makes of those of all 4 one that loads here"
    )
    with pytest.raises(ValueError, match=message):
        load(four[0], World(0, size))


@pytest.mark.parametrize(
    "ranks",
    [
        {"1": [3, [], [[0, 1, 0]]]},  # a lane of another rank
        {"1": [3, [], [[9, 1, 0]]]},
        {"1": [3, [], [[1, -1, 0]]]},
        {"1": [3, [], [[1]]]},
        {"1": [3, [[0, "shard"]], [[1, 1, 0]]]},
        {"1": [3, [[0, "shard"], [0, 7]], [[1, 1, 0, 2, 2]]]},
        {"1": [3, [["0", "shard"]], [[1, 1, 0, 2]]]},
        {"1": [3, [[1 << 40, "shard"]], [[1, 1, 0, 2]]]},  # more stages than the dataset has
        {"1": [-3, [], []]},
        {"1": [3, []]},
        {"2": [3, [], []]},
        {"one": [3, [], []]},
        {},
        [],
    ],
)
def test_rows_that_there_cannot_be_are_refused(ranks: Any) -> None:
    state = save_state(Cursor(3, LANES), RECIPE, WORLD)
    with pytest.raises(ValueError, match="do not fit its own lanes and ranks; was it edited"):
        load({**state, "ranks": ranks})


@pytest.mark.parametrize("described", [RECIPE, "{", "[]", json.dumps({**RECIPE, "lanes": "8"})])
def test_a_description_that_is_none_is_refused(described: Any) -> None:
    state = {**save_state(Cursor(3, LANES), RECIPE, WORLD), "dataset": described}
    with pytest.raises(ValueError, match="was it edited"):
        load(state)


def test_what_a_state_says_of_its_dataset_is_read_of_whatever_it_is() -> None:
    assert saved_dataset(four[0]) == RECIPE
    others: list[Any] = [{}, "state", None, {"dataset": "{"}, {"dataset": "[]"}, {"dataset": {}}]
    assert [saved_dataset(other) for other in others] == [{}] * 6


# --- how shards were dealt ---


def load_dealt(saved: dict[str, Any], mine: dict[str, Any], rows: dict[int, Row], lanes: int = 8) -> str:
    """What is said of a state whose shards were dealt otherwise; nothing if it loads."""
    both = [{**RECIPE, **told, "lanes": lanes} for told in (saved, mine)]
    state = through_json(save_state(Cursor(3, range(lanes), rows), both[0], World()))
    try:
        load_state(state, both[1], World(), range(lanes))
    except ValueError as error:
        return str(error)
    return ""


ROWS = {0: Row([{"shard": 1}], 2)}


def mixed(**told: Any) -> dict[str, Any]:
    return {"components": [{"source": "shards", **told}, {"source": "shards", "sizes_sha256": "same"}]}


def test_a_state_of_other_sizes_is_refused_where_lanes_were_dealt_by_them() -> None:
    for saved, mine in (
        ({"sizes_sha256": "then"}, {"sizes_sha256": "now"}),
        ({"sizes_sha256": "then"}, {}),
        (mixed(sizes_sha256="then"), mixed(sizes_sha256="now")),
    ):
        assert "  sizes: the lanes were dealt shards by their sizes" in load_dealt(saved, mine, ROWS)
        assert not load_dealt(saved, mine, {}), "nothing is dealt between two epochs"
        assert not load_dealt(saved, mine, ROWS, lanes=1), "one lane has all shards"
        assert not load_dealt(saved, saved, ROWS)


def test_what_has_become_an_index_is_told_once() -> None:
    sized, indexed = {"sizes_sha256": "then"}, {"dealt": "samples"}
    assert "dealt: the lanes were dealt whole shards then" in load_dealt(sized, indexed, ROWS)
    assert "dealt: the lanes were cut by an index, which" in load_dealt(indexed, sized, ROWS)
    assert "sizes" not in load_dealt(sized, indexed, ROWS) + load_dealt(indexed, sized, ROWS)


# --- states of older versions ---


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_state_of_an_older_version_is_refused_by_its_version(version: int) -> None:
    state = save_state(Cursor(3, LANES), RECIPE, WORLD)
    older = {"recipe": state.pop("dataset"), **state, "version": version}
    with pytest.raises(ValueError, match=f"version 4, but got version {version}; load it with the release"):
        load(older)
    assert saved_dataset(older) == {}
