"""A slot is lent once at a time, lives as long as anything lies over it, and goes back to the kernel."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from examples_drawn import examples
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.blocks.memory import borrowing, empty, filled, lend, stacked
from asyncloader.testing import check_leaks
from asyncloader.workers.packing import pack, unpack
from asyncloader.workers.slots import InboundSlots, OpenSlot, OutboundSlots

pytestmark = [
    pytest.mark.usefixtures("platform"),
    pytest.mark.parametrize("platform", ["native", "portable"], indirect=True),
]

KB = 1 << 10


class Pair:
    """Both ends of the slots of one worker, in one process."""

    def __init__(self, spare: int = 3, spare_bytes: int = sys.maxsize) -> None:
        self.worker = OutboundSlots(spare, spare_bytes)
        self.parent = InboundSlots(spare_bytes)
        self.last_bytes = 0

    def send(self, batch: Any, made_in: OpenSlot | None = None) -> int:
        packed = pack(batch, made_in)
        del batch
        self.message, self.at = packed.message, packed.at
        self.last_bytes = packed.slot_bytes
        slot, descriptors, dropped = self.worker.fill(packed)
        for each in dropped:
            self.parent.drop(each)
        for descriptor in descriptors:
            self.parent.add(slot, descriptor)
        return slot

    def receive(self, slot: int) -> Any:
        return unpack(self.message, self.parent.lend(slot), self.at)

    def make(self, make: Callable[[], Any]) -> Any:
        """Pass on a batch that is made in a slot as large as the last one, if there is one."""
        opened = self.worker.open(self.last_bytes)
        lend(opened)
        with borrowing():
            made = [make()]
        lend(None)
        slot = self.send(made.pop(), opened)
        self.was_in_place = opened is not None and slot == opened.slot
        return self.receive(slot)

    def pass_on(self, batch: Any) -> Any:
        return self.receive(self.send(batch))

    def return_freed(self) -> list[int]:
        freed, retired = self.parent.take_returned(1000)
        self.worker.take_back(freed)
        self.worker.retire(retired)
        return [*freed]


def big(value: int = 0, size_bytes: int = 100 * KB) -> torch.Tensor:
    return torch.full((size_bytes,), value, dtype=torch.uint8)


def shared_bytes() -> int:
    """The shared memory that this process maps and that is there."""
    found = re.search(r"^RssShmem:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * KB


DERIVED: dict[str, Callable[[torch.Tensor], Any]] = {
    "itself": lambda tensor: tensor,
    "slice": lambda tensor: tensor[5:9],
    "view of a view": lambda tensor: tensor.view(-1, 4)[3].view(torch.int32),
    "storage": lambda tensor: tensor.untyped_storage(),
    "detached": lambda tensor: tensor.detach(),
    "numpy": lambda tensor: tensor.numpy(),
    "numpy slice": lambda tensor: tensor.numpy()[7:][::2],
    "tensor from numpy slice": lambda tensor: torch.from_numpy(tensor.numpy()[4:8]),
    "asarray": lambda tensor: np.asarray(tensor),
    "dlpack": lambda tensor: np.from_dlpack(tensor),
    "memoryview": lambda tensor: memoryview(tensor.numpy())[2:],
    "frombuffer": lambda tensor: np.frombuffer(memoryview(tensor.numpy()), np.uint16),
    "in a cycle": lambda tensor: _in_a_cycle(tensor),
}


def _in_a_cycle(tensor: torch.Tensor) -> list[Any]:
    cycle: list[Any] = [tensor]
    cycle.append(cycle)
    return cycle


@pytest.mark.parametrize("kind", DERIVED)
def test_whatever_is_derived_from_a_batch_keeps_its_slot(kind: str) -> None:
    pair = Pair()
    kept = DERIVED[kind](pair.pass_on({"t": big(1)})["t"])
    gc.collect()
    assert pair.return_freed() == []
    del kept
    gc.collect()
    assert pair.return_freed() == [1]


def test_an_array_keeps_its_slot_too() -> None:
    pair = Pair()
    kept = pair.pass_on(np.ones(100 * KB, np.uint8)).reshape(-1, 8)[3:].T
    gc.collect()
    assert pair.return_freed() == []
    assert kept.sum() == (100 * KB - 24)
    del kept
    assert pair.return_freed() == [1]


def test_keeping_the_labels_does_not_keep_the_slot() -> None:
    pair = Pair()
    labels = pair.pass_on({"images": big(), "labels": torch.arange(64)})["labels"]
    assert pair.return_freed() == [1]
    assert torch.equal(labels, torch.arange(64))


def test_a_freed_slot_is_used_again() -> None:
    pair = Pair()
    for value in range(20):
        assert (pair.pass_on(big(value)) == value).all()
        assert pair.return_freed() == [1]


def test_slots_grow_with_the_batches_and_their_number_stays() -> None:
    pair = Pair()
    for size_bytes in range(50 * KB, 1000 * KB, 10 * KB):
        assert len(pair.pass_on(big(1, size_bytes))) == size_bytes
        pair.return_freed()
        assert len(pair.parent) <= 2


def test_slots_of_released_batches_go_back_to_the_kernel() -> None:
    pair = Pair(spare=3)
    kept = [pair.pass_on(big(value)) for value in range(50)]
    assert len(pair.parent) == 50
    assert [int(tensor[0]) for tensor in kept] == list(range(50))
    kept.clear()
    pair.return_freed()
    pair.pass_on(big())
    assert len(pair.parent) == 3


def test_free_slots_are_bounded_in_bytes() -> None:
    pair = Pair(spare=20, spare_bytes=500 * KB)
    kept = [pair.pass_on(big(value)) for value in range(10)]
    assert [int(tensor[-1]) for tensor in kept] == list(range(10))
    kept.clear()
    pair.return_freed()
    assert int(pair.pass_on(big(7))[0]) == 7
    assert len(pair.parent) == 5  # four of 112 KiB fit, beside the one that is filled


def test_a_free_slot_above_the_bound_holds_no_memory(platform: str) -> None:
    """It is emptied and used again; or forgotten by both sides, where the system cannot empty it."""
    pair = Pair(spare_bytes=8000 * KB)
    before = shared_bytes()
    for value in (1, 2):
        tensor = pair.pass_on(big(value, 32_000 * KB))
        assert shared_bytes() > before + 24_000 * KB
        assert int(tensor.min()) == value
        del tensor
        if platform == "portable":
            assert pair.return_freed() == []
        assert shared_bytes() < before + 8000 * KB
        if platform == "native":
            assert pair.return_freed() == [1]


def test_the_end_of_a_copy_in_a_forked_process_takes_nothing_away() -> None:
    tensor = Pair(spare_bytes=0).pass_on(big(3))
    child = os.fork()
    if not child:
        del tensor
        os._exit(0)
    os.waitpid(child, 0)
    assert (tensor == 3).all()


def test_what_is_kept_outlives_the_worker_and_nothing_else_does() -> None:
    with check_leaks():
        pair = Pair()
        kept = [pair.pass_on(big(value)) for value in range(3)]
        pair.parent.clear()
        del pair
        gc.collect()
        assert [int(tensor.min()) for tensor in kept] == [0, 1, 2]
        kept[0][:] = 9
        assert int(kept[1].max()) == 1
        kept.clear()


def test_slots_hold_no_descriptor() -> None:
    with check_leaks(allow=lambda what: "shared mapping" in what):
        pair = Pair()
        kept = [pair.pass_on(big()) for _ in range(5)]
    assert len(kept) == 5


@examples(60)
@given(st.lists(st.tuples(st.integers(17, 300), st.integers(0, 6)), max_size=40))
def test_a_batch_is_never_overwritten_while_it_lives(steps: list[tuple[int, int]]) -> None:
    pair = Pair(spare=2)
    kept: list[tuple[torch.Tensor, int]] = []
    for value, (size_kb, keep) in enumerate(steps):
        kept.append((pair.pass_on(big(value, size_kb * KB)), value))
        kept = kept[len(kept) - keep :] if keep else []
        pair.return_freed()
        assert all((tensor == value).all() for tensor, value in kept)
        assert len(pair.parent) <= 7 + 1 + 2


# --- made in place ---


def images(value: int, count: int = 8) -> dict[str, Any]:
    return {"x": filled((count, 50, 1000), value, np.uint8), "y": np.arange(count)}


def test_a_batch_that_is_made_in_a_slot_stays_there() -> None:
    pair = Pair()
    for value in range(5):
        got = pair.make(lambda value=value: images(value))  # type: ignore[misc]
        assert pair.was_in_place is (value > 0)
        assert (
            (got["x"] == value).all() and got["x"].shape == (8, 50, 1000) and got["y"].tolist() == [*range(8)]
        )
        del got
        assert pair.return_freed() == [1]


def test_what_is_kept_of_a_batch_may_be_written_to() -> None:
    """A function that uses one array for all batches changes those that the parent has neither way."""
    pair, kept = Pair(), []

    def make(value: int) -> Any:
        kept.append(images(value))
        return kept[-1]

    got = []
    for value in range(4):
        got.append(pair.make(lambda value=value: make(value)))  # type: ignore[misc]
        assert not pair.was_in_place
        kept[-1]["x"][:] = 99
        pair.return_freed()
    assert [int(batch["x"].max()) for batch in got] == [0, 1, 2, 3]
    assert all((batch["x"] == 99).all() for batch in kept)


def test_a_slot_that_was_kept_and_let_go_is_not_lost_nor_leaked() -> None:
    with check_leaks():
        pair = Pair()
        for value in range(6):
            kept = images(0)
            got = pair.make(lambda kept=kept: kept)  # type: ignore[misc]
            del kept
            assert int(got["x"][0, 0, 0]) == 0
            del got, value
            pair.return_freed()
        pair.parent.clear()
        del pair
        gc.collect()


@examples(60)
@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from([1, 20, 70, 200]), max_size=4),  # KB that are made in place
            st.lists(st.sampled_from([1, 30, 100]), max_size=3),  # KB that are not
            st.integers(0, 6000),  # bytes in the pickle stream
            st.booleans(),  # whether the worker keeps some of it
        ),
        max_size=12,
    )
)
def test_batches_made_in_slots_come_as_they_went(
    batches: list[tuple[list[int], list[int], int, bool]],
) -> None:
    pair, kept = Pair(), []
    for number, (lent, own, extra, keep) in enumerate(batches):

        def make(lent: Any = lent, own: Any = own, extra: int = extra, keep: bool = keep) -> Any:
            arrays = [empty((size * KB,), np.uint8) for size in lent]
            for array in arrays:
                array.fill(number)  # noqa: B023
            kept[:] = arrays[:1] if keep else []
            return arrays, [np.full(size * KB, number, np.uint8) for size in own], "s" * extra  # noqa: B023

        arrays, others, text = pair.make(make)
        for array in kept:
            array.fill(255)
        assert [len(array) // KB for array in arrays] == lent and [
            len(array) // KB for array in others
        ] == own
        assert all((array == number).all() for array in [*arrays, *others]) and len(text) == extra
        del arrays, others
        if number % 3:
            pair.return_freed()


def test_arrays_of_a_batch_are_stacked_where_they_are_read() -> None:
    pair = Pair()
    rows = [np.full((100, 100), value, np.int32) for value in range(8)]
    for _ in range(3):
        got = pair.make(lambda: stacked(rows))
        assert np.array_equal(got, np.stack(rows))
        del got
        pair.return_freed()
    assert pair.was_in_place
