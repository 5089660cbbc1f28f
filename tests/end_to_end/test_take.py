"""A ``take`` that cannot be kept says so: once a pass, at the line that reads."""

from __future__ import annotations

import asyncio
import inspect
import warnings
from typing import Any

import pytest

import asyncloader as al

pytestmark = pytest.mark.usefixtures("fork_server")


def numbers(count: int) -> al.Dataset:
    return al.from_iterable(lambda topology: topology.split(range(count)))


def line() -> int:
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno


@pytest.mark.parametrize("workers", [0, 2])
def test_it_warns_once_a_pass_at_the_line_that_reads(workers: int, capfd: pytest.CaptureFixture[str]) -> None:
    loader = al.DataLoader(numbers(8).take(20), 4, num_workers=workers, lanes=4)
    for _ in range(2):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            here = line() + 1
            assert len(list(loader)) == 4
        assert [(one.filename, one.lineno) for one in told] == [(__file__, here)]
        assert "take(20) lacks 12 samples: of 4 lanes lane 0 ended after 2 of its 5" in str(told[0].message)

    async def read() -> list[Any]:
        return [batch async for batch in loader]

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert len(asyncio.run(read())) == 4
    assert [(one.filename, one.lineno) for one in told] == [(__file__, inspect.getsourcelines(read)[1] + 1)]
    assert "lacks" not in capfd.readouterr().err, "nothing from the workers"


def test_it_does_not_warn_where_it_was_kept_or_the_loop_was_left() -> None:
    assert len(list(al.DataLoader(numbers(8).take(8), 4, lanes=4))) == 4
    for _ in al.DataLoader(numbers(8).take(20), 4):
        break
