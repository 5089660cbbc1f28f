"""Passes that are simulated: lanes as the plan deals them, no faster than the bottleneck, which is named."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from examples_drawn import examples
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.plan.lanes import Cursor, Rotation, Row, rank_lanes
from asyncloader.plan.topology import World
from asyncloader.tools.simulate import Balance, Outcome, PlannedRun, simulate, simulate_resize

MB = 1_000_000
FAR = {"first_byte_s": 0.1, "connection_bytes_s": 20e6, "link_bytes_s": 200e6}


def equal(count: int, size_bytes: int = 10 * MB, samples: int = 100) -> dict[str, Any]:
    return {"shard_bytes": [size_bytes] * count, "shard_samples": [samples] * count}


def of_samples(*samples: int) -> dict[str, Any]:
    """Shards of samples of a kB each."""
    return {"shard_bytes": [count * 1000 for count in samples], "shard_samples": samples}


shards = st.lists(st.tuples(st.integers(0, 6 * MB), st.integers(0, 300)), min_size=8, max_size=12)
seconds = st.sampled_from([0.0, 0.0001, 0.003])
rates = st.sampled_from([0.5e6, 20e6, 400e6])


@st.composite
def drawn_runs(draw: st.DrawFn) -> PlannedRun:
    sizes = [size for size in draw(shards) if size[0] or not size[1]] + [(MB, 20)] * 4
    map_s, concurrency = draw(st.sampled_from([(0.0, 1), (0.002, 1), (0.01, 4)]))
    return PlannedRun(
        *zip(*sizes, strict=True),
        first_byte_s=draw(st.sampled_from([0.0, 0.05])),
        connection_bytes_s=draw(rates),
        link_bytes_s=draw(rates),
        decode_s=draw(seconds),
        map_s=map_s,
        concurrency=concurrency,
        collate_s=draw(seconds),
        step_s=draw(st.sampled_from([0.0, 0.01])),
        ranks=draw(st.sampled_from([1, 2, 4])),
        num_workers=draw(st.sampled_from([0, 1, 3])),
        lanes=draw(st.sampled_from([None, 4, 8])),
        is_indexed=draw(st.booleans()),
        shuffle=draw(st.sampled_from([0, 50])),
        batch_size=draw(st.sampled_from([1, 7, 32])),
        memory_limit=draw(st.sampled_from([16 << 20, 1 << 30])),
    )


def times_of(outcome: Outcome) -> tuple[float, float, float, float]:
    """Elapsed seconds, those to the first batch, samples a second, and the share of waiting."""
    times = outcome.elapsed_s, outcome.first_batch_s, outcome.samples_per_s, outcome.wait_share
    assert None not in times
    return times  # type: ignore[return-value]  # as was just said


@examples(60)
@given(drawn_runs())
def test_every_sample_is_delivered_once_or_counted_as_left(run: PlannedRun) -> None:
    outcome = simulate(run)
    assert outcome.samples + outcome.undelivered_samples == run.samples
    assert outcome.undelivered_samples >= 0
    if run.ranks == 1:
        assert outcome.undelivered_samples == 0
    assert outcome.batches % run.ranks == 0
    assert outcome == simulate(run), "no clock and no chance is in it"
    if outcome.samples:
        assert all(math.isfinite(value) and value >= 0 for value in times_of(outcome))
        assert times_of(outcome)[3] <= 1


@examples(40)
@given(drawn_runs())
def test_a_pass_takes_no_less_than_its_consumer_its_makers_and_its_link(run: PlannedRun) -> None:
    outcome = simulate(run)
    if not outcome.samples:
        return
    elapsed_s = times_of(outcome)[0]
    assert elapsed_s >= outcome.batches // run.ranks * run.step_s - 1e-6
    makers = run.ranks * max(run.num_workers, 1)
    # A maker with more than its share of samples is slower than this.
    least = max(1 - run.batch_size * makers / outcome.samples, 0) * (1 - 1e-6)
    assert elapsed_s >= least * outcome.samples * run.sample_bytes / (run.ranks * run.link_bytes_s)
    assert elapsed_s >= least * outcome.samples * run.decode_s / makers
    assert elapsed_s >= least * outcome.samples * run.map_s / run.concurrency / makers


@examples(30)
@given(drawn_runs(), st.sampled_from([1.5, 4.0]))
def test_a_faster_link_does_not_make_a_pass_slower(run: PlannedRun, times: float) -> None:
    faster = replace(
        run, connection_bytes_s=run.connection_bytes_s * times, link_bytes_s=run.link_bytes_s * times
    )
    outcome = simulate(run)
    if outcome.samples:
        assert times_of(simulate(faster))[0] <= times_of(outcome)[0] * 1.1 + 0.1


@examples(40)
@given(drawn_runs(), st.sampled_from([0.2, 0.5, 0.8]), st.sampled_from([1, 2, 4]))
def test_lanes_are_left_where_the_turns_of_a_pass_leave_them(
    run: PlannedRun, fraction: float, ranks: int
) -> None:
    """Played batch by batch: up to where a pass is stopped, and by other ranks to its end."""
    run = replace(run, lanes=4)
    samples = run.lane_samples(is_indexed=run.is_indexed).tolist()
    batches = [-(-count // run.batch_size) for count in samples]
    delivered = [0] * 4

    def play(ranks: int, most_steps: int | None) -> int:
        """Returns how many steps all ranks have taken."""
        taken = []
        for rank in range(ranks):
            mine = rank_lanes(4, World(rank, ranks))
            turns: list[int] = []
            rows = {lane: Row(batches=delivered[lane]) for lane in mine}
            rotation = Rotation(Cursor(0, mine, rows))
            for lane in rotation:
                if delivered[lane] + turns.count(lane) < batches[lane]:
                    turns.append(lane)
                    rotation.move([])
                else:
                    rotation.move(None)
            taken.append(turns)
        steps = min(map(len, taken)) if most_steps is None else most_steps
        for turns in taken:
            for lane in turns[:steps]:
                delivered[lane] += 1
        return steps

    def count() -> int:
        pairs = zip(delivered, samples, strict=True)
        return sum(min(made * run.batch_size, has) for made, has in pairs)

    whole = simulate(run)
    resized = simulate_resize(run, ranks, fraction)
    play(run.ranks, int(whole.batches // run.ranks * fraction))
    assert resized.samples_before == count()
    assert 0 <= resized.read_again_bytes <= run.size_bytes
    left = [has - min(made * run.batch_size, has) for made, has in zip(delivered, samples, strict=True)]
    of_ranks = [sum(left[rank::ranks]) for rank in range(ranks)]
    assert resized.rank_samples_left == Balance(min(of_ranks), max(of_ranks))
    steps = play(ranks, None)
    assert resized.rest.batches == steps * ranks
    assert resized.rest.samples == count() - resized.samples_before


def limit_of(**options: Any) -> Outcome:
    return simulate(PlannedRun(**{**equal(24), "batch_size": 10, **options}))


def test_it_names_the_bottleneck_in_the_words_of_the_report() -> None:
    assert limit_of(**FAR, step_s=0.5).limit == "consumer"
    assert limit_of(**FAR).limit == "store"
    assert limit_of(**FAR, decode_s=0.01).limit == "decode"
    assert limit_of(**FAR, map_s=0.01).limit == "map"
    assert limit_of(collate_s=0.1).limit == "collate"
    small = equal(14, 4 * MB, 40)
    far = {"first_byte_s": 0.5, "connection_bytes_s": 8e6}
    assert limit_of(**small, **far, memory_limit=16 << 20).limit == "memory_limit"
    assert limit_of(**small, **far).limit == "store"


def test_without_times_there_is_no_rate_and_nothing_limits() -> None:
    outcome = limit_of()
    assert (outcome.samples, outcome.batches) == (2400, 240)
    assert (outcome.samples_per_s, outcome.elapsed_s, outcome.limit) == (None, None, None)
    assert not outcome.stages_s
    assert limit_of(step_s=0.1).samples_per_s == pytest.approx(100, rel=0.01)


def test_threads_hide_decoding_behind_calls_that_wait() -> None:
    alone = times_of(limit_of(map_s=0.01, decode_s=0.001))
    threads = times_of(limit_of(map_s=0.01, concurrency=5, decode_s=0.001))
    assert alone[2] == pytest.approx(1 / 0.011, rel=0.01)
    assert threads[2] == pytest.approx(5 / 0.01, rel=0.01)


def test_workers_share_the_link_of_their_rank_and_ranks_have_one_each() -> None:
    link = {"first_byte_s": 0.01, "link_bytes_s": 100e6}
    one, workers, ranks = (
        times_of(limit_of(**link, **more))[2] for more in ({}, {"num_workers": 4}, {"ranks": 4})
    )
    assert workers == pytest.approx(one, rel=0.1)
    assert ranks == pytest.approx(4 * one, rel=0.1)


def test_an_index_evens_out_lanes_and_ranks_then_stop_with_nothing_left() -> None:
    sizes = of_samples(900, 100, 900, 100, 900, 100)
    whole = simulate(PlannedRun(**sizes, ranks=2, batch_size=10))
    indexed = simulate(PlannedRun(**sizes, ranks=2, batch_size=10, is_indexed=True))
    assert whole.lane_samples == Balance(1200, 1800), "by size"
    assert whole.undelivered_samples == 600
    assert indexed.lane_samples == whole.lane_samples_indexed
    assert indexed.undelivered_samples == 0


def test_ranks_in_step_wait_for_the_one_with_the_fewest_lanes_left() -> None:
    """While all lanes last the loop is slower than the workers; behind that a single worker is."""
    run = {"num_workers": 3, "ranks": 8, "map_s": 0.009, "step_s": 0.25, "batch_size": 64}
    whole = simulate(PlannedRun(**equal(60, 200 * MB, 2000), **run))
    assert whole.lane_samples == Balance(4000, 6000)
    # 4,000 samples of three lanes at the loop's pace, and 2,000 of the one that is left at a worker's.
    assert times_of(whole)[0] == pytest.approx(3 * 4000 / 64 * 0.25 + 2000 * 0.009, rel=0.03)
    indexed = simulate(PlannedRun(**equal(60, 200 * MB, 2000), **run, is_indexed=True))
    assert indexed.limit == "consumer"
    assert times_of(indexed)[0] == pytest.approx(15000 / 64 * 0.25, rel=0.03)


def test_a_window_is_full_before_its_first_batch() -> None:
    assert limit_of(decode_s=0.01).first_batch_s == pytest.approx(0.1, abs=0.02)
    assert limit_of(decode_s=0.01, shuffle=200).first_batch_s == pytest.approx(2.0, abs=0.02)


def test_what_was_under_way_is_read_again_after_a_resize() -> None:
    run = PlannedRun(**equal(24), **FAR, ranks=4, lanes=8, batch_size=10, step_s=0.05)
    resized = simulate_resize(run, 2, 0.5)
    assert resized.samples_before == 1200
    assert 0 < resized.read_again_bytes < 8 * 4 * 10 * MB
    assert resized.rest.samples == 1200
    with pytest.raises(
        ValueError, match="cannot be split evenly over 3 ranks; they fit a world size of 1, 2"
    ):
        simulate_resize(run, 3, 0.5)
    shuffled = simulate_resize(replace(run, shuffle=70), 2, 0.5)
    # 150 samples of each lane were delivered, 10 of them of a third window of which all is there.
    assert shuffled.read_again_bytes == resized.read_again_bytes + 8 * 10 * MB // 10
    with pytest.raises(ValueError, match="between 0 and 1"):
        simulate_resize(run, 2, 1.5)


def test_outcomes_are_plain_json() -> None:
    run = PlannedRun(**equal(4), **FAR, batch_size=10)
    outcome, resized = simulate(run), simulate_resize(run, 1, 0.5)
    assert json.loads(json.dumps(outcome.as_dict()))["lane_samples"] == {"least": 400, "most": 400}
    found = json.loads(json.dumps(resized.as_dict()))
    assert (found["rest"]["samples"], found["rank_samples_left"]["most"]) == (200, 200)


_FLEET = """
import sys, time
import numpy as np
from asyncloader.tools.simulate import PlannedRun, simulate
ranks, shards, is_indexed = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "indexed"
run = PlannedRun(
    np.full(shards, 100_000_000), np.full(shards, 1000), first_byte_s=0.05, link_bytes_s=1e9, map_s=0.002,
    step_s=0.1, ranks=ranks, num_workers=16, batch_size=64, is_indexed=is_indexed,
)
outcome = simulate(run)
print(outcome.samples + outcome.undelivered_samples, time.process_time())
for line in open("/proc/self/status"):  # getrusage begins with the parent's peak
    if line.startswith("VmHWM:"):
        print(int(line.split()[1]) * 1024)
