"""The rule that decides what to request next, played against every order of answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from asyncloader.flow.budget import MOST_GROWTH, claim_alone
from asyncloader.stores import lookahead
from asyncloader.stores.lookahead import Lookahead, ShardPart, ShardRead
from asyncloader.stores.store import Body, no_chunks
from asyncloader.types import Answer, Layout, Planning, Span

FIRST, PART, LEAST = 10, 80, 12  # in place of mebibytes


def no_decoder() -> NoReturn:
    raise AssertionError("nothing is decoded here")


def plan_of(asks: Sequence[Span], spans: Sequence[Span], total: int) -> Planning:
    """Asks for these spans, insists on getting them, and decides on those."""
    for ask in asks:
        answer = yield ask
        assert answer == Answer(content_of(ask, total), total, None)
    return Layout(tuple(spans), no_decoder)


def content_of(span: Span, total: int) -> bytes:
    return bytes(byte % 251 for byte in range(span.start, min(span.stop, total)))


@pytest.fixture(autouse=True, scope="module")
def small_parts():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookahead, "FIRST_PART_BYTES", FIRST)
        patch.setattr(lookahead, "PART_BYTES", PART)
        patch.setattr(lookahead, "_LEAST_PART_BYTES", LEAST)
        yield


@dataclass
class Play:
    """A reader and servers without either: requests are answered and handed on as the test draws."""

    totals: list[int]
    starts: list[int]
    budget: int
    ignores_range: bool = False
    requested: list[tuple[int, int, int]] = field(default_factory=list)
    unanswered: list[tuple[ShardRead, ShardPart]] = field(default_factory=list)
    handed_on: list[tuple[int, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        shards = [(str(index), start) for index, start in enumerate(self.starts)]
        self.claim = claim_alone(self.budget)
        self.rule = Lookahead(shards, self.claim)

    def top_up(self) -> None:
        while (request := self.rule.next_part()) is not None:
            shard, part = request
            needed = shard is self.rule.window[0] and shard.parts[0] is part
            assert self.claim.taken_bytes <= self.budget or needed
            self.requested.append((int(shard.url), part.start, part.stop))
            self.unanswered.append(request)

    def answer(self, index: int) -> None:
        shard, part = self.unanswered.pop(index)
        if shard.total is None:
            total = self.totals[int(shard.url)]
            start, stop = (0, total) if self.ignores_range else (part.start, min(part.stop, total))
            self.rule.opened(shard, part, Body(start, stop, total, None, no_chunks()))

    def hand_on(self) -> bool:
        """Hand on the next part, if it was answered; whether it was."""
        shard = self.rule.window[0]
        if shard.parts:
            part = shard.parts[0]
            if any(part is waiting for _, waiting in self.unanswered):
                return False
            stop = min(part.stop, self.totals[int(shard.url)])
            self.handed_on.append((int(shard.url), part.start, stop))
            self.claim.free(part.hand_over(stop - part.start))
            self.claim.free(part.hand_over(part.reserved))
            shard.parts.popleft()
        else:
            self.rule.window.popleft()
        return True


sizes = st.lists(
    st.tuples(st.one_of(st.integers(0, 300), st.sampled_from([0, 9, 10, 11, 90, 91, 170])), st.floats(0, 1)),
    min_size=1,
    max_size=25,
)


@given(sizes, st.integers(1, 1000), st.booleans(), st.data())
def test_every_byte_is_requested_once_and_handed_on_in_order(
    shards: list[tuple[int, float]], budget: int, ignores_range: bool, data: st.DataObject
) -> None:
    totals = [total for total, _ in shards]
    starts = [round(total * fraction) for total, fraction in shards]
    play = Play(totals, starts, budget, ignores_range)
    play.top_up()
    while play.rule.window:
        progress = play.hand_on()
        if not progress or (play.unanswered and data.draw(st.booleans())):
            assert play.unanswered, "nothing to wait for, and not done"
            play.answer(data.draw(st.integers(0, len(play.unanswered) - 1)))
        play.top_up()
    assert not play.unanswered
    assert play.claim.taken_bytes == 0
    assert len(set(play.requested)) == len(play.requested)
    wanted = [(shard, byte) for shard, total in enumerate(totals) for byte in range(starts[shard], total)]
    got = [(shard, byte) for shard, start, stop in play.handed_on for byte in range(start, stop)]
    assert got == wanted


@given(sizes, st.integers(1, 1000))
def test_the_window_and_the_first_requests_are_bounded(shards: list[tuple[int, float]], budget: int) -> None:
    play = Play([total for total, _ in shards], [0] * len(shards), budget)
    play.top_up()
    assert len(play.rule.window) <= lookahead.MOST_SHARDS_AHEAD
    assert sum(stop - start for _, start, stop in play.requested) <= max(budget, FIRST)


def test_parts_of_the_first_shard_come_before_later_shards() -> None:
    play = Play([300, 300, 300], [0, 0, 0], budget=130)
    play.top_up()
    assert play.requested == [(0, 0, 10), (1, 0, 10), (2, 0, 10)]
    play.answer(2)
    play.answer(0)
    play.top_up()
    quarter = 130 // 4
    assert [shard for shard, _, _ in play.requested[3:]] == [0, 0, 0]
    assert play.requested[3] == (0, FIRST, FIRST + quarter)


def play_from_the_first_answer(total: int, budget: int) -> Play:
    """As behind a network: one request first; with its answer, others may be made."""
    play = Play([total] * 40, [0] * 40, budget)
    play.claim.take(budget - FIRST)
    play.top_up()
    assert play.requested == [(0, 0, FIRST)]
    play.answer(0)
    play.claim.free(budget - FIRST)
    play.top_up()
    return play


def test_the_length_of_the_next_shard_is_requested_before_it_is_needed() -> None:
    play = play_from_the_first_answer(total=400, budget=1000)
    assert play.requested[1] == (1, 0, FIRST)
    assert [shard for shard, _, _ in play.requested[2:7]] == [0] * 5
    few = play_from_the_first_answer(total=400, budget=7 * FIRST)
    assert {shard for shard, _, _ in few.requested} == {0}


def test_shards_that_are_not_needed_soon_are_not_begun() -> None:
    play = play_from_the_first_answer(total=400, budget=1000)
    # Behind the first, as many as one round of growth could request.
    assert max(shard for shard, _, _ in play.requested) == math.ceil(MOST_GROWTH * 1000 / 400)
    assert play.claim.taken_bytes < 500


@given(st.integers(1, 10_000))
def test_parts_are_a_quarter_of_the_budget_within_their_bounds(budget: int) -> None:
    assume(budget >= FIRST)
    play = Play([1000], [0], budget)
    play.top_up()
    play.answer(0)
    play.hand_on()
    play.top_up()
    _, start, stop = play.requested[1]
    assert stop - start == max(FIRST, min(PART, budget // 4))


@dataclass
class PlannedPlay(Play):
    """The same, of shards that have plans; the plan runs, and gets its answers, as its parts come."""

    plans: dict[int, Planning] = field(default_factory=dict)
    shown: dict[int, bytearray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.claim = claim_alone(self.budget)
        shards = [(str(index), self.plans.get(index, start)) for index, start in enumerate(self.starts)]
        self.rule = Lookahead(shards, self.claim)

    def top_up(self) -> None:
        super().top_up()
        while self.rule.begun:
            if (shard := self.rule.begun.popleft()).is_planning:
                self._step(shard)

    def answer(self, index: int) -> None:
        shard, _ = self.unanswered[index]
        super().answer(index)
        self._bring(shard)
        self.top_up()

    def hand_on(self) -> bool:
        return not self.rule.window[0].is_planning and super().hand_on()

    def _bring(self, shard: ShardRead) -> None:
        """Take from a shard that is being planned what has been answered, and go on once that is all."""
        total = self.totals[int(shard.url)]
        while (
            shard.is_planning
            and shard.parts
            and not any(shard.parts[0] is each for _, each in self.unanswered)
        ):
            part = shard.parts.popleft()
            self.shown[int(shard.url)] += content_of(Span(part.start, part.stop), total)
            self.claim.free(part.hand_over(part.reserved))
            if not shard.parts and not shard.wants_part:
                self._step(shard, Answer(bytes(self.shown[int(shard.url)]), total, shard.etag))

    def _step(self, shard: ShardRead, answer: Answer | None = None) -> None:
        self.shown[int(shard.url)] = bytearray()
        plan = self.plans[int(shard.url)]
        try:
            span = next(plan) if answer is None else plan.send(answer)
        except StopIteration as end:
            self.rule.planned(shard, end.value)
        else:
            self.rule.ask(shard, [span])
        self.top_up()


spans_within = st.lists(st.tuples(st.integers(0, 400), st.integers(1, 200)), max_size=4)


@given(
    st.lists(
        st.tuples(st.integers(1, 300), st.booleans(), spans_within, spans_within), min_size=1, max_size=8
    ),
    st.integers(1, 1000),
    st.booleans(),
    st.data(),
)
def test_plans_see_what_they_ask_for_and_get_their_spans_in_their_order(
    shards: list[tuple[int, bool, list[tuple[int, int]], list[tuple[int, int]]]],
    budget: int,
    ignores_range: bool,
    data: st.DataObject,
) -> None:
    totals = [total for total, _, _, _ in shards]
    plans, expected = {}, []
    for index, (total, is_planned, asks, decided) in enumerate(shards):
        spans = [Span(start, min(start + size, total)) for start, size in decided if start < total]
        if is_planned:
            # The first one begins with the first byte: behind the end there is nothing to open.
            asked = [Span(0, 4), *(Span(start, start + size) for start, size in asks if start < total)]
            plans[index] = plan_of(asked, spans, total)
        expected += [
            (index, byte)
            for start, stop in (spans if is_planned else [(0, total)])
            for byte in range(start, stop)
        ]
    play = PlannedPlay(totals, [0] * len(shards), budget, ignores_range, plans=plans)
    play.top_up()
    while play.rule.window:
        if not play.hand_on() or (play.unanswered and data.draw(st.booleans())):
            assert play.unanswered, "nothing to wait for, and not done"
            play.answer(data.draw(st.integers(0, len(play.unanswered) - 1)))
        play.top_up()
    assert not play.unanswered
    assert play.claim.taken_bytes == 0
    assert [(shard, byte) for shard, start, stop in play.handed_on for byte in range(start, stop)] == expected


def test_few_shards_are_planned_ahead_and_a_small_request_counts_as_a_larger_one() -> None:
    asks = [Span(0, 1)]
    plans = {index: plan_of(asks, [Span(0, 100)], 100) for index in range(9)}
    play = PlannedPlay([100] * 9, [0] * 9, 1000, plans=plans)
    play.top_up()
    assert play.requested == [(index, 0, 1) for index in range(lookahead._MOST_PLANS_AHEAD)]
    assert play.claim.taken_bytes == LEAST * lookahead._MOST_PLANS_AHEAD


def test_the_parts_of_a_planned_shard_come_before_plans_behind_it() -> None:
    plans = {index: plan_of([Span(0, 4)], [Span(50, 60), Span(10, 30)], 100) for index in range(6)}
    play = PlannedPlay([100] * 6, [0] * 6, 1000, plans=plans)
    play.top_up()
    play.answer(0)
    assert play.requested[4:6] == [(0, 50, 60), (0, 10, 30)]
    assert play.requested[6:] == [(4, 0, 4)]


def test_small_shards_behind_a_large_one_are_begun() -> None:
    play = Play([5000, *[10] * 39], [0] * 40, budget=1000)
    play.claim.take(1000 - FIRST)
    play.top_up()
    play.answer(0)
    play.claim.free(1000 - FIRST)
    play.top_up()
    while play.handed_on == [] or play.handed_on[-1][2] < 4900:
        play.answer(0)
        play.hand_on()
        play.top_up()
    assert len(play.rule.window) == lookahead.MOST_SHARDS_AHEAD
