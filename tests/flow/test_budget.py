"""Who may take how much of what lanes share, and who is called when there is room."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from asyncloader.flow.budget import Budget, ReadAhead, Reservation


def claims_of(budget: Budget, count: int) -> tuple[list[Reservation], list[int]]:
    """A claim for each lane, and the list of those that were called."""
    claims = [budget.claim(lane) for lane in range(count)]
    return claims, called_of(claims)


def called_of(claims: Sequence[Reservation]) -> list[int]:
    """The numbers of those claims that were called, from now on."""
    called: list[int] = []
    for number, claim in enumerate(claims):
        claim.on_room = lambda number=number: called.append(number)  # type: ignore[misc]
    return called


class Takers:
    """Who take parts ahead, and need the one that is due; see to it that they keep within ``total``."""

    def __init__(self, claims: Sequence[Reservation], called: list[int], total: int) -> None:
        self._claims, self._called, self._total = claims, called, total
        self._parts: list[list[int]] = [[] for _ in claims]

    def step(self, due: int, ahead: list[int], size: int) -> None:
        """Those of ``ahead``, and those called, take what they may; the one that is due takes one and frees
        one."""
        for other in ahead + self._called:
            if self._claims[other].take(size, is_needed=not self._parts[other]):
                self._parts[other].append(size)
        self._called.clear()
        if not self._parts[due]:
            assert self._claims[due].take(size, is_needed=True)
            self._parts[due].append(size)
        assert sum(map(sum, self._parts)) <= self._total + size
        self._claims[due].free(self._parts[due].pop(0))


def test_a_lane_takes_its_share_and_leaves_the_others_theirs() -> None:
    (first, second), _ = claims_of(Budget(100, range(2)), 2)
    assert first.take(30) and first.take(20)
    assert not first.take(1)
    assert second.take(50)
    first.free(20)
    assert first.take(20)


def test_a_part_larger_than_a_share_goes_to_those_whose_turn_is_near() -> None:
    budget = Budget(100, range(4))
    claims, called = claims_of(budget, 4)
    assert claims[0].take(50) and claims[1].take(50)
    assert not claims[3].take(50) and not claims[2].take(50)
    budget.pass_turn(1)
    claims[0].free(50)
    assert called == [2], "nearer to the turn than 3, which asked before"
    assert claims[2].take(50)


def test_in_its_turn_a_lane_gets_what_it_needs_whoever_holds_the_rest() -> None:
    budget = Budget(100, range(3))
    claims, called = claims_of(budget, 3)
    assert claims[0].take(100)
    assert not claims[2].take(10, is_needed=True)
    budget.pass_turn(2)
    assert called == [2]
    assert not claims[2].take(10), "nor anything that can wait"
    assert claims[2].take(10, is_needed=True)


def test_until_the_first_answer_nothing_competes_with_the_first_request() -> None:
    budget = Budget(100, range(2), ReadAhead(80, 100))
    (first, second), called = claims_of(budget, 2)
    assert first.take(5)
    assert not first.take(5) and not second.take(5)
    assert not second.take(5, is_needed=True), "not even what a lane needs that is not in its turn"
    first.answered("there", 0.0)
    assert called == [1]
    assert second.take(5) and first.take(5)


def test_a_lane_in_its_turn_does_not_wait_for_an_answer_to_another_one() -> None:
    budget = Budget(100, range(2), ReadAhead(80, 100))
    (first, second), called = claims_of(budget, 2)
    assert first.take(5)
    assert not second.take(5, is_needed=True)
    budget.pass_turn(1)
    assert called == [1]
    assert second.take(5, is_needed=True)


def test_lanes_share_what_is_of_use_and_are_called_when_that_grows() -> None:
    ahead = ReadAhead(80, 1000)
    budget = Budget(1000, range(2), ahead)
    (first, second), called = claims_of(budget, 2)
    assert (budget.allowed_bytes, first.share_bytes) == (80, 40)
    first.answered("there", 0.0)
    assert first.take(40) and second.take(40)
    assert not first.take(10)
    third = budget.claim(1)
    third.on_room = lambda: called.append(3)
    assert not third.take(50)
    first.waited(10.0)
    ahead._began_s -= 1  # a round takes its time
    first.free(1)
    assert called == [3]
    assert budget.allowed_bytes == 231 and first.share_bytes == 115
    assert third.take(50) and first.take(60)


def test_what_is_set_aside_is_of_all_there_is_and_not_of_what_the_link_needs() -> None:
    budget = Budget(100, [0], ReadAhead(20, 100))
    reader, other = budget.claim(0), budget.claim(0)
    reader.answered("there", 0.0)
    assert reader.take(20)
    assert not other.set_aside(60, 0.5), "more than half of what there is"
    assert other.set_aside(50, 0.5) and not other.set_aside(40, 0.5)
    assert budget.allowed_bytes == 20
    assert other.set_aside(30, 0.5) and not other.set_aside(1, 0.5)
    reader.free(5)
    assert reader.take(5) and not reader.take(1)
    other.close()
    assert other.set_aside(50, 0.5)


def test_a_closed_claim_gives_all_back_and_is_called_no_more() -> None:
    budget = Budget(100, range(2))
    claims, called = claims_of(budget, 2)
    assert claims[0].take(100)
    assert not claims[1].take(100)
    claims[1].close()
    claims[0].close()
    claims[0].close()
    budget.pass_turn(1)
    assert called == []
    assert budget.claim(1).take(100)


@given(
    st.integers(1, 6), st.integers(1, 60), st.lists(st.integers(1, 20), min_size=1, max_size=60), st.data()
)
def test_every_lane_comes_through_within_the_total(
    count: int, total: int, sizes: list[int], data: st.DataObject
) -> None:
    """Lanes in turn need parts of any size; the others take ahead what they may."""
    budget = Budget(total, range(count))
    takers = Takers(*claims_of(budget, count), total)
    for step, size in enumerate(sizes):
        budget.pass_turn(step % count)
        takers.step(step % count, data.draw(st.lists(st.integers(0, count - 1), max_size=5)), size)


def test_parts_of_a_lane_divide_its_share() -> None:
    budget = Budget(100, range(2))
    small, large = (budget.of(0).portion(number, share).claim() for number, share in enumerate((0.2, 0.8)))
    assert (small.lane, small.share_bytes, large.share_bytes) == (0, 10, 40)
    assert small.take(10) and large.take(30)
    assert not small.take(1) and large.take(10)
    assert budget.claim(1).take(50), "another lane's share is left"
    inner = budget.of(0).portion(1, 0.8).portion(2, 0.5)
    assert (inner.lane, inner.part, inner.claim().share_bytes) == (0, (1, 2), 20)


def test_of_a_lanes_parts_the_one_that_it_waits_for_gets_what_it_needs() -> None:
    budget = Budget(100, range(2))
    parts = [budget.of(0).portion(number, 0.5) for number in range(2)]
    claims = [part.claim() for part in parts]
    called = called_of(claims)
    other = budget.claim(1)
    assert other.take(100)
    budget.pass_turn(1)
    parts[1].wait()
    assert not any(claim.take(10, is_needed=True) for claim in claims), "it is not the lane's turn"
    assert called == []
    budget.pass_turn(0)
    assert called == [1]
    assert not claims[0].take(10, is_needed=True) and claims[1].take(10, is_needed=True)
    parts[0].wait()
    assert called == [1, 0]
    assert claims[0].take(10, is_needed=True)


def test_whoever_waits_for_a_part_waits_for_the_parts_in_it_until_it_says_which() -> None:
    budget = Budget(100, range(2))
    whole = budget.of(0).portion(0, 1.0)
    inner = [whole.portion(number, 0.5) for number in range(2)]
    claims = [part.claim() for part in inner]
    assert budget.claim(1).take(100)
    whole.wait()
    assert claims[0].take(1, is_needed=True) and claims[1].take(1, is_needed=True)
    inner[1].wait()
    assert not claims[0].take(1, is_needed=True) and claims[1].take(1, is_needed=True)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=60), st.integers(1, 60), st.data())
def test_every_part_of_every_lane_comes_through_within_the_total(
    sizes: list[int], total: int, data: st.DataObject
) -> None:
    """Lanes in turn, and in each its parts in any order; the others take ahead what they may."""
    budget = Budget(total, range(3))
    portions = [budget.of(lane).portion(number, 0.5) for lane in range(3) for number in range(2)]
    claims = [portion.claim() for portion in portions]
    takers = Takers(claims, called_of(claims), total)
    for step, size in enumerate(sizes):
        budget.pass_turn(step % 3)
        due = step % 3 * 2 + data.draw(st.integers(0, 1))
        portions[due].wait()
        takers.step(due, data.draw(st.lists(st.integers(0, 5), max_size=5)), size)


def test_memory_is_short_only_where_a_reader_was_refused_all_there_is() -> None:
    """A data set that fits leaves nobody waiting, however far the link would like to read ahead."""
    budget = Budget(100, [0], ReadAhead(100, 100))
    claim = budget.claim(0)
    claim.answered("there", 0.0)
    assert claim.take(60) and not budget.is_exhausted
    assert not claim.take(60) and budget.is_exhausted
