from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.plan.topology import World, mesh_world

NAMES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")


def cut_of(
    shape: tuple[int, ...], chosen: tuple[int, ...], at: tuple[int, ...]
) -> tuple[list[str], list[int], int, list[int], list[int]]:
    """The part of a mesh along some dimensions, as the process at some place is given it."""
    numbers = {place: number for number, place in enumerate(product(*map(range, shape)))}
    beside = [
        place for place in numbers if all(place[d] == at[d] for d in range(len(shape)) if d not in chosen)
    ]
    return (
        [NAMES[d] for d in chosen],
        [shape[d] for d in chosen],
        numbers[at],
        [numbers[place] for place in sorted(beside)],
        list(numbers.values()),
    )


@st.composite
def drawn_meshes(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    chosen = draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    return shape, tuple(sorted(chosen))


@given(drawn_meshes())
def test_each_place_along_the_dimensions_is_a_rank_and_the_others_are_its_replicas(drawn: Any) -> None:
    shape, chosen = drawn
    seen: dict[int, set[int]] = {}
    along: dict[int, set[tuple[int, ...]]] = {}
    for at in product(*map(range, shape)):
        world = mesh_world(*cut_of(shape, chosen, at))
        seen.setdefault(world.rank, set()).add(world.replica)
        along.setdefault(world.rank, set()).add(tuple(at[d] for d in chosen))
    assert [*sorted(seen)] == [*range(world.size)]
    assert all(replicas == set(range(world.replicas)) for replicas in seen.values())
    assert world.processes == len([*product(*map(range, shape))])
    assert all(len(places) == 1 for places in along.values())


def test_the_origin_names_the_dimensions() -> None:
    world = mesh_world(*cut_of((2, 2, 2), (1,), (1, 0, 1)))
    assert str(world) == "rank 0 of 2, replica 3 of 4 (mesh dimension dp_replicate)"
    world = mesh_world(*cut_of((2, 2, 2, 2), (1, 2), (0, 1, 1, 1)))
    assert str(world) == "rank 3 of 4, replica 1 of 4 (mesh dimensions dp_replicate x dp_shard)"
    assert str(mesh_world(None, [3], 7, [5, 6, 7], None)) == "rank 2 of 3 (mesh)"


def test_a_dimension_that_was_flattened_or_reordered_counts_by_its_places() -> None:
    # Ranks 3, 2, 1, 0 along a mesh of one's own.
    assert mesh_world(["dp"], [4], 1, [3, 2, 1, 0], None) == World(2, 4)
    # Of the whole mesh some processes are not in this training.
    uncut = [4, 5, 6, 7]
    assert mesh_world(["dp"], [2], 6, [4, 6], uncut) == World(1, 2, replica=0, replicas=2)
    assert mesh_world(["dp"], [2], 5, [5, 7], uncut) == World(0, 2, replica=1, replicas=2)


def test_a_mesh_of_which_no_part_was_chosen_is_refused_with_its_dimensions() -> None:
    with pytest.raises(ValueError, match=r"the dimensions dp of 4, tp of 2; .* such as mesh\['dp'\]"):
        mesh_world(["dp", "tp"], [4, 2], 0, range(8), None)
    with pytest.raises(ValueError, match=r"the dimensions \(4, 2\); "):
        mesh_world(None, [4, 2], 0, range(8), None)


def test_a_mesh_that_this_process_is_not_in_is_refused() -> None:
    with pytest.raises(ValueError, match="it is number 5, and the mesh has 0, 1, 2"):
        mesh_world(["dp"], [3], 5, [0, 1, 2], None)


def test_a_part_that_does_not_repeat_is_refused() -> None:
    with pytest.raises(ValueError, match=r"every process has a place, but got \[0, 1, 3\] of"):
        mesh_world(["dp"], [3], 0, [0, 1, 3], range(6))
