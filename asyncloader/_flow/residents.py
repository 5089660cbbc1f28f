"""The user's own clients on an engine's loop: entered when they are first wanted, left after all tasks.

Laws:

* Each is entered and left in one task, as contexts with scopes of their own need it.
* All are left when the engine stops, after the last of the tasks that may use them has ended; one that is
  still being entered is cancelled.
* Leaving has a deadline. What goes wrong there is kept for whoever stops the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

from .channel import Channel

__all__ = ["MakeContext", "Residents"]

MakeContext: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]

# Below the engine's own deadline, so that the error names what is stuck.
_LEAVE_DEADLINE_S = 4.0


class Residents:
    """The clients of one engine."""

    def __init__(self) -> None:
        self._leaving = asyncio.Event()
        self._entering: set[asyncio.Task[Any]] = set()
        self._errors: list[Exception] = []

    async def reside(self, make: MakeContext, entered: Channel[Any]) -> None:
        """Enter ``make()``, send its value, and leave it when told; the life of one client.

        Raises:
            Exception: What making or entering it raised.
        """
        task = asyncio.current_task()
        assert task is not None
        deadline = asyncio.timeout(None)
        self._entering.add(task)
        try:
            async with deadline, _made(make) as value:
                self._entering.discard(task)
                entered.send(value)
                await self._leaving.wait()
                deadline.reschedule(asyncio.get_running_loop().time() + _LEAVE_DEADLINE_S)
        except Exception as error:
            if deadline.expired():
                error.add_note(f"leaving took more than {_LEAVE_DEADLINE_S:.0f} s")
            if task in self._entering:
                error.add_note(f"while entering {_name_of(make)}, a context of .map")
                raise
            error.add_note(f"while leaving {_name_of(make)}, a context of .map")
            self._errors.append(error)
        finally:
            self._entering.discard(task)

    def leave(self) -> None:
        """Have all be left; their tasks end when they are."""
        self._leaving.set()
        for task in self._entering:
            task.cancel()

    def take_error(self) -> Exception | None:
        """What went wrong while leaving, once; None if nothing did."""
        errors, self._errors = self._errors, []
        return errors[0] if errors else None


def _made(make: MakeContext) -> AbstractAsyncContextManager[Any]:
    made: object = make()
    if isinstance(made, AbstractAsyncContextManager):
        return made
    if asyncio.iscoroutine(made):
        made.close()
    raise TypeError(
        f"context should make an asynchronous context manager, but {_name_of(make)} made a "
        f"{type(made).__name__}; write it as an asynchronous generator under @contextlib.asynccontextmanager"
    )


def _name_of(make: MakeContext) -> str:
    made_of = getattr(make, "func", make)  # functools.partial
    return getattr(made_of, "__qualname__", None) or type(made_of).__qualname__
