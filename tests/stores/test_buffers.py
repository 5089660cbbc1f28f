from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

from asyncloader.stores.store import BUFFER_BYTES, Buffers


def address(view: memoryview) -> int:
    found: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return found


def test_memory_that_nobody_looks_at_is_lent_again() -> None:
    buffers = Buffers()
    seen = set()
    for _ in range(20):
        view = buffers.take(BUFFER_BYTES)
        assert len(view) == BUFFER_BYTES and not view.readonly
        seen.add(address(view))
        del view
    assert len(seen) == 1


@pytest.mark.parametrize(
    "hold",
    [
        lambda view: view,
        lambda view: view[5:6],
        lambda view: view[100:][:50].toreadonly(),
        lambda view: np.frombuffer(view, np.uint8)[1000:1010],
        lambda view: np.frombuffer(view[8:16], np.int64),
        lambda view: {"deep": [np.asarray(view)[::2]]},
    ],
)
def test_what_is_held_never_changes(hold: Any) -> None:
    buffers = Buffers()
    view = buffers.take(BUFFER_BYTES)
    held_address = address(view)
    held = hold(view)
    del view
    gc.collect()
    others = [buffers.take(BUFFER_BYTES) for _ in range(3)]
    assert held_address not in map(address, others)
    del held
    assert address(buffers.take(BUFFER_BYTES)) == held_address


def test_loans_end_in_any_thread_and_in_any_order() -> None:
    buffers = Buffers()
    views = [buffers.take(BUFFER_BYTES) for _ in range(6)]
    addresses = {address(view) for view in views}
    thread = threading.Thread(target=lambda: [views.pop(at) for at in (3, 0, 2, 0, 1, 0)])
    thread.start()
    thread.join()
    assert {address(view) for view in [buffers.take(BUFFER_BYTES) for _ in range(6)]} <= addresses


def test_few_free_buffers_are_kept() -> None:
    buffers = Buffers()
    views = [buffers.take(BUFFER_BYTES) for _ in range(50)]
    views.clear()
    assert len(buffers._free) < 10
    assert not buffers._loans


def test_little_memory_is_no_whole_buffer() -> None:
    assert len(Buffers().take(100)) == 100
    assert len(Buffers().take(1 << 30)) == BUFFER_BYTES


def test_what_is_lent_outlives_whoever_lent_it() -> None:
    view = Buffers().take(BUFFER_BYTES)
    view[:3] = b"abc"
    gc.collect()
    assert bytes(view[:3]) == b"abc"
