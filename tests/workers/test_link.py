"""Two ends tell each other objects in order, wait for nobody, use their slots again, and end together."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from waiting import until

from asyncloader.flow.channel import EndOfChannel
from asyncloader.testing import check_leaks
from asyncloader.workers.link import Link, socketpair
from asyncloader.workers.packing import MOST_INLINE_BYTES, pack

pytestmark = [
    pytest.mark.usefixtures("platform"),
    pytest.mark.parametrize("platform", ["native", "portable"], indirect=True),
]

LARGE = 1 << 20


class Ends:
    """Both of a link, in one process."""

    def __init__(self) -> None:
        ours, theirs = socketpair()
        self.near, self.far = Link(ours, 3), Link(theirs, 3)

    def close(self) -> None:
        self.near.close()
        self.far.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    both = Ends()
    yield both
    both.close()


def receive(link: Link) -> Any:
    return link.rebuild(link.read())


def large(value: int) -> torch.Tensor:
    return torch.full((LARGE,), value, dtype=torch.uint8)


def test_objects_of_all_sizes_come_in_order_both_ways(ends: Ends) -> None:
    sizes = [0, 1, 100, MOST_INLINE_BYTES - 100, MOST_INLINE_BYTES + 1, 100_000, LARGE]
    for sender, receiver in ((ends.near, ends.far), (ends.far, ends.near)):
        with pytest.raises(BlockingIOError):
            receiver.read()
        sent = [(size, bytes([size % 251]) * size, torch.full((size,), 3.0)) for size in sizes]
        for each in sent:
            sender.send(pack(each))
        for size, text, numbers in sent:
            got = receive(receiver)
            assert got[:2] == (size, text)
            assert torch.equal(got[2], numbers)


def test_whoever_sends_never_waits(ends: Ends) -> None:
    for number in range(5_000):
        ends.near.send(pack((number, b"x" * 1000)))
        ends.far.send(pack((number, large(number % 200) if number % 1000 == 0 else None)))
    assert ends.near.is_behind and ends.far.is_behind
    for number in range(5_000):
        assert ends.far.wait(10) and receive(ends.far)[0] == number
        ends.near.catch_up()
        ends.far.catch_up()
        assert ends.near.wait(10)
        got = receive(ends.near)
        assert got[0] == number
        assert got[1] is None or torch.equal(got[1], large(number % 200))
    assert not ends.near.wait(0)
    assert not ends.near.is_behind and not ends.far.is_behind


def test_waiting_sends_what_waits(ends: Ends) -> None:
    go, may_go = os.pipe()
    pid = os.fork()
    if not pid:
        ends.near.close()
        os.read(go, 1)
        while receive(ends.far) != "last" or ends.far.send(pack("got it")):
            ends.far.wait(10)
        ends.far.drain()
        os._exit(0)
    ends.far.close()
    for _ in range(2_000):
        ends.near.send(pack("x" * 1000))
    ends.near.send(pack("last"))
    assert ends.near.is_behind
    os.write(may_go, b".")
    assert ends.near.wait(30)
    assert receive(ends.near) == "got it"
    os.waitpid(pid, 0)
    os.close(go)
    os.close(may_go)


def test_slots_are_used_again_once_nothing_of_an_object_is_left(ends: Ends) -> None:
    slots = set()
    for number in range(20):
        ends.near.send(pack(large(number)))
        announced = ends.far.read()
        slots.add(announced[0])
        got = ends.far.rebuild(announced)
        assert got[0] == number and got[-1] == number
        del got
        ends.far.send(pack("told"))
        receive(ends.near)
    assert slots == {1}


def test_what_is_kept_stays_as_it_is(ends: Ends) -> None:
    kept = []
    for number in range(12):
        ends.near.send(pack(large(number)))
        kept.append(receive(ends.far))
        ends.far.send(pack("told"))
        receive(ends.near)
    assert [int(each.float().mean()) for each in kept] == list(range(12))


def test_what_a_forked_process_may_still_read_is_not_written_over(ends: Ends) -> None:
    ends.near.send(pack(large(1)))
    got = receive(ends.far)
    go, may_go = os.pipe()
    pid = os.fork()
    if not pid:
        os.read(go, 1)
        os._exit(0 if bool((got == 1).all()) else 1)
    del got
    for number in range(2, 12):
        ends.far.send(pack("told"))
        receive(ends.near)
        ends.near.send(pack(large(number)))
        announced = ends.far.read()
        assert announced[0] != 1
        assert ends.far.rebuild(announced)[0] == number
    os.write(may_go, b".")
    assert os.waitpid(pid, 0)[1] == 0
    os.close(go)
    os.close(may_go)


@pytest.mark.parametrize("way", ["close", "let go", "kill"])
def test_the_end_comes_behind_all_that_was_sent(way: str) -> None:
    ours, theirs = socketpair()
    pid = os.fork()
    if not pid:
        ours.close()
        far = Link(theirs, 3)
        far.send(pack(large(7)))
        far.send(pack("last"))
        if way == "let go":
            far.let_go()
        elif way == "close":
            far.close()
        else:
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()
    theirs.close()
    near = Link(ours, 3)
    until(lambda: near.is_let_go)
    near.send(pack("nobody reads it"))
    assert not near.is_behind
    assert receive(near)[0] == 7
    assert receive(near) == "last"
    for _ in range(2):
        assert near.wait(None)
        with pytest.raises(EndOfChannel):
            near.read()
    near.drain()
    near.close()
    if way != "kill":
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_nothing_is_left_behind_however_much_waited() -> None:
    with check_leaks():
        both = Ends()
        for number in range(3_000):
            both.near.send(pack(large(0) if number % 500 == 0 else b"x" * 1000))
        assert both.near.is_behind
        both.close()
        both.near.send(pack(large(0)))
        both.close()


def test_too_many_open_files_are_told_as_such(ends: Ends) -> None:
    ends.near.send(pack(large(1)))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            ends.far.read()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(lowest)


def test_arrays_lie_where_they_were_received(ends: Ends) -> None:
    ends.near.send(pack({"labels": np.arange(10), "images": np.zeros((4, LARGE), np.uint8)}))
    got = receive(ends.far)
    assert got["images"].base is not None and got["images"].flags.writeable
    assert got["labels"].tolist() == list(range(10))
