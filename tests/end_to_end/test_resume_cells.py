"""At length: what was saved after any step, in any cell of workers and ranks, goes on in every other.

What is drawn, and what fits into the usual run, is in ``test_resume_worlds``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from corpus import Corpus
from stateful_numbers import StatefulNumbers
from torch.utils.data import DistributedSampler

import asyncloader as al

from .drawn_recipes import Batches, Forms
from .harness import python, recipe_of
from .indexed import SUFFIXES, number_of, write_indexed
from .test_mixtures import MIXTURES, PAD, Folder
from .test_resume import RECIPES
from .worlds import assert_every_world_goes_on, counted, epoch_of, steps_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("fork_server"),
    pytest.mark.filterwarnings(r"ignore:take\(\d+\) lacks"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]

WORLDS, WORKERS, LANES = (1, 2, 4), (0, 1, 3), 4
CELLS = [(ranks, workers) for ranks in WORLDS for workers in WORKERS]


# --- batchings, mixtures, formats ---


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Forms:
    return Forms(tmp_path_factory.mktemp("forms")).write()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return Folder(tmp_path_factory.mktemp("components")).write()


BATCHINGS: dict[str, Any] = {
    "tokens": al.TokenBatches(max_tokens=40),
    "tokens of pools": al.TokenBatches(max_tokens=40, multiple_of=4, pool=5),
    "buckets": al.Buckets(bounds=(4, 9), batch_sizes=(3, 2, 1)),
    "buckets of pools": al.Buckets(bounds=(4, 9), batch_sizes=(3, 2, 1), pool=6),
    "packed": al.Pack("tokens", length=16, batch_size=2),
    "packed pools": al.Pack("tokens", length=16, batch_size=2, pool=5),
}


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
@pytest.mark.parametrize("batching", BATCHINGS)
def test_every_batching(batching: str, form: str, forms: Forms) -> None:
    recipe, how = forms.recipe(form).shuffle(4), Batches(BATCHINGS[batching])

    def make(num_workers: int = 0, **options: Any) -> al.DataLoader[Any]:
        return how.loader(recipe, num_workers, **{"lanes": LANES, **options})

    assert_every_world_goes_on(make, WORLDS, WORKERS)


ALL_MIXTURES: dict[str, Callable[[Folder], al.Dataset]] = {
    **MIXTURES,
    "zip": lambda folder: al.zip_datasets(
        {"one": folder.recipe("tar").repeat(2), "other": folder.recipe("tar").repeat(2)}
    ).map(lambda both: both["one"]),
}


@pytest.mark.parametrize("mixture", ALL_MIXTURES)
def test_every_mixture(mixture: str, folder: Folder) -> None:
    recipe = ALL_MIXTURES[mixture](folder)
    assert_every_world_goes_on(
        lambda **options: al.DataLoader(recipe, 8, **{"lanes": LANES, "collate_fn": PAD, **options}),
        WORLDS,
        WORKERS,
    )


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format_with_lanes_that_an_index_cuts(suffix: str, tmp_path: Path) -> None:
    paths = write_indexed(tmp_path, suffix, (9, 0, 17, 3), rate_bytes=600)
    recipe = al.from_urls(paths).shuffle(3)
    assert_every_world_goes_on(
        lambda **options: al.DataLoader(
            recipe, 3, **{"lanes": LANES, "collate_fn": lambda samples: [*map(number_of, samples)], **options}
        ),
        WORLDS,
        WORKERS,
    )


# --- torch's kinds ---


def _numbers(samples: list[int]) -> list[int]:
    return samples


@pytest.mark.parametrize("ranks", WORLDS)
def test_a_map_style_dataset_of_every_rank_goes_on_with_every_number_of_workers(ranks: int) -> None:
    def make(rank: int, workers: int) -> al.DataLoader[Any]:
        sampler: Any = DistributedSampler(range(37), ranks, rank, seed=3)  # type: ignore[arg-type]
        options = {"num_workers": workers, "rank": rank, "world_size": ranks, "collate_fn": _numbers}
        return al.DataLoader(range(37), 3, sampler=sampler, **options)

    for rank in range(ranks):
        whole = [*make(rank, 0)]
        for workers in WORKERS:
            loader, states = make(rank, workers), []
            for _ in loader:
                states.append(json.dumps(loader.state_dict()))
            for delivered, state in enumerate(states, 1):
                for after in WORKERS if delivered % 4 == 1 else WORKERS[:1]:
                    resumed = make(rank, after)
                    resumed.load_state_dict(json.loads(state))
                    assert [*resumed] == whole[delivered:], (rank, workers, after, delivered)


@pytest.mark.parametrize(("ranks", "workers"), CELLS)
def test_an_iterable_dataset_goes_on_in_its_own_cell(ranks: int, workers: int) -> None:
    def make(rank: int) -> al.DataLoader[Any]:
        options = {"num_workers": workers, "rank": rank, "world_size": ranks, "collate_fn": _numbers}
        return al.DataLoader(StatefulNumbers(50, rank, ranks), 3, **options)

    for rank in range(ranks):
        loader, whole, states = make(rank), [], []
        for batch in loader:
            whole.append(batch)
            states.append(json.dumps(loader.state_dict()))
        for delivered, state in enumerate(states, 1):
            resumed = make(rank)
            resumed.load_state_dict(json.loads(state))
            assert [*resumed] == whole[delivered:], (rank, delivered)


# --- in a fresh process ---

_GO_ON = """
import json, sys, warnings
warnings.filterwarnings("ignore", r"take.* lacks")
tests, job = sys.argv[1:]
sys.path.insert(0, tests)
from end_to_end.harness import drained
from end_to_end.test_resume import RECIPES
from end_to_end.worlds import rest_of
import asyncloader as al
from asyncloader.workers.forkserver import ForkServer

