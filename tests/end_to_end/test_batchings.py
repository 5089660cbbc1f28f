"""Batches by tokens, buckets and packed blocks, through the whole loader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import asyncloader as al

from .harness import drained, drained_async

pytestmark = pytest.mark.usefixtures("fork_server")

WORKERS = pytest.mark.parametrize("workers", [0, 2])

BATCHINGS: dict[str, Any] = {
    "tokens in order": al.TokenBatches(max_tokens=60),
    "tokens of pools": al.TokenBatches(max_tokens=60, multiple_of=4, pool=9),
    "tokens by a function": al.TokenBatches(
        length=lambda sample: len(sample["tokens"]), max_tokens=60, pool=9
    ),
    "buckets": al.Buckets(bounds=[5, 12], batch_sizes=[5, 3, 2], pool=20),
    "packed in order": al.Pack({"tokens": 0, "labels": -100}, length=16, batch_size=2),
    "packed of pools": al.Pack(["tokens", "labels"], length=16, batch_size=2, pool=9),
}
EVERY = pytest.mark.parametrize("batching", BATCHINGS.values(), ids=BATCHINGS.keys())


def write_texts(folder: Path, shards: int = 6, samples: int = 60) -> list[str]:
    """Texts of 1 to 20 tokens, which all differ, and labels, which are their negatives."""
    draw, token, paths = np.random.default_rng(0), 0, []
    for shard in range(shards):
        paths.append(str(folder / f"texts-{shard}.jsonl"))
        with al.ShardWriter(paths[-1]) as writer:
            for number in range(shard, samples, shards):
                tokens = list(range(token + 1, token + 1 + int(draw.integers(1, 21))))
                token = tokens[-1]
                writer.write({"number": number, "tokens": tokens, "labels": [-token for token in tokens]})
    return paths


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_texts(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def few_texts(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_texts(tmp_path_factory.mktemp("texts"), samples=20)


def tokens_of(paths: Sequence[str]) -> list[int]:
    return sorted(token for sample in al.from_urls(paths).head(10_000) for token in sample["tokens"])


def loader_of(recipe: al.Dataset, batching: Any, **options: Any) -> al.DataLoader[Any]:
    """A loader; what has two ragged fields is padded by one that names both."""
    if not isinstance(batching, al.Pack):
        options.setdefault("collate_fn", al.Pad({"tokens": 0, "labels": 0}))
    return al.DataLoader(recipe.select_columns("number", "tokens", "labels"), batching=batching, **options)


RECIPES: dict[str, Callable[[al.Dataset], al.Dataset]] = {
    "plain": lambda ds: ds,
    "shuffle, repeat, filter": lambda ds: ds.shuffle(7).repeat(2).filter(lambda sample: sample["number"] % 3),
}


def _pairs() -> list[Any]:
    """Every recipe with every batching; with workers too every other pair, and the rest in the slow tests."""
    found = []
    for turn, (recipe, make) in enumerate(RECIPES.items()):
        for nth, (name, batching) in enumerate(BATCHINGS.items(), turn):
            usual, slow = ((0, 3), ()) if nth % 2 else ((0,), (0, 3))
            found.append(pytest.param(make, batching, usual, id=f"{recipe}-{name}"))
            if slow:
                case = pytest.param(make, batching, slow, id=f"{recipe}-{name}-3", marks=pytest.mark.slow)
                found.append(case)
    return found


@pytest.mark.parametrize(("recipe", "batching", "workers"), _pairs())
def test_every_batch_can_be_resumed_from(
    recipe: Any,
    batching: Any,
    workers: tuple[int, ...],
    few_texts: list[str],
    assert_resumes: Callable[..., None],
) -> None:
    ds = recipe(al.from_urls(few_texts))
    assert_resumes(lambda count: loader_of(ds, batching, num_workers=count, lanes=3), workers=workers)


@EVERY
@WORKERS
def test_tokens_in_are_tokens_out_and_counted(batching: Any, workers: int, texts: list[str]) -> None:
    loader = loader_of(al.from_urls(texts).shuffle(8), batching, num_workers=workers, lanes=2)
    tokens = [token for batch in loader for token in batch["tokens"].flatten().tolist() if token]
    assert sorted(tokens) == tokens_of(texts)
    statistics = loader.statistics
    assert (statistics.samples, statistics.tokens) == (60, len(tokens))
    assert f"tokens={len(tokens)}" in repr(statistics)


@EVERY
def test_ranks_share_what_there_is(batching: Any, texts: list[str]) -> None:
    tokens = []
    for rank in range(2):
        loader = loader_of(al.from_urls(texts), batching, lanes=4, rank=rank, world_size=2)
        tokens += [token for batch in loader for token in batch["tokens"].flatten().tolist() if token]
    assert sorted(tokens) == tokens_of(texts)


@EVERY
def test_both_kinds_of_loop_and_all_epochs_are_served(batching: Any, texts: list[str]) -> None:
    recipe = al.from_urls(texts).shuffle(8)
    one, other = (loader_of(recipe, batching, lanes=2) for _ in range(2))
    epochs = [drained(one), drained(one)]
    assert [drained_async(other), drained_async(other)] == epochs
    assert epochs[0] != epochs[1]


@WORKERS
def test_packed_blocks_arrive_as_attention_wants_them(workers: int, texts: list[str]) -> None:
    batching = al.Pack(["tokens", "labels"], length=16, batch_size=2, pool=60)
    for batch in loader_of(al.from_urls(texts), batching, num_workers=workers, lanes=2):
        rows = len(batch["tokens"])
        assert 1 <= rows <= 2 and isinstance(batch["max_seqlen"], int)
        for name in ("tokens", "labels", "segment_ids", "positions"):
            assert batch[name].shape == (rows, 16)
        assert batch["cu_seqlens"].dtype == torch.int32
        assert batch["cu_seqlens"][-1] == rows * 16
        assert torch.equal(batch["labels"], -batch["tokens"])


def test_a_function_of_ones_own_collates_rows_of_arrays(texts: list[str]) -> None:
    batching = al.Pack("tokens", length=16, batch_size=3)
    for rows in al.DataLoader(al.from_urls(texts), batching=batching, collate_fn=list):
        for row in rows:
            assert {name: array.shape for name, array in row.items()} == dict.fromkeys(
                ("tokens", "segment_ids", "positions"), (16,)
            )


def test_the_field_that_counts_is_padded_by_default(texts: list[str]) -> None:
    recipe = al.from_urls(texts).select_columns("number", "tokens")
    for batching in (
        al.TokenBatches(max_tokens=64, multiple_of=8, pool=20),
        al.Buckets(bounds=[10], batch_sizes=[4, 2], multiple_of=8),
    ):
        for batch in al.DataLoader(recipe, batching=batching):
            assert batch["tokens"].shape[1] % 8 == 0
            assert batch["tokens"].shape[1] - int(batch["tokens_lengths"].max()) < 8
            assert isinstance(batching, al.Buckets) or batch["tokens"].numel() <= 64


def test_a_field_that_holds_the_length_is_no_sequence_to_pad(texts: list[str]) -> None:
    recipe = al.from_urls(texts).map(lambda sample: {"length": len(sample["tokens"])})
    for batch in al.DataLoader(recipe, batching=al.TokenBatches(length="length", max_tokens=60)):
        assert batch["length"].shape[0] * int(batch["length"].max()) <= 60


# --- what cannot be ---


@EVERY
def test_the_length_is_not_known_and_the_reason_is_told(batching: Any, texts: list[str]) -> None:
    with pytest.raises(TypeError, match=r"not known: how many .* depends on .* long the .*; ?|Count batches"):
        len(loader_of(al.from_urls(texts), batching))
    with pytest.raises(TypeError) as caught:
        len(loader_of(al.from_urls(texts).take(9), batching))
    assert "take" not in str(caught.value), "it would not help"


@pytest.mark.parametrize(
    ("saved", "now", "named"),
    [
        (al.TokenBatches(max_tokens=60), al.TokenBatches(max_tokens=61), "'max_tokens': 61"),
        (al.TokenBatches(max_tokens=60), BATCHINGS["buckets"], "batching: saved {'kind': 'tokens'"),
        (BATCHINGS["packed in order"], BATCHINGS["packed of pools"], "'pool': 9"),
        (BATCHINGS["packed in order"], None, "batch_size: saved None, now 1"),
        (None, BATCHINGS["packed in order"], "batching: saved None, now {'kind': 'pack'"),
    ],
)
def test_the_state_of_another_batching_is_refused(saved: Any, now: Any, named: str, texts: list[str]) -> None:
    recipe = al.from_urls(texts).select_columns("number", "tokens", "labels")
    loader = al.DataLoader(recipe, collate_fn=list, batching=saved)
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(ValueError, match="saved by another loader") as caught:
        al.DataLoader(recipe, collate_fn=list, batching=now).load_state_dict(state)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch_size": 4}, ValueError, r"mutually exclusive with batch_size .* but got batch_size=4$"),
        ({"drop_last": True}, ValueError, r"mutually exclusive .* but got drop_last=True$"),
        ({"batching": al.Pack}, TypeError, r"batching should be TokenBatches\(...\), .* but got <class"),
        ({"batching": 4}, TypeError, "a number of samples is batch_size="),
    ],
)
def test_what_contradicts_it_is_refused(
    options: dict[str, Any], error: type[Exception], message: str, texts: list[str]
) -> None:
    with pytest.raises(error, match=message):
        al.DataLoader(al.from_urls(texts), **{"batching": al.Pack(), **options})


def test_it_is_for_streams() -> None:
    with pytest.raises(TypeError, match="batching can be given for streams only"):
        al.DataLoader([1, 2, 3], batching=al.Pack())


def test_the_loader_says_how_it_batches(texts: list[str]) -> None:
    assert "batching=TokenBatches(length='tokens', max_tokens=9," in repr(
        al.DataLoader(al.from_urls(texts), batching=al.TokenBatches(max_tokens=9))
    )


@WORKERS
def test_a_sample_that_does_not_fit_is_named_with_its_shard_and_lane(workers: int, texts: list[str]) -> None:
    loader = loader_of(al.from_urls(texts), al.TokenBatches(max_tokens=19), num_workers=workers)
    with pytest.raises(ValueError, match="at most max_tokens=19, but found 20") as caught:
        list(loader)
    notes = "\n".join(caught.value.__notes__)
    assert "in TokenBatches of sample" in notes and "texts-" in notes
    assert "in lane" in notes and "epoch 0" in notes
