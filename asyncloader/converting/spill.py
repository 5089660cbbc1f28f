"""Samples in a file without a name, written in their order and read in a drawn one."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ..errors import FormatError
from ..plan.order import draw_order

__all__ = ["SpilledPart", "spill"]


@dataclass(frozen=True)
class SpilledPart:
    """Some of the samples of a spill; a process that inherits the descriptor can read them.

    Attributes:
        fd: Descriptor of the file.
        spans: Where each sample lies, in the order in which they are wanted: ``(n, 2) int64`` of first byte
            and length.
    """

    fd: int
    spans: npt.NDArray[np.int64]

    def samples(self) -> Generator[tuple[dict[str, Any], object], None, None]:
        for start, length in self.spans.tolist():
            # By position: the processes share one descriptor, and so one file position.
            yield pickle.loads(_read_at(self.fd, start, length))


def spill(
    samples: Iterable[tuple[dict[str, Any], object]], count: int, seed: int, file: IO[bytes]
) -> Callable[[int, int], SpilledPart]:
    """Write samples to a file; what is returned gives those from one number up to another of the drawn order.

    Any sample can then be read with one request to the disk, whatever it comes from: a source that is
    compressed, or that a server has, could only be read once for each shard that is made.

    Args:
        samples: All of them, with where each is from.
        count: How many there should be.
        seed: Draws the order.
        file: Has no name, or is this process's own: it is read as a pickle. Closing it ends the reading.

    Raises:
        FormatError: There are fewer samples.
    """
    ends = np.zeros(count + 1, np.int64)
    number = 0
    for number, (sample, place) in enumerate(samples, 1):
        # The place is known now, and what cannot be kept is found when a shard is made.
        ends[number] = ends[number - 1] + file.write(
            pickle.dumps((sample, str(place)), pickle.HIGHEST_PROTOCOL)
        )
    if number < count:
        raise FormatError(
            f"expected {count} samples, as many as were counted, and the sources have {number}: have they "
            "changed? If so, begin anew with overwrite"
        )
    file.flush()
    spans = np.stack([ends[:-1], np.diff(ends)], axis=1)[draw_order(count, seed)]
    return lambda first, stop: SpilledPart(file.fileno(), spans[first:stop])


def _read_at(fd: int, start: int, length: int) -> bytes:
    parts = []
    while length:
        part = os.pread(fd, length, start)
        if not part:
            raise FormatError("the file of samples in between is cut: is its disk full?")
        parts.append(part)
        start, length = start + len(part), length - len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
