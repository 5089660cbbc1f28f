"""The last stage before the consumer: batches in pinned memory, or already on the device."""

from __future__ import annotations

from .slabs import Accelerator
from .stage import DeviceStage, check_device, open_stage

__all__ = ["Accelerator", "DeviceStage", "check_device", "open_stage"]
