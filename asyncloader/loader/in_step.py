"""Ranks in step: all deliver equally many batches, so that no collective of the training waits for ever."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import os
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from enum import Enum
from typing import Any, Literal, TypeAlias, cast

from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import PrefixStore

from ..collate.empty import empty_from_text, empty_like, empty_to_text
from ..errors import RanksError, users_level
from ..flow.channel import ChannelClosed, EndOfChannel, Producer, Receiver
from ..observe.statistics import Meter
from ..pipeline.stream import Note
from ..plan.lanes import Cursor
from ..plan.topology import process_group
from ..torch_private import default_store
from .kind import StreamOptions
from .lengths import Rest, count_rest

# What ranks agree on at each step of a pass: whether all of them go on.
#
# At each step every rank says whether it has a batch; the last one to say so decides for all, since only it
# has seen every answer. That is one addition and one wait on the store of ``torch.distributed``'s process
# group. A collective would not do: a rank that leaves could not cancel it, and every other collective of the
# training would have to respect its order.
#
# Laws:
#
# * A rank that leaves says so at once, and no other waits for it.
# * The others wait for one that was killed as long as the process group's time-out, and no longer.
# * The store keeps the latest step of a pass, and one empty batch if a rank lacks it; nothing else.

Policy: TypeAlias = Literal["stop", "pad", "raise"]

_log = logging.getLogger("asyncloader.ranks")

# A rank that has run dry adds this to the counter of a step, a rank that has a batch adds 1.
_DRY = 1 << 32

# Long enough that ranks which merely differ in speed say nothing.
_QUIET_S = 10.0


class StepVerdict(Enum):
    """What all ranks do at a step."""

    GO = "go"
    #: A rank never saw a batch and cannot build an empty one. Only at the first step: a rank that runs dry
    #: later has seen one.
    GO_WITH_EMPTY = "go, and share an empty batch"
    END = "end"
    #: Some have a batch, others have none, and all end.
    STOP = "stop"
    UNEVEN = "uneven"


class _Seat:
    """What this process keeps for a store from one pass to the next."""

    def __init__(self) -> None:
        #: How many passes of each name each rank here has taken part in. All ranks of a process group start
        #: together, so their counts agree.
        self.passes: Counter[tuple[str, int]] = Counter()
        self._clients: list[Any] = []

    def lend(self, store: Any, borrower: object) -> Any:
        """A client for ``borrower`` alone, until that is collected.

        Clients are kept because a new one may take seconds: where host names resolve badly, 5 s in 3 of 100
        (measured), and a training would lose them at the start of an epoch.
        """
        try:
            client = self._clients.pop()
        except IndexError:
            client = store.clone()
        weakref.finalize(borrower, self._clients.append, client).atexit = False
        return client


_seats: weakref.WeakKeyDictionary[Any, _Seat] = weakref.WeakKeyDictionary()

# On a connection that two processes share, each may receive the answer to the other's request.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_seats.clear)


class Agreement:
    """One rank's part in the agreement over one pass.

    Args:
        store: Of the process group.
        name: Of the pass, the same on every rank. Of several passes of one name the first ones of all ranks
            belong together, then the second ones, and so on.
        rank: This process among those that take part.
        size: How many take part.
        policy: What to do when some have run dry and others have not.

    Raises:
        RanksError: The store has gone.
    """

    def __init__(self, store: Any, name: str, rank: int, size: int, policy: Policy) -> None:
        seat = _seats.setdefault(store, _Seat())
        seat.passes[name, rank] += 1
        prefix = f"asyncloader/{name}/{seat.passes[name, rank]}"
        self._rank, self._size, self.policy = rank, size, policy
        self._patience: timedelta = store.timeout
        self._lock = threading.Lock()
        self._left = False
        self._has_lost_others = False
        #: Steps that all have agreed on.
        self.steps = 0
        # A client is locked while it waits: so waiting and waking have one each, and the group's own is left
        # alone, since it may be waiting in a barrier.
        with self._asking():
            self._waiting = PrefixStore(prefix, seat.lend(store, self))
            self._telling = PrefixStore(prefix, seat.lend(store, self))

    def settle(self, has_batch: bool) -> StepVerdict:
        """Say whether there is a batch for the next step; returns what all ranks do. Blocks.

        Raises:
            RanksError: A rank has left the pass, is lost, or the policy is to raise and ranks are uneven.
        """
        with self._lock:
            self._check_here()
        said = self._settle(self.steps, has_batch)
        with self._lock:
            self._check_here()
            if said.startswith("left "):
                raise self._error(
                    f"rank {int(said[5:])} has left the epoch before its end: its loop ended early or "
                    "raised an error, or only some ranks iterate this loader. Let all ranks take the same "
                    'number of steps, or pass uneven="ignore"'
                )
            if said.startswith("lost "):
                raise self._lost(f"as rank {int(said[5:])} has found")
            verdict = StepVerdict(said)
            if verdict is StepVerdict.UNEVEN:
                raise self._error(
                    f"this rank {'has a batch' if has_batch else 'has no batch'} for step {self.steps} and "
                    f"{'others have none' if has_batch else 'others have one'}. Deal lanes equally by an "
                    'index (asyncloader index), or pass uneven="stop" or "pad"'
                )
            self.steps += verdict not in (StepVerdict.END, StepVerdict.STOP)
        return verdict

    def check_plan(self, plan: str) -> None:
        """Check that all ranks deal the same epoch, before its first step; does not wait for others.

        Raises:
            RanksError: Another one has another plan, or the store has gone.
        """
        with self._asking():
            said = self._waiting.compare_set("plan", "", plan).decode()
        if said != plan:
            raise self._error(
                "expected the same shards on all ranks, but their indexes or the sizes of their shards "
                "differ: samples would be repeated or lost. Use the same shards and index on all ranks; a "
                "copy on another node may be older"
            )

    def compare(self, key: str, told: str, *, last: bool) -> None:
        """Check that all processes with this ``key`` say the same about this step, before it is settled.

        Args:
            key: Theirs alone.
            told: What should be the same.
            last: Whether this process deletes the entry of the step before.

        Raises:
            RanksError: Another process has said something else, or the store has gone.
        """
        with self._lock:
            self._check_here()
        with self._asking():
            said = self._waiting.compare_set(f"{key}/{self.steps}", "", told).decode()
            if last and self.steps:  # all have said theirs, or the step before would not be settled
                self._waiting.delete_key(f"{key}/{self.steps - 1}")
        if said != told:
            raise self._error(
                f"expected the same batches in all processes of a rank, but they differ at step "
                f"{self.steps}. Check that all read the same shards, and continue from the same state. With "
                "SkipErrors, a shard that only one of them cannot read is skipped by that one only"
            )

    def share(self, key: str, value: str | None) -> str:
        """A text that the first rank to have one gives the others. Blocks.

        Args:
            key: Its name.
            value: This rank's, if it has one.

        Raises:
            RanksError: It takes too long, or the store has gone.
        """
        with self._asking():
            if value is not None:
                self._waiting.compare_set(key, "", value)
            return self._get(key)

    def add_up(self, numbers: Sequence[int]) -> list[int] | None:
        """The sums of the numbers of all ranks, once, when they end. Blocks.

        Returns:
            None if a rank has left before it gave its own.

        Raises:
            RanksError: It takes too long, or the store has gone.
        """
        with self._asking():
            keys = [f"sum/{place}" for place in range(len(numbers))]
            for key, number in zip(keys, numbers, strict=True):
                self._waiting.add(key, number)
            if self._waiting.add("sum", 1) < self._size:
                said = self._get("sums")
            else:  # all others have added theirs
                sums = json.dumps([self._waiting.add(key, 0) for key in keys])
                said = self._waiting.compare_set("sums", "", sums).decode()
                for key in (*keys, "sum"):
                    self._waiting.delete_key(key)
        return json.loads(said) if said.startswith("[") else None

    def leave(self) -> None:
        """Take no further part, so that no other rank waits for this one. Idempotent, from any thread."""
        with self._lock:
            if self._left:
                return
            self._left = True
            step, word = self.steps, f"{'lost' if self._has_lost_others else 'left'} {self._rank}"
            with suppress(Exception):  # the store has gone, and with it the ranks that would wait
                if self._telling.compare_set(f"verdict/{step}", "", word) != word.encode():
                    self._telling.compare_set(f"verdict/{step + 1}", "", word)
                    self._telling.compare_set("sums", "", word)

    def end(self) -> None:
        """Note that all ranks have ended the pass: there is nothing to leave."""
        with self._lock:
            self._left = True

    def _check_here(self) -> None:
        """Refuse to answer for a rank that has left: its closed stream looks as if it had run dry."""
        if self._left:
            raise self._error("this rank has left the pass")

    def _settle(self, step: int, has_batch: bool) -> str:
        with self._asking():
            dry, having = divmod(self._waiting.add(f"count/{step}", 1 if has_batch else _DRY), _DRY)
            if dry + having < self._size:
                return self._get(f"verdict/{step}")
            verdict = self._waiting.compare_set(f"verdict/{step}", "", self._decide(step, having, dry).value)
            if step:  # every rank has read it, or it would not have come here
                self._waiting.delete_key(f"count/{step - 1}")
                self._waiting.delete_key(f"verdict/{step - 1}")
                if step == 1:
                    self._waiting.delete_key("plan")
            return verdict.decode()

    def _decide(self, step: int, having: int, dry: int) -> StepVerdict:
        if not dry:
            return StepVerdict.GO
        if not having:
            return StepVerdict.END
        if self.policy == "stop":
            return StepVerdict.STOP
        if self.policy == "raise":
            return StepVerdict.UNEVEN
        return StepVerdict.GO if step else StepVerdict.GO_WITH_EMPTY

    def _get(self, key: str) -> str:
        quiet = min(timedelta(seconds=_QUIET_S), self._patience / 2)
        try:
            self._waiting.wait([key], quiet)
        except DistStoreError:
            _log.warning(
                "rank %d waits for other ranks at step %d, for %.0f s at most; does every rank iterate this "
                'loader? One that only some ranks read needs uneven="ignore"',
                self._rank,
                self.steps,
                self._patience.total_seconds(),
            )
            self._waiting.wait([key], self._patience - quiet)
        return self._waiting.get(key).decode()

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """For requests to the store, whose errors mean that the other ranks are lost."""
        try:
            yield
        except RuntimeError as error:
            # Without the frames of torch's C++ code, which stand below.
            raise self._lost(str(error).partition("\n")[0]) from error

    def _lost(self, how_known: str) -> RanksError:
        self._has_lost_others = True
        return self._error(
            f"the other ranks did not answer within {self._patience.total_seconds():.0f} s, the time-out of "
            f"the process group, or its store has gone: one has died or hangs ({how_known})"
        )

    def _error(self, text: str) -> RanksError:
        return RanksError(text, rank=self._rank, step=self.steps)


# Settled ahead of the consumer: one to deliver, and one that is being settled meanwhile.
_BATCHES_AHEAD = 2

# Batches counted when a rank is stopped: more than are ever made ahead, and a small part of an epoch.
_MOST_READY = 256

_PADDING = Note(-1, None)
"""The note of an empty batch."""


def policy_of(options: StreamOptions) -> Policy | None:
    """What ranks do when some have no batch and others have; None where each proceeds alone.

    ``uneven=None`` is ``"stop"`` where as many processes read as the process group has, and ``"ignore"``
    elsewhere.
    """
    if options.uneven == "ignore" or options.world.processes == 1:
        return None
    if options.uneven is not None:
        return cast("Policy", options.uneven)
    group = process_group()
    return "stop" if group is not None and group[1] == options.world.processes else None


def keep_in_step(
    source: Receiver[tuple[Any, Note]],
    options: StreamOptions,
    cursor: Cursor,
    counters: Meter,
    stack: ExitStack,
) -> Receiver[tuple[Any, Note]]:
    """The batches of a rank, as many as all ranks deliver.

    Args:
        source: The rank's batches; closed with what is returned.
        options: Those of the pass. An ``empty`` method of ``collate_fn`` makes empty batches.
        cursor: Where the pass begins.
        counters: Count what is left where ranks are stopped with batches left.
        stack: Closes what is started here.

    Raises:
        RuntimeError: Ranks should be kept in step and there is no process group over which to agree.
    """
    policy, group = policy_of(options), process_group()
    if policy is None:
        return source
    if group is None:
        raise RuntimeError(
            f"uneven={options.uneven!r} keeps {options.world.size} ranks in step over torch.distributed's "
            "process group, and there is none: call torch.distributed.init_process_group() first, or pass "
            'uneven="ignore"'
        )
    # The same on all ranks, whose shards may lie elsewhere.
    name = options.digest(lambda entry: entry == "dealt" or entry.endswith("_sha256"))
    agreement = Agreement(default_store(), f"{name}/{cursor.epoch}", *group, policy)
    settled = _Settled(source, agreement, options, cursor.copy(), counters)
    in_step = Producer(settled.batches, _BATCHES_AHEAD, on_close=settled.leave, name="asyncloader-steps")
    in_step.start()
    stack.callback(in_step.close)
    stack.callback(settled.warn_of_rest)
    return in_step


def _left_out(epoch: int, steps: int, sums: Sequence[int]) -> str:
    """The warning of samples that all ranks together have left."""
    no_samples, samples, of, no_shards, shards, ready = sums
    how_many = f"{samples} of {of} samples were" if not no_samples else f"at least {ready} samples were"
    where = "" if not no_samples or no_shards else f", of {shards} shards that were not read to their ends,"
    return (
        f'uneven="stop" ended epoch {epoch} on all ranks after {steps} steps of this pass, since some had no '
        f'batch left: {how_many}{where} left out. A loader with uneven="pad" that loads the present '
        "state_dict() of the ranks goes on with them; with an index (asyncloader index) ranks share shards "
        "equally"
    )


class _Settled:
    """What the thread runs: it refers to neither the producer nor the consumer, so that both can go away.

    Args:
        source: The rank's batches.
        agreement: With the other ranks.
        options: Those of the pass.
        cursor: Where the pass begins; moved with each batch that ranks have agreed on.
        counters: Of the pass.
    """

    def __init__(
        self,
        source: Receiver[tuple[Any, Note]],
        agreement: Agreement,
        options: StreamOptions,
        cursor: Cursor,
        counters: Meter,
    ) -> None:
        self._agreement, self._options, self._world = agreement, options, options.world
        self._source, self._cursor, self._counters = source, cursor, counters
        self._pads = agreement.policy == "pad"
        self._empty: Any = None
        #: What to warn of where all were stopped with samples left: on the first process, for all of them.
        self._left_out: str | None = None

    def leave(self) -> None:
        """Wake the thread wherever it waits, and leave the agreement."""
        self._agreement.leave()
        self._source.close()

    def warn_of_rest(self) -> None:
        """Warn once for all ranks, in the consumer's own thread, of what they were stopped with."""
        if self._left_out is not None:
            warnings.warn(self._left_out, stacklevel=users_level())

    def batches(self) -> Generator[tuple[Any, Note], None, None]:
        """Each batch when all ranks have agreed on its step."""
        is_dry = False
        # What is known of the shards, wherever they lie: ranks deal them alike only by the same.
        self._agreement.check_plan(self._options.digest({"urls_sha256", "places_sha256"}.__contains__))
        while True:
            made: list[tuple[Any, Note]] = []
            try:
                if not is_dry:
                    made.append(self._source.receive())
            except (EndOfChannel, ChannelClosed):
                is_dry = True
            if made and self._pads and self._empty is None:
                self._empty = empty_like(made[0][0], self._options.collate_fn)
            if self._world.replicas > 1:
                self._compare([note for _, note in made])
            verdict = self._agreement.settle(bool(made))
            if verdict in (StepVerdict.END, StepVerdict.STOP):
                if verdict is StepVerdict.STOP:
                    self._stop([note for _, note in made])
                self._agreement.end()
                return
            if verdict is StepVerdict.GO_WITH_EMPTY:
                self._share_empty()
            if made and made[0][1].position is not None:
                self._cursor.move(made[0][1].lane, made[0][1].position)
            # A copy: the consumer may pop fields from it.
            yield made.pop() if made else (copy.deepcopy(self._empty), _PADDING)

    def _compare(self, notes: list[Note]) -> None:
        """Check that the other processes of this rank have the same batch, by where it ends."""
        told = [(note.lane, note.position, note.samples) for note in notes]
        digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]
        self._agreement.compare(f"rank/{self._world.rank}", digest, last=self._world.replica == 0)

    def _stop(self, ready: list[Note]) -> None:
        """Count what is left out where all are stopped, and some have batches left.

        Args:
            ready: The notes of the batches that this rank has made and not delivered.
        """
        has_more = bool(ready)
        if has_more:
            with suppress(Exception):  # these batches are not delivered, so their errors do not matter
                while len(ready) < _MOST_READY:
                    ready.append(self._source.receive(0.0)[1])
        counters = self._counters
        counters.cut_short, counters.stopped = True, has_more
        counters.undelivered_batches = len(ready)
        counters.undelivered_samples = sum(note.samples for note in ready)
        rest = count_rest(self._options, self._cursor)
        if not has_more:
            rest = Rest(rest.samples and 0, rest.of, 0)
        counted = self._world.replica == 0  # the others have the same
        mine = [rest.samples is None, rest.samples or 0, rest.of or 0, rest.shards is None, rest.shards or 0]
        told = [int(number) * counted for number in (*mine, counters.undelivered_samples)]
        sums = None
        with suppress(RanksError):  # a rank that is lost now has left out nothing else
            sums = self._agreement.add_up(told)
        if self._world.process == 0:
            self._left_out = _left_out(self._cursor.epoch, self._agreement.steps, sums or told)

    def _share_empty(self) -> None:
        """Let ranks that never had a batch know what one looks like."""
        mine = None if self._empty is None else empty_to_text(self._empty)
        text = self._agreement.share("empty", mine)
        if mine is None:
            self._empty = empty_from_text(text)
