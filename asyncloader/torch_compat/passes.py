"""One pass of torch's loop, as the consumer sees it: what was delivered, not what was made ahead."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from torch.utils.data import IterDataPipe

from ..errors import Line, users_line
from .adapt import is_iterable
from .indices import Indices
from .reading import TaggedBatch, Whereabouts
from .saved import Saved, SavedPart
from .split import warn_of_unsplit
from .stateful import DEFAULT, Said, States, read_states, where
from .timing import LoopStats


class TorchPass:
    """Counts what torch's loop delivers in a pass, and says where the pass begins.

    Args:
        indices: What it draws.
        before: The loader's position when the pass was opened.
        resumed: Whether it begins there, rather than at an epoch's beginning.
        loader: Says how many workers there are, and whether they stay for the next pass.
        tally: Counts it.
        warned: Filled once the user was warned that several workers read all of the dataset.
    """

    def __init__(
        self,
        indices: Indices,
        before: Saved,
        *,
        resumed: bool,
        loader: Any,
        tally: LoopStats,
        warned: list[Line],
    ) -> None:
        self.indices = indices
        #: Where the pass continued, if it was resumed.
        self.resumed = before if resumed else None
        self._forced_seed = before.base_seed if resumed else None
        self._base_seed: int | None = None
        #: Asked for a state of its own; data pipes have none.
        self._dataset = None if isinstance(loader.dataset, IterDataPipe) else loader.dataset
        #: Whether the batches are counted as they come.
        self._is_iterable = is_iterable(loader.dataset)
        #: Of a dataset that is read in this process.
        self._here: Whereabouts | None = None
        self._workers, self._persistent = loader.num_workers, loader.persistent_workers
        self.tally = tally
        self._warned = warned
        self._turn = before.turn if resumed and before.in_the_middle else 0
        self._start(before, before if resumed else Saved())

    def _start(self, before: Saved, at: Saved) -> None:
        middle = at.in_the_middle
        #: The loader's position before the pass, and until that has delivered something.
        self._before = before
        # With another number of workers they are only the position before the pass.
        self._parts = list(before.parts) if len(before.parts) == max(self._workers, 1) else []
        #: What the dataset returned before the first batch.
        self._first_said: Said | None = None
        #: Whether a stateful dataset that is read here is at the consumer's position.
        self._can_ask = False
        self._given = 0
        #: Set last before the consumer has a batch; see ``LoopHooks``.
        self.is_given = False
        #: How many of the pass came, with those that came before it was resumed.
        self.batches = at.batches if middle else 0
        self._early = at.early if middle else ()
        self._next_worker = at.turn if middle else 0
        self._is_over = False
        self._promised: int | None = None
        self._by_hand = False
        self._holds: Callable[[], bool] | None = None
        self._held: Callable[[], None] | None = None
        #: Where the pass was opened, which is the line of its loop: ``async for`` reads it on another thread.
        self._line = users_line()

    # --- called by torch's loop ---

    def seed(self, drawn: int) -> int:
        """The base seed of the workers: what was drawn, unless it was saved."""
        self._base_seed = drawn if self._forced_seed is None else self._forced_seed
        return self._base_seed

    def take_turn(self) -> int:
        """The worker that gets the first task; 0 in later calls."""
        turn, self._turn = self._turn, 0
        return turn

    def read_here(self, whereabouts: Whereabouts) -> None:
        """The dataset is read in this process, and was opened."""
        self._here = whereabouts
        self._can_ask = whereabouts.can_begin and not self._before.in_the_middle

    def begin(self) -> None:
        """Another pass begins, with the same workers."""
        self.tally.begin()
        before, self.resumed = self.left(), None
        self._start(before, Saved())

    def deliver(self, batch: Any, following: int | None, pending: Collection[int] | None) -> Any:
        """The batch as the consumer gets it. If it does not get it, this is called with the same batch again.

        Args:
            batch: As it came.
            following: Number of torch's task that is due next; None without workers.
            pending: All of its tasks that are not done, if they may come in any order.
        """
        carried = batch if isinstance(batch, TaggedBatch) else None
        here, said = self._here, carried.said if carried is not None else None
        if self._by_hand and here is not None and here.can_say:
            said = self._ask_in_time()  # the next batch may be made before the consumer has this one
        batches, early = self._behind(following, pending)
        task = None if following is None or pending is not None else following - 1
        # Without the batch: this may live longer than the consumer keeps that.
        end = None if carried is None else (carried.worker, said, carried.since, carried.ended)
        says = here is not None and here.can_say and end is not None

        def count() -> None:
            if self._by_hand:
                self.tally.deliver(task)
            parts, turn = (self._parts, self._next_worker) if end is None else self._ended(*end)
            can_ask = says and not self._by_hand
            # No call from here on, so that these go together.
            self._given += 1
            self.batches = self.batches + 1 if self._is_iterable else batches
            self._early = self._early if self._is_iterable else early
            self._parts, self._next_worker = parts, turn
            self._can_ask = can_ask
            self._held = None

        self.is_given = False
        if not self._by_hand:
            self.tally.deliver(task)
        if carried is not None and carried.unsplit:
            warn_of_unsplit(self._dataset, self._warned, self._line)
        self._held = count
        return batch if carried is None else carried.batch

    def _behind(self, following: int | None, pending: Collection[int] | None) -> tuple[int, tuple[int, ...]]:
        """How many batches of indices are delivered with the one that came, and which later ones."""
        order = self.indices.order
        drawn = order.drawn
        if following is None:
            return drawn, order.early_after(drawn)
        if pending is None:
            batches = order.number_of(following - 1) + 1
            return batches, order.early_after(batches)
        numbers = {order.number_of(task) for task in pending}
        batches = min(numbers, default=drawn)
        return batches, tuple(number for number in range(batches, drawn) if number not in numbers)

    def end(self) -> None:
        """The pass has ended."""
        # A map-style dataset ends with its indices, and is as it was after the last batch.
        self._can_ask = self._here is not None and self._here.can_say and not self._here.has_end

        def count() -> None:
            self._is_over = True
            self._held = None

        if self._by_hand:
            self._held, self.is_given = count, True
        else:
            count()
        self.tally.end()

    def cut(self) -> None:
        """A StopIteration of the dataset's ends the loop before its last batch."""
        if not self._by_hand or self._holds is not None:  # else it is raised as an error
            warnings.warn_explicit(
                f"{type(self._dataset).__name__}, or collate_fn, raised StopIteration, which ends this loop "
                f"after {self.batches} batches, as in torch's DataLoader; the remaining ones are not read. "
                "Raise another error for an item that is not available",
                UserWarning,
                *self._line,
            )
        self.tally.end()

    def wait(self) -> None:
        """The consumer waits for a batch."""
        if self.is_given and (self._holds is not None or not self._by_hand):
            self.hand_over()
        if self._can_ask:
            # Until the next batch is delivered, the dataset is ahead of the consumer; and that batch may
            # fail, or a signal's handler may save a state.
            self._can_ask = False
            self._keep(self._ask_in_time())
        self.tally.wait()

    # --- called by the iterator's consumer ---

    def defer(self, holds: Callable[[], bool] | None = None) -> None:
        """Count batches as delivered only with ``hand_over``, or as ``holds`` says.

        Args:
            holds: Of a consumer that does not call ``hand_over``: returns whether the consumer still holds
                its latest batch. If not, that counts when the next one is requested, or a state is saved.
        """
        self._settle()
        self._by_hand, self._holds = True, holds
        if self._can_ask:  # a state may be requested in another thread than the one that reads
            self._can_ask = False
            self._keep(self._ask_in_time())

    def hand_over(self) -> None:
        """The consumer has the latest batch."""
        if (held := self._held) is not None:
            held()  # which clears ``_held`` at its end: if interrupted before, it is called again

    def _settle(self) -> None:
        """Count the batch that is held, unless the consumer does not have it yet, or still holds it."""
        if self.is_given and (not self._by_hand if self._holds is None else not self._holds()):
            self.hand_over()

    def _ended(self, worker: int, said: Said | None, since: int, ended: bool) -> tuple[list[SavedPart], int]:
        """The parts, updated by what came beside a batch, and the worker that is next."""
        parts = [*self._parts] or [SavedPart(self._first_said)] * max(self._workers, 1)
        part = parts[worker]
        if said is None:
            said = self._first_said if part.finished else part.state
        else:
            since = 0
        parts[worker] = SavedPart(said, since, ended)
        return parts, (worker + 1) % self._workers if self._workers else self._next_worker

    # --- a dataset that is read in this process ---

    def _ask_in_time(self) -> Said | None:
        """Its state, if none is known, or the last one is ``every`` batches old."""
        here = self._here
        assert here is not None, "it is read here"
        last = self._parts[0].state if self._parts and self._given else self._first_said
        return here.ask() if not isinstance(last, bytes) or here.since >= here.every else None

    def _keep(self, said: Said | None) -> None:
        if said is None:
            return
        if not self._given:
            self._first_said = said
        elif self._parts:
            self._parts[0] = replace(self._parts[0], state=said, batches=0)

    def _ask_now(self) -> None:
        """Get the dataset's state, if it is at the consumer's position."""
        if self._can_ask:
            assert self._here is not None, "it is read here"
            self._keep(self._here.ask())

    # --- called by the loader ---

    def promise(self, length: int) -> None:
        """``len(loader)`` was called: if before the first batch, the pass ends after that many batches."""
        self._settle()
        if not self._given and not self._is_over:
            self._promised = length

    def is_unread(self) -> bool:
        """Whether none of its batches was used.

        Its length was requested and then no batch; or its consumer still holds all that it has got.
        """
        self._settle()
        if self._given or self._is_over:
            return False
        return self._promised is not None or self._holds is not None

    def saved(self) -> Saved:
        """The loader's position."""
        self._settle()
        self._ask_now()
        if self._is_read_out():
            return self.left()
        if not self._given:
            return self._begun()
        order = self.indices.order
        start = order.start
        said, ended = order.said_at(self.batches)
        if self._is_iterable and self._parts and self._workers:
            # The workers draw from seeds of their own.
            start = {name: state for name, state in start.items() if name != DEFAULT}
        return Saved(
            batches=self.batches,
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
        """The loader's position when the pass is left, and the next one begins."""
        self._settle()
        if self._is_over:
            self._ask_now()
        # A dataset without a state begins anew anyway; one in workers that end is a new copy next time.
        told = any(part.state for part in self._parts)
        lives_on = told and self._is_read_out() and (self._persistent or not self._workers)
        order = self.indices.order
        said, ended = order.said_at(order.drawn) if self._is_read_out() else (None, False)
        return Saved(
            finished=True,
            base_seed=self._base_seed if self._persistent else None,
            now=self._states(),
            sampler=said,
            sampler_ended=ended,
            parts=tuple(replace(part, finished=True) for part in self._parts) if lives_on else (),
        )

    def _begun(self) -> Saved:
        """The loader's position before the first batch."""
        said = self._first_said
        if self._workers and not self._before.parts:
            said = where(self._dataset, None)
            if not isinstance(said, bytes):  # such as of a dataset that has no position before it is iterated
                said = None
        return self._before if said is None else replace(self._before, parts=(SavedPart(said),))

    def _states(self) -> States:
        return read_states(self.indices.generators)

    def _is_read_out(self) -> bool:
        """Whether it is at its end, or at the promised length."""
        return self._is_over or (self._given > 0 and self.batches == self._promised)
