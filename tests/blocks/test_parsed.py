"""Columns of parsed text: Python's own objects for who asks for rows, arrays for who can use them."""

from __future__ import annotations

import pickle

import numpy as np
import torch
from drawn_columns import plain

import asyncloader as al
from asyncloader.blocks import (
    Block,
    Columns,
    IntegerLists,
    Objects,
    OffsetTrail,
    Ragged,
    Rows,
    columns_of,
    join,
)
from asyncloader.collate.default import collate_block

SAMPLES = [
    {"tokens": [1, 2], "number": 7},
    {"tokens": [], "number": 2**70},
    {"tokens": [-3], "number": 0.5},
    {"tokens": [4, 5], "number": 1},
]


def parsed(samples: list[dict[str, object]], first: int = 0) -> Columns:
    tokens = Ragged.of([sample["tokens"] for sample in samples])
    fields = {
        "tokens": IntegerLists(tokens.values, tokens.offsets),
        "number": Objects(sample["number"] for sample in samples),
    }
    return Columns(fields, OffsetTrail(first, None))


def rows_of(block: Block) -> str:
    """As text, in which 1 and a NumPy scalar of it differ."""
    return repr(block.rows())


def test_rows_are_lists_and_numbers_of_python_however_they_were_picked_and_joined() -> None:
    block = parsed(SAMPLES)
    assert rows_of(block) == repr(SAMPLES)
    assert rows_of(block.part(1, 3)) == repr(SAMPLES[1:3])
    assert rows_of(block.take([3, 0, 3])) == repr([SAMPLES[3], SAMPLES[0], SAMPLES[3]])
    joined = join([block.part(2, 4), block.take([1]), block])
    assert isinstance(joined, Columns)
    assert rows_of(joined) == repr([*SAMPLES[2:4], SAMPLES[1], *SAMPLES])
    assert isinstance(joined.column("tokens")[0], list)


def test_joined_to_other_blocks_the_samples_stay_what_they_are() -> None:
    block, row = parsed(SAMPLES[:2]), Rows([{"tokens": [0.5], "number": 1}], OffsetTrail(2, None))
    assert rows_of(join([block, row])) == repr([*SAMPLES[:2], *row.samples])
    arrays = Columns({"tokens": Ragged.of([[8], [9]]), "number": ["a", "b"]}, OffsetTrail(2, None))
    assert rows_of(join([block, arrays])) == repr([*SAMPLES[:2], *arrays.rows()])


def test_a_function_is_given_the_columns_that_are_made_of_the_rows() -> None:
    for first, stop in ((0, 4), (0, 1), (1, 2), (2, 4), (3, 4)):
        block = parsed(SAMPLES).part(first, stop)
        given = columns_of(block)
        assert plain(given) == plain(columns_of(Rows(SAMPLES[first:stop], block.trail)))
        assert type(given["tokens"]) is Ragged


def test_padded_and_stacked_they_are_what_the_rows_would_be() -> None:
    alike = parsed([SAMPLES[0], SAMPLES[3]])
    for collate in (al.Pad({"tokens": 0}), al.Pad({"number": 0}), al.default_collate):
        batch = None
        for block in (alike, Rows(alike.rows(), alike.trail)):
            try:
                made = collate_block(collate, block, str)
            except ValueError as error:
                made = {"error": torch.tensor(len(str(error)))}
            assert batch is None or str(made) == str(batch)
            batch = made
    # default_collate makes of lists what torch makes of them: a tensor for each place.
    assert str(batch and batch["tokens"]) == "[tensor([1, 4]), tensor([2, 5])]"


def test_they_pickle_with_what_is_theirs_alone() -> None:
    block = parsed(SAMPLES * 100).part(0, 4)
    copy = pickle.loads(pickle.dumps(block.fields))
    assert len(pickle.dumps(copy)) < 1000
    assert rows_of(Columns(copy, block.trail)) == repr(SAMPLES)
    assert copy["tokens"].flat.dtype == np.int64
