"""The seam to the accelerator: the few things this room asks of it.

All but ``hand_over`` and ``move`` are called by the stage's own thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Backend", "Event"]


class Event(Protocol):
    """A point on a stream of the device; done once everything queued before it is."""

    def query(self) -> bool:
        """Whether it is done; never blocks."""
        ...

    def synchronize(self) -> None:
        """Block this thread until it is done. Never called by a consumer that wants its next batch."""
        ...


class Backend(Protocol):
    """One device, its side stream, and its page-locked host memory."""

    def enter_thread(self) -> None:
        """Make the device and its side stream current in this thread, which is the stage's."""
        ...

    def is_pinned(self, tensor: Tensor) -> bool:
        """Whether the device may read ``tensor`` directly, whoever locked its pages."""
        ...

    def pinned(self, size_bytes: int) -> Tensor:
        """New page-locked host memory, as ``(size_bytes,)`` uint8."""
        ...

    def on_device(self, size_bytes: int) -> Tensor:
        """New device memory, as ``(size_bytes,)`` uint8, for use on the side stream."""
        ...

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Queue a copy of pinned ``source`` to device memory on the side stream, and return at once."""
        ...

    def record(self) -> Event:
        """An event after everything queued on the side stream so far."""
        ...

    def hand_over(self, event: Event, buffers: Sequence[Tensor]) -> None:
        """Let the caller's current stream use ``buffers``, from ``event`` on, without blocking.

        Their memory must not be given out again before that stream's work so far, at the time they are
        dropped, is done.
        """
        ...

    def move(self, things: Sequence[Any]) -> tuple[list[Any], Event]:
        """Each thing's ``.to(device, non_blocking=True)`` on the caller's current stream.

        Returns:
            The moved things, and an event after which the originals are not read any more.
        """
        ...
