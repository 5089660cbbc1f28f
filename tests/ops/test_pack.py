from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncloader as al
from asyncloader.blocks import Block, Columns, OffsetTrail, Ragged, Rows
from asyncloader.flow.engine import Engine
from asyncloader.pipeline.batching import Batch
from asyncloader.pipeline.lane import START
from asyncloader.plan.lanes import UnknownCount

from .batching import Made, Texts, assert_resumes_everywhere, lognormal_lengths, made_of
from .running import lane_of

lengths_of_texts = st.lists(st.integers(0, 40), max_size=40)


def segments_of(made: Made) -> list[list[int]]:
    """The tokens of each segment, padding left out."""
    segments = []
    for row in made.content:
        for number in range(1, max(row["segment_ids"]) + 1):
            at = [place for place, found in enumerate(row["segment_ids"]) if found == number]
            assert at == list(range(at[0], at[-1] + 1)), "a segment is a run"
            assert [row["positions"][place] for place in at] == list(range(len(at)))
            assert [-row["tokens"][place] for place in at] == [row["labels"][place] for place in at]
            segments.append([row["tokens"][place] for place in at])
    return segments


def batches_of(batching: al.Pack, block: Block, engine: Engine) -> list[Batch]:
    return list(batching.open(lambda *_: (each for each in [block]), START, lane_of(engine)))


@settings(deadline=None)
@given(
    lengths=lengths_of_texts,
    length=st.integers(1, 50),
    batch_size=st.integers(1, 4),
    pool=st.none() | st.integers(1, 50),
)
def test_tokens_in_are_tokens_out_and_every_batch_can_be_resumed_from(
    lengths: list[int], length: int, batch_size: int, pool: int | None, engine: Engine
) -> None:
    batching = al.Pack({"tokens": 0, "labels": -100}, length=length, batch_size=batch_size, pool=pool)
    whole = assert_resumes_everywhere(batching, lengths, lane_of(engine))
    segments = [segments_of(made) for made in whole]
    tokens = list(chain.from_iterable(chain.from_iterable(segments)))
    assert sorted(tokens) == list(range(1, sum(lengths) + 1))
    assert [made.tokens for made in whole] == [sum(map(len, inside)) for inside in segments]
    for nth, made in enumerate(whole):
        assert len(made.content) == batch_size or (nth == len(whole) - 1 and len(made.content) < batch_size)
        for row in made.content:
            assert {len(row[name]) for name in ("tokens", "labels", "segment_ids", "positions")} == {length}
            padding = row["segment_ids"].count(0)
            for name, fill in (("tokens", 0), ("labels", -100), ("segment_ids", 0), ("positions", 0)):
                assert row[name][length - padding :] == [fill] * padding
    if pool is None:
        assert tokens == sorted(tokens)
        assert all(0 not in row["segment_ids"] for made in whole for row in made.content[:-1])
    # Empty ones count where they come; those behind the last full row are in no batch.
    counted = sum(made.samples for made in whole)
    with_tokens = sum(length > 0 for length in lengths)
    assert with_tokens <= counted <= len(lengths)


@settings(deadline=None)
@given(lengths=st.lists(st.integers(1, 30), max_size=40), pool=st.none() | st.integers(1, 50))
def test_a_sample_is_counted_once_where_it_ends(lengths: list[int], pool: int | None, engine: Engine) -> None:
    batching = al.Pack("tokens", length=7, batch_size=2, pool=pool)
    whole = made_of(batching, Texts(lengths), lane_of(engine))
    assert sum(made.samples for made in whole) == len(lengths)
    last = set(np.cumsum(lengths).tolist())
    for made in whole:
        found = set(chain.from_iterable(row["tokens"] for row in made.content))
        assert made.samples == len(found & last)


