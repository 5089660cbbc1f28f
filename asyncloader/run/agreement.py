"""What ranks agree on at each step of a pass: whether all of them go on.

At each step every rank says whether it has a batch; the last one to say so decides for all, since only it has
seen every answer. That is one addition and one wait on the store of ``torch.distributed``'s process group:
no collective, which a rank that leaves could not call off, and whose order every other collective of the
training would have to respect.

Laws:

* A rank that leaves says so at once, and nobody waits for it.
* One that is killed is missed for as long as the process group's time-out, and no longer.
* The store keeps no more than the latest step of a pass.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from enum import Enum
from typing import Any, Literal, TypeAlias

from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import PrefixStore

from ..errors import RanksError

__all__ = ["Agreement", "Policy", "Verdict"]

Policy: TypeAlias = Literal["stop", "pad", "raise"]

_log = logging.getLogger("asyncloader.ranks")

# How many passes of each name this process has taken part in; all ranks of a job start together, and so count
# alike. It grows by a name an epoch.
_passes: Counter[tuple[str, int]] = Counter()

# Added to the counter of a step by a rank that has run dry; below it those are counted that have a batch.
_DRY = 1 << 32

# Long enough that ranks which merely differ in speed say nothing.
_QUIET_S = 10.0


class Verdict(Enum):
    """What all ranks do at a step."""

    GO = "go"
    #: Somebody has run dry, and lacks a batch to know the structure of empty ones by.
    GO_WITH_EMPTY = "go, some with an empty batch"
    END = "end"
    UNEVEN = "uneven"


class Agreement:
    """One rank's part in the agreement over one pass.

    Args:
        store: Of the process group.
        name: Of the pass, the same on every rank; of several passes of one name the first of each rank belong
            together, and so on.
        rank: This process among those that take part.
        size: How many take part.
        policy: What to do when some have run dry and others have not.
    """

    def __init__(self, store: Any, name: str, rank: int, size: int, policy: Policy) -> None:
        _passes[name, rank] += 1
        prefix = f"asyncloader/{name}/{_passes[name, rank]}"
        self._rank, self._size, self._policy = rank, size, policy
        # A client is locked while it waits, so that whoever waits has one of its own.
        self._waiting = PrefixStore(prefix, store.clone())
        self._telling = PrefixStore(prefix, store)
        self._patience: timedelta = store.timeout
        self._lock = threading.Lock()
        self._left = False
        #: Steps that all have agreed on.
        self.steps = 0

    def settle(self, has_batch: bool) -> Verdict:
        """Tell the others whether there is a batch for the next step; what all do. Blocks.

        Raises:
            RanksError: A rank has left the pass, is lost, or the policy is to raise and ranks are uneven.
        """
        said = self._settle(self.steps, has_batch)
        with self._lock:
            if self._left:
                raise RanksError("this rank has left the pass", rank=self._rank, step=self.steps)
            if said.startswith("left "):
                raise RanksError(
                    f"rank {int(said[5:])} has left the epoch before its end: its loop was left, or raised "
                    "an error, or only some ranks iterate this loader. Let all ranks take the same number of "
                    'steps, or say uneven="ignore"',
                    rank=self._rank,
                    step=self.steps,
                )
            verdict = Verdict(said)
            if verdict is Verdict.UNEVEN:
                raise RanksError(
                    f"this rank {'has a batch' if has_batch else 'has no batch'} for step {self.steps} and "
                    f"{'others have none' if has_batch else 'others have one'}. Deal lanes equally by an "
                    'index (python -m asyncloader.manifest), or say uneven="stop" or "pad"',
                    rank=self._rank,
                    step=self.steps,
                )
            self.steps += verdict is not Verdict.END
        return verdict

    def give(self, key: str, value: str) -> None:
        """Give the other ranks a text; the first one given counts."""
        self._waiting.compare_set(key, "", value)

    def take(self, key: str) -> str:
        """What a rank has given, or gives; raises RanksError if that takes too long."""
        return self._get(key, self.steps)

    def leave(self) -> None:
        """Take no further part, and let nobody wait for it. Idempotent, from any thread."""
        with self._lock:
            if self._left:
                return
            self._left = True
            step, word = self.steps, f"left {self._rank}"
            with suppress(Exception):  # the store has gone, and so has whoever would wait
                if self._telling.compare_set(f"verdict/{step}", "", word) != word.encode():
                    self._telling.compare_set(f"verdict/{step + 1}", "", word)

    def end(self) -> None:
        """All ranks have ended the pass; there is nothing to leave."""
        with self._lock:
            self._left = True

    def _settle(self, step: int, has_batch: bool) -> str:
        try:
            dry, having = divmod(self._waiting.add(f"count/{step}", 1 if has_batch else _DRY), _DRY)
            if dry + having < self._size:
                return self._get(f"verdict/{step}", step)
            verdict = self._waiting.compare_set(f"verdict/{step}", "", self._decide(having, dry).value)
            if step:  # every rank has read it, or it would not have come here
                self._waiting.delete_key(f"count/{step - 1}")
                self._waiting.delete_key(f"verdict/{step - 1}")
            return verdict.decode()
        except RanksError:
            raise
        except RuntimeError as error:
            raise self._lost(step, error) from error

    def _decide(self, having: int, dry: int) -> Verdict:
        if not dry:
            return Verdict.GO
        if not having or self._policy == "stop":
            return Verdict.END
        return Verdict.GO_WITH_EMPTY if self._policy == "pad" else Verdict.UNEVEN

    def _get(self, key: str, step: int) -> str:
        try:
            self._waiting.wait([key], timedelta(seconds=min(_QUIET_S, self._patience.total_seconds())))
        except DistStoreError:
            _log.warning(
                "rank %d waits for other ranks at step %d, for %.0f s at most; does every rank iterate this "
                'loader? One that is read by itself says uneven="ignore"',
                self._rank,
                step,
                self._patience.total_seconds(),
            )
            try:
                self._waiting.wait([key], self._patience)
            except RuntimeError as error:
                raise self._lost(step, error) from error
        return self._waiting.get(key).decode()

    def _lost(self, step: int, error: RuntimeError) -> RanksError:
        return RanksError(
            f"the other ranks did not answer within {self._patience.total_seconds():.0f} s, the time-out of "
            f"the process group, or its store has gone: one has died or stands still ({_first_line(error)})",
            rank=self._rank,
            step=step,
        )


def _first_line(error: Exception) -> str:
    """What torch says, without the frames of its C++ code below."""
    return str(error).partition("\n")[0]
