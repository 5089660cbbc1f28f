"""A sequence of runs is the tuple of its texts, and as small as it has runs."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.stores.names import RunLengths


@given(st.lists(st.sampled_from(["tar", "text"]), max_size=20).map(tuple), st.slices(20))
def test_runs_are_the_texts_they_are_of(texts: tuple[str, ...], part: slice) -> None:
    runs = RunLengths.of(texts)
    assert runs == texts and tuple(runs) == texts and len(runs) == len(texts)
    assert [runs[index] for index in range(-len(texts), len(texts))] == [*texts, *texts]
    assert runs[part] == texts[part]
    assert pickle.loads(pickle.dumps(runs)) == runs
    assert runs != (*texts, "tar")


def test_a_million_are_small() -> None:
    runs = RunLengths([("tar", 1_000_000), ("text", 1)])
    assert (runs[999_999], runs[1_000_000]) == ("tar", "text")
    assert len(pickle.dumps(runs)) < 200
    with pytest.raises(IndexError):
        runs[1_000_001]
