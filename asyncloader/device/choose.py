"""Which device stage a loader needs, if any; torch's warnings where it needs none after all."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from .._flow.channel import Receiver
from ..tracebacks import users_level
from .cuda import CudaBackend
from .stage import DeviceStage

if TYPE_CHECKING:
    import torch

__all__ = ["check_device", "open_stage"]

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
    import torch

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
            f"device='{found}' was asked for, but torch finds no CUDA device; "
            "leave device out to get batches in host memory"
        )
    count = torch.cuda.device_count()
    if found.index is not None and found.index >= count:
        raise RuntimeError(f"device='{found}' was asked for, but there are only {count} CUDA devices")
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
    backend = CudaBackend(_with_index(chosen))
    stage = DeviceStage(
        source,
        backend,
        to_device=to_device,
        depth=_DEPTH,
        budget_bytes=budget_bytes,
    )
    stage.start()
    return stage


def _accelerator() -> torch.device | None:
    import torch

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
    import torch

    if device.index is not None:
        return device
    return torch.device(device.type, getattr(torch, device.type).current_device())
