"""Who may take how much of what lanes share, and who is called when there is room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asyncloader._flow.budget import Budget, Claim


def claims_of(budget: Budget, count: int) -> tuple[list[Claim], list[int]]:
    """A claim for each lane, and the list of those that were called."""
    called: list[int] = []
    claims = [budget.claim(lane) for lane in range(count)]
    for claim in claims:
        claim.on_room = lambda lane=claim.lane: called.append(lane)  # type: ignore[misc]
    return claims, called


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
    claims, called = claims_of(budget, count)
    parts: list[list[int]] = [[] for _ in claims]
    for step, size in enumerate(sizes):
        lane = step % count
        budget.pass_turn(lane)
        ahead = data.draw(st.lists(st.integers(0, count - 1), max_size=5))
        for other in ahead + called:
            if claims[other].take(size, is_needed=not parts[other]):
                parts[other].append(size)
        called.clear()
        if not parts[lane]:
            assert claims[lane].take(size, is_needed=True)
            parts[lane].append(size)
        assert sum(map(sum, parts)) <= total + size
        claims[lane].free(parts[lane].pop(0))
