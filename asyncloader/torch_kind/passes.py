"""One pass of torch's loop, as the consumer sees it: what was delivered, whatever was made ahead."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from ..tracebacks import Line, users_line
from .generators import DEFAULT, States, read_states
from .indices import Indices
from .reading import Carried
from .saved import Part, Saved
from .tally import Tally

__all__ = ["Pass"]


class Pass:
    """What torch's loop tells of the pass that it is in, and what it is told.

    Args:
        indices: What it draws.
        before: Where the loader stood when the pass was opened.
        resumed: Whether it begins there, rather than at an epoch's beginning.
        workers: How many there are.
        persistent: Whether they stay for the next pass.
        tally: Counts it.
        tell_unsplit: Called with a line if a dataset is not split.
    """

    def __init__(
        self,
        indices: Indices,
        before: Saved,
        *,
        resumed: bool,
        workers: int,
        persistent: bool,
        tally: Tally,
        tell_unsplit: Callable[[Line], None],
    ) -> None:
        self._indices = indices
        #: Where the pass went on, if it did.
        self.resumed = before if resumed else None
        self._forced_seed = before.base_seed if resumed else None
        self._base_seed: int | None = None
        self._workers = workers
        self._persistent = persistent
        self.tally = tally
        self._tell_unsplit = tell_unsplit
        self._turn = before.turn if resumed and before.in_the_middle else 0
        self._start(before, before if resumed else Saved())

    def _start(self, before: Saved, at: Saved) -> None:
        middle = at.in_the_middle
        #: Where the loader stood before the pass: of a pass that delivered nothing, that is where it stands.
        self._before = before
        self._parts = list(before.parts)
        self._given = 0
        self._batches = at.batches if middle else 0
        self._early = at.early if middle else ()
        self._next_worker = at.turn if middle else 0
        self._is_over = False
        self._promised: int | None = None
        self._by_hand = False
        self._holds: Callable[[], bool] | None = None
        self._held: Callable[[], None] | None = None
        #: Where the pass was opened, which is the line of its loop: ``async for`` reads it on another thread.
        self._line = users_line()

    # --- told by torch's loop ---

    @property
    def batches(self) -> int:
        """How many of the pass came, with those that came before it was resumed."""
        return self._batches

    def seed(self, drawn: int) -> int:
        """The base seed of the workers: what was drawn, unless it was saved."""
        self._base_seed = drawn if self._forced_seed is None else self._forced_seed
        return self._base_seed

    def take_turn(self) -> int:
        """The worker that is first, once."""
        turn, self._turn = self._turn, 0
        return turn

    def begin(self) -> None:
        """The loop begins anew, with the same workers."""
        self.tally.begin()
        before, self.resumed = self.left(), None
        self._start(before, Saved())

    def deliver(self, batch: Any, following: int | None, pending: Collection[int] | None) -> Any:
        """The batch as the consumer gets it.

        Args:
            batch: As it came.
            following: Number of torch's task that is due next; None without workers.
            pending: All of its tasks that are not done, if they may come in any order.
        """
        carried = batch if isinstance(batch, Carried) else None
        order = self._indices.order
        drawn = order.drawn
        if pending is not None:
            pending = {order.number_of(task) for task in pending}

        def count() -> None:
            self._given += 1
            self.tally.deliver(None if following is None or pending is not None else following - 1)
            if carried is not None:
                self._count_carried(carried)
            elif following is None:
                self._batches, self._early = drawn, order.early_after(drawn)
            elif pending is None:
                self._batches = order.number_of(following - 1) + 1
                self._early = order.early_after(self._batches)
            else:
                self._batches = min(pending, default=drawn)
                ahead = range(self._batches, drawn)
                self._early = tuple(number for number in ahead if number not in pending)

        self._count_or_hold(count)
        if carried is None:
            return batch
        if carried.unsplit:
            self._tell_unsplit(self._line)
        return carried.batch

    def end(self) -> None:
        """There are no more."""

        def count() -> None:
            self._is_over = True

        self._count_or_hold(count)
        self.tally.end()

    def wait(self) -> None:
        """The consumer waits for a batch."""
        if self._holds is not None:
            self.hand_over()
        self.tally.wait()

    def waited(self) -> None:
        """It waits no more."""
        self.tally.waited()

    def draw(self) -> None:
        """The sampler is asked."""
        self.tally.draw()

    def drew(self) -> None:
        """It has answered."""
        self.tally.drew()

    # --- told by who hands on what torch's loop gives ---

    def defer(self, holds: Callable[[], bool] | None = None) -> None:
        """From now on a batch counts as delivered with ``hand_over`` only, or as ``holds`` says."""
        self._by_hand, self._holds = True, holds

    def hand_over(self) -> None:
        """The consumer has what the loop gave last."""
        held, self._held = self._held, None
        if held is not None:
            held()

    def _settle(self) -> None:
        """Count the batch that is held, unless the consumer has it in hand."""
        if self._holds is not None and not self._holds():
            self.hand_over()

    def _count_or_hold(self, count: Callable[[], None]) -> None:
        if self._by_hand:
            self._held = count
        else:
            count()

    def _count_carried(self, carried: Carried) -> None:
        self._batches += 1
        if not self._parts:
            self._parts = [Part()] * max(self._workers, 1)
        part = self._parts[carried.worker]
        state = carried.said
        if state is None and not part.finished:
            state = part.state
        self._parts[carried.worker] = Part(state, carried.since, carried.ended)
        if self._workers:
            self._next_worker = (carried.worker + 1) % self._workers

    # --- told by the loader ---

    def promise(self, length: int) -> None:
        """``len(loader)`` was asked for: who does so before the first batch asks for no more than that."""
        if not self._given and not self._is_over:
            self._promised = length

    def is_unread(self) -> bool:
        """Whether its length was asked for, and then none of the batches that it has."""
        self._settle()
        return self._promised is not None and not self._given and not self._is_over

    def saved(self) -> Saved:
        """Where the loader stands."""
        self._settle()
        if self._is_read_out():
            return self.left()
        if not self._given:
            return self._before
        order = self._indices.order
        start = order.start
        said, ended = order.said_at(self._batches)
        if self._parts and self._workers:
            # What the workers draw, they draw from seeds of their own.
            start = {name: state for name, state in start.items() if name != DEFAULT}
        return Saved(
            batches=self._batches,
            early=self._early,
            base_seed=self._base_seed,
            start=start,
            now={name: state for name, state in self._states().items() if name == DEFAULT},
            sampler=said,
            sampler_ended=ended,
            parts=tuple(self._parts),
            turn=self._next_worker,
        )

    def left(self) -> Saved:
        """Where the loader stands when the pass is left, and the next one begins."""
        self._settle()
        # A dataset that was told nothing begins anew anyway; one in workers that end is then a new copy.
        told = any(part.state for part in self._parts)
        lives_on = told and self._is_read_out() and (self._persistent or not self._workers)
        order = self._indices.order
        said, ended = order.said_at(order.drawn) if self._is_read_out() else (None, False)
        return Saved(
            finished=True,
            base_seed=self._base_seed if self._persistent else None,
            now=self._states(),
            sampler=said,
            sampler_ended=ended,
            parts=tuple(replace(part, finished=True) for part in self._parts) if lives_on else (),
        )

    def _states(self) -> States:
        return read_states(self._indices.generators)

    def _is_read_out(self) -> bool:
        """Whether it is at its end, or at what its consumer takes for it."""
        return self._is_over or (self._given > 0 and self._batches == self._promised)