@settings(deadline=None)
@given(lengths=lengths_of_texts, pool=st.none() | st.integers(1, 50))
def test_long_documents_are_cut_to_their_first_tokens_if_asked_for(
    lengths: list[int], pool: int | None, engine: Engine
) -> None:
    batching = al.Pack("tokens", length=9, pool=pool, overlong="truncate")
    whole = assert_resumes_everywhere(batching, lengths, lane_of(engine))
    starts = np.cumsum([0, *lengths])
    kept = [range(start + 1, start + min(had, 9) + 1) for start, had in zip(starts, lengths, strict=False)]
    found = chain.from_iterable(row["tokens"] for made in whole for row in made.content)
    assert sorted(token for token in found if token) == list(chain(*kept))


@settings(deadline=None)
@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=40), pool=st.integers(1, 50))
def test_in_a_pool_no_document_that_fits_is_cut(lengths: list[int], pool: int, engine: Engine) -> None:
    whole = made_of(al.Pack(["tokens", "labels"], length=12, pool=pool), Texts(lengths), lane_of(engine))
    segments = [segment for made in whole for segment in segments_of(made)]
    assert sorted(map(len, segments)) == sorted(lengths)


@pytest.mark.parametrize("pool", [None, 3])
def test_a_document_that_is_too_long_is_named_and_what_was_complete_before_it_is_handed_on(
    pool: int | None, engine: Engine
) -> None:
    batching = al.Pack("tokens", length=4, pool=pool, overlong="raise")
    found = []
    with pytest.raises(
        ValueError, match=r"'tokens' of sample 4 of listed: expected at most 4 tokens, found 9"
    ):
        for batch in batching.open(Texts([4, 2, 2, 1, 9, 1]).open, START, lane_of(engine)):
            found.append(batch.tokens)
    assert found == [4, 4]


def test_pools_waste_under_one_per_cent_of_texts_and_stream_order_next_to_nothing(engine: Engine) -> None:
    lengths = lognormal_lengths(10_000)
    for pool, most in ((1000, 0.01), (4000, 0.005), (None, 0.001)):
        batching = al.Pack("tokens", length=2048, batch_size=8, pool=pool)
        size = tokens = 0
        for batch in batching.open(Texts(lengths, True, (1000,)).open, START, lane_of(engine)):
            size += np.size(batch.block.column("tokens"))
            tokens += batch.tokens
        assert tokens == sum(lengths)
        assert size - tokens < most * size, f"pool={pool}"


def test_the_order_of_a_pools_rows_says_nothing_of_lengths(engine: Engine) -> None:
    batching = al.Pack("tokens", length=2048, pool=10_000)
    first = []  # the longest document of a row comes first
    for batch in batching.open(Texts(lognormal_lengths(10_000), True, (500,)).open, START, lane_of(engine)):
        first.append(int(np.sum(np.asarray(batch.block.column("segment_ids")) == 1)))
    assert abs(np.corrcoef(np.arange(len(first)), first)[0, 1]) < 0.15


def test_the_order_is_the_same_in_every_release(engine: Engine) -> None:
    whole = made_of(al.Pack(length=5, pool=9), Texts([1, 4, 2, 8, 3, 5, 0, 6, 2]), lane_of(engine))
    assert [row["tokens"] for made in whole for row in made.content] == [
        [13, 14, 15, 30, 31],
        [8, 9, 10, 11, 12],
        [2, 3, 4, 5, 1],
        [24, 25, 26, 27, 28],
        [16, 17, 18, 6, 7],
        [29, 0, 0, 0, 0],
        [19, 20, 21, 22, 23],
    ]


# --- collation ---


