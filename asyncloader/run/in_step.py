"""Ranks in step: all deliver as many batches, so that no collective of the training waits for ever.

It stands between the merged lanes and the device stage, on a thread of its own that is a batch ahead of the
consumer, so that a training step never waits for what ranks have to tell each other.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import pickle
import sys
import warnings
from collections.abc import Callable, Generator
from contextlib import ExitStack, suppress
from typing import Any, cast

from .._flow.asking import Asking, Asks
from .._flow.channel import ChannelClosed, EndOfChannel, Receiver
from .._flow.producer import Producer
from ..collate.empty import empty_like
from ..counting import Counters
from ..plan.topology import World, process_group
from ..stream import Note
from ..torch_private import default_store
from ..tracebacks import users_level
from .agreement import Agreement, Policy, Verdict

__all__ = ["InStep", "keep_in_step", "policy_of"]

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
    collate_fn: Callable[[Any], Any],
    counters: Counters,
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
        collate_fn: What makes batches; its ``empty`` makes empty ones, if it has such a method.
        counters: Told when the rank is stopped with batches left.
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
        world if world.replicas > 1 else None,
    )
    in_step = InStep(settled)
    stack.callback(in_step.close)
    stack.callback(in_step.tell_of_rest, world.rank, counters)
    return in_step


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

    def tell_of_rest(self, rank: int, counters: Counters) -> None:
        """Say, in the consumer's own thread, that this rank was stopped with batches left."""
        ready = self._settled.ready
        if ready:
            counters.stopped = True
            counters.undelivered_batches = len(ready)
            counters.undelivered_samples = sum(note.samples for note in ready)
            warnings.warn(
                f"rank {rank} was stopped after {self._settled.agreement.steps} batches of this pass, with "
                f"others that had no more; of what it had left of the epoch, which was not delivered, "
                f"{len(ready)} {'batch' if len(ready) == 1 else 'batches'} with "
                f"{counters.undelivered_samples} samples were ready. With an index (asyncloader index) ranks "
                "differ by one batch at most, but for filters and batches by length; "
                'uneven="pad" goes on with empty batches, and leaves out nothing',
                stacklevel=users_level(),
            )


class _Settled:
    """What the thread runs: it refers to neither the producer nor the consumer, so that both can go away.

    Args:
        source: The rank's batches.
        agreement: With the other ranks.
        pads_with: What makes empty batches; None where there are to be none.
        asks: What the consumer has asked for, if batches are made on demand.
        replicated: The rank, if there are other processes of it, which are to get the same batches.
    """

    def __init__(
        self,
        source: Receiver[tuple[Any, Note]],
        agreement: Agreement,
        pads_with: Callable[[Any], Any] | None,
        asks: Asks | None,
        replicated: World | None,
    ) -> None:
        self.agreement = agreement
        self.asks = asks
        #: The notes of the batches that the rank had when all were stopped.
        self.ready: list[Note] = []
        self._source = source
        self._pads_with = pads_with
        self._replicated = replicated
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
            if self._replicated is not None:
                self._compare(self._replicated, [note for _, note in made])
            verdict = self.agreement.settle(bool(made))
            if verdict is Verdict.END:
                self.agreement.end()
                self.ready = [note for _, note in made]
                if made and self.asks is None:
                    self._look_for_more()
                return
            if verdict is Verdict.GO_WITH_EMPTY:
                self._share_empty()
            # A copy: whoever gets it may pop fields from it.
            yield made.pop() if made else (copy.deepcopy(self._empty), _PADDING), 1

    def _compare(self, world: World, notes: list[Note]) -> None:
        """See that the other processes of this rank have the same batch, by where it ends."""
        told = [(note.lane, note.position, note.samples) for note in notes]
        digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]
        self.agreement.compare(f"rank/{world.rank}", digest, last=world.replica == 0)

    def _look_for_more(self) -> None:
        """Count what was made ahead: of what was not made nobody knows how much it is."""
        with suppress(Exception):  # nobody wants these batches any more, whatever is wrong with them
            while len(self.ready) < _MOST_READY:
                self.ready.append(self._source.receive(0.0)[1])

    def _share_empty(self) -> None:
        """Let ranks that never had a batch know what one looks like."""
        if self._empty is not None:
            self.agreement.give("empty", base64.b64encode(pickle.dumps(self._empty)).decode())
        else:
            # Nobody else writes there than the ranks of this job, who also run each other's collectives.
            self._empty = pickle.loads(base64.b64decode(self.agreement.take("empty")))
