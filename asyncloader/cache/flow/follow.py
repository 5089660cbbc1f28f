"""A file that another process fills: read along as it grows, for as long as it does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ...errors import StoreError
from ...stores.urls import redact
from ..folder.header import State
from ..folder.locks import Progress, look
from .copy import Copy
from .descriptor import Descriptor
from .inotify import Inotify

__all__ = ["follow"]


async def follow(
    file: Descriptor, url: str, inotify: Inotify, patience_s: float, opened: Callable[[Copy], None]
) -> bool:
    """Read along until the file is whole or nothing more comes.

    Args:
        file: Open, and locked by another process.
        url: For messages.
        inotify: Tells when to look.
        patience_s: How long it may stay as it is: whoever fills it may be stopped, and never hear of us.
        opened: Called once with its copy, as soon as it is known what the file will be.

    Returns:
        Whether it ended; False if patience did.

    Raises:
        OSError: It cannot be watched or read.
    """
    changed = asyncio.Event()
    copy: Copy | None = None
    seen: Progress | None = None
    with inotify.watch(file.number, changed.set):
        try:
            while True:
                changed.clear()
                progress = await file.run(look, file.number)
                if copy is None and progress.state in (State.FILLING, State.COMPLETE):
                    assert progress.header is not None, "a state comes from a header"
                    copy = Copy(file.share(), progress.header)
                    opened(copy)
                if copy is not None:
                    _tell(copy, progress, url)
                if progress.ended:
                    return True
                grown = progress != seen
                seen = progress
                if grown:
                    deadline_s = asyncio.get_running_loop().time() + patience_s
                try:
                    async with asyncio.timeout_at(deadline_s):
                        await changed.wait()
                except TimeoutError:
                    return False
        finally:
            if copy is not None:
                copy.end()
                copy.close()


def _tell(copy: Copy, progress: Progress, url: str) -> None:
    """Let the readers of the copy know how far it is."""
    copy.grow(progress.filled)
    if progress.state is State.COMPLETE:
        copy.end(whole=True)
    if progress.state is State.REJECTED:
        what = "another process has just downloaded the object, and its digest was not the promised one"
        copy.end(error=StoreError(what, shard=redact(url)))
