"""What workers run in tests of their death, in a module that imports little: each new worker imports it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncloader as al

__all__ = ["Deadly", "Stuck", "Waiting", "doubled", "is_wanted", "later", "numbers", "uneven", "with_pid"]


def numbers(count: int) -> al.Dataset:
    return al.from_iterable(lambda topology: topology.split(range(count)))


def with_pid(samples: Any) -> Any:
    """A ``collate_fn`` that says who has called it."""
    return samples, os.getpid()


def number_of(sample: dict[str, Any]) -> int:
    return int(sample["number"] if "number" in sample else sample["cls"])


def doubled(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "number": 2 * number_of(sample)}


async def later(sample: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(0)
    return sample


def is_wanted(sample: dict[str, Any]) -> bool:
    return number_of(sample) % 5 != 3


def uneven(number: int) -> int:
    time.sleep(0.002 * (number % 3))
    return number


@dataclass(frozen=True)
class Deadly:
    """Ends its process at a sample: always, or if it is to leave ``once`` behind, only where that is not."""

    victim: Any
    how: Callable[[], object] | signal.Signals
    once: Path | None = None

    def __call__(self, sample: Any) -> Any:
        number = sample if isinstance(sample, int) else sample["key"]
        if number == self.victim:
            with suppress(FileExistsError):
                if self.once is not None:
                    self.once.touch(exist_ok=False)
                if isinstance(self.how, signal.Signals):
                    os.kill(os.getpid(), self.how)
                else:
                    self.how()
        return number


@dataclass(frozen=True)
class Stuck:
    """Does not come back from a sample, and says with a file when it is there; once, if it is to."""

    mark: Path
    victim: int = 9
    once: bool = False

    def __call__(self, number: int) -> int:
        if number == self.victim and not (self.once and self.mark.exists()):
            self.mark.touch()
            _wait_for_nothing()
        return number


def _wait_for_nothing() -> None:
    time.sleep(3600)


@dataclass(frozen=True)
class Waiting:
    """Holds sample 0 up until a file is there."""

    go: Path

    def __call__(self, number: int) -> int:
        while number == 0 and not self.go.exists():
            time.sleep(0.01)
        return number
