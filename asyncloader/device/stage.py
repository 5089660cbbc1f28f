"""A thread between the merged batches and the consumer, which puts each into pinned or device memory.

Laws:

* Batches come out in the order they went in, each with its own note. A batch that cannot be pinned, or
  an error of the source, is raised at its place; what comes after it still comes.
* The consumer never waits for the device: its stream does.
* No wait is endless: ``close`` wakes the thread wherever it waits, and joins it.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from ..errors import add_note, users_level
from ..flow.channel import EndOfChannel, Producer, Receiver
from .carriers import Pinner, Prepared, Uploader
from .slabs import Accelerator

_WHERE = "in the pinned-memory stage"


class DeviceStage:
    """Keeps the protocol of ``Receiver`` over ``source``. Constructing starts nothing; ``start`` does.

    Args:
        source: Gives the batches, each with a note that is passed on unchanged. It is closed with the
            stage, which must wake a thread that waits for it.
        backend: The device.
        to_device: Whether batches go to the device, or only into pinned memory.
        depth: The most batches that lie ready at a time.
        budget_bytes: The most bytes that lie ready, and the most bytes in slabs; one batch always may.
            None for no bound but ``depth``.
    """

    def __init__(
        self,
        source: Receiver[tuple[Any, Any]],
        backend: Accelerator,
        *,
        to_device: bool,
        depth: int,
        budget_bytes: int | None,
    ) -> None:
        assert depth > 0, "a stage without room for a batch would never pass one on"
        self._backend = backend
        # One slab to write to while the copies of as many batches as may lie ready are pending.
        self._carrier: Pinner | Uploader = (
            Uploader(backend, count=depth + 1, budget_bytes=budget_bytes) if to_device else Pinner(backend)
        )
        # A batch costs its bytes, but at least the share that keeps the number of batches to ``depth``.
        least_cost = 1 if budget_bytes is None else max(budget_bytes // depth, 1)
        self._producer = Producer(
            partial(_prepared, source, backend, self._carrier),
            least_cost * depth,
            on_close=source.close,
            name="asyncloader-device",
            cost_of=lambda made: 1 if budget_bytes is None else max(made[0].size_bytes, least_cost),
            makes_before_room=True,
        )
        #: Starts the thread, which begins to read the source.
        self.start = self._producer.start

    def receive(self, timeout_s: float | None = None) -> tuple[Any, Any]:
        """The next batch and its note, for use on this thread's current stream.

        Args:
            timeout_s: How long to wait at most for it to be ready in host memory; None: until the stage
                is closed. The device is never waited for.

        Raises:
            ReceiveTimeout: Nothing came for ``timeout_s``; the stage is as it was.
            EndOfChannel: The source has ended, or the stage was closed.
            Exception: What the source, or pinning and copying this batch, raised.
        """
        prepared, note = self._producer.receive(timeout_s)
        return prepared.hand_over(), note

    async def receive_async(self) -> tuple[Any, Any]:
        """Like ``receive``, from a coroutine. If cancelled while waiting, no batch is lost."""
        prepared, note = await self._producer.receive_async()
        return prepared.hand_over(), note

    def close(self) -> None:
        """Close the source, end the thread and free the slabs. Idempotent, from any thread."""
        try:
            self._producer.close()
        finally:
            # The thread has drained its own; this is for what the consumer copied afterwards. One that has
            # not ended still uses them, and does it itself.
            if not self._producer.is_alive:
                _drain(self._carrier)


def _prepared(
    source: Receiver[tuple[Any, Any]], backend: Accelerator, carrier: Pinner | Uploader
) -> Generator[tuple[Prepared, Any], None, None]:
    """The batches of the source, each prepared; in the stage's own thread."""
    failure: Exception | None = None  # what the source raised last
    try:
        try:
            backend.enter_thread()
        except Exception as error:
            add_note(error, _WHERE)
            raise
        while True:
            try:
                batch, note = source.receive()
            except EndOfChannel:
                return
            except Exception as error:
                if error is failure:
                    raise  # the source has ended with it, and raises it each time: so does this stage
                failure, made = error, [(_failed(error), None)]
            else:
                made = [(_prepare(carrier, batch), note)]
                # Waiting for room must not hold the batch as it was, which may lie in shared memory.
                del batch
            yield made.pop()
    finally:
        failure = None  # its traceback leads here
        _drain(carrier)


def _prepare(carrier: Pinner | Uploader, batch: Any) -> Prepared:
    try:
        return carrier.prepare(batch)
    except Exception as error:
        add_note(error, _WHERE)
        return _failed(error)