job, server = json.load(open(job)), ForkServer.shared()  # held, so that it starts once
server.preload(["pytest", "hypothesis", "corpus"])
recipe = RECIPES[job["name"]](al.from_urls(job["paths"]).select_columns("key", "number"))
make = lambda **options: al.DataLoader(recipe, 3, **{"lanes": job["lanes"], **options})
ranks = range(job["ranks"])
print(json.dumps([
    [list(map(repr, rest_of(make, rank, len(ranks), state, job["workers"]))) for rank in ranks]
    for state in job["states"]
]))
"""


@pytest.mark.parametrize(("ranks", "workers"), CELLS)
def test_a_fresh_process_of_each_cell_goes_on_from_every_other(
    ranks: int, workers: int, make_corpus: Callable[..., Corpus], tmp_path: Path
) -> None:
    """Each cell has recipes of its own, so that all have their turn."""
    corpus = make_corpus("jsonl", (3, 0, 7, 3, 4, 0, 2))
    for name in [*RECIPES][CELLS.index((ranks, workers)) :: len(CELLS)]:
        recipe = RECIPES[name](recipe_of(corpus))

        def make(recipe: al.Dataset = recipe, **options: Any) -> al.DataLoader[Any]:
            return al.DataLoader(recipe, 3, **{"lanes": LANES, **options})

        whole = counted(epoch_of(make))
        for size in WORLDS:
            # Of any number of workers the states are the same texts.
            steps = [step for step in steps_of(make, size) if not all(step.ended)]
            steps = steps[:: 1 if workers == 0 else 4]  # starting workers takes the time
            job = {"name": name, "paths": corpus.paths, "lanes": LANES, "ranks": ranks, "workers": workers}
            (tmp_path / "job.json").write_text(json.dumps({**job, "states": [step.merged for step in steps]}))
            tests = Path(__file__).parents[1]
            run = python("-", tests, tmp_path / "job.json", program=_GO_ON)
            assert run.returncode == 0, run.stderr
            for number, (step, rests) in enumerate(zip(steps, json.loads(run.stdout), strict=True)):
                found = counted(chain(*step.seen))
                found.update(chain(*rests))
                assert found == whole, f"{name}: from {size} ranks, state {number}"
