"""Actors between two passes: with ``persistent_workers=True`` they are kept, and what they have imported."""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import suppress
from typing import Any

from .connecting import import_ray
from .options import RayWorkers

__all__ = ["Bench"]


class Bench:
    """Where a loader's actors sit whose jobs have ended, until another pass, or the loader's end.

    Args:
        asked: What each actor is asked for with.
        keeps: Whether any may sit there; else each is killed with its pass.
    """

    def __init__(self, asked: RayWorkers, keeps: bool) -> None:
        self.asked = asked
        self.keeps = keeps
        # Re-entrant: a garbage collection while it is held may end a pass, whose actors are seated.
        self._lock = threading.RLock()
        #: Each with the connection to Ray by which it was made: after another ``ray.init()`` it is nobody's.
        self._idle: list[tuple[str, Any]] = []
        self._owner = os.getpid()
        # Not the bench itself: what a finalizer refers to is never collected.
        weakref.finalize(self, _kill, self._idle, self._owner)

    def take(self) -> Any | None:
        """An actor for another job, or None if there is none; it may have been lost meanwhile."""
        if self._owner != os.getpid():
            return None
        with self._lock:
            while self._idle:
                made_by, actor = self._idle.pop(0)
                if made_by == _connection():
                    return actor
        return None

    def seat(self, actor: Any) -> None:
        """Keep an actor until it is taken or the bench is cleared."""
        with self._lock:
            self._idle.append((_connection(), actor))

    def clear(self) -> None:
        """Kill all that sit there. From any thread."""
        with self._lock:
            _kill(self._idle, self._owner)

    def __reduce__(self) -> Any:
        """A copy, here or elsewhere, is an empty one."""
        return Bench, (self.asked, self.keeps)


def _connection() -> str:
    return str(import_ray().get_runtime_context().get_worker_id())


def _kill(idle: list[tuple[str, Any]], owner: int) -> None:
    if owner != os.getpid():  # in a fork they are another process's
        return
    while idle:
        _, actor = idle.pop()
        ray = import_ray()
        # Where Ray has gone its actors have too, and to ask it would start another one.
        if ray.is_initialized():
            with suppress(Exception):  # it was lost
                ray.kill(actor)
