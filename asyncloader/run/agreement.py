"""What ranks agree on at each step of a pass: whether all of them go on.

At each step every rank says whether it has a batch; the last one to say so decides for all, since only it has
seen every answer. That is one addition and one wait on the store of ``torch.distributed``'s process group:
no collective, which a rank that leaves could not call off, and whose order every other collective of the
training would have to respect.

Laws:

* A rank that leaves says so at once, and nobody waits for it.
* One that is killed is missed for as long as the process group's time-out, and no longer.
* The store keeps no more than the latest step of a pass, and one empty batch if somebody lacks it.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from enum import Enum
from typing import Any, Literal, TypeAlias

from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import PrefixStore

from ..errors import RanksError

__all__ = ["Agreement", "Policy", "Verdict"]

Policy: TypeAlias = Literal["stop", "pad", "raise"]

_log = logging.getLogger("asyncloader.ranks")

# Added to the counter of a step by a rank that has run dry; below it those are counted that have a batch.
_DRY = 1 << 32

# Long enough that ranks which merely differ in speed say nothing.
_QUIET_S = 10.0


class Verdict(Enum):
    """What all ranks do at a step."""

    GO = "go"
    #: Somebody never had a batch to know the structure of empty ones by. Only at the first step: whoever runs
    #: dry later knows it.
    GO_WITH_EMPTY = "go, and share an empty batch"
    END = "end"
    #: Some have a batch, others have none, and all end.
    STOP = "stop"
    UNEVEN = "uneven"


class _Seat:
    """What this process keeps for a store from one pass to the next."""

    def __init__(self) -> None:
        #: How many passes of each name each rank here has taken part in; all ranks of a process group start
        #: together, and so count alike.
        self.passes: Counter[tuple[str, int]] = Counter()
        self._clients: list[Any] = []

    def lend(self, store: Any, borrower: object) -> Any:
        """A client that nobody else uses until ``borrower`` has gone.

        They are kept because a new one may take seconds: where host names resolve badly, 5 s in 3 of 100
        (measured), and a training would lose them at the start of an epoch.
        """
        try:
            client = self._clients.pop()
        except IndexError:
            client = store.clone()
        weakref.finalize(borrower, self._clients.append, client).atexit = False
        return client


_seats: weakref.WeakKeyDictionary[Any, _Seat] = weakref.WeakKeyDictionary()

# A connection that two processes use gives either what the other has asked for.
os.register_at_fork(after_in_child=_seats.clear)


class Agreement:
    """One rank's part in the agreement over one pass.

    Args:
        store: Of the process group.
        name: Of the pass, the same on every rank; of several passes of one name the first of each rank belong
            together, and so on.
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
        self._rank, self._size, self._policy = rank, size, policy
        self._patience: timedelta = store.timeout
        self._lock = threading.Lock()
        self._left = False
        self._has_lost_others = False
        #: Steps that all have agreed on.
        self.steps = 0
        # A client is locked while it waits: whoever waits has one of its own, and so has whoever wakes it,
        # since the group's may be waiting in a barrier.
        with self._asking():
            self._waiting = PrefixStore(prefix, seat.lend(store, self))
            self._telling = PrefixStore(prefix, seat.lend(store, self))

    def settle(self, has_batch: bool) -> Verdict:
        """Tell the others whether there is a batch for the next step; what all do. Blocks.

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
                    f"rank {int(said[5:])} has left the epoch before its end: its loop was left, or raised "
                    "an error, or only some ranks iterate this loader. Let all ranks take the same number of "
                    'steps, or say uneven="ignore"'
                )
            if said.startswith("lost "):
                raise self._lost(f"as rank {int(said[5:])} has found")
            verdict = Verdict(said)
            if verdict is Verdict.UNEVEN:
                raise self._error(
                    f"this rank {'has a batch' if has_batch else 'has no batch'} for step {self.steps} and "
                    f"{'others have none' if has_batch else 'others have one'}. Deal lanes equally by an "
                    'index (asyncloader index), or say uneven="stop" or "pad"'
                )
            self.steps += verdict not in (Verdict.END, Verdict.STOP)
        return verdict

    def check_plan(self, plan: str) -> None:
        """See that all ranks deal the same epoch, before its first step; waits for nobody.

        Raises:
            RanksError: Another one has told another plan, or the store has gone.
        """
        with self._asking():
            said = self._waiting.compare_set("plan", "", plan).decode()
        if said != plan:
            raise self._error(
                "ranks are to deal the same shards, but the indexes or sizes of shards that they "
                "know differ, so that samples would come twice or not at all. Give all of them the same: a "
                "copy of the shards on another node may be older"
            )

    def compare(self, key: str, told: str, *, last: bool) -> None:
        """Tell those who share ``key`` something about this step, before it is settled.

        Args:
            key: Their own.
            told: What is to be the same of all.
            last: Whether this one clears away what was told of the step before.

        Raises:
            RanksError: Another one has told something else, or the store has gone.
        """
        with self._lock:
            self._check_here()
        with self._asking():
            said = self._waiting.compare_set(f"{key}/{self.steps}", "", told).decode()
            if last and self.steps:  # all have told, or the step before would not be settled
                self._waiting.delete_key(f"{key}/{self.steps - 1}")
        if said != told:
            raise self._error(
                f"processes that are to get the same batches have different ones at step {self.steps}. Do "
                "all read the same shards, go on from the same state, and skip the same samples? A shard "
                "that one of them alone could not read is skipped by that one alone"
            )

    def give(self, key: str, value: str) -> None:
        """Give the other ranks a text; the first one given counts.

        Raises:
            RanksError: The store has gone.
        """
        with self._asking():
            self._waiting.compare_set(key, "", value)

    def take(self, key: str) -> str:
        """What a rank has given, or gives.

        Raises:
            RanksError: That takes too long, or the store has gone.
        """
        with self._asking():
            return self._get(key)

    def add_up(self, numbers: Sequence[int]) -> list[int] | None:
        """The sums of what all ranks tell here, once, when they end. Blocks.

        Returns:
            None if a rank has left before it told.

        Raises:
            RanksError: That takes too long, or the store has gone.
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
        """Take no further part, and let nobody wait for it. Idempotent, from any thread."""
        with self._lock:
            if self._left:
                return
            self._left = True
            step, word = self.steps, f"{'lost' if self._has_lost_others else 'left'} {self._rank}"
            with suppress(Exception):  # the store has gone, and so has whoever would wait
                if self._telling.compare_set(f"verdict/{step}", "", word) != word.encode():
                    self._telling.compare_set(f"verdict/{step + 1}", "", word)
                    self._telling.compare_set("sums", "", word)

    def end(self) -> None:
        """All ranks have ended the pass; there is nothing to leave."""
        with self._lock:
            self._left = True

    def _check_here(self) -> None:
        """Refuse to speak for a rank that has left: a stream that was closed looks as if it had run dry."""
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

    def _decide(self, step: int, having: int, dry: int) -> Verdict:
        if not dry:
            return Verdict.GO
        if not having:
            return Verdict.END
        if self._policy == "stop":
            return Verdict.STOP
        if self._policy == "raise":
            return Verdict.UNEVEN
        return Verdict.GO if step else Verdict.GO_WITH_EMPTY

    def _get(self, key: str) -> str:
        quiet = min(timedelta(seconds=_QUIET_S), self._patience / 2)
        try:
            self._waiting.wait([key], quiet)
        except DistStoreError:
            _log.warning(
                "rank %d waits for other ranks at step %d, for %.0f s at most; does every rank iterate this "
                'loader? One that is read by itself says uneven="ignore"',
                self._rank,
                self.steps,
                self._patience.total_seconds(),
            )
            self._waiting.wait([key], self._patience - quiet)
        return self._waiting.get(key).decode()

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Asking the store, whose errors mean that the others are lost."""
        try:
            yield
        except RuntimeError as error:
            # Without the frames of torch's C++ code, which stand below.
            raise self._lost(str(error).partition("\n")[0]) from error

    def _lost(self, how_known: str) -> RanksError:
        self._has_lost_others = True
        return self._error(
            f"the other ranks did not answer within {self._patience.total_seconds():.0f} s, the time-out of "
            f"the process group, or its store has gone: one has died or stands still ({how_known})"
        )

    def _error(self, text: str) -> RanksError:
        return RanksError(text, rank=self._rank, step=self.steps)
