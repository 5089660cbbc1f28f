"""What a pass takes in beside its batches, whoever makes them: counts, and what ``take`` lacked."""

from __future__ import annotations

import warnings

from ..ops.shortfalls import Shortfall, describe_shortfalls
from ..progress import NetworkCounts
from ..stream import Note
from ..tracebacks import users_level

__all__ = ["Intake"]


class Intake:
    """Takes in the notes of a rank's lanes.

    Args:
        network: Told of all that was asked of the network.
    """

    def __init__(self, network: NetworkCounts) -> None:
        self._network = network
        self._shortfalls: list[Shortfall] = []

    def add(self, note: Note) -> bool:
        """Count what a note tells; says whether there is a batch beside it, or only a lane's end."""
        if note.network is not None:
            self._network.add(note.network)
        self._shortfalls += note.shortfalls
        return note.position is not None

    def warn_of_shortfalls(self) -> None:
        """Say what ``take`` lacked when the pass is closed, which is in the consumer's own thread.

        Where a lane ends nobody's line could be named: that is on a thread or in a worker.
        """
        for sentence in describe_shortfalls(self._shortfalls):
            warnings.warn(sentence, stacklevel=users_level())
