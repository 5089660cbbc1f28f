"""Blocks decoded on a thread of their own are the same, end the same way, and leave nothing behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from waiting import until

from asyncloader.blocks import Columns, OffsetTrail, Rows
from asyncloader.flow.budget import Budget
from asyncloader.flow.channel import Channel, EndOfChannel
from asyncloader.pipeline.lane import Blocks
from asyncloader.pipeline.shards import decode_ahead

AMPLE = 1 << 30
_WAIT_S = 20


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "asyncloader-decoder"]


def block_of(number: int) -> Rows:
    return Rows([number], OffsetTrail(number, None))


def opened(blocks: Blocks, total_bytes: int = AMPLE, wake: Callable[[], None] = lambda: None) -> Blocks:
    return decode_ahead(blocks, Budget(total_bytes, [0]).claim(0), wake)


def test_the_next_block_is_decoded_while_one_is_held() -> None:
    begun = threading.Event()

    def decode() -> Blocks:
        yield block_of(0)
        begun.set()
        yield block_of(1)

    blocks = opened(decode())
    assert next(blocks).rows() == [0]
    assert begun.wait(_WAIT_S)
    assert [block.rows() for block in blocks] == [[1]]
    assert not threads()


def test_where_memory_is_short_nothing_is_decoded_ahead() -> None:
    pulled: list[str] = []

    def decode() -> Blocks:
        pulled.append(threading.current_thread().name)
        yield block_of(0)
        pulled.append(threading.current_thread().name)

    here = threading.current_thread().name
    blocks = opened(decode(), 32 << 20)
    next(blocks)
    assert pulled == [here]
    assert not list(blocks)
    assert pulled == [here, here]


def test_no_more_is_decoded_ahead_than_its_memory_holds() -> None:
    made: list[int] = []

    def decode() -> Blocks:
        for number in range(9):
            made.append(number)
            field = np.zeros((1, 3 << 20), np.int8)
            yield Columns({"field": field}, OffsetTrail(number, None))

    blocks = opened(decode())
    for received in range(1, 8):
        next(blocks)
        until(lambda enough=received + 2: len(made) >= enough)
        time.sleep(0.02)
        assert len(made) == received + 2, "of 3 MiB each, two wait"
    blocks.close()


def test_an_error_comes_behind_the_blocks_before_it() -> None:
    def decode() -> Blocks:
        yield block_of(0)
        raise ValueError("damaged")

    blocks = opened(decode())
    assert next(blocks).rows() == [0]
    with pytest.raises(ValueError, match="damaged"):
        next(blocks)
    assert not threads()


def test_closed_while_it_waits_for_bytes_it_ends_and_gives_its_memory_back() -> None:
    chunks, closed = Channel[bytes](1), threading.Event()

    def decode() -> Blocks:
        try:
            yield block_of(0)
            with pytest.raises(EndOfChannel):
                chunks.receive()
        finally:
            closed.set()

    budget = Budget(AMPLE, [0])
    blocks = decode_ahead(decode(), budget.claim(0), chunks.close)
    next(blocks)
    other = budget.claim(0)
    assert not other.take(AMPLE)
    blocks.close()
    assert closed.is_set()
    assert not threads()
    assert other.take(AMPLE)
