"""Ranks in step: all deliver as many batches, so that no collective of the training waits for ever.

It stands between the merged lanes and the device stage, on a thread of its own that is a batch ahead of the
consumer, so that a training step never waits for what ranks have to tell each other.
"""

from __future__ import annotations

import copy
import hashlib
import json
import sys
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple, cast

from .._flow.asking import Asking, Asks
from .._flow.channel import ChannelClosed, EndOfChannel, Receiver
from .._flow.producer import Producer
from ..collate.empty import empty_from_text, empty_like, empty_to_text
from ..errors import RanksError
from ..plan.cursor import Cursor
from ..plan.topology import World, process_group
from ..statistics import Meter
from ..stream import Note
from ..torch_private import default_store
from ..tracebacks import users_level
from .agreement import Agreement, Policy, Verdict

__all__ = ["InStep", "Rest", "keep_in_step", "policy_of"]

# Settled ahead of the consumer: one to hand over, and one that is being settled meanwhile.
_BATCHES_AHEAD = 2

# Of what is ready when a rank is stopped: more than is ever made ahead, and a small part of an epoch.
_MOST_READY = 256

_PADDING = Note(-1, None)
"""The note of a batch that stands for none."""


def policy_of(uneven: str | None, world: World) -> Policy | None:
    """What ranks do when some have no batch and others have; None where each goes by itself.

    Args:
        uneven: ``"stop"``, ``"pad"``, ``"raise"`` or ``"ignore"``; None is ``"stop"`` where as many processes
            read as the process group has, and ``"ignore"`` elsewhere.
        world: The rank that is loaded for.
    """
    if uneven == "ignore" or world.processes == 1:
        return None
    if uneven is not None:
        return cast("Policy", uneven)
    group = process_group(sys.modules)
    return "stop" if group is not None and group[1] == world.processes else None


def keep_in_step(
    source: Receiver[tuple[Any, Note]],
    uneven: str | None,
    world: World,
    name: Callable[[], str],
    plan: Callable[[], str],
    collate_fn: Callable[[Any], Any],
    cursor: Cursor,
    rest_of: Callable[[Cursor], Rest],
    counters: Meter,
    stack: ExitStack,
    *,
    on_demand: bool,
) -> Receiver[tuple[Any, Note]]:
    """The batches of a rank, as many as all ranks deliver.

    Args:
        source: The rank's batches; closed with what is returned.
        uneven: See ``policy_of``.
        world: The rank that is loaded for.
        name: Gives what the pass is called, the same on all ranks.
        plan: Gives what tells the dealing of its shards from another, likewise.
        collate_fn: What makes batches; its ``empty`` makes empty ones, if it has such a method.
        cursor: Where the pass begins.
        rest_of: Gives what the rank has behind a cursor.
        counters: Told when ranks are stopped with batches left.
        stack: Closes what is started here.
        on_demand: Ask the source for a batch only when the consumer asks for it.

    Raises:
        RuntimeError: Ranks are to be kept in step and there is no process group over which to agree.
    """
    policy, group = policy_of(uneven, world), process_group(sys.modules)
    if policy is None:
        return source
    if group is None:
        raise RuntimeError(
            f"uneven={uneven!r} keeps {world.size} ranks in step over torch.distributed's process group, and "
            'there is none: call torch.distributed.init_process_group() first, or say uneven="ignore"'
        )
    agreement = Agreement(default_store(), name(), *group, policy)
    settled = _Settled(
        source,
        agreement,
        collate_fn if policy == "pad" else None,
        Asks() if on_demand else None,
        world,
        cursor.copy(),
        rest_of,
        counters,
        plan(),
    )
    in_step = InStep(settled)
    stack.callback(in_step.close)
    stack.callback(in_step.tell_of_rest)
    return in_step


class Rest(NamedTuple):
    """What a rank has left of an epoch.

    Attributes:
        samples: How many; None where that is not known.
        of: How many it had; likewise.
        shards: Of how many shards, where samples are not known; None where that is not known either.
    """

    samples: int | None
    of: int | None
    shards: int | None


class InStep:
    """Keeps the protocol of ``Receiver`` over what ranks have settled. Constructing starts its thread."""

    def __init__(self, settled: _Settled) -> None:
        self._settled = settled
        producer = Producer(settled.batches, _BATCHES_AHEAD, on_close=settled.leave, name="asyncloader-steps")
        asks = settled.asks
        self._batches: Receiver[tuple[Any, Note]] = producer if asks is None else Asking(producer, asks)
        producer.start()

    def receive(self, timeout_s: float | None = None) -> tuple[Any, Note]:
        """See ``Receiver``."""
        return self._batches.receive(timeout_s)

    async def receive_async(self) -> tuple[Any, Note]:
        """See ``Receiver``."""
        return await self._batches.receive_async()

    def close(self) -> None:
        """Leave the pass, and close the source. Idempotent."""
        self._batches.close()

    def tell_of_rest(self) -> None:
        """Say once for all ranks, in the consumer's own thread, what they were stopped with."""
        if (told := self._settled.left_out) is not None:
            warnings.warn(told, stacklevel=users_level())


