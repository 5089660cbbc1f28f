"""Endings that the user's functions raise, made errors: else a loop or a thread would end without a word."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

__all__ = ["Heard", "as_error", "call_heard"]

_ENDINGS = (StopIteration, StopAsyncIteration, SystemExit)


class Heard:
    """Around a call of the user's function; used with ``with``.

    Raises:
        RuntimeError: The function raised ``StopIteration``, ``StopAsyncIteration`` or ``SystemExit``. The
            first two would be the end of whichever loop is next outside, so that the rest of a lane were
            missing. An exit in a thread or a worker ends that alone; as an error it has the sample named.
    """

    __slots__ = ()

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, _ENDINGS):
            raise as_error(error) from error


async def call_heard(fn: Callable[..., Awaitable[Any]], *given: Any) -> Any:
    """``await fn(*given)``, which runs in a task of the library's.

    Raises:
        RuntimeError: It raised what is no ``Exception``. Let through, a cancellation would end this one task
            without a word, since the task was not cancelled but something that the function waited for; an
            exit would end the loop under everybody else's tasks.
    """
    try:
        return await fn(*given)
    except Exception:
        raise
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
            raise  # nobody wants the result any more
        raise as_error(error) from error


def as_error(ending: BaseException) -> RuntimeError:
    """What stands for an ending that the user's code raised."""
    text = f"{type(ending).__name__}: {ending}" if str(ending) else type(ending).__name__
    # With the frames of the function: they are what messages tell, from a worker too.
    return RuntimeError(f"the function raised {text}").with_traceback(ending.__traceback__)