def collated(batching: al.Pack, lengths: Sequence[int], engine: Engine) -> list[dict[str, Any]]:
    batches = batching.open(Texts(lengths, True).open, START, lane_of(engine))
    made = []
    for batch in batches:
        assert isinstance(batch.block, Columns)
        made.append(batching.collate_fn.from_columns(batch.block.fields))
        from_rows = batching.collate_fn(batch.block.rows())
        assert from_rows.keys() == made[-1].keys()
        for name, value in from_rows.items():
            assert np.array_equal(value, made[-1][name]) and type(value) is type(made[-1][name])
    return made


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(0, 12), max_size=30),
    batch_size=st.integers(1, 3),
    pool=st.none() | st.integers(1, 9),
)
def test_segments_of_the_flattened_block_are_documents_or_padding(
    lengths: list[int], batch_size: int, pool: int | None, engine: Engine
) -> None:
    for batch in collated(al.Pack(length=10, batch_size=batch_size, pool=pool), lengths, engine):
        assert (batch["cu_seqlens"].dtype, batch["segment_ids"].dtype) == (torch.int32, torch.int32)
        flat, positions = batch["segment_ids"].flatten().tolist(), batch["positions"].flatten().tolist()
        bounds = batch["cu_seqlens"].tolist()
        assert (bounds[0], bounds[-1]) == (0, len(flat))
        spans = list(pairwise(bounds))
        assert batch["max_seqlen"] == max(stop - first for first, stop in spans)
        for first, stop in spans:
            assert first // 10 == (stop - 1) // 10, "no segment goes over the end of a row"
            assert len(set(flat[first:stop])) == 1
            if flat[first]:
                assert positions[first:stop] == list(range(stop - first))
            else:
                assert stop % 10 == 0, "padding is the last segment of its row"
        documents = sum(len({*row} - {0}) for row in batch["segment_ids"].tolist())
        assert len(spans) == documents + sum(0 in row for row in batch["segment_ids"].tolist())


def test_rows_for_a_function_of_ones_own_are_dicts_of_arrays(engine: Engine) -> None:
    (batch,) = al.Pack(length=6, batch_size=2).open(Texts([4, 4]).open, START, lane_of(engine))
    rows = batch.block.rows()
    assert [{name: value.tolist() for name, value in row.items()} for row in rows] == [
        {"tokens": [1, 2, 3, 4, 5, 6], "segment_ids": [1, 1, 1, 1, 2, 2], "positions": [0, 1, 2, 3, 0, 1]},
        {"tokens": [7, 8, 0, 0, 0, 0], "segment_ids": [1, 1, 0, 0, 0, 0], "positions": [0, 1, 0, 0, 0, 0]},
    ]
    assert [str(batch.block.trail.place(index)) for index in (0, 1)] == [
        "sample 0 of listed",
        "sample 1 of listed",
    ], "a row is known by its first document"


# --- values ---


def test_fields_keep_their_dtype_and_trailing_dimensions(engine: Engine) -> None:
    vectors = np.arange(12, dtype=np.float32).reshape(6, 2)
    block = Columns(
        {
            "ids": Ragged(np.arange(6, dtype=np.uint16), np.array([0, 2, 6])),
            "vectors": Ragged(vectors, np.array([0, 2, 6])),
            "mask": Ragged(np.ones(6, bool), np.array([0, 2, 6])),
        },
        OffsetTrail(0, None),
    )
    (batch,) = batches_of(al.Pack(["ids", "vectors", "mask"], length=8), block, engine)
    found = {name: np.asarray(column) for name, column in batch.block.fields.items()}  # type: ignore[attr-defined]
    assert {name: (array.dtype.name, array.shape) for name, array in found.items()} == {
        "ids": ("uint16", (1, 8)),
        "vectors": ("float32", (1, 8, 2)),
        "mask": ("bool", (1, 8)),
        "segment_ids": ("int32", (1, 8)),
        "positions": ("int32", (1, 8)),
    }
    assert np.array_equal(found["vectors"][0, :6], vectors)


def test_a_dtype_is_converted_to_exactly(engine: Engine) -> None:
    fields = {"tokens": {"value": -1, "dtype": "int32"}}
    for value, fits in ((2**31 - 1, True), (2**31, False)):
        rows = Rows([{"tokens": [1]}, {"tokens": [value]}], OffsetTrail(0, None))
        ragged = Ragged(np.array([1, value]), np.array([0, 1, 2]))
        for block in (rows, Columns({"tokens": ragged}, OffsetTrail(0, None))):
            if fits:
                (batch,) = batches_of(al.Pack(fields, length=3), block, engine)
                assert np.array_equal(batch.block.column("tokens"), np.array([[1, value, -1]], np.int32))
            else:
                with pytest.raises(ValueError, match=r"'tokens' of sample 1: value 2147483648 does not fit"):
                    batches_of(al.Pack(fields, length=3), block, engine)


