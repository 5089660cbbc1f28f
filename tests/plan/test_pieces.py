from __future__ import annotations

import gc
import pickle
import weakref

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.plan.lanes import Cursor, Deal, Rotation, batch_count, rank_lanes
from asyncloader.plan.pieces import Cut, Dealing, Piece, cut_piece
from asyncloader.plan.topology import World

lane_counts = st.integers(1, 40)
order_keys = st.none() | st.tuples(st.integers(0, 1000), st.integers(0, 3), st.integers(0, 3))
sample_counts = st.lists(st.integers(0, 50), max_size=20)


def dealing_of(counts: list[int]) -> Dealing:
    return Dealing(len(counts), np.array(counts, np.int64))


# --- whole shards ---


@given(st.integers(0, 200), lane_counts, order_keys)
def test_without_counts_the_lanes_together_have_every_shard_once(
    shards: int, lanes: int, order_key: tuple[int, ...] | None
) -> None:
    dealing = Dealing(shards)
    dealt = [list(dealing.of_lane(lane, lanes, order_key)) for lane in range(lanes)]
    assert sorted(piece.shard for mine in dealt for piece in mine) == list(range(shards))
    assert all(piece == Piece(piece.shard) for mine in dealt for piece in mine)
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


@given(st.integers(0, 50), lane_counts)
def test_without_a_key_lanes_keep_the_given_order(shards: int, lanes: int) -> None:
    assert list(Dealing(shards).of_lane(0, lanes, None)) == [
        Piece(shard) for shard in range(0, shards, lanes)
    ]


@given(sample_counts, st.integers(1, 8), st.integers(0, 3), st.none() | st.integers())
def test_lanes_of_whole_shards_have_the_samples_of_these(
    samples: list[int], lanes: int, epoch: int, seed: int | None
) -> None:
    dealing, deal = Dealing(len(samples)), Deal(tuple(range(lanes)), lanes, epoch, seed, repetition=1)
    found = dealing.count_lanes(deal, np.array(samples, np.int64))
    dealt = [dealing.of_lane(lane, lanes, deal.order_key) for lane in range(lanes)]
    assert found == [sum(samples[piece.shard] for piece in mine) for mine in dealt]
    assert sum(found) == sum(samples)


# --- whole shards, by their sizes ---

shard_sizes = st.lists(st.integers(0, 1 << 40), max_size=60)


def dealt_by_size(sizes: list[int], lanes: int, order_key: tuple[int, ...] | None = None) -> list[list[int]]:
    """The shards of each lane."""
    dealing = Dealing(len(sizes), sizes=np.array(sizes, np.int64))
    return [[piece.shard for piece in dealing.of_lane(lane, lanes, order_key)] for lane in range(lanes)]


@given(shard_sizes, lane_counts, order_keys)
def test_by_sizes_every_shard_is_in_one_lane_and_stands_there_in_the_order_of_the_epoch(
    sizes: list[int], lanes: int, order_key: tuple[int, ...] | None
) -> None:
    (order,) = dealt_by_size([0] * len(sizes), 1, order_key)
    dealt = dealt_by_size(sizes, lanes, order_key)
    assert sorted(shard for mine in dealt for shard in mine) == list(range(len(sizes)))
    assert all(mine == [shard for shard in order if shard in mine] for mine in dealt)
    assert sum(map(bool, dealt)) == min(lanes, len(sizes)), "no lane is idle that could have a shard"


@given(shard_sizes, lane_counts, st.none() | st.integers(0, 1000))
def test_by_sizes_lanes_differ_by_no_more_than_the_largest_shard(
    sizes: list[int], lanes: int, seed: int | None
) -> None:
    deal = Deal(tuple(range(lanes)), lanes, 3, seed)
    dealt = dealt_by_size(sizes, lanes, deal.order_key)
    loads = [sum(sizes[shard] for shard in mine) for mine in dealt]
    assert max(loads) - min(loads) <= max(sizes, default=0)
    columns = np.array(sizes, np.int64)
    assert Dealing(len(sizes), sizes=columns).count_lanes(deal, columns) == loads


