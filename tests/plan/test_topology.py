from __future__ import annotations

from collections.abc import Mapping
from contextvars import copy_context

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.plan.topology import (
    AskedTopology,
    Topology,
    World,
    enter_topology,
    get_topology,
    resolve_world,
)


@given(st.lists(st.integers(), max_size=50), st.integers(1, 9))
def test_the_parts_of_all_lanes_are_the_items_each_once(items: list[int], lanes: int) -> None:
    parts = [list(Topology(lane, lanes).split(items)) for lane in range(lanes)]
    merged = [None] * len(items)
    for lane, part in enumerate(parts):
        merged[lane::lanes] = part
    assert merged == items


def test_outside_a_loader_the_topology_is_all_there_is() -> None:
    assert get_topology() == Topology(0, 1, 0, 1, 0)
    assert list(get_topology().split("abc")) == list("abc")


def test_asking_for_the_topology_is_noticed() -> None:
    here = AskedTopology(Topology(2, 5))
    context = copy_context()
    context.run(enter_topology, here)
    assert not here.asked
    assert context.run(get_topology) == Topology(2, 5)
    assert here.asked


def test_given_rank_and_world_size_come_before_the_group_and_the_environment() -> None:
    environ = {"RANK": "1", "WORLD_SIZE": "4"}
    assert resolve_world(2, 3, lambda: (0, 2), environ) == World(2, 3)
    assert resolve_world(None, None, lambda: (0, 2), environ) == World(0, 2)
    assert resolve_world(None, None, lambda: None, environ) == World(1, 4)
    assert resolve_world(None, None, lambda: None, {}) == World(0, 1)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"RANK": "0"}, "set together"),
        ({"WORLD_SIZE": "2"}, "set together"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK='x', WORLD_SIZE='2'"),
        (
            {"RANK": "2", "WORLD_SIZE": "2"},
            r"RANK='2', WORLD_SIZE='2': rank should be in the interval \[0, 1\]",
        ),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "world_size should be at least 1"),
    ],
)
def test_an_environment_that_makes_no_sense_is_refused(environ: Mapping[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        World.from_env(environ)


def test_a_world_size_of_one_needs_no_rank() -> None:
    assert World.from_env({"WORLD_SIZE": "1"}) == World(0, 1)
