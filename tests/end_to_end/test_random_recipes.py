"""Any recipe, over any format, cut into any batches: the same from rows and from columns, resumed anywhere.

Hypothesis draws what is done to a corpus of documents; what comes out may depend on that alone.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from corpus import fingerprint
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from .drawn_recipes import (
    SHARDS,
    TOKENS,
    Batches,
    Forms,
    Op,
    applied,
    batches,
    batchings,
    changing,
    drawn,
    permuting,
)
from .harness import drained

pytestmark = [
    pytest.mark.usefixtures("fork_server"),
    pytest.mark.filterwarnings("ignore:an epoch had no batch"),  # recipes are drawn, and some keep nothing
    pytest.mark.filterwarnings(r"ignore:take\(\d+\) lacks"),  # recipes are drawn, and some take too much
]


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Forms:
    return Forms(tmp_path_factory.mktemp("forms")).write()


# Of the slow form, each drawn from a seed of its own: one can be run alone, as `-k over_all_forms[3]`.
PARTS = 8
in_process = given(
    steps=st.lists(st.one_of(permuting, changing), max_size=4), how=batches, epoch=st.integers(0, 1)
)


def check_forms(forms: Forms, steps: list[Op], how: Batches, epoch: int) -> None:
    found = []
    for form in ("jsonl", "parquet", "tar"):
        loader = how.loader(applied(forms.recipe(form), steps))
        loader.set_epoch(epoch)
        found.append(drained(loader))
    assert found[0] == found[1], "columns give other batches than rows"
    assert found[0] == found[2], "documents out of a tar give other batches"


def check_cuts(forms: Forms, steps: list[Op], how: Batches, epoch: int) -> None:
    for form in ("jsonl", "parquet"):
        recipe = applied(forms.recipe(form), steps)
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
    recipe = applied(forms.recipe("parquet"), steps)
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
    loader = Batches(batching, None).loader(applied(forms.recipe(form), steps))
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


@settings(drawn, max_examples=12)
@in_process
def test_every_cut_resumes_to_the_same_tail(forms: Forms, steps: list[Op], how: Batches, epoch: int) -> None:
    check_cuts(forms, steps, how, epoch)


@settings(drawn, max_examples=4)
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
