from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from asyncloader.plan.lanes import (
    Cursor,
    Rotation,
    Row,
    check_ranks,
    choose_lanes,
    rank_lanes,
    worker_lanes,
)
from asyncloader.plan.topology import World

counts = st.integers(1, 40)


@given(counts, counts, st.integers(0, 8))
def test_ranks_and_workers_together_have_every_lane_once(times: int, size: int, workers: int) -> None:
    lanes = times * size
    parts = [
        part for rank in range(size) for part in worker_lanes(rank_lanes(lanes, World(rank, size)), workers)
    ]
    assert sorted(lane for part in parts for lane in part) == list(range(lanes))
    assert all(parts), "no worker is started for nothing"
    assert len(parts) <= size * max(workers, 1)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 5))
def test_batch_j_is_of_lane_j_mod_l_whatever_the_world_size(times: int, size: int, rounds: int) -> None:
    lanes = times * size
    sequence = [lane for _ in range(rounds) for lane in range(lanes)]
    merged = [0] * len(sequence)
    for rank in range(size):
        mine = rank_lanes(lanes, World(rank, size)) * rounds
        merged[rank::size] = mine
    assert merged == sequence


def test_lanes_are_one_for_each_worker_of_each_rank_by_default() -> None:
    assert choose_lanes(None, World(0, 3), 4) == 12
    assert choose_lanes(None, World(0, 3), 0) == 3
    assert choose_lanes(6, World(0, 3), 4) == 6


@given(counts, counts)
def test_a_world_that_does_not_divide_the_lanes_is_told_which_do(lanes: int, size: int) -> None:
    assume(lanes % size)
    fitting = ", ".join(str(n) for n in range(1, lanes + 1) if lanes % n == 0)
    with pytest.raises(
        ValueError, match=f"{lanes} lanes .* {size} ranks; they fit a world size of {fitting}\\."
    ):
        choose_lanes(lanes, World(0, size), 0)


@pytest.mark.parametrize("lanes", [0, -1, 1.5, True, "4"])
def test_a_number_of_lanes_that_is_none_is_refused(lanes: object) -> None:
    with pytest.raises(ValueError, match="lanes should be a positive integer value"):
        choose_lanes(lanes, World(), 0)  # type: ignore[arg-type]  # what is tested


def test_fewer_shards_than_ranks_are_refused_and_as_many_are_not() -> None:
    check_ranks(3, World(0, 3))
    with pytest.raises(ValueError, match=r"2 shards cannot be split over 3 ranks: 1 of them.*by an index"):
        check_ranks(2, World(0, 3))
    with pytest.raises(ValueError, match=r"2 samples cannot be split over 3 ranks: 1 of them.* ranks$"):
        check_ranks(2, World(0, 3), "samples")
    check_ranks(0, World())


def played(lengths: list[int], delivered: list[int] | None = None) -> list[int]:
    """The lanes in the order in which streams of these lengths are taken from, from what was delivered on."""
    done = delivered or [0] * len(lengths)
    left, order = [length - count for length, count in zip(lengths, done, strict=True)], []
    rows = {lane: Row(batches=count) for lane, count in enumerate(done)}
    rotation = Rotation(Cursor(0, range(len(lengths)), rows))
    for lane in rotation:
        if left[lane]:
            left[lane] -= 1
            order.append(lane)
            rotation.move([])
        else:
            rotation.move(None)
    assert not any(left)
    assert all(row.done for row in rotation.cursor.rows.values())
    assert [rotation.cursor.rows[lane].batches for lane in range(len(lengths))] == lengths
    return order


lengths = st.lists(st.integers(0, 6), min_size=1, max_size=6)


@given(lengths)
def test_a_rotation_takes_from_each_lane_in_turn_and_passes_over_dry_ones(lengths: list[int]) -> None:
    expected = [lane for k in range(max(lengths)) for lane in range(len(lengths)) if lengths[lane] > k]
    assert played(lengths) == expected


@given(lengths, st.data())
def test_the_turn_follows_from_what_lanes_have_delivered(lengths: list[int], data: st.DataObject) -> None:
    whole = played(lengths)
    cut = data.draw(st.integers(0, len(whole)))
    delivered = [whole[:cut].count(lane) for lane in range(len(lengths))]
    assert played(lengths, delivered) == whole[cut:]


@given(lengths, st.data())
def test_lanes_that_are_behind_catch_up_first_and_a_second_cut_changes_nothing(
    lengths: list[int], data: st.DataObject
) -> None:
    delivered = [data.draw(st.integers(0, length)) for length in lengths]  # by ranks that were not in step
    rest = played(lengths, delivered)
    cut = data.draw(st.integers(0, len(rest)))
    now = [count + rest[:cut].count(lane) for lane, count in enumerate(delivered)]
    assert played(lengths, now) == rest[cut:]
    assert sorted(rest) == sorted(
        lane for lane, length in enumerate(lengths) for _ in range(length - delivered[lane])
    )
