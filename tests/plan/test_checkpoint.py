from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.plan.checkpoint import Cursor, load_cursor, save_cursor
from asyncloader.plan.topology import World

RECIPE = {"source": "shards", "urls_sha256": "ab", "ops": [{"op": "take", "count": 3}], "lanes": 8}
WORLD = World(1, 2)
LANES = [1, 3, 5, 7]

names = st.sampled_from(["window", "emitted", "taken", "shard", "byte", "a.b"])
numbers = st.integers(0, 2**62)
positions = st.recursive(
    st.dictionaries(names, numbers, min_size=1, max_size=3),
    lambda inner: st.builds(
        lambda entries, nested: {**entries, "from": nested},
        st.dictionaries(names, numbers, max_size=3),
        inner,
    ),
    max_leaves=4,
)
cursors = st.builds(
    Cursor,
    epoch=st.integers(0, 1000),
    lanes=st.just(LANES),
    turn=st.integers(0, 3),
    positions=st.dictionaries(st.sampled_from(LANES), positions),
)


def through_json(state: dict[str, Any]) -> Any:
    return json.loads(json.dumps(state))


@given(cursors)
def test_a_cursor_comes_back_from_its_state_as_it_was(cursor: Cursor) -> None:
    state = through_json(save_cursor(cursor, RECIPE, WORLD))
    assert load_cursor(state, RECIPE, WORLD, LANES) == cursor


@given(cursors)
def test_a_state_shares_nothing_with_its_cursor(cursor: Cursor) -> None:
    state = save_cursor(cursor, RECIPE, WORLD)
    expected = copy.deepcopy(state)
    loaded = load_cursor(state, RECIPE, WORLD, LANES)
    for other in (cursor, loaded):
        other.delivered(LANES[0], {"shard": 99})
    assert state == expected


def test_an_entry_that_is_an_empty_position_is_the_same_as_none() -> None:
    cursor = Cursor(0, LANES, 1, {1: {"window": 0, "emitted": 3, "from": {}}})
    loaded = load_cursor(through_json(save_cursor(cursor, RECIPE, WORLD)), RECIPE, WORLD, LANES)
    assert loaded.positions == {1: {"window": 0, "emitted": 3}}


def test_delivering_moves_the_lane_and_the_turn() -> None:
    cursor = Cursor(4, LANES)
    cursor.delivered(1, {"shard": 0})
    cursor.delivered(3, {"shard": 1})
    cursor.delivered(7, {"shard": 2})  # 5 has run dry
    assert cursor.turns() == [(1, {"shard": 0}), (3, {"shard": 1}), (5, {}), (7, {"shard": 2})]
    cursor.delivered(1, {"shard": 5})
    assert [lane for lane, _ in cursor.turns()] == [3, 5, 7, 1]


def test_each_difference_is_named_with_both_values() -> None:
    state = save_cursor(Cursor(0, LANES), RECIPE, WORLD)
    with pytest.raises(ValueError) as caught:
        load_cursor(state, {**RECIPE, "urls_sha256": "cd", "extra": 1}, World(0, 4), [0, 4])
    lines = str(caught.value).splitlines()[1:]
    assert lines == [
        "  world_size: saved 2, now 4",
        "  rank: saved 1, now 0",
        "  urls_sha256: saved 'ab', now 'cd'",
        "  extra: saved None, now 1",
    ]


def test_other_shards_and_a_manifest_that_is_gone_are_told_in_words() -> None:
    saved = {**RECIPE, "shards": 8, "contents_sha256": "ef"}
    state = save_cursor(Cursor(0, LANES), saved, WORLD)
    with pytest.raises(ValueError) as caught:
        load_cursor(state, {**RECIPE, "shards": 7, "urls_sha256": "cd"}, WORLD, LANES)
    assert str(caught.value).splitlines()[1:] == [
        "  other shards: 8 then, 7 now",
        "  manifest: the shards' manifest was known then and is not now; name it with manifest=",
    ]


def test_a_thousand_lanes_take_less_than_fifty_bytes_each() -> None:
    deep = {"window": 123, "emitted": 45, "from": {"shard": 6789, "from": {"sample": 9999, "byte": 1 << 33}}}
    lanes = range(1000)
    state = save_cursor(Cursor(0, lanes, 0, dict.fromkeys(lanes, deep)), RECIPE, World())
    assert len(json.dumps(state)) < 50 * 1000


def test_a_state_need_not_say_how_many_batches_there_were() -> None:
    state = save_cursor(Cursor(0, LANES, 1, {1: {"sample": 4}}, batches=3), RECIPE, WORLD)
    assert load_cursor(state, RECIPE, WORLD, LANES).batches == 3
    del state["batches"]
    assert load_cursor(state, RECIPE, WORLD, LANES).batches == 0
    with pytest.raises(ValueError, match="was it edited"):
        load_cursor({**state, "batches": -1}, RECIPE, WORLD, LANES)