def test_bytes_and_tensors_and_empty_lists_are_documents_too(engine: Engine) -> None:
    block = Rows(
        [{"tokens": b"ab"}, {"tokens": []}, {"tokens": torch.tensor([5], dtype=torch.uint8)}],
        OffsetTrail(0, None),
    )
    (batch,) = batches_of(al.Pack(length=4), block, engine)
    assert np.array_equal(batch.block.column("tokens"), np.array([[97, 98, 5, 0]], np.uint8))
    assert (batch.samples, batch.tokens) == (3, 3)


@pytest.mark.parametrize("pool", [None, 9])
@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"labels": [1]}, "expected the field 'tokens' in sample 1, found only"),
        ([1], "mappings with a field 'tokens', found list from sample 1 on"),
        ({"tokens": 3, "labels": [3]}, "'tokens' of sample 1: expected a sequence of numbers"),
        (
            {"tokens": [1, 2], "labels": [3]},
            "'labels' of sample 1: expected the length 2 of field 'tokens', found 1",
        ),
        (
            {"tokens": [0.5], "labels": [3]},
            r"'tokens' of sample 1: expected tokens of dtype int64 as in the documents before, found "
            r'float64; give Pack\(\{"tokens": \{"dtype": "int64"\}\}\), which converts all of them',
        ),
        (
            {"tokens": [[1, 2], [3, 4]], "labels": [3, 3]},
            r"'tokens' of sample 1: expected the shape \(T,\) as in the documents before, found \(2, 2\); "
            r"only the first dimension may differ$",
        ),
        (
            {"tokens": torch.tensor([[1, 2, 3]]), "labels": [3]},
            r"expected the shape \(T,\) as in the documents before, found \(1, 3\); .*squeeze it",
        ),
    ],
)
def test_a_sample_that_cannot_be_packed_is_named(
    sample: Any, message: str, pool: int | None, engine: Engine
) -> None:
    block = Rows([{"tokens": [7], "labels": [7]}, sample], OffsetTrail(0, None))
    with pytest.raises(ValueError, match=message) as caught:
        batches_of(al.Pack(["tokens", "labels"], length=1, pool=pool), block, engine)
    assert "sample 1" in "".join([str(caught.value), *getattr(caught.value, "__notes__", [])])


def test_what_to_fill_with_must_fit_the_data(engine: Engine) -> None:
    block = Columns({"tokens": Ragged(np.zeros(3, np.uint16), np.array([0, 3]))}, OffsetTrail(0, None))
    for fields in ({"tokens": -100}, {"tokens": {"value": -100}}):
        with pytest.raises(ValueError) as caught:
            batches_of(al.Pack(fields, length=3), block, engine)
        assert str(caught.value) == (
            "field 'tokens' of sample 0: padding value -100 does not fit dtype uint16; give the field a "
            'dtype that holds it, as with {"value": -100, "dtype": "int64"}'
        )


EMPTY = [np.array([]), torch.tensor([]), [], np.zeros((0, 7), np.float32)]


@pytest.mark.parametrize("pool", [None, 2, 10])
@pytest.mark.parametrize("empty", EMPTY, ids=repr)
@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("size", [1, 2, 5])
def test_an_empty_document_of_another_dtype_is_an_empty_document(
    pool: int | None, empty: Any, at: int, size: int, engine: Engine
) -> None:
    documents: list[Any] = [np.array(tokens, np.uint16) for tokens in ([1, 2], [3], [4, 5, 6])]
    documents.insert(at, empty)
    block = Rows([{"tokens": tokens, "labels": tokens} for tokens in documents], OffsetTrail(0, None))
    batching = al.Pack(["tokens", "labels"], length=4, pool=pool)
    parts = [block.part(start, start + size) for start in range(0, len(block), size)]
    batches = list(batching.open(lambda *_: (part for part in parts), START, lane_of(engine)))
    for name in ("tokens", "labels"):
        rows = [np.asarray(batch.block.column(name)) for batch in batches]
        assert {row.dtype.name for row in rows} == {"uint16"}
        found = [token for row in rows for token in row.ravel().tolist() if token]
        assert sorted(found) == [1, 2, 3, 4, 5, 6]
    assert sum(batch.tokens for batch in batches) == 6


