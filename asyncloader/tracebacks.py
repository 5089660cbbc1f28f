"""What a user sees of where an error came from: their own frames, and not how the library went about it."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator

from .errors import FormatError, StoreError, WorkerDiedError

__all__ = ["drop_frames", "users_level"]

# Whose frames tell a user nothing: ours, and those of the clients and the event loop in between.
_INTERNAL = sys.stdlib_module_names | {"aiohttp", "aiohappyeyeballs", "asyncloader", "obstore", "yarl"}


def drop_frames(error: BaseException) -> bool:
    """Take the internal frames off an error of the library's own, and off the errors that it came from.

    Such an error says in one line what is wrong; a hundred lines of how its bytes were asked for would hide
    that. A traceback that leads through a function of the user's is kept whole.

    Returns:
        Whether it is such an error, and no traceback is left to show.
    """
    if not isinstance(error, StoreError | FormatError | WorkerDiedError):
        return False
    bare = True
    for one in _origins(error):
        if all(_is_internal(frame.f_globals) for frame, _ in traceback.walk_tb(one.__traceback__)):
            one.__traceback__ = None
        else:
            bare = False
    return bare


def users_level() -> int:
    """The ``stacklevel`` with which a warning of the caller's names the line that called the library."""
    level, frame = 0, sys._getframe(1)
    while _is_ours_or_between(frame.f_globals) and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    return level + 1


def _is_ours_or_between(module: dict[str, object]) -> bool:
    return str(module.get("__name__")).partition(".")[0] in ("asyncloader", "contextlib", "weakref")


def _origins(error: BaseException) -> Iterator[BaseException]:
    """The error and all that a traceback could show of where it came from; also if they go in circles."""
    seen: set[int] = set()
    ahead: list[BaseException | None] = [error]
    while ahead:
        one = ahead.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        # A context that is suppressed is not shown, but holds its frames and what is in them all the same.
        ahead += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            ahead += one.exceptions


def _is_internal(module: dict[str, object]) -> bool:
    return str(module.get("__name__")).partition(".")[0] in _INTERNAL
