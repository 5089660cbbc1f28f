"""What a user sees of where an error came from: their own frames, and not how the library went about it."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dis import opmap
from types import FrameType
from typing import Any, NamedTuple, NoReturn

from .errors import FormatError, StoreError, WorkerDiedError

__all__ = [
    "add_note",
    "drop_frames",
    "end_daemon_at_exit",
    "format_frames",
    "format_stack",
    "is_in_users_code",
    "is_on_purpose",
    "leads_through_users_code",
    "raise_told",
    "users_level",
    "users_line",
    "users_stacks_first",
]

_OWN = os.path.dirname(__file__) + os.sep
_STDLIB = sysconfig.get_path("stdlib") + os.sep

# Whose frames tell a user nothing: ours, and those of the clients and the event loop in between.
_INTERNAL = sys.stdlib_module_names | {"aiohttp", "aiohappyeyeballs", "asyncloader", "obstore", "ray", "yarl"}


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an error of the user's, if it takes one: a frozen dataclass does not."""
    with suppress(Exception):
        error.add_note(note)


def drop_frames(error: BaseException) -> bool:
    """Take the internal frames off an error of the library's own, and off the errors that it came from.

    Such an error says in one line what is wrong; a hundred lines of how its bytes were asked for would hide
    that. A traceback that leads through a function of the user's is kept whole. The same for what was raised
    by ``raise_told``.

    Returns:
        Whether it is such an error, and no traceback is left to show.
    """
    if not isinstance(error, StoreError | FormatError | WorkerDiedError) and not _is_told(error):
        return False
    bare = True
    for one in _origins(error):
        if leads_through_users_code(one):
            bare = False
        else:
            one.with_traceback(None)
    return bare


def raise_told(error: BaseException) -> NoReturn:
    """Raise an error of another process: its notes tell its frames, and those of this one tell nothing."""
    try:
        raise error
    finally:
        del error  # this frame is in its traceback: a cycle would keep alive what the frames below hold


def format_frames(error: BaseException) -> str:
    """The frames of an error as shown: from the user's first one on; all if none is theirs."""
    frames = error.__traceback__
    while frames is not None and _is_internal(frames.tb_frame.f_globals):
        frames = frames.tb_next
    return "".join(traceback.format_tb(frames or error.__traceback__))


def format_stack(frame: FrameType) -> str:
    """Where a thread is, its latest call last: from the user's first frame on; all if none is theirs."""
    frames = list(traceback.walk_stack(frame))[::-1]
    users = [index for index, (each, _) in enumerate(frames) if not _is_internal(each.f_globals)]
    shown = frames[users[0] :] if users else frames
    return "".join(traceback.StackSummary.extract(iter(shown)).format()).rstrip()


def is_in_users_code(frame: FrameType) -> bool:
    """Whether a thread that is at ``frame`` runs the user's code, or what that has called."""
    return any(not _is_internal(each.f_globals) for each, _ in traceback.walk_stack(frame))


def users_stacks_first(shown: str) -> str:
    """The stacks of a process's threads as faulthandler writes them, where the user's code is first.

    Such a stack is shown from the user's first frame on, its latest call last; the others stay as they are.
    """
    users, others = [], []
    for stack in shown.rstrip().split("\n\n"):
        frames = [line for line in stack.splitlines() if line.startswith("  File ")]
        own = [index for index, line in enumerate(frames) if not _is_internal_file(line)]
        if own:
            users.append("\n".join(reversed(frames[: own[-1] + 1])))
        else:
            others.append(stack)
    return "\n\n".join([*users, *others])


def leads_through_users_code(error: BaseException) -> bool:
    """Whether any frame of an error's traceback is the user's."""
    return any(not _is_internal(frame.f_globals) for frame, _ in traceback.walk_tb(error.__traceback__))


def is_on_purpose(error: BaseException) -> bool:
    """Whether a ``raise`` of ours, or of torch's loader, made the error: its message is for users.

    What Python or another library raises inside of ours is a fault of ours. An error without frames is one
    that has lost them on purpose (``drop_frames``).
    """
    innermost = error.__traceback__
    if innermost is None:
        return True
    while innermost.tb_next is not None:
        innermost = innermost.tb_next
    code = innermost.tb_frame.f_code.co_code
    module = str(innermost.tb_frame.f_globals.get("__name__"))
    is_raise = code[innermost.tb_lasti] == opmap["RAISE_VARARGS"]
    return is_raise and module.startswith(("asyncloader.", "torch.utils.data."))


def end_daemon_at_exit() -> None:
    """Keep a daemon thread of the user's from the error that the end of the interpreter makes of its pass.

    Python stops such a thread a moment later, wherever it is; until then it would print a traceback, since
    the passes that it reads are closed before. Other threads have ended by then.

    Raises:
        SystemExit: It is such a thread, which this ends without a word.
    """
    if not threading.main_thread().is_alive() and threading.current_thread().daemon:
        raise SystemExit


def _is_told(error: BaseException) -> bool:
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(codes) and codes[-1] is raise_told.__code__


def users_level() -> int:
    """The ``stacklevel`` with which a warning of the caller's names the line that called the library."""
    level, frame = 0, sys._getframe(1)
    while _is_ours_or_between(frame.f_globals) and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    return level + 1


class Line(NamedTuple):
    """A line of code, as ``warnings.warn_explicit`` takes it."""

    filename: str
    lineno: int
    module: str
    registry: dict[Any, Any]


def users_line() -> Line:
    """The line that called the library, for a warning that comes later, maybe on another thread."""
    frame = sys._getframe(1)
    while _is_ours_or_between(frame.f_globals) and frame.f_back is not None:
        frame = frame.f_back
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    return Line(frame.f_code.co_filename, frame.f_lineno, str(frame.f_globals.get("__name__")), registry)


def _is_ours_or_between(module: dict[str, object]) -> bool:
    return str(module.get("__name__")).partition(".")[0] in ("asyncloader", "contextlib", "torch", "weakref")


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


def _is_internal_file(line: str) -> bool:
    """The same of a frame that faulthandler has written: by its file."""
    path = line.partition('"')[2].partition('"')[0]
    if path.startswith(("<", _OWN)):
        return True
    packages = re.split(r"[/\\\\](?:site|dist)-packages[/\\\\]", path)
    if len(packages) > 1:
        return re.split(r"[/\\\\.]", packages[-1])[0] in _INTERNAL
    return path.startswith(_STDLIB)


def _is_internal(module: dict[str, object]) -> bool:
    return str(module.get("__name__")).partition(".")[0] in _INTERNAL
