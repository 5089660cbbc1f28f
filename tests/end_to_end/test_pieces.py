"""Lanes that are cut inside of shards, by an index: every sample once, and no lane longer than another."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from examples_drawn import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import asyncloader as al
from asyncloader import testing
from asyncloader.pipeline.dataset import stages_of
from asyncloader.plan.lanes import Deal

from .indexed import SUFFIXES, number_of, write_indexed


def numbers_of(paths: list[str], *, lanes: int, rank: int = 0, ranks: int = 1, **options: Any) -> list[int]:
    recipe = options.pop("recipe", None) or al.from_urls(paths)
    loader = al.DataLoader(recipe, 4, lanes=lanes, rank=rank, world_size=ranks, collate_fn=list, **options)
    return [number_of(sample) for batch in loader for sample in batch]


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    suffix=st.sampled_from(SUFFIXES),
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    lanes=st.integers(1, 9),
    seed=st.none() | st.integers(0, 5),
)
def test_every_sample_comes_once_whatever_the_cuts(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, counts: list[int], lanes: int, seed: int | None
) -> None:
    paths = write_indexed(tmp_path_factory.mktemp("shards"), suffix, counts)
    recipe = al.from_urls(paths)
    if seed is not None:
        recipe = recipe.shuffle(5, seed=seed)
    expected = [1000 * shard + index for shard, count in enumerate(counts) for index in range(count)]
    if len(expected) < lanes > 1:
        with pytest.raises(
            ValueError, match=rf"^{len(expected)} samples? cannot be split over {lanes} ranks"
        ):
            numbers_of(paths, lanes=lanes, ranks=lanes, recipe=recipe)
        return
    by_rank = [numbers_of(paths, lanes=lanes, rank=rank, ranks=lanes, recipe=recipe) for rank in range(lanes)]
    assert sorted(number for mine in by_rank for number in mine) == expected
    assert max(map(len, by_rank)) - min(map(len, by_rank)) <= 1
    if seed is None:
        assert [number for mine in by_rank for number in mine] == expected
    alone = al.DataLoader(recipe, 4, lanes=lanes, collate_fn=list)
    batches = [list(map(number_of, batch)) for batch in alone]
    assert len(alone) == len(batches)
    assert Counter(number for batch in batches for number in batch) == Counter(expected)


@pytest.mark.usefixtures("fork_server")
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_cut_lane_resumes_after_every_batch(
    suffix: str, tmp_path: Path, assert_resumes: Callable[..., None]
) -> None:
    paths = write_indexed(tmp_path, suffix, [20, 1, 0, 13])

    def make_loader(workers: int) -> al.DataLoader[Any]:
        recipe = al.from_urls(paths).shuffle(6, seed=1).map(number_of)
        return al.DataLoader(recipe, 4, lanes=5, num_workers=workers)

    assert_resumes(make_loader, workers=(0, 2) if suffix in ("tar", "parquet") else (0,))


def test_one_shard_feeds_any_number_of_ranks(tmp_path: Path) -> None:
    paths = write_indexed(tmp_path, "jsonl", [100])
    by_rank = [numbers_of(paths, lanes=8, rank=rank, ranks=8) for rank in range(8)]
    assert [len(mine) for mine in by_rank] == [13] * 4 + [12] * 4
    assert sorted(number for mine in by_rank for number in mine) == list(range(100))


@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_the_order_of_batches_is_one_for_every_world_size_to_the_end(ranks: int, tmp_path: Path) -> None:
    paths = write_indexed(tmp_path, "tar", [31, 2, 50, 9])

    def batches(rank: int, size: int) -> list[list[int]]:
        recipe = al.from_urls(paths).shuffle(7, seed=3)
        loader = al.DataLoader(recipe, 4, lanes=6, rank=rank, world_size=size, collate_fn=list)
        return [list(map(number_of, batch)) for batch in loader]

    by_rank = [batches(rank, ranks) for rank in range(ranks)]
    steps = range(max(map(len, by_rank)))
    assert [mine[step] for step in steps for mine in by_rank if step < len(mine)] == batches(0, 1)


@pytest.mark.parametrize("suffix", ["tar", "jsonl", "parquet", "npy", "npz"])
def test_a_piece_asks_for_no_more_bytes_than_the_index_makes_it(suffix: str, tmp_path: Path) -> None:
    paths = write_indexed(tmp_path, suffix, [3000], rate_bytes=50_000, sample_bytes=1000)
    size = Path(paths[0]).stat().st_size
    sent = []
    with testing.serve(tmp_path) as server:
        for rank in range(10):
            before = server.counters.bytes_sent
            recipe = al.from_urls(server.url_of("part-000." + suffix), index=tmp_path_index(server, tmp_path))
            assert len(numbers_of([], lanes=10, rank=rank, ranks=10, recipe=recipe)) == 300
            server.wait_idle()
            sent.append(server.counters.bytes_sent - before)
    assert sum(sent) < size + 10 * 150_000
    assert max(sent) < size / 10 + 150_000


def tmp_path_index(server: testing.Server, folder: Path) -> str:
    """The index of the files of a folder, as one of what a server of it has."""
    content = json.loads((folder / "asyncloader-index.json").read_bytes())
    for entry in content["shards"]:
        entry["name"] = server.url_of(entry["name"])
    path = folder / "index.json"
    path.write_text(json.dumps(content))
    return str(path)


def test_resuming_opens_no_shard_before_the_position(tmp_path: Path) -> None:
    write_indexed(tmp_path, "jsonl", [10] * 20)
    with testing.serve(tmp_path) as server:
        urls = [server.url_of(f"part-{shard:03d}.jsonl") for shard in range(20)]

        def make_loader() -> al.DataLoader[Any]:
            recipe = al.from_urls(urls, index=tmp_path_index(server, tmp_path))
            return al.DataLoader(recipe, 5, lanes=1, collate_fn=list)

        loader = make_loader()
        batches = iter(loader)
        for _ in range(20):
            next(batches)
        state = loader.state_dict()
        batches.close()
        seen = len(server.requests)
        again = make_loader()
        again.load_state_dict(state)
        assert [number_of(sample) for batch in again for sample in batch][:2] == [10_000, 10_001]
        paths = {request.path for request in server.requests[seen:]}
    assert min(paths) >= "/part-009.jsonl" and len(paths) <= 11


def test_a_position_at_the_end_of_a_lane_opens_nothing(tmp_path: Path) -> None:
    write_indexed(tmp_path, "jsonl", [8, 8])
    with testing.serve(tmp_path) as server:
        urls = [server.url_of(f"part-{shard:03d}.jsonl") for shard in range(2)]
        recipe = al.from_urls(urls, index=tmp_path_index(server, tmp_path))

        def make_loader() -> al.DataLoader[Any]:
            return al.DataLoader(recipe, 2, lanes=4, rank=2, world_size=4, collate_fn=list)

        loader = make_loader()
        states = [loader.state_dict() for _ in loader]
        seen = len(server.requests)
        again = make_loader()
        again.load_state_dict(states[-1])
        assert list(again) == []
        assert len(server.requests) == seen


def test_places_tell_the_sample_in_its_shard_wherever_the_piece_begins(tmp_path: Path) -> None:
    paths = write_indexed(tmp_path, "jsonl", [30])

    def fail(sample: dict[str, Any]) -> int:
        if sample["number"] == 25:
            raise ArithmeticError("no")
        return 0

    loader = al.DataLoader(al.from_urls(paths).map(fail), 2, lanes=3, rank=2, world_size=3)
    with pytest.raises(ArithmeticError) as caught:
        list(loader)
    assert f"sample 25 of {paths[0]}" in "".join(caught.value.__notes__)


def test_a_position_is_placed_in_the_shard_that_its_piece_is_of(tmp_path: Path) -> None:
    source = stages_of(al.from_urls(write_indexed(tmp_path, "jsonl", [8, 8]))).source
    lane = Deal((1,), 3, 0, None)
    placed = [source.places_at(position, lane) for position in ({}, {"shard": 1}, {"shard": 2})]
    assert [[(place.number, place.sample) for place in places] for places in placed] == [
        [(0, 6)],
        [(1, 0)],
        [],
    ]


# --- what is verified ---


def test_a_shard_that_is_shorter_than_its_index_says_is_refused(tmp_path: Path) -> None:
    paths = write_indexed(tmp_path, "jsonl.zst", [30])
    rewritten = write_indexed(tmp_path / "other", "jsonl.zst", [20])
    index = json.loads((tmp_path / "asyncloader-index.json").read_bytes())
    content = Path(rewritten[0]).read_bytes()
    Path(paths[0]).write_bytes(content)
    index["shards"][0] |= {"size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (tmp_path / "asyncloader-index.json").write_text(json.dumps(index))
    with pytest.raises(al.FormatError, match=r"expected at least 24 samples.*found 20"):
        numbers_of(paths, lanes=5, rank=4, ranks=5)
    with pytest.raises(al.FormatError, match="samples up to 24 here, found them up to 20"):
        numbers_of(paths, lanes=5, rank=3, ranks=5)


def test_a_whole_shard_in_a_cut_lane_is_verified_to_its_last_byte(tmp_path: Path) -> None:
    paths = write_indexed(tmp_path, "jsonl", [10, 10])
    content = Path(paths[0]).read_bytes()
    Path(paths[0]).write_bytes(content.replace(b"xxx", b"xyx", 1))
    with pytest.raises(al.StoreError, match="sha256"):
        numbers_of(paths, lanes=2, rank=0, ranks=2)
    assert len(numbers_of(paths, lanes=4, rank=0, ranks=4)) == 5, "of a part no digest is known"


# --- what decides how it is dealt ---


def test_an_index_of_some_shards_alone_deals_whole_ones(tmp_path: Path) -> None:
    paths = write_indexed(tmp_path, "jsonl", [9, 1])
    index = json.loads((tmp_path / "asyncloader-index.json").read_bytes())
    del index["shards"][1]["offsets"]
    (tmp_path / "asyncloader-index.json").write_text(json.dumps(index))
    assert [len(numbers_of(paths, lanes=2, rank=rank, ranks=2)) for rank in range(2)] == [9, 1]
    with pytest.raises(ValueError, match=r"2 shards cannot be split over 3 ranks.*asyncloader index"):
        numbers_of(paths, lanes=3, ranks=3)


def test_a_state_of_whole_shards_is_refused_amid_an_epoch_and_taken_between_two(tmp_path: Path) -> None:
    paths = write_indexed(tmp_path, "jsonl", [9, 3])
    indexed = al.from_urls(paths)
    (tmp_path / "asyncloader-index.json").unlink()
    whole = al.from_urls(paths)
    loader = al.DataLoader(whole, 2, lanes=2, collate_fn=list)
    states = [loader.state_dict(), *(loader.state_dict() for _ in loader), loader.state_dict()]
    again = al.DataLoader(indexed, 2, lanes=2, collate_fn=list)
    with pytest.raises(ValueError, match=r"dealt: .* whole shards then, and runs of samples now"):
        again.load_state_dict(states[1])
    for between in (states[0], states[-1]):
        again.load_state_dict(between)
        assert sorted(number_of(sample) for batch in again for sample in batch) == [
            *range(9),
            *range(1000, 1003),
        ]
    state = again.state_dict()
    next(iter(again))
    with pytest.raises(ValueError, match="the shards' index was known then"):
        al.DataLoader(whole, 2, lanes=2).load_state_dict(again.state_dict())
    assert "dealt" in str(state["dataset"])


def test_pieces_of_a_shard_share_the_copy_in_the_cache(tmp_path: Path) -> None:
    write_indexed(tmp_path / "shards", "jsonl", [400], sample_bytes=2000)
    size = (tmp_path / "shards" / "part-000.jsonl").stat().st_size
    with testing.serve(tmp_path / "shards") as server:
        url = server.url_of("part-000.jsonl")
        index = tmp_path_index(server, tmp_path / "shards")
        for rank in (3, 0, 1, 2):  # the first to open it begins in its middle
            recipe = al.from_urls(url, index=index, cache_dir=tmp_path / "cache")
            assert len(numbers_of([], recipe=recipe, lanes=4, rank=rank, ranks=4)) == 100
        assert server.counters.bytes_sent < 1.5 * size
