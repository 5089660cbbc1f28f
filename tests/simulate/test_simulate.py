"""Passes that are simulated: everything once, nothing faster than what limits it, and the words for that."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from typing import Any

import pytest
from examples_drawn import examples
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.simulate import (
    Link,
    Operator,
    Outcome,
    Setting,
    ShardSize,
    simulate,
    simulate_resize,
)

MB = 1_000_000
FAR = Link(0.1, 20e6, 200e6)


def equal(count: int, size_bytes: int = 10 * MB, samples: int = 100) -> list[ShardSize]:
    return [ShardSize(size_bytes, samples)] * count


shards = st.lists(st.builds(ShardSize, st.integers(0, 6 * MB), st.integers(0, 300)), min_size=8, max_size=12)
seconds = st.sampled_from([0.0, 0.0001, 0.003])
rates = st.sampled_from([0.5e6, 20e6, 400e6])


@st.composite
def drawn_settings(draw: st.DrawFn) -> Setting:
    lanes_of = draw(st.sampled_from([None, 4, 8]))
    sizes = [size for size in draw(shards) if size.size_bytes or not size.samples]
    return Setting(
        sizes + equal(4, MB, 20),
        Link(draw(st.sampled_from([0.0, 0.05])), draw(rates), draw(rates)),
        ranks=draw(st.sampled_from([1, 2, 4])),
        ranks_per_machine=draw(st.sampled_from([1, 2])),
        num_workers=draw(st.sampled_from([0, 1, 3])),
        lanes=lanes_of,
        is_indexed=draw(st.booleans()),
        seed=draw(st.sampled_from([None, 7])),
        window=draw(st.sampled_from([0, 50])),
        decode_s=draw(seconds),
        operators=draw(st.sampled_from([(), (Operator(0.002),), (Operator(0.01, 4),)])),
        batch_size=draw(st.sampled_from([1, 7, 32])),
        drop_last=draw(st.booleans()),
        prefetch_factor=draw(st.sampled_from([1, 2])),
        memory_limit=draw(st.sampled_from([16 << 20, 1 << 30])),
        step_s=draw(st.sampled_from([0.0, 0.01])),
    )


@examples(60)
@given(drawn_settings())
def test_every_sample_is_delivered_once_or_counted_as_left(setting: Setting) -> None:
    outcome = simulate(setting)
    assert outcome.samples + outcome.undelivered_samples == setting.samples
    assert outcome.undelivered_samples >= 0
    if setting.ranks == 1 and not setting.drop_last:
        assert outcome.undelivered_samples == 0
    assert outcome.received_bytes <= setting.size_bytes
    assert 0 <= outcome.wait_share <= 1
    assert outcome == simulate(setting), "no clock and no chance is in it"
    assert sum(outcome.shares.values()) == pytest.approx(1) or not outcome.shares


@examples(40)
@given(drawn_settings())
def test_a_pass_takes_no_less_than_its_consumer_its_makers_and_its_link(setting: Setting) -> None:
    outcome = simulate(setting)
    steps = outcome.batches // setting.ranks
    assert outcome.elapsed_s >= steps * setting.step_s - 1e-6
    machines = math.ceil(setting.ranks / setting.ranks_per_machine)
    assert outcome.elapsed_s >= outcome.received_bytes / (machines * setting.link.machine_bytes_s) * (
        1 - 1e-6
    )
    makers = setting.ranks * max(setting.num_workers, 1)
    assert outcome.elapsed_s >= outcome.samples * setting.decode_s / makers - 1e-6
    for operator in setting.operators:
        work_s = operator.sample_s / operator.concurrency
        assert outcome.elapsed_s >= outcome.samples * work_s / makers - 1e-6


@examples(30)
@given(drawn_settings(), st.sampled_from([1.5, 4.0]))
def test_a_faster_link_does_not_make_a_pass_slower(setting: Setting, times: float) -> None:
    link = setting.link
    faster = Link(link.first_byte_s, link.connection_bytes_s * times, link.machine_bytes_s * times)
    # How far ahead is read is found by trying, and other rates are other trials.
    assert simulate(replace(setting, link=faster)).elapsed_s <= simulate(setting).elapsed_s * 1.1 + 0.1


@examples(20)
@given(drawn_settings(), st.sampled_from([0.2, 0.5, 0.8]), st.sampled_from([1, 2]))
def test_a_resized_pass_delivers_the_rest(setting: Setting, fraction: float, ranks: int) -> None:
    lanes = 4
    setting = replace(setting, lanes=lanes, drop_last=False)
    resized = simulate_resize(setting, ranks, fraction)
    left = setting.samples - resized.samples_before
    assert resized.rest.samples + resized.rest.undelivered_samples == left
    assert resized.lane_samples_left.least * lanes <= left <= resized.lane_samples_left.most * lanes
    assert 0 <= resized.read_again_bytes <= setting.size_bytes


def limit_of(**options: Any) -> Outcome:
    return simulate(Setting(**{"shards": equal(24), "batch_size": 10, **options}))


def test_it_says_what_limits_in_the_words_of_the_report() -> None:
    assert limit_of(link=FAR, step_s=0.5).limit == "consumer"
    assert limit_of(link=FAR).limit == "store"
    assert limit_of(link=FAR, decode_s=0.01).limit == "decode"
    assert limit_of(link=FAR, operators=[Operator(0.01, name="map(crop)")]).limit == "map(crop)"
    assert limit_of(collate_s=0.1).limit == "collate"
    small = limit_of(shards=equal(14, 4 * MB, 40), link=Link(0.5, 8e6), memory_limit=16 << 20)
    assert small.limit == "memory_limit"
    assert small.peak_bytes <= 16 << 20


def test_threads_hide_decoding_behind_calls_that_wait() -> None:
    alone = limit_of(operators=[Operator(0.01)], decode_s=0.001)
    threads = limit_of(operators=[Operator(0.01, 5)], decode_s=0.001)
    assert alone.samples_per_s == pytest.approx(1 / 0.011, rel=0.01)
    assert threads.samples_per_s == pytest.approx(5 / 0.01, rel=0.01)


def test_ranks_of_a_machine_share_its_link_and_others_do_not() -> None:
    setting = Setting(equal(32), Link(0.01, 1e9, 100e6), ranks=4, batch_size=10)
    apart, together = simulate(setting), simulate(replace(setting, ranks_per_machine=4))
    assert together.samples_per_s == pytest.approx(apart.samples_per_s / 4, rel=0.1)


def test_an_index_evens_out_lanes_and_ranks_then_stop_with_nothing_left() -> None:
    sizes = [ShardSize(samples * 1000, samples) for samples in (900, 100, 900, 100, 900, 100)]
    whole = simulate(Setting(sizes, ranks=2, batch_size=10))
    indexed = simulate(Setting(sizes, ranks=2, batch_size=10, is_indexed=True))
    assert (whole.lane_samples.least, whole.lane_samples.most) == (1200, 1800), "by size"
    assert whole.undelivered_samples == 600
    assert indexed.lane_samples == whole.lane_samples_indexed
    assert indexed.undelivered_samples == 0


def test_a_window_is_full_before_its_first_batch() -> None:
    plain = limit_of(decode_s=0.01)
    shuffled = limit_of(decode_s=0.01, window=200)
    assert plain.first_batch_s == pytest.approx(0.1, abs=0.02)
    assert shuffled.first_batch_s == pytest.approx(2.0, abs=0.02)


def test_what_was_under_way_is_read_again_after_a_resize() -> None:
    setting = Setting(equal(24), FAR, ranks=4, lanes=8, batch_size=10, step_s=0.05)
    resized = simulate_resize(setting, 2, 0.5)
    assert resized.samples_before == 1200
    assert 0 < resized.read_again_bytes < 8 * 4 * 10 * MB
    assert resized.rest.samples == 1200
    with pytest.raises(
        ValueError, match="cannot be split evenly over 3 ranks; they fit a world size of 1, 2"
    ):
        simulate_resize(setting, 3, 0.5)
    shuffled = simulate_resize(replace(setting, window=70, seed=0), 2, 0.5)
    # 150 samples of each lane were delivered, 10 of them of a third window of which all is there.
    assert shuffled.read_again_bytes >= 8 * 70 * 0.1 * MB
    with pytest.raises(ValueError, match="between 0 and 1"):
        simulate_resize(setting, 2, 1.5)


def test_outcomes_are_plain_json() -> None:
    setting = Setting(equal(4), FAR, batch_size=10)
    outcome, resized = simulate(setting), simulate_resize(setting, 1, 0.5)
    assert json.loads(json.dumps(outcome.as_dict()))["lane_samples"] == {"least": 400, "most": 400}
    assert json.loads(json.dumps(resized.as_dict()))["rest"]["samples"] == 200


def test_large_fleets_are_simulated_in_seconds() -> None:
    """512 lanes over 100 GB; minutes would say that something is quadratic."""
    began_s = time.process_time()
    outcome = simulate(
        Setting(equal(1000, 100 * MB, 1000), Link(0.05, 40e6, 10e9), 64, 8, 8, batch_size=64, is_indexed=True)
    )
    assert outcome.samples == 1_000_000
    assert time.process_time() - began_s < 60


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shards": []}, "shards should be at least one"),
        ({"shards": [ShardSize(-1, 2)]}, "shards should be at least one"),
        ({"ranks": 0}, "ranks should be a positive integer value"),
        ({"ranks": 30}, "24 shards cannot be split over 30 ranks"),
        ({"ranks": 2, "lanes": 3}, "3 lanes cannot be split evenly over 2 ranks"),
        ({"num_workers": -1}, "num_workers should be 0 or more"),
        ({"decode_s": -1.0}, "decode_s should be 0 or more seconds"),
        ({"step_s": math.inf}, "step_s should be 0 or more seconds"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        limit_of(**options)


def test_wrong_links_and_operators_are_refused() -> None:
    with pytest.raises(ValueError, match="connection_bytes_s should be more than 0 bytes/s"):
        Link(connection_bytes_s=0)
    with pytest.raises(ValueError, match="concurrency should be a positive integer"):
        Operator(0.1, 0)
