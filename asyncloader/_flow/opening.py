"""What a thread opens is closed, also if nobody waits for it any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

__all__ = ["opened"]

T = TypeVar("T")


async def opened(opening: asyncio.Future[T], close: Callable[[T], object]) -> T:
    """What a thread is opening. If cancelled meanwhile, it is closed as soon as it is there.

    Args:
        opening: Of ``run_in_executor``: a thread cannot be cancelled.
        close: Called on the loop.
    """
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(
            lambda late: None if late.cancelled() or late.exception() else close(late.result())
        )
        raise