"""


@pytest.mark.parametrize("dealt", ["whole", "indexed"])
@pytest.mark.parametrize(
    ("ranks", "count"),
    [(512, 100_000), pytest.param(16_384, 1_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(300)])],
)
def test_a_large_fleet_is_answered_within_a_minute_and_a_gigabyte(ranks: int, count: int, dealt: str) -> None:
    """Of each rank 16 workers: arrays over lanes, and no object for each."""
    call = [sys.executable, "-c", _FLEET, str(ranks), str(count), dealt]
    printed = subprocess.run(call, capture_output=True, text=True, check=True).stdout.split()
    assert int(printed[0]) == count * 1000
    assert float(printed[1]) < 60, "seconds of a processor"
    assert int(printed[2]) < 1e9, "bytes at most"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shard_bytes": [], "shard_samples": []}, "at least one of each"),
        ({"shard_bytes": [-1], "shard_samples": [2]}, "numbers of 0 or more"),
        ({"shard_bytes": [1, 2], "shard_samples": [2]}, "as many numbers"),
        ({"ranks": 0}, "ranks should be a positive integer value"),
        ({"ranks": 30}, "24 shards cannot be split over 30 ranks"),
        ({"ranks": 2, "lanes": 3}, "3 lanes cannot be split evenly over 2 ranks"),
        ({"num_workers": -1}, "num_workers should be 0 or a positive integer"),
        ({"decode_s": -1.0}, "decode_s should be 0 or more seconds"),
        ({"step_s": math.inf}, "step_s should be 0 or more seconds"),
        ({"connection_bytes_s": 0}, "connection_bytes_s should be more than 0 bytes/s"),
        ({"concurrency": 0}, "concurrency should be a positive integer"),
        ({"concurrency": 4}, "concurrency=4 needs map_s, the time of one call"),
        ({"shuffle": -1}, "shuffle should be 0 or a positive integer"),
    ],
)
def test_wrong_runs_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        limit_of(**options)


def test_numpys_numbers_are_as_good() -> None:
    run = PlannedRun(np.array([MB]), np.array([10]), step_s=0.1, ranks=np.int64(1), batch_size=np.int32(5))  # type: ignore[arg-type]  # which are no Python ints
    assert json.dumps(simulate(run).as_dict())
