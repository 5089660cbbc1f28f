from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.pipeline.pack import best_fit, split_lengths

from .batching import lognormal_lengths


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 20))
def test_documents_are_split_into_whole_parts_and_a_rest(lengths: list[int], most: int) -> None:
    document, before = split_lengths(np.array(lengths, np.int64), most)
    expected = [(nth, at) for nth, length in enumerate(lengths) for at in range(0, length, most)]
    assert list(zip(document.tolist(), before.tolist(), strict=True)) == expected


def plain_best_fit(lengths: list[int], capacity: int) -> list[list[int]]:
    """By looking at every row for every part."""
    rows: list[list[int]] = []
    for part in sorted(range(len(lengths)), key=lambda part: -lengths[part]):
        room = [capacity - sum(lengths[other] for other in row) for row in rows]
        fitting = [left for left in room if left >= lengths[part]]
        if fitting:
            # Of rows with as much room the one that got it last.
            rows[last_with(room, min(fitting))].append(part)
        else:
            rows.append([part])
    return rows


def last_with(room: list[int], left: int) -> int:
    return max(nth for nth, other in enumerate(room) if other == left)


@given(st.lists(st.integers(1, 30), max_size=40))
def test_parts_are_dealt_as_well_as_by_looking_at_every_row(lengths: list[int]) -> None:
    rows = best_fit(np.array(lengths, np.int64), 30)
    assert sorted(part for row in rows for part in row) == list(range(len(lengths)))
    assert all(sum(lengths[part] for part in row) <= 30 for row in rows)
    # Which of two rows with the same room is taken may differ, the rooms that are left do not.
    assert sorted(sum(lengths[part] for part in row) for row in rows) == sorted(
        sum(lengths[part] for part in row) for row in plain_best_fit(lengths, 30)
    )


@pytest.mark.parametrize("count", [2000, 4000])
def test_best_fit_wastes_under_one_per_cent_of_texts(count: int) -> None:
    lengths = np.array(lognormal_lengths(count))
    rows = best_fit(lengths, 2048)
    assert lengths.sum() > 0.99 * 2048 * len(rows)