def _drain(carrier: Pinner | Uploader) -> None:
    # If this fails, the device itself has failed, and nothing on it can be waited for. The consumer's next
    # call to it raises a better error.
    with suppress(Exception):
        carrier.drain()


def _failed(error: Exception) -> Prepared:
    """In place of a batch: an error that the consumer meets when its turn comes."""

    def hand_over() -> Any:
        nonlocal error
        try:
            raise error
        finally:
            # Its traceback refers to this stage's frames, and they to this: a cycle, with the batch.
            del error

    return Prepared(hand_over, 0)


# Which device stage a loader needs, if any; torch's warnings where it needs none after all.

# One batch for the consumer to take at once, and one more so that a slow batch behind it does not show.
# Every further one would hold its bytes in pinned or device memory and hide nothing more: what is
# fetched ahead waits in ordinary memory.
_DEPTH = 2


def check_device(device: str | torch.device | None) -> torch.device | None:
    """Say whether batches can be put on ``device``, before anything is started.

    Args:
        device: ``"cuda"``, ``"cuda:1"``, ``"cpu"``, a ``torch.device``, or None.

    Returns:
        The device, its index as given: ``"cuda"`` means the device that is current when iteration
        starts, which a training script may choose after it has made its loader. None for None.

    Raises:
        TypeError: It is neither a string nor a ``torch.device``.
        ValueError: torch does not know it, or it is neither a CUDA device nor the CPU.
        RuntimeError: It is not there.
    """
    if device is None:
        return None
    if not isinstance(device, (str, torch.device)):
        raise TypeError(f"device option should be a string or a torch.device, but got device={device!r}")
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise ValueError(
            f"device option should name a torch device, but got device={device!r}: {error}"
        ) from None
    if found.type == "cpu":
        return found
    if found.type != "cuda":
        raise ValueError(f"device option should be a CUDA device or 'cpu', but got device={device!r}")
    if not torch.cuda.is_available():
        raise RuntimeError(
            f"device='{found}' needs a CUDA device, but torch finds none; "
            "leave device out to get batches in host memory"
        )
    count = torch.cuda.device_count()
    if found.index is not None and found.index >= count:
        raise RuntimeError(f"device='{found}' should be one of the {count} CUDA devices, from 'cuda:0' on")
    return found


def open_stage(
    source: Receiver[tuple[Any, Any]],
    *,
    pin_memory: bool,
    device: str | torch.device | None = None,
    pin_memory_device: str = "",
    budget_bytes: int | None = None,
) -> Receiver[tuple[Any, Any]]:
    """Put the stage that the user asked for behind ``source``, started; or none.

    Args:
        source: Gives the batches with their notes.
        pin_memory: torch's option. Without an accelerator it warns, as torch does, and does nothing.
        device: See ``check_device``. Given a CUDA device, batches arrive on it, through pinned memory
            whatever ``pin_memory`` says; ``"cpu"`` asks for nothing.
        pin_memory_device: torch's deprecated option; only warned about.
        budget_bytes: See ``DeviceStage``.

    Returns:
        What the consumer is to read, and to close: a ``DeviceStage``, or ``source`` itself.

    Raises:
        TypeError, ValueError, RuntimeError: See ``check_device``.
    """
    chosen = check_device(device)
    if pin_memory and pin_memory_device:
        warnings.warn(
            "pin_memory_device is deprecated, the current accelerator will be used as the device,"
            f"ignore pin_memory_device='{pin_memory_device}'.",
            stacklevel=users_level(),
        )
    to_device = chosen is not None and chosen.type == "cuda"
    if not to_device:
        chosen = _accelerator() if pin_memory else None
        if pin_memory and (why_not := _why_not_pinned(chosen)):
            warnings.warn(why_not, stacklevel=users_level())
            return source
    if chosen is None:
        return source
    backend = Accelerator(_with_index(chosen))
    stage = DeviceStage(source, backend, to_device=to_device, depth=_DEPTH, budget_bytes=budget_bytes)
    stage.start()
    return stage


def _accelerator() -> torch.device | None:
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None


def _why_not_pinned(accelerator: torch.device | None) -> str | None:
    """In torch's words, why nothing is pinned for this accelerator; None if it is."""
    if accelerator is None:
        return (
            "'pin_memory' argument is set as true but no accelerator is found, "
            "then device pinned memory won't be used."
        )
    if accelerator.type == "mps":
        return (
            "'pin_memory' argument is set as true but not supported on MPS now, "
            "device pinned memory won't be used."
        )
    return None


def _with_index(device: torch.device) -> torch.device:
    if device.index is not None:
        return device
    return torch.device(device.type, getattr(torch, device.type).current_device())