def _left_out(epoch: int, steps: int, sums: Sequence[int]) -> str:
    """What to say of the samples that all ranks together have left."""
    no_samples, samples, of, no_shards, shards, ready = sums
    how_many = f"{samples} of {of} samples were" if not no_samples else f"at least {ready} samples were"
    where = "" if not no_samples or no_shards else f", of {shards} shards that were not read to their ends,"
    return (
        f'uneven="stop" ended epoch {epoch} on all ranks after {steps} steps of this pass, with those that '
        f'had no more batches: {how_many}{where} left out. A loader with uneven="pad" that loads the ranks\' '
        "state_dict() of now goes on with them; with an index (asyncloader index) ranks share shards equally"
    )


class _Settled:
    """What the thread runs: it refers to neither the producer nor the consumer, so that both can go away.

    Args:
        source: The rank's batches.
        agreement: With the other ranks.
        pads_with: What makes empty batches; None where there are to be none.
        asks: What the consumer has asked for, if batches are made on demand.
        world: The rank. Other processes of it are to get the same batches.
        cursor: Where the pass begins; moved with each batch that ranks have agreed on.
        rest_of: Gives what the rank has behind a cursor.
        counters: Of the pass.
        plan: What is to be the same on all ranks.
    """

    def __init__(
        self,
        source: Receiver[tuple[Any, Note]],
        agreement: Agreement,
        pads_with: Callable[[Any], Any] | None,
        asks: Asks | None,
        world: World,
        cursor: Cursor,
        rest_of: Callable[[Cursor], Rest],
        counters: Meter,
        plan: str,
    ) -> None:
        self.agreement = agreement
        self.asks = asks
        #: What to say of samples that ranks had when all were stopped: on the first process, for all of them.
        self.left_out: str | None = None
        self._world, self._cursor, self._rest_of, self._counters = world, cursor, rest_of, counters
        self._plan = plan
        self._source = source
        self._pads_with = pads_with
        self._empty: Any = None

    def leave(self) -> None:
        """Wake the thread wherever it waits, and tell the other ranks."""
        self.agreement.leave()
        if self.asks is not None:
            self.asks.finish()
        self._source.close()

    def batches(self) -> Generator[tuple[tuple[Any, Note], int], None, None]:
        """Each batch when all ranks have agreed on its step, with its cost."""
        is_dry = False
        self.agreement.check_plan(self._plan)
        while True:
            made: list[tuple[Any, Note]] = []
            try:
                if self.asks is not None:
                    self.asks.wait()
                if not is_dry:
                    made.append(self._source.receive())
            except (EndOfChannel, ChannelClosed):
                is_dry = True
            if made and self._pads_with is not None and self._empty is None:
                self._empty = empty_like(made[0][0], self._pads_with)
            if self._world.replicas > 1:
                self._compare(self._world, [note for _, note in made])
            verdict = self.agreement.settle(bool(made))
            if verdict in (Verdict.END, Verdict.STOP):
                if verdict is Verdict.STOP:
                    self._stop([note for _, note in made])
                self.agreement.end()
                return
            if verdict is Verdict.GO_WITH_EMPTY:
                self._share_empty()
            if made and made[0][1].position is not None:
                self._cursor.delivered(made[0][1].lane, made[0][1].position)
            # A copy: whoever gets it may pop fields from it.
            yield made.pop() if made else (copy.deepcopy(self._empty), _PADDING), 1

    def _compare(self, world: World, notes: list[Note]) -> None:
        """See that the other processes of this rank have the same batch, by where it ends."""
        told = [(note.lane, note.position, note.samples) for note in notes]
        digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]
        self.agreement.compare(f"rank/{world.rank}", digest, last=world.replica == 0)

    def _stop(self, ready: list[Note]) -> None:
        """All are stopped, and some have batches left: count what that leaves out.

        Args:
            ready: The notes of the batches that this rank has made and not delivered.
        """
        has_more = bool(ready)
        if has_more and self.asks is None:
            with suppress(Exception):  # nobody wants these batches any more, whatever is wrong with them
                while len(ready) < _MOST_READY:
                    ready.append(self._source.receive(0.0)[1])
        counters = self._counters
        counters.cut_short, counters.stopped = True, has_more
        counters.undelivered_batches = len(ready)
        counters.undelivered_samples = sum(note.samples for note in ready)
        rest = self._rest_of(self._cursor)
        if not has_more:
            rest = Rest(rest.samples and 0, rest.of, 0)
        counted = self._world.replica == 0  # the others have the same
        mine = [rest.samples is None, rest.samples or 0, rest.of or 0, rest.shards is None, rest.shards or 0]
        told = [int(number) * counted for number in (*mine, counters.undelivered_samples)]
        sums = None
        with suppress(RanksError):  # who is lost now leaves out no more
            sums = self.agreement.add_up(told)
        if self._world.process == 0:
            self.left_out = _left_out(self._cursor.epoch, self.agreement.steps, sums or told)

    def _share_empty(self) -> None:
        """Let ranks that never had a batch know what one looks like."""
        if self._empty is not None:
            self.agreement.give("empty", empty_to_text(self._empty))
        else:
            self._empty = empty_from_text(self.agreement.take("empty"))
