"""What ``take`` lacked in a pass, told in the consumer's own thread."""

from __future__ import annotations

import warnings

from ..ops.shortfalls import describe_shortfalls
from ..stream import MergedLanes
from ..tracebacks import users_level

__all__ = ["warn_of_shortfalls"]


def warn_of_shortfalls(merged: MergedLanes) -> None:
    """Say what ``take`` lacked when the pass is closed, which is in the consumer's own thread.

    Where a lane ends nobody's line could be named: that is on a thread or in a worker.
    """
    for sentence in describe_shortfalls(merged.shortfalls):
        warnings.warn(sentence, stacklevel=users_level())
