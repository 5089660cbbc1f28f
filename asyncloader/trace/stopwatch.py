"""A stopwatch that also records each stretch of time it measures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..stopwatch import Spent, Stopwatch
from ..tensors import StandIn
from .recorder import Recorder

__all__ = ["TracingStopwatch"]


class TracingStopwatch(Stopwatch):
    """Records when its thread was at which stage, and tells it with what was spent.

    Args:
        since_s: See ``Stopwatch``.
        recorder: Of the process; a new one by default.
    """

    def __init__(self, since_s: float | None = None, recorder: Recorder | None = None) -> None:
        super().__init__(since_s)
        self.recorder = Recorder() if recorder is None else recorder
        self._track = self.recorder.new_track()
        self._at_stage_since_s = self._since_s

    def enter(self, stage: str, now_s: float | None = None) -> str:
        former = super().enter(stage, now_s)
        if former != stage:
            self._record(former)
        return former

    def helper(self) -> Stopwatch:
        helper = TracingStopwatch(recorder=self.recorder)
        self._helpers.add(helper)
        return helper

    def news(self, *, at_once: bool = False, cpu_s: float | None = None) -> Spent | None:
        spent = super().news(at_once=at_once, cpu_s=cpu_s)
        if spent is None:
            return None
        self._record(self._stage)
        return spent._replace(traced=self.recorder.take(self._since_s))

    def made(self, batch: Any) -> None:
        """The thread has made this batch."""
        real, cells = _cells_of(batch)
        if cells:
            self.recorder.padded(real, cells)

    def _record(self, stage: str) -> None:
        self.recorder.slice(self._track, stage, self._at_stage_since_s, self._since_s)
        self._at_stage_since_s = self._since_s


def _cells_of(batch: Any) -> tuple[int, int]:
    """How many cells of a batch's padded fields hold data, and how many there are.

    Fields as ``Pad`` makes them are known by their lengths, blocks as ``Pack`` makes them by their segments.
    """
    if not isinstance(batch, Mapping):
        return 0, 0
    fields: dict[Any, Any] = {
        name: field.array if isinstance(field, StandIn) else field for name, field in batch.items()
    }
    segments: Any = fields.get("segment_ids")
    if len(getattr(segments, "shape", ())) == 2:
        return int((segments != 0).sum()), segments.shape[0] * segments.shape[1]
    real = cells = 0
    for name, lengths in fields.items():
        field = fields.get(name.removesuffix("_lengths")) if isinstance(name, str) else None
        shape: Any = getattr(field, "shape", ())
        if field is not lengths and len(shape) >= 2 and getattr(lengths, "shape", None) == shape[:1]:
            real += int(lengths.sum())
            cells += shape[0] * shape[1]
    return real, cells
