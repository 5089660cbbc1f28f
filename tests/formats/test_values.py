"""Values in one run of memory: what is taken out of it is what lies there, wherever each begins."""

from __future__ import annotations

import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.formats.offsets import Values

RUN = np.random.default_rng(0).bytes(4000)


@given(st.lists(st.integers(0, 300), max_size=12), st.sampled_from([0, 1, 8, 128, 129, 300]), st.booleans())
def test_values_are_what_lies_there(gaps: list[int], size: int, is_lent: bool) -> None:
    run = memoryview(bytearray(RUN)) if is_lent else RUN
    starts = np.cumsum([0, *gaps], dtype=np.int64)[: len(gaps)]
    stops = starts + size
    expected = [RUN[start:stop] for start, stop in zip(starts, stops, strict=True)]
    values = Values(run, starts, stops)
    assert values.bytes() == expected
    assert values.joined().tobytes() == b"".join(expected)
    rows = values.gathered(size)
    assert rows.shape == (len(gaps), size) and [row.tobytes() for row in rows] == expected
    assert rows.flags.writeable and not np.shares_memory(rows, np.frombuffer(RUN, np.uint8))


def test_taking_out_large_values_takes_little_more_than_they_do() -> None:
    size = 100_000
    starts = np.cumsum(np.arange(20) % 3 + size) - size
    run = bytes(int(starts[-1]) + size)
    tracemalloc.start()
    Values(run, starts, starts + size).gathered(size)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2.2 * len(run)
