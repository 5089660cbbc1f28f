"""What ranks agree on at a step, each rank a thread here, over a store as a process group has one."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from torch.distributed import TCPStore

from asyncloader.errors import RanksError
from asyncloader.loader import in_step as agreement
from asyncloader.loader.in_step import Agreement, Policy, StepVerdict

RANKS = 3
_names = count()


# One for all: where host names resolve badly, a client that connects may take 5 s.
@pytest.fixture(scope="module")
def store() -> Iterator[TCPStore]:
    yield TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=20))


@pytest.fixture
def join(store: TCPStore) -> Callable[..., list[Agreement]]:
    def join(policy: Policy = "stop", name: str | None = None) -> list[Agreement]:
        name = f"pass {next(_names)}" if name is None else name
        return [Agreement(store, name, rank, RANKS, policy) for rank in range(RANKS)]

    return join


def settle(ranks: list[Agreement], *have: bool) -> list[Any]:
    """What each rank is told, or raises."""

    def one(rank: Agreement, has_batch: bool) -> Any:
        try:
            return rank.settle(has_batch)
        except RanksError as error:
            return error

    with ThreadPoolExecutor(len(have)) as pool:
        return list(pool.map(one, ranks, have))


def test_all_go_on_while_all_have_a_batch(join: Any) -> None:
    ranks = join()
    for _ in range(5):
        assert settle(ranks, True, True, True) == [StepVerdict.GO] * RANKS
    assert settle(ranks, False, False, False) == [StepVerdict.END] * RANKS
    assert [rank.steps for rank in ranks] == [5] * RANKS


@pytest.mark.parametrize(("policy", "verdict"), [("stop", StepVerdict.STOP), ("pad", StepVerdict.GO)])
def test_one_that_runs_dry_is_met_by_all(join: Any, policy: Policy, verdict: StepVerdict) -> None:
    ranks = join(policy)
    settle(ranks, True, True, True)
    assert settle(ranks, True, False, True) == [verdict] * RANKS


def test_an_empty_batch_is_shared_at_the_first_step_alone(join: Any) -> None:
    ranks = join("pad")
    assert settle(ranks, True, False, True) == [StepVerdict.GO_WITH_EMPTY] * RANKS
    assert settle(ranks, True, False, True) == [StepVerdict.GO] * RANKS


def test_raise_is_raised_by_all_at_the_same_step(join: Any) -> None:
    ranks = join("raise")
    settle(ranks, True, True, True)
    raised = settle(ranks, False, True, True)
    assert ["has no batch" in str(error) for error in raised] == [True, False, False]
    assert [(error.rank, error.step) for error in raised] == [(0, 1), (1, 1), (2, 1)]


def test_ranks_that_end_together_are_not_uneven(join: Any) -> None:
    ranks = join("raise")
    settle(ranks, True, True, True)
    assert settle(ranks, False, False, False) == [StepVerdict.END] * RANKS


def test_one_that_leaves_wakes_those_that_wait(join: Any) -> None:
    ranks = join()
    settle(ranks, True, True, True)
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.map(lambda rank: settle([rank], True)[0], ranks[1:])
        ranks[0].leave()
        for error in waiting:
            assert "rank 0 has left the epoch" in str(error)


def test_one_that_leaves_between_two_steps_is_missed_by_nobody(join: Any) -> None:
    """It had settled the next step already, on its thread, when its consumer left."""
    ranks = join()
    settle(ranks, True, True, True)
    settle(ranks, True, True, True)
    ranks[0].leave()
    told = settle(ranks[1:], True, True)
    assert all("rank 0 has left" in str(error) for error in told)


def test_to_leave_after_the_end_tells_nobody(join: Any, store: TCPStore) -> None:
    ranks = join(name="ended")
    settle(ranks, False, False, False)
    ranks[0].end()
    keys = store.num_keys()
    ranks[0].leave()
    assert store.num_keys() == keys


def test_one_that_never_comes_is_an_error_after_the_time_out(
    join: Any, store: TCPStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(agreement, "_QUIET_S", 0.1)
    usual = store.timeout
    store.set_timeout(timedelta(seconds=0.5))
    ranks = join()
    store.set_timeout(usual)
    with caplog.at_level(logging.WARNING, "asyncloader.ranks"):
        told = settle(ranks[:2], True, True)
    assert all("did not answer within" in str(error) for error in told)
    assert "does every rank iterate this loader" in caplog.text


def test_one_that_gives_up_for_another_is_not_blamed_itself(
    join: Any, store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = join()
    monkeypatch.setattr(ranks[0], "_patience", timedelta(seconds=0.2))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ranks[1].settle, True)
        with pytest.raises(RanksError, match="did not answer"):
            ranks[0].settle(True)
        ranks[0].leave()
        with pytest.raises(RanksError, match=r"did not answer.*as rank 0 has found"):
            waiting.result()


def test_a_later_pass_connects_no_more(join: Any, store: TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def one_pass() -> None:
        settle(join(), False, False, False)

    one_pass()
    gc.collect()
    monkeypatch.setattr(TCPStore, "clone", None)
    one_pass()


@pytest.mark.parametrize("others_have", [True, False])
def test_the_store_does_not_grow_with_the_steps(join: Any, store: TCPStore, others_have: bool) -> None:
    ranks = join("pad")
    settle(ranks, True, True, True)
    settle(ranks, True, True, True)
    keys = store.num_keys()
    for _ in range(20):
        settle(ranks, True, others_have, others_have)
    assert store.num_keys() == keys


def test_passes_of_one_name_are_kept_apart(join: Any) -> None:
    first = join(name="again")
    settle(first, False, False, False)
    assert settle(join(name="again"), True, True, True) == [StepVerdict.GO] * RANKS


def test_what_one_gives_the_others_take(join: Any) -> None:
    ranks = join("pad")
    assert ranks[1].share("empty", "first") == "first"
    assert ranks[2].share("empty", "second") == "first"
    assert ranks[0].share("empty", None) == "first"


def test_who_tells_something_else_than_others_of_its_rank_is_told(join: Any) -> None:
    ranks = join()
    for step in range(2):
        for number, rank in enumerate(ranks):
            rank.compare("rank/0", f"step {step}", last=number == 0)
        settle(ranks, True, True, True)
    ranks[0].compare("rank/0", "one", last=True)
    ranks[1].compare("rank/1", "another", last=False)  # of another rank
    with pytest.raises(RanksError, match="they differ at step 2") as caught:
        ranks[2].compare("rank/0", "another", last=False)
    assert (caught.value.rank, caught.value.step) == (2, 2)


def test_what_was_compared_is_cleared_away(join: Any, store: TCPStore) -> None:
    ranks, before = join(), store.num_keys()
    kept = []
    for step in range(4):
        for number, rank in enumerate(ranks):
            rank.compare("rank/0", f"step {step}", last=number == 0)
        settle(ranks, True, True, True)
        kept.append(store.num_keys() - before)
    assert kept[1:] == [kept[1]] * 3


def test_a_store_that_has_gone_before_the_pass_is_an_error_of_ranks() -> None:
    program = """
from datetime import timedelta
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=20))
print(store.port, flush=True)
input()
"""
    options: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", program], **options) as first_rank:
        assert first_rank.stdout is not None
        port = int(first_rank.stdout.readline())
        store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=2))
        first_rank.kill()
        first_rank.wait()
        with pytest.raises(RanksError, match="or its store has gone") as caught:
            Agreement(store, "pass", 1, RANKS, "stop")
    assert (caught.value.rank, caught.value.step) == (1, 0)
