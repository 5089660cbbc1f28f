"""The union over ranks and workers is the dataset, no sample twice and none lost."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from corpus import Corpus, keys_of

import asyncloader as al
from asyncloader import testing

from .harness import recipe_of

pytestmark = pytest.mark.usefixtures("fork_server")

RANKS = pytest.mark.parametrize("ranks", [1, 2, 3])
WORKERS = pytest.mark.parametrize("workers", [0, 1, 3])


def read_by_all(recipe: al.Dataset, ranks: int, workers: int, **options: Any) -> list[str]:
    """The keys that all ranks together were given."""
    return [
        key
        for rank in range(ranks)
        for key in keys_of(
            al.DataLoader(recipe, 4, num_workers=workers, rank=rank, world_size=ranks, **options)
        )
    ]


def _cases() -> list[Any]:
    """Every number of ranks with every number of workers, over two of the eight kinds of reading.

    What deals shards to ranks and workers knows of neither format nor place: so these take turns, by each of
    which every pair of values comes to be. The slow tests have them all.
    """
    numbers = list(product([1, 2, 3], [0, 1, 3]))
    readings = list(product(["tar", "jsonl"], ["local", "http"], [False, True]))
    turns = {(pair, readings[(3 * nth + step) % 8]) for nth, pair in enumerate(numbers) for step in (0, 5)}
    return [
        pytest.param(*pair, *reading, marks=[] if (pair, reading) in turns else pytest.mark.slow)
        for pair, reading in product(numbers, readings)
    ]


@pytest.mark.parametrize(("ranks", "workers", "suffix", "place", "shuffled"), _cases())
def test_every_sample_is_delivered_exactly_once(
    ranks: int,
    workers: int,
    suffix: str,
    place: str,
    shuffled: bool,
    make_corpus: Callable[..., Corpus],
    served: testing.Server,
) -> None:
    corpus = make_corpus(suffix)
    recipe = recipe_of(corpus, served if place == "http" else None)
    if shuffled:
        recipe = recipe.shuffle(5, seed=1)
    keys = read_by_all(recipe, ranks, workers)
    assert sorted(keys) == corpus.keys
    if shuffled:
        assert keys != corpus.keys


@RANKS
@WORKERS
def test_fewer_shards_than_ranks_times_workers_lose_and_repeat_nothing(
    ranks: int, workers: int, make_corpus: Callable[..., Corpus]
) -> None:
    corpus = make_corpus("tar").first(ranks)
    assert sorted(read_by_all(recipe_of(corpus), ranks, workers)) == corpus.keys


@RANKS
@WORKERS
def test_more_lanes_than_shards_lose_and_repeat_nothing(
    ranks: int, workers: int, make_corpus: Callable[..., Corpus]
) -> None:
    corpus = make_corpus("jsonl")
    assert sorted(read_by_all(recipe_of(corpus), ranks, workers, lanes=12)) == corpus.keys


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("suffix", ["tar.gz", "tar.zst", "jsonl.gz", "jsonl.zst", "jsonl.xz", "tar.bz2"])
def test_compressed_shards_are_delivered_exactly_once(
    suffix: str, workers: int, make_corpus: Callable[..., Corpus], served: testing.Server
) -> None:
    corpus = make_corpus(suffix)
    assert sorted(read_by_all(recipe_of(corpus, served), 2, workers)) == corpus.keys


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_every_epoch_delivers_every_sample(workers: int, make_corpus: Callable[..., Corpus]) -> None:
    corpus = make_corpus("jsonl")
    with al.DataLoader(recipe_of(corpus).shuffle(8), 4, num_workers=workers) as loader:
        epochs = [keys_of(loader) for _ in range(3)]
    assert [sorted(keys) for keys in epochs] == [corpus.keys] * 3
    assert epochs[0] != epochs[1] != epochs[2]


@RANKS
@WORKERS
def test_a_source_of_your_own_is_delivered_exactly_once(ranks: int, workers: int) -> None:
    recipe = al.from_iterable(lambda topology: topology.split({"key": str(n)} for n in range(40)))
    assert sorted(read_by_all(recipe, ranks, workers), key=int) == [str(n) for n in range(40)]


class Numbers(al.AsyncIterableDataset):
    async def __aiter__(self) -> Any:
        for number in al.get_topology().split(range(40)):
            yield {"key": str(number)}


@RANKS
@WORKERS
def test_an_asynchronous_dataset_that_asks_for_its_part_is_delivered_exactly_once(
    ranks: int, workers: int
) -> None:
    assert sorted(read_by_all(Numbers(), ranks, workers), key=int) == [str(n) for n in range(40)]


@pytest.mark.parametrize("workers", [0, 3])
def test_drop_last_leaves_out_less_than_a_batch_of_each_lane(
    workers: int, make_corpus: Callable[..., Corpus]
) -> None:
    corpus = make_corpus("jsonl")
    keys = read_by_all(recipe_of(corpus), 1, workers, lanes=3, drop_last=True)
    # Lanes of 13, 7+2+0 and 5+3+1 samples, by the sizes of their shards, in batches of 4.
    assert len(keys) == len(set(keys)) == 12 + 8 + 8
    assert set(keys) <= set(corpus.keys)


@pytest.mark.parametrize(
    ("names", "more"),
    [
        (("SLURM_PROCID", "SLURM_NTASKS"), {"SLURM_STEP_ID": "0"}),
        (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), {}),
        (("PMI_RANK", "PMI_SIZE"), {}),
    ],
    ids=["srun", "Open MPI", "MPICH"],
)
def test_ranks_of_any_launcher_share_the_samples_before_there_is_a_process_group(
    names: tuple[str, str],
    more: dict[str, str],
    make_corpus: Callable[..., Corpus],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    corpus = make_corpus("tar")
    keys: list[str] = []
    for rank in range(2):
        for name, value in {names[0]: str(rank), names[1]: "2", **more}.items():
            monkeypatch.setenv(name, value)
        for loader in (al.DataLoader(recipe_of(corpus)), al.DataLoader(al.split_iterable(corpus.keys), None)):
            keys += [key for batch in loader for key in ([batch] if type(batch) is str else batch["__key__"])]
    assert sorted(keys) == sorted(corpus.keys * 2)
