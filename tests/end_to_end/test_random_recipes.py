"""Any recipe, over any format, cut into any batches: the same from rows and from columns, resumed anywhere.

A corpus of documents stands on disk as JSON Lines (rows), Parquet (columns) and tar (rows out of members).
Hypothesis draws what is done to them; what comes out may depend on that alone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus import fingerprint
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

import asyncloader as al

from .harness import drained

pytestmark = [
    pytest.mark.usefixtures("fork_server"),
    pytest.mark.filterwarnings(r"ignore:take\(\d+\) lacks"),  # recipes are drawn, and some take too much
]

# Documents of each shard, by their numbers of tokens. Three lanes have two shards each, one of them empty.
SHARDS = ((3, 0, 12, 5), (7,), (), (1, 1, 9, 30, 2, 4), (8, 8, 3), (0, 6, 21, 5, 2))
LANES = 3


def _documents() -> list[list[dict[str, Any]]]:
    return [
        [
            {
                "number": 100 * shard + index,
                "tokens": [1000 * shard + 50 * index + at for at in range(length)],
            }
            for index, length in enumerate(lengths)
        ]
        for shard, lengths in enumerate(SHARDS)
    ]


TOKENS = sorted(token for shard in _documents() for document in shard for token in document["tokens"])


@dataclass(frozen=True)
class Forms:
    """The corpus on disk, in each form as a recipe that gives the same documents."""

    folder: Path

    def write(self) -> Forms:
        for number, documents in enumerate(_documents()):
            lines = "".join(json.dumps(document) + "\n" for document in documents)
            (self.folder / f"{number}.jsonl").write_text(lines)
            schema = pa.schema({"number": pa.int64(), "tokens": pa.list_(pa.int64())})
            table = pa.Table.from_pylist(documents, schema)
            pq.write_table(table, self.folder / f"{number}.parquet", row_group_size=2)
            if documents:
                with al.ShardWriter(self.folder / f"{number}.tar") as writer:
                    for document in documents:
                        writer.write({"__key__": str(document["number"]), "json": document})
            else:
                (self.folder / f"{number}.tar").write_bytes(bytes(1024))
        (self.folder / "manifest.json").unlink()
        return self

    def recipe(self, form: str) -> al.Dataset:
        recipe = al.from_urls(f"{self.folder}/{{0..{len(SHARDS) - 1}}}.{form}")
        return recipe.decode().map(_member) if form == "tar" else recipe


def _member(sample: Mapping[str, Any]) -> Any:
    return sample["json"]


def _reversed(sample: Mapping[str, Any]) -> dict[str, Any]:
    return {**sample, "tokens": sample["tokens"][::-1]}


async def _later(sample: Mapping[str, Any]) -> Mapping[str, Any]:
    await asyncio.sleep(sample["number"] % 3 / 2000)  # so that results overtake one another
    return sample


def _is_wanted(sample: Mapping[str, Any]) -> bool:
    return sample["number"] % 4 != 1


def _numbered(columns: Mapping[str, Any]) -> dict[str, Any]:
    """What it gives depends on which samples it is given together."""
    number = columns["number"]
    return {**columns, "number": number + 1000 * int(number[0])}


def _is_even(columns: Mapping[str, Any]) -> Any:
    return np.asarray(columns["number"]) % 2 == 0


Op = Callable[[al.Dataset], al.Dataset]


@dataclass(frozen=True)
class Step:
    """An operator that can be told from another one in a report."""

    name: str
    arguments: tuple[Any, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()

    def __call__(self, recipe: al.Dataset) -> al.Dataset:
        done: al.Dataset = getattr(recipe, self.name)(*self.arguments, **dict(self.options))
        return done


#: Operators that change neither which documents there are nor their tokens but for the order.
permuting = st.one_of(
    st.builds(
        lambda window, seed: Step("shuffle", (window,), (("seed", seed),)),
        st.integers(1, 9),
        st.integers(0, 3),
    ),
    st.just(Step("map", (_reversed,))),
    st.just(Step("map", (_reversed,), (("concurrency", 2),))),
    st.just(Step("map", (_later,), (("concurrency", 3),))),
    st.just(Step("select", ("number", "tokens"))),
    st.builds(lambda size: Step("map_batches", (_numbered,), (("batch_size", size),)), st.integers(1, 6)),
)
changing = st.one_of(
    st.just(Step("filter", (_is_wanted,))),
    st.builds(lambda size: Step("filter_batches", (_is_even,), (("batch_size", size),)), st.integers(1, 6)),
    st.builds(lambda count: Step("take", (count,)), st.integers(1, 12)),
    st.just(Step("repeat", (2,))),
)
pools = st.one_of(st.none(), st.integers(1, 12))
batchings = st.one_of(
    st.builds(
        al.TokenBatches, max_tokens=st.integers(32, 90), multiple_of=st.sampled_from([1, 4]), pool=pools
    ),
    st.builds(
        partial(al.Buckets, bounds=(4, 9), batch_sizes=(3, 2, 1)),
        pool=st.one_of(st.none(), st.integers(1, 12)),
    ),
    st.builds(
        partial(al.Pack, "tokens"), length=st.integers(4, 24), batch_size=st.integers(1, 3), pool=pools
    ),
)


@dataclass(frozen=True)
class Batches:
    """How documents become batches: options of the loader."""

    batching: Any = None
    batch_size: int | None = 1
    drop_last: bool = False

    def loader(self, recipe: al.Dataset, workers: int = 0) -> al.DataLoader[Any]:
        pads = self.batching is None and self.batch_size is not None
        return al.DataLoader(
            recipe,
            self.batch_size,
            num_workers=workers,
            drop_last=self.drop_last,
            collate_fn=al.Pad({"tokens": 0}) if pads else None,
            batching=self.batching,
            lanes=LANES,
        )


batches = st.one_of(
    st.builds(Batches, batch_size=st.integers(1, 5), drop_last=st.booleans()),
    st.builds(Batches, batching=batchings),
    st.builds(Batches, batching=batchings),
)


def _applied(recipe: al.Dataset, steps: Sequence[Op]) -> al.Dataset:
    for step in steps:
        recipe = step(recipe)
    return recipe


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Forms:
    return Forms(tmp_path_factory.mktemp("forms")).write()


drawn = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
# Of the slow form, each drawn from a seed of its own: one can be run alone, as `-k over_all_forms[3]`.
PARTS = 8
in_process = given(
    steps=st.lists(st.one_of(permuting, changing), max_size=4), how=batches, epoch=st.integers(0, 1)
)


def check_forms(forms: Forms, steps: list[Op], how: Batches, epoch: int) -> None:
    found = []
    for form in ("jsonl", "parquet", "tar"):
        loader = how.loader(_applied(forms.recipe(form), steps))
        loader.set_epoch(epoch)
        found.append(drained(loader))
    assert found[0] == found[1], "columns give other batches than rows"
    assert found[0] == found[2], "documents out of a tar give other batches"


def check_cuts(forms: Forms, steps: list[Op], how: Batches, epoch: int) -> None:
    for form in ("jsonl", "parquet"):
        recipe = _applied(forms.recipe(form), steps)
        loader = how.loader(recipe)
        loader.set_epoch(epoch)
        whole, states = [], [loader.state_dict()]
        for batch in loader:
            whole.append(fingerprint(batch))
            states.append(loader.state_dict())
        for delivered, state in enumerate(states):
            resumed = how.loader(recipe)
            resumed.load_state_dict(json.loads(json.dumps(state)))
            assert drained(resumed) == whole[delivered:], f"{form}: after {delivered} batches, at {state}"


def check_workers(forms: Forms, steps: list[Op], how: Batches, epoch: int) -> None:
    recipe = _applied(forms.recipe("parquet"), steps)
    loader = how.loader(recipe)
    loader.set_epoch(epoch)
    whole = drained(loader)
    over_workers = how.loader(recipe, 3)
    over_workers.set_epoch(epoch)
    found = []
    state = over_workers.state_dict()
    for batch in over_workers:
        found.append(fingerprint(batch))
        if len(found) == (len(whole) + 1) // 2:
            state = over_workers.state_dict()
    assert found == whole
    resumed = how.loader(recipe, 3)
    resumed.load_state_dict(state)
    assert drained(resumed) == whole[(len(whole) + 1) // 2 :]


def check_tokens(forms: Forms, steps: list[Op], batching: Any, form: str) -> None:
    loader = Batches(batching, None).loader(_applied(forms.recipe(form), steps))
    came: list[int] = []
    for batch in loader:
        if "segment_ids" in batch:
            came += batch["tokens"][batch["segment_ids"] > 0].tolist()
        else:
            lengths = batch["tokens_lengths"].tolist()
            came += [
                token
                for row, length in zip(batch["tokens"], lengths, strict=True)
                for token in row[:length].tolist()
            ]
    assert sorted(came) == TOKENS
    assert loader.statistics.tokens == len(TOKENS)
    # Empty documents at the end are in no block.
    full = sum(1 for lengths in SHARDS for length in lengths if length)
    assert full <= loader.statistics.samples <= sum(map(len, SHARDS))


@drawn
@in_process
def test_rows_and_columns_give_the_same_batches(
    forms: Forms, steps: list[Op], how: Batches, epoch: int
) -> None:
    check_forms(forms, steps, how, epoch)


@drawn
@in_process
def test_every_cut_resumes_to_the_same_tail(forms: Forms, steps: list[Op], how: Batches, epoch: int) -> None:
    check_cuts(forms, steps, how, epoch)


@settings(drawn, max_examples=6)
@in_process
def test_three_workers_give_the_same_batches_and_resume(
    forms: Forms, steps: list[Op], how: Batches, epoch: int
) -> None:
    check_workers(forms, steps, how, epoch)


@drawn
@given(steps=st.lists(permuting, max_size=3), batching=batchings, form=st.sampled_from(["jsonl", "parquet"]))
def test_tokens_in_are_tokens_out(forms: Forms, steps: list[Op], batching: Any, form: str) -> None:
    check_tokens(forms, steps, batching, form)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(PARTS))
def test_many_recipes_over_all_forms(forms: Forms, part: int) -> None:
    """A minute each on an idle machine of two cores."""

    @seed(part)
    @settings(drawn, max_examples=50)
    @in_process
    def check(steps: list[Op], how: Batches, epoch: int) -> None:
        check_forms(forms, steps, how, epoch)
        check_cuts(forms, steps, how, epoch)

    check()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(PARTS))
def test_many_recipes_with_workers(forms: Forms, part: int) -> None:
    @seed(part)
    @settings(drawn, max_examples=8)
    @in_process
    def check(steps: list[Op], how: Batches, epoch: int) -> None:
        check_workers(forms, steps, how, epoch)

    check()
