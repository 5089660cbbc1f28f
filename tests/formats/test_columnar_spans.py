"""Spans merged into requests, and read as a file."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from asyncloader.formats.decoder import HeldSpans, merge
from asyncloader.types import Span

LENGTH = 50_000
CONTENT = bytes(byte % 251 for byte in range(LENGTH))

spans = st.tuples(st.integers(0, LENGTH - 2), st.integers(1, 3000)).map(
    lambda each: Span(each[0], min(each[0] + each[1], LENGTH))
)


@given(st.lists(st.lists(spans, max_size=4), max_size=5), st.integers(1, 5000))
def test_every_group_can_be_read_as_soon_as_it_is_complete(
    groups: list[list[Span]], chunk_bytes: int
) -> None:
    merged, complete = merge(groups)
    assert complete == sorted(complete)
    body = b"".join(CONTENT[start:stop] for start, stop in merged)
    file = HeldSpans(merged, LENGTH)
    at = 0
    for group, needed in zip(groups, complete, strict=True):
        while file.fed < needed:
            file.feed(body[at : at + chunk_bytes])
            at += chunk_bytes
        for start, stop in group:
            file.seek(start)
            assert file.read(stop - start) == CONTENT[start:stop]
        file.drop(needed)
    assert sum(len(piece) for _, piece, _ in file._pieces) <= len(body)


@given(st.lists(spans, min_size=1, max_size=8))
def test_what_is_read_and_not_wanted_is_little(wanted: list[Span]) -> None:
    merged, _ = merge([wanted])
    useful = len({byte for start, stop in wanted for byte in range(start, stop)})
    assert sum(stop - start for start, stop in merged) <= useful + max(useful, 1024) * len(wanted)
    assert all(first.stop < second.start for first, second in pairwise(merged))


def test_gaps_are_read_through_where_that_costs_less_than_a_request() -> None:
    assert merge([[Span(0, 10), Span(1034, 1040)]])[0] == [Span(0, 1040)]
    assert merge([[Span(0, 10), Span(1035, 1040)]])[0] == [Span(0, 10), Span(1035, 1040)]
    assert merge([[Span(0, 40_000)], [Span(50_000, 60_000)]]) == ([Span(0, 60_000)], [40_000, 60_000])
    assert len(merge([[Span(0, 1 << 30), Span((1 << 30) + (1 << 20), 1 << 31)]])[0]) == 2
    assert merge([[Span(100, 200)], [Span(0, 50)]]) == ([Span(100, 200), Span(0, 50)], [100, 150])


def test_what_is_not_held_is_missing() -> None:
    file = HeldSpans([Span(10, 15), Span(93, 100)], 100)
    file.feed(CONTENT[10:15] + b"the end")
    file.seek(12)
    assert (file.read(8), file.tell()) == (CONTENT[12:15], 15)
    file.seek(-3, 2)
    assert file.read() == b"end"
