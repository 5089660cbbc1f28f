"""Processes that are one rank, as in tensor parallel trainings, read the same; ranks share the data."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from corpus import Corpus, fingerprint
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DistributedSampler

import asyncloader as al

from .harness import drained, recipe_of

pytestmark = pytest.mark.usefixtures("fork_server")

LANES = 4
SIZES = (3, 7, 3, 4, 2)
PROCESSES, REPLICATE = 4, 2


@pytest.fixture
def recipe(make_corpus: Callable[..., Corpus]) -> al.Dataset:
    return recipe_of(make_corpus("jsonl", SIZES)).shuffle(6, seed=1)


def loader_at(process: int, processes: int, replicas: int, dataset: Any, *given: Any, **options: Any) -> Any:
    """The loader that a process makes of a training, of whose ranks each is so many replicas."""
    dist.init_process_group("fake", rank=process, world_size=processes, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (processes // replicas, replicas), mesh_dim_names=("dp", "tp"))
        return al.DataLoader(dataset, *given, mesh=mesh["dp"], **options)
    finally:
        dist.destroy_process_group()


def loaders_of(recipe: Any, processes: int, replicas: int, **options: Any) -> list[al.DataLoader[Any]]:
    """Those of all processes of a training."""
    given = {"batch_size": 2, "lanes": LANES, **options}
    return [loader_at(process, processes, replicas, recipe, **given) for process in range(processes)]


def stepped(loaders: list[al.DataLoader[Any]], steps: int) -> list[list[Any]]:
    """The first batches of each; the passes stay open."""
    return [[fingerprint(batch) for batch in islice(loader, steps)] for loader in loaders]


@pytest.mark.parametrize("workers", [0, 2])
def test_replicas_get_the_same_batches_and_ranks_share_the_data(recipe: al.Dataset, workers: int) -> None:
    loaders = loaders_of(recipe, PROCESSES, REPLICATE, num_workers=workers)
    read = [drained(loader) for loader in loaders]
    assert read[0] == read[1] and read[2] == read[3]
    dealt = [drained(al.DataLoader(recipe, 2, lanes=LANES, rank=rank, world_size=2)) for rank in range(2)]
    assert read[::2] == dealt, "as if there were no replicas"
    assert [len(loader.statistics.components) for loader in loaders] == [0] * PROCESSES
    came = [
        (told.samples, told.epoch_batches, told.is_over) for told in (each.statistics for each in loaders)
    ]
    assert came[0] == came[1] == (came[0][0], len(read[0]), True)


def test_the_repr_says_which_replica_it_is_and_who_says_so(recipe: al.Dataset) -> None:
    shown = repr(loader_at(5, 8, 4, recipe))
    assert "lanes=2, rank 1 of 2, replica 1 of 4 (mesh dimension dp)" in shown
    assert "rank 1 of 2, replica 1 of 4" in repr(loader_at(5, 8, 4, al.split_iterable([1])))
    assert "replica" not in repr(loader_at(1, 2, 1, recipe))


# --- states ---


@pytest.mark.parametrize(("before", "after"), [((4, 2), (4, 1)), ((4, 1), (4, 2)), ((4, 4), (2, 1))])
def test_an_epoch_goes_on_with_other_replicas(
    recipe: al.Dataset, before: tuple[int, int], after: tuple[int, int]
) -> None:
    whole = sorted(map(repr, drained(al.DataLoader(recipe, 2, lanes=LANES, rank=0, world_size=1))))
    for steps in range(3):
        loaders = loaders_of(recipe, *before)
        seen = stepped(loaders, steps)
        states = [json.loads(json.dumps(loader.state_dict())) for loader in loaders]
        every, first = al.merge_states(states), al.merge_states(states[:: before[1]])
        assert every == first, "the state of one process of each rank is enough"
        goes_on = loaders_of(recipe, *after)
        for loader in goes_on:
            loader.load_state_dict(every)
        rests = [drained(loader) for loader in goes_on]
        for rank in range(after[0] // after[1]):
            replicas = rests[rank * after[1] : (rank + 1) * after[1]]
            assert all(rest == replicas[0] for rest in replicas)
        read = chain(*seen[:: before[1]], *rests[:: after[1]])
        assert sorted(map(repr, read)) == whole, f"after {steps} steps"


def test_a_state_of_any_replica_loads_in_all_of_its_rank(recipe: al.Dataset) -> None:
    loaders = loaders_of(recipe, PROCESSES, REPLICATE)
    stepped(loaders, 2)
    state = loaders[3].state_dict()
    rests = []
    for loader in loaders_of(recipe, PROCESSES, REPLICATE)[2:]:
        loader.load_state_dict(state)
        rests.append(drained(loader))
    assert rests[0] == rests[1] == drained(al.DataLoader(recipe, 2, lanes=4, rank=1, world_size=2))[2:]


def test_states_of_replicas_at_different_steps_are_not_merged(recipe: al.Dataset) -> None:
    loaders = loaders_of(recipe, PROCESSES, REPLICATE)
    stepped(loaders, 1)
    stepped(loaders[1:2], 2)
    with pytest.raises(
        ValueError, match=r"the same state of all processes of a rank, but those of rank 0 differ"
    ):
        al.merge_states([loader.state_dict() for loader in loaders])


def test_more_states_than_processes_are_refused(recipe: al.Dataset) -> None:
    states = [loader.state_dict() for loader in loaders_of(recipe, PROCESSES, REPLICATE)]
    with pytest.raises(ValueError, match="rank 1 came more often than 2 times"):
        al.merge_states([*states, states[3]])
    # Two processes that each think that they are alone have read everything twice.
    alone = [al.DataLoader(recipe, rank=0, world_size=1).state_dict() for _ in range(2)]
    with pytest.raises(ValueError, match="rank 0 came twice"):
        al.merge_states(alone)


# --- what is written once for a rank ---


def test_one_replica_writes_the_audit_which_proves_the_epoch(recipe: al.Dataset, tmp_path: Path) -> None:
    for loader in loaders_of(recipe, PROCESSES, REPLICATE, audit=tmp_path):
        drained(loader)
    assert len(list(tmp_path.glob("*.jsonl"))) == PROCESSES // REPLICATE
    (verdict,) = al.tools.verify_audit(tmp_path)
    assert (verdict.verdict, verdict.samples, verdict.ranks) == ("exact", sum(SIZES), (0, 1))


def test_the_audit_goes_on_over_another_layout(recipe: al.Dataset, tmp_path: Path) -> None:
    loaders = loaders_of(recipe, 4, 2, audit=tmp_path)
    stepped(loaders, 2)
    merged = al.merge_states([loader.state_dict() for loader in loaders])
    for loader in loaders:
        loader.close()
    for loader in loaders_of(recipe, 4, 1, audit=tmp_path):
        loader.load_state_dict(merged)
        drained(loader)
    (verdict,) = al.tools.verify_audit(tmp_path)
    assert (verdict.verdict, verdict.samples) == ("exact", sum(SIZES))


def test_what_is_skipped_is_in_the_dead_letters_once(recipe: al.Dataset, tmp_path: Path) -> None:
    def refuse(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["number"] % 5 == 0:
            raise ValueError("a bad one")
        return sample

    letters = tmp_path / "dead.jsonl"
    skip = al.SkipErrors(max=20, dead_letters=letters)
    read = [drained(loader) for loader in loaders_of(recipe.map(refuse), 4, 2, on_error=skip)]
    assert read[0] == read[1] and read[2] == read[3]
    lines = [json.loads(line) for line in letters.read_text().splitlines()]
    places = [(line["shard"], line["sample"]) for line in lines]
    assert places and len(places) == len(set(places))


def test_each_replica_writes_a_trace_of_its_own(recipe: al.Dataset, tmp_path: Path) -> None:
    for loader in loaders_of(recipe, 4, 2, trace=tmp_path / "run.json"):
        drained(loader)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"run-rank-{rank}-replica-{replica}.json" for rank in range(2) for replica in range(2)
    ]
    events = json.loads((tmp_path / "run-rank-1-replica-1.json").read_text())["traceEvents"]
    assert "rank 1, replica 1" in {
        event["args"]["name"] for event in events if event["name"] == "process_name"
    }


# --- seeds ---


def _augment(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "noise": random.random(), "torchs": float(torch.rand(()))}


def test_functions_in_workers_of_replicas_draw_the_same_numbers(recipe: al.Dataset) -> None:
    read = []
    for process in range(PROCESSES):
        torch.manual_seed(process)  # as a training that seeds each process for itself
        given = {"num_workers": 2, "lanes": LANES}
        loader = loader_at(process, PROCESSES, REPLICATE, recipe.map(_augment), 2, **given)
        read.append([drained(loader), drained(loader)])
    assert read[0] == read[1] and read[2] == read[3] and read[0] != read[2]


class Items(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[int, float, float]:
        return index, random.random(), float(torch.rand(()))


@pytest.mark.parametrize("sampler", ["distributed", "random"])
def test_replicas_read_map_style_data_alike(sampler: str) -> None:
    ranks = 2 if sampler == "distributed" else 1
    read = []
    for process in range(4):
        torch.manual_seed(process)
        given: dict[str, Any] = {"shuffle": True}
        if sampler == "distributed":
            given = {"sampler": DistributedSampler(Items(), num_replicas=2, rank=process // 2)}
        loader = loader_at(process, 4, 4 // ranks, Items(), 2, num_workers=2, **given)
        first = [drained(loader), drained(loader)]
        assert first[0] != first[1]
        read.append(first)
    assert read[0] == read[1] and read[2] == read[3]
    assert (read[0] == read[2]) == (ranks == 1)


def test_map_style_data_goes_on_from_the_state_of_another_replica() -> None:
    def loader_of(process: int) -> al.DataLoader[Any]:
        torch.manual_seed(process)
        made: al.DataLoader[Any] = loader_at(process, 2, 2, Items(), 2, shuffle=True, num_workers=1)
        return made

    one = loader_of(0)
    batches = iter(one)
    next(batches)
    state = one.state_dict()
    rest = [batch[0].tolist() for batch in batches]
    for process in range(2):
        loader = loader_of(process)
        loader.load_state_dict(state)
        assert [batch[0].tolist() for batch in loader] == rest  # the order; noise is drawn anew


def test_map_style_data_that_nobody_deals_is_refused() -> None:
    with pytest.raises(ValueError, match=r"each of the 2 ranks .* num_replicas=2, rank=1\)"):
        loader_at(3, 4, 2, Items(), 2)
    with pytest.raises(ValueError, match=r"with a RandomSampler each of the 2 ranks"):
        loader_at(3, 4, 2, Items(), 2, shuffle=True)
    whole = DistributedSampler(Items(), num_replicas=4, rank=3)  # of all processes, as by default
    with pytest.raises(ValueError, match=r"rank 1 of 2, replica 1 of 2 .* but it is that of rank 3 of 4"):
        loader_at(3, 4, 2, Items(), 2, sampler=whole)
    loader_at(3, 4, 2, Items(), 2, sampler=[0, 1])  # whoever makes one knows


class Numbers(torch.utils.data.IterableDataset[int]):
    """Deals itself when its first item is asked for, as a generator does."""

    def __iter__(self) -> Iterator[int]:
        yield from al.split_iterable(range(12))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "dataset", [al.split_iterable(range(12)), Numbers()], ids=["split", "within a generator"]
)
def test_split_deals_to_the_ranks_of_the_loader(dataset: Any, workers: int) -> None:
    read = []
    for process in range(4):
        loader = loader_at(process, 4, 2, dataset, None, num_workers=workers)
        read.append([int(number) for number in loader])
    assert read[0] == read[1] and read[2] == read[3]
    assert sorted(read[0] + read[2]) == [*range(12)]


# --- wrong calls ---


def test_replicas_in_another_order_each_are_refused(recipe: al.Dataset) -> None:
    for dataset in (recipe, al.split_iterable([1])):
        with pytest.raises(ValueError, match="in_order=False delivers batches in another"):
            loader_at(0, 4, 2, dataset, in_order=False, num_workers=1)


def test_what_is_no_mesh_is_refused(recipe: al.Dataset) -> None:
    with pytest.raises(TypeError, match=r"mesh should be a DeviceMesh, such as .*, but got str"):
        al.DataLoader(recipe, mesh="dp")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"mutually exclusive .* but got rank=0, world_size=1"):
        al.DataLoader(recipe, mesh="dp", rank=0, world_size=1)  # type: ignore[arg-type]
