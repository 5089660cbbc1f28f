"""The last stage before the consumer: batches in pinned memory, or already on the device."""

from __future__ import annotations

from .backend import Backend, Event
from .choose import check_device, open_stage
from .stage import DeviceStage

__all__ = ["Backend", "DeviceStage", "Event", "check_device", "open_stage"]