@given(shard_sizes, st.integers(1, 6), st.integers(1, 6))
def test_by_sizes_ranks_differ_by_no_more_than_lanes(sizes: list[int], ranks: int, times: int) -> None:
    loads = [sum(sizes[shard] for shard in mine) for mine in dealt_by_size(sizes, ranks * times, (7, 0, 0))]
    of_ranks = [sum(loads[rank::ranks]) for rank in range(ranks)]
    assert max(of_ranks) - min(of_ranks) <= max(loads) - min(loads)


def test_shards_of_nearly_one_size_make_equal_ranks_also_where_lanes_have_one_more_or_less() -> None:
    sizes = [(1 << 30) + (7919 * shard) % 9_000_000 for shard in range(100)]
    for epoch in range(4):
        dealt = dealt_by_size(sizes, 16, (0, epoch, 0))
        of_ranks = [sum(len(mine) for mine in dealt[rank::4]) for rank in range(4)]
        assert of_ranks == [25] * 4


def test_unequal_shards_of_many_sizes_make_lanes_that_are_about_equal() -> None:
    sizes = [1000 // shard for shard in range(1, 101)]
    for lanes in (2, 3, 4, 5):
        loads = [sum(sizes[shard] for shard in mine) for mine in dealt_by_size(sizes, lanes, (7, 0, 0))]
        assert max(loads) - min(loads) <= 0.01 * max(loads)


@given(st.integers(0, 60), lane_counts, st.integers(0, 1 << 40))
def test_shards_of_one_size_are_dealt_as_without_sizes(shards: int, lanes: int, size: int) -> None:
    in_turn = [[piece.shard for piece in Dealing(shards).of_lane(lane, lanes, None)] for lane in range(lanes)]
    assert dealt_by_size([size] * shards, lanes) == in_turn


def test_shards_of_nearly_one_size_are_dealt_anew_in_each_epoch() -> None:
    sizes = [(1 << 30) + 1000 * shard for shard in range(64)]
    dealt = [dealt_by_size(sizes, 8, (0, epoch, 0)) for epoch in range(4)]
    assert len({frozenset(map(frozenset, of_epoch)) for of_epoch in dealt}) == 4
    for of_epoch in dealt:
        loads = [sum(sizes[shard] for shard in mine) for mine in of_epoch]
        assert max(loads) - min(loads) <= 0.001 * max(loads)


def test_a_copy_in_another_process_deals_by_the_same_sizes() -> None:
    dealing = Dealing(9, sizes=np.arange(9))
    before = [list(dealing.of_lane(lane, 4, (1, 2, 0))) for lane in range(4)]
    copy = pickle.loads(pickle.dumps(dealing))
    assert [list(copy.of_lane(lane, 4, (1, 2, 0))) for lane in range(4)] == before


# --- runs of samples ---


@given(sample_counts, lane_counts, order_keys)
def test_with_counts_every_sample_is_in_one_lane_and_the_lanes_are_equal_to_within_one(
    counts: list[int], lanes: int, order_key: tuple[int, ...] | None
) -> None:
    dealing = dealing_of(counts)
    dealt = [list(dealing.of_lane(lane, lanes, order_key)) for lane in range(lanes)]
    order = [piece.shard for piece in Dealing(len(counts)).of_lane(0, 1, order_key)]
    in_order = [(piece.shard, sample) for mine in dealt for piece in mine for sample in samples_of(piece)]
    assert in_order == [(shard, sample) for shard in order for sample in range(counts[shard])]
    lengths = [sum(len(samples_of(piece)) for piece in mine) for mine in dealt]
    deal = Deal(tuple(range(lanes)), lanes, *(order_key or (0, 0, 0))[1::-1])
    assert lengths == dealing.count_lanes(deal)
    assert lengths == sorted(lengths, reverse=True) and lengths[0] - lengths[-1] <= 1


@given(sample_counts, lane_counts, order_keys)
def test_every_shard_is_read_also_one_without_samples(
    counts: list[int], lanes: int, order_key: tuple[int, ...] | None
) -> None:
    dealing = dealing_of(counts)
    pieces = [piece for lane in range(lanes) for piece in dealing.of_lane(lane, lanes, order_key)]
    assert {piece.shard for piece in pieces} == set(range(len(counts)))
    empty = [piece for piece in pieces if piece.first == piece.stop]
    assert sorted(piece.shard for piece in empty) == [at for at, count in enumerate(counts) if not count]


@given(sample_counts, st.integers(1, 5), st.integers(1, 5), st.integers(1, 7))
def test_the_global_order_of_batches_is_the_same_for_any_world_to_the_end(
    counts: list[int], times: int, ranks: int, batch: int
) -> None:
    lanes = times * ranks
    lengths = dealing_of(counts).count_lanes(Deal(tuple(range(lanes)), lanes, 0, None))
    batches = [batch_count([length], batch, drop_last=False) for length in lengths]
    assert max(batches) - min(batches) <= 1
    alone = turns(list(range(lanes)), batches)
    by_rank = [turns(rank_lanes(lanes, World(rank, ranks)), batches) for rank in range(ranks)]
    steps = range(max(map(len, by_rank)))
    assert [mine[step] for step in steps for mine in by_rank if step < len(mine)] == alone


def turns(lanes: list[int], batches: list[int]) -> list[int]:
    """The lanes in the order in which their batches are taken."""
    left, taken = list(batches), []
    rotation = Rotation(Cursor(0, lanes))
    for lane in rotation:
        if not left[lane]:
            rotation.move(None)
            continue
        left[lane] -= 1
        taken.append(lane)
        rotation.move([])
    return taken


def test_a_copy_of_a_dealing_deals_alike_and_carries_no_orders() -> None:
    dealing = dealing_of([3] * 1000)
    before = list(dealing.of_lane(3, 7, (1, 2, 3)))
    sent = pickle.dumps(dealing)
    assert len(sent) < 9000
    assert list(pickle.loads(sent).of_lane(3, 7, (1, 2, 3))) == before


def test_an_order_is_drawn_once_for_all_lanes() -> None:
    dealing = dealing_of([3] * 10)
    lanes = [dealing.of_lane(lane, 2, (1, 2, 3)) for lane in range(2)]
    assert lanes[0].shards.base is lanes[1].shards.base is not None


def test_a_dealing_that_is_dropped_is_gone_at_once() -> None:
    dealing = dealing_of([3] * 10)
    dealing.of_lane(0, 2, (1, 2, 3))
    gone = weakref.ref(dealing)
    gc.disable()
    try:
        del dealing
        assert gone() is None
    finally:
        gc.enable()


# --- what is read of a shard ---


@st.composite
def indexed_pieces(draw: st.DrawFn) -> tuple[Piece, list[tuple[int, int]], int]:
    count = draw(st.integers(1, 30))
    first = draw(st.integers(0, count - 1))
    stop = draw(st.integers(first + 1, count))
    offsets = [(sample, 10 * sample) for sample in sorted(draw(st.sets(st.integers(1, 29))))]
    return Piece(0, first, stop), [offset for offset in offsets if offset[0] < count], count


@given(indexed_pieces(), st.data())
def test_a_cut_is_the_narrowest_that_the_offsets_allow(
    drawn: tuple[Piece, list[tuple[int, int]], int], data: st.DataObject
) -> None:
    piece, offsets, count = drawn
    stop = piece.stop or 0
    done = data.draw(st.integers(piece.first, stop))
    start = (
        {}
        if done == piece.first
        else {"sample": done} | data.draw(st.sampled_from([{}, {"byte": 10 * done}]))
    )
    cut = cut_piece(piece, start, offsets, count)
    if cut is None:
        assert done == stop < count
        return
    assert cut.first == done
    assert cut.stop == (None if stop == count else stop)
    if "byte" in start:
        assert (cut.sample, cut.byte) == (done, 10 * done)
    else:
        assert (cut.sample, cut.byte) == max(offset for offset in [(0, 0), *offsets] if offset[0] <= done)
    behind = [offset[1] for offset in offsets if offset[0] >= stop]
    assert cut.stop_byte == (min(behind, default=None) if stop < count else None)


def test_a_whole_shard_of_unknown_length_is_read_from_the_position_on() -> None:
    assert cut_piece(Piece(3), {}) == Cut()
    assert cut_piece(Piece(3), {"sample": 4, "byte": 512}) == Cut(4, None, 4, 512)
    assert cut_piece(Piece(3), {"sample": 4}) == Cut(4)


def samples_of(piece: Piece) -> range:
    assert piece.stop is not None
    return range(piece.first, piece.stop)
