"""The backend for CUDA devices (ROCm's too, which torch gives the same names).

Pinning alone works for every accelerator that torch can pin memory for; copies need CUDA.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["CudaBackend"]


class CudaBackend:
    """See ``Backend``. Constructing touches nothing on the device.

    Args:
        device: The device, with its index.
    """

    def __init__(self, device: torch.device) -> None:
        assert device.index is not None, "the current device of this thread is not that of the stage's"
        self._device = device

    def enter_thread(self) -> None:
        import torch

        # Both are a thread's own settings, so the consumer's are left alone, and end with the thread.
        getattr(torch, self._device.type).set_device(self._device)
        if self._device.type == "cuda":
            stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]  # as torch has it
            torch.cuda.set_stream(stream)

    def is_pinned(self, tensor: Tensor) -> bool:
        return tensor.is_pinned()

    def pinned(self, size_bytes: int) -> Tensor:
        import torch

        # From torch's caching host allocator, as Tensor.pin_memory takes it. Locking pages costs
        # milliseconds and stalls the device; the allocator recycles them when the last tensor over them
        # is gone and, for copies made by torch, when the stream has read them. A pool of our own could
        # not see the copies a user makes of a pinned batch.
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)

    def on_device(self, size_bytes: int) -> Tensor:
        import torch

        return torch.empty(size_bytes, dtype=torch.uint8, device=self._device)

    def copy(self, target: Tensor, source: Tensor) -> None:
        target.copy_(source, non_blocking=True)

    def record(self) -> torch.cuda.Event:
        import torch

        # A blocking event: who waits for it sleeps. The others spin, on a core that decoding could use.
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # as torch has it
        event.record(torch.cuda.current_stream(self._device))
        return event

    def hand_over(self, event: Any, buffers: Sequence[Tensor]) -> None:
        import torch

        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(event)
        for buffer in buffers:
            # The memory belongs to the side stream. Without this, the allocator would give it to the
            # next copy as soon as the consumer drops the batch, kernels that read it still queued.
            buffer.record_stream(stream)

    def move(self, things: Sequence[Any]) -> tuple[list[Any], torch.cuda.Event]:
        moved = [thing.to(self._device, non_blocking=True) for thing in things]
        return moved, self.record()
