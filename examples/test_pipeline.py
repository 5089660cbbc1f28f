"""Tests of a training pipeline, such as your own project might have: `pytest examples/test_pipeline.py`."""

import pytest

import asyncloader as al
from asyncloader import testing


def make_loader(shards, **options):
    """The pipeline that is tested; in your project it is imported."""
    # Short times: a test of giving up should not take a minute.
    network = al.NetworkPolicy(first_byte_s=2, stall_s=1, attempts=8, backoff_s=0.01)
    dataset = al.from_urls(shards, network=network, **options).shuffle(100, seed=0).decode()
    return al.DataLoader(dataset, batch_size=8, num_workers=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    with al.ShardWriter(folder / "train-{:02d}.tar", samples_per_shard=10) as writer:
        for number in range(100):
            writer.write({"__key__": f"{number:03d}", "cls": number})
    return folder


def test_a_failing_network_loses_and_repeats_nothing(folder):
    faults = [
        testing.CutAt(700, probability=0.3),
        testing.Status(503, probability=0.1),
        testing.Stall(512, seconds=30, key="train-03.tar", times=1),
    ]
    with testing.serve(folder, faults, seed=7) as server:
        loader = make_loader(f"{server.url}/train-{{00..09}}.tar")
        numbers = [number for batch in loader for number in batch["cls"].tolist()]
    assert sorted(numbers) == list(range(100))
    assert loader.statistics.network.retries > 0


def test_a_damaged_shard_is_an_error(folder):
    flip = testing.FlipBit(512, key="train-05.tar")  # the label 50 becomes 40, which no format sees
    with testing.serve(folder, [flip]) as server:
        loader = make_loader(
            f"{server.url}/train-{{00..09}}.tar", index=f"{server.url}/asyncloader-index.json"
        )
        with pytest.raises(al.StoreError, match=r"train-05\.tar"):
            list(loader)


def test_a_break_leaves_nothing_behind(folder):
    with testing.serve(folder, latency_s=0.05) as server:
        with testing.check_leaks(), make_loader(f"{server.url}/train-{{00..09}}.tar") as loader:
            for _ in loader:
                break
        assert server.wait_idle()