@pytest.mark.parametrize("pool", [None, 10])
@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_an_empty_document_of_a_function_of_columns_is_one_too(pool: int | None, chunk: int) -> None:
    def read(columns: dict[str, Any]) -> dict[str, Any]:
        return {"tokens": al.Ragged.of([np.array(tokens) for tokens in columns["tokens"]])}

    def made(dataset: Any) -> list[Any]:
        loader = al.DataLoader(dataset, batching=al.Pack(length=8, pool=pool))
        return [(batch["tokens"].dtype, batch["tokens"].tolist()) for batch in loader]

    documents = al.from_iterable([{"tokens": [1, 2]}, {"tokens": []}, {"tokens": [3]}])
    arrays = documents.map(lambda sample: {"tokens": np.array(sample["tokens"])})
    expected = made(documents)
    assert made(arrays) == expected
    assert made(arrays.map_batches(dict, batch_size=chunk)) == expected
    assert made(documents.map_batches(read, batch_size=chunk)) == expected


def test_a_state_of_another_filling_is_refused() -> None:
    documents = al.from_iterable([{"tokens": [1, 2]}, {"tokens": [3]}])

    def loader(fields: Any) -> Any:
        return al.DataLoader(documents, batching=al.Pack(fields, length=2))

    for fields in ("tokens", {"tokens": {"value": np.nan, "dtype": "float32"}}):
        saved = json.loads(json.dumps(loader(fields).state_dict()))
        loader(fields).load_state_dict(saved)
        for other in ({"tokens": -100}, {"tokens": {"value": 0, "dtype": "int32"}}):
            with pytest.raises(ValueError, match=r"batching: saved .*, now .*(-100|int32)"):
                loader(other).load_state_dict(saved)


def test_a_position_of_another_document_is_refused(engine: Engine) -> None:
    batching = al.Pack(length=4)
    with pytest.raises(ValueError, match="after 5 tokens of a document that now has 3"):
        made_of(batching, Texts([3, 3]), lane_of(engine), [{}, {"used": 5}])


# --- options ---


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"fields": []}, ValueError, "fields should name at least one field"),
        ({"fields": {}}, ValueError, "fields should name at least one field"),
        ({"fields": 3}, TypeError, "fields should be a name, a list of names, or a mapping"),
        ({"fields": [3]}, TypeError, "fields should be a name, a list of names, or a mapping"),
        ({"fields": {3: 0}}, TypeError, "fields should be a name, a list of names, or a mapping"),
        (
            {"fields": ["positions", "cu_seqlens"]},
            ValueError,
            r"has \['cu_seqlens', 'positions'\] of its own",
        ),
        ({"fields": {"tokens": "0"}}, ValueError, "padding value should be a number"),
        ({"fields": {"tokens": {"value": 0, "side": "left"}}}, ValueError, "Pack takes value and dtype"),
        ({"length": 0}, ValueError, "length should be a positive integer"),
        ({"batch_size": None}, ValueError, "batch_size should be a positive integer"),
        ({"pool": 0}, ValueError, "pool should be a positive integer"),
        ({"overlong": "alone"}, ValueError, "overlong should be 'split', 'truncate' or 'raise'"),
    ],
)
def test_options_are_checked(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        al.Pack(**options)


def test_its_number_of_batches_is_not_known() -> None:
    with pytest.raises(UnknownCount, match="depends on how long the samples are"):
        al.Pack().count_batches(lambda: [1.0])


def test_it_pickles_and_compares() -> None:
    batching = al.Pack({"tokens": 0, "labels": -100}, length=9)
    assert pickle.loads(pickle.dumps(batching)) == batching != al.Pack("tokens", length=9)
