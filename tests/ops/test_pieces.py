"""What operators hold of what they made: few large samples, many small ones."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from asyncloader.blocks import OffsetTrail, Rows
from asyncloader.flow.engine import Engine
from asyncloader.pipeline.calls import AdaptiveSize, cut
from asyncloader.pipeline.map import Map, MapBatches
from asyncloader.pipeline.op import Op

from .running import Listed, lane_of, run

MiB = 1 << 20


class Held:
    """Makes samples of a size, and knows the most that were there at a time."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._lock = threading.Lock()
        self._now = self.most = 0

    def make(self, sample: Any) -> Any:
        return _Made(self)

    async def make_async(self, sample: Any) -> Any:
        await asyncio.sleep(0)
        return _Made(self)

    def count(self, change: int) -> int:
        with self._lock:
            self._now += change
            self.most = max(self.most, self._now)
        return self._size_bytes


class _Made:
    def __init__(self, held: Held) -> None:
        self._held = held
        self.nbytes = held.count(1)

    def __del__(self) -> None:
        self._held.count(-1)


MAPS: list[tuple[Callable[[Held], Op], int]] = [
    (lambda held: Map(held.make), 1),
    (lambda held: Map(held.make, 8), 8),
    (lambda held: Map(held.make_async, 8), 8),
]


@pytest.mark.parametrize(("make_op", "concurrency"), MAPS, ids=["plain", "threads", "loop"])
def test_of_large_samples_no_more_is_held_than_is_worked_at(
    engine: Engine, make_op: Callable[[Held], Op], concurrency: int
) -> None:
    held = Held(4 * MiB)
    source = Listed(range(300), sizes=(100,))
    lane = lane_of(engine)  # of whose budget each sample is four times too large
    with_pauses = 0
    for block in make_op(held).open(source.open, {}, lane):
        with_pauses += len(block)
        time.sleep(0.001)  # so that what runs ahead does
        del block
    assert with_pauses == 300
    # One is being handed on, and one waits for it.
    assert held.most <= concurrency + 2


def test_of_the_first_chunks_no_more_are_made_than_run_at_a_time(engine: Engine) -> None:
    held, too_many = Held(4 * MiB), threading.Event()

    def make(batch: dict[str, Any]) -> dict[str, Any]:
        made = held.make(None)
        if held.most > 2 + 1:
            too_many.set()
        elif batch["x"][0] == 0:
            too_many.wait(1)  # nothing is known of the size of what is made until this returns
        return {"x": [made]}

    source = Listed([{"x": number} for number in range(9)], sizes=(1,))
    blocks = MapBatches(make, 1, 2).open(source.open, {}, lane_of(engine))
    next(blocks)
    blocks.close()
    # One waits for a thread, as with those of other kinds.
    assert not too_many.is_set() and source.handed_on <= 3


@pytest.mark.parametrize(("make_op", "concurrency"), MAPS, ids=["plain", "threads", "loop"])
def test_of_samples_of_changing_sizes_all_come_in_order(
    engine: Engine, make_op: Callable[[Held], Op], concurrency: int
) -> None:
    def resize(number: int) -> bytes:
        return number.to_bytes(4) * (1 if number % 50 < 40 else 1 << 18)

    async def resize_async(number: int) -> bytes:
        return resize(number)

    op = Map(resize_async, 8) if concurrency == 8 and make_op is MAPS[2][0] else Map(resize, concurrency)
    made = run(Listed(range(200), sizes=(7, 60)), [op], lane_of(engine))
    assert [int.from_bytes(each[:4]) for each in made] == list(range(200))


def test_small_samples_are_taken_many_at_a_time() -> None:
    pieces = AdaptiveSize(32, MiB)
    sizes = []
    for piece in cut(Rows(list(range(200)), OffsetTrail(0, None)), pieces.samples):
        sizes.append(len(piece))
        pieces.measure([b"small"] * len(piece))
    assert sizes == [1, 2, 4, 8, 16, 32, 32, 32, 32, 32, 9]


def test_pieces_shrink_at_once_when_samples_grow_and_keep_their_positions() -> None:
    pieces = AdaptiveSize(32, MiB)
    seen = []
    for piece in cut(Rows(list(range(200)), OffsetTrail(0, None)), pieces.samples):
        seen.append((piece.rows()[-1], piece.trail.after(len(piece) - 1)))
        pieces.measure([bytes(10 if piece.rows()[-1] < 100 else MiB // 4)] * len(piece))
    assert seen[6:9] == [(94, [{"sample": 95}]), (126, [{"sample": 127}]), (130, [{"sample": 131}])]
    assert [number for number, _ in seen[8:12]] == [130, 134, 138, 142]


def test_of_brief_calls_a_piece_has_more_and_of_slow_ones_as_many_as_ever() -> None:
    pieces = AdaptiveSize(32, 1 << 20)
    for _ in range(12):
        pieces.measure([1] * pieces.samples(), took_s=1e-6 * pieces.samples())
    assert pieces.samples() == 8 * 32
    pieces.measure([1] * pieces.samples(), took_s=1e-4 * pieces.samples())
    assert pieces.samples() == 32
    pieces.measure([1] * 32)
    assert pieces.samples() == 32


def test_pieces_of_slow_calls_stay_short() -> None:
    pieces = AdaptiveSize(32, MiB)
    for _ in range(10):
        made = [0] * pieces.samples()
        pieces.measure(made, 0.02 * len(made))
    assert pieces.samples() == 5  # a tenth of a second of calls
    pieces.measure([0] * 5, 5.0)
    assert pieces.samples() == 1
