"""The library's exceptions, named by the cause that they report.

A wrong call raises ``ValueError``, ``TypeError`` or ``RuntimeError`` before any I/O; an exception of the
user's own function keeps its type. All other errors have a class here.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dis import opmap
from types import FrameType
from typing import Any, NoReturn, TypeAlias

__all__ = [
    "Error",
    "FormatError",
    "RanksError",
    "SkipBudgetError",
    "StoreError",
    "WorkerDiedError",
]


class Error(Exception):
    """The base class of the library's own errors, for ``except al.Error``.

    Attributes say where an error happened; one that is not known is None. The text of an error is its message
    with the known ones. Each error also has a standard exception as a base. Wrong calls raise ``ValueError``,
    ``TypeError`` or ``RuntimeError``, and your functions raise their own exceptions; these are no ``Error``.

    Args:
        message: What was expected, what was found, and what to do.
        places: Values of the attributes of the class, by name.

    Raises:
        TypeError: The class has no such attribute.
    """

    # Attributes travel through pickle (``BaseException.__reduce__`` keeps ``__dict__``), so that an error
    # raised in a worker process names the same place in the parent.

    _places: tuple[str, ...] = ()

    def __init_subclass__(cls) -> None:
        cls._places = (*cls._places, *cls.__annotations__)

    def __init__(self, message: str, **places: object) -> None:
        super().__init__(message)
        for name in self._places:
            setattr(self, name, places.pop(name, None))
        if places:
            raise TypeError(f"unknown place {sorted(places)}; {type(self).__name__} has {self._places}")

    def __str__(self) -> str:
        known = [(name, getattr(self, name, None)) for name in self._places]
        where = ", ".join(f"{name} {value}" for name, value in known if value is not None)
        return f"{self.args[0]} [{where}]" if where else str(self.args[0])


class StoreError(Error, OSError):
    """Bytes could not be read: a missing object, refused access, a cut body, a changed object.

    Attributes:
        shard: The URL or path, without query and user info.
        status: The HTTP status, if the server has answered with one.
        offset: The first byte that could not be read.
    """

    shard: str | None
    status: int | None
    offset: int | None


class FormatError(Error, ValueError):
    """A shard is not what its format promises: truncated, corrupt or in another format.

    It is also raised if a shard of Parquet or Arrow lacks a column of ``columns`` or ``filters``, or has one
    of a type that the filter cannot be applied to. The library only knows that when it reads the shard.

    Attributes:
        shard: The URL or path, without query and user info.
        offset: Byte in the (decompressed) shard at which the fault was found.
        sample: Index in the shard, from 0, of the sample that was being read.
    """

    shard: str | None
    offset: int | None
    sample: int | None


class WorkerDiedError(Error, RuntimeError):
    """A worker process ended before its work was done: it was killed, crashed or ran out of memory.

    Attributes:
        worker: Number of the worker within its rank, from 0.
        pid: Its process id.
        exitcode: Its exit status, or ``-n`` if signal ``n`` ended it.
        lane: The lane of its next batch.
        shard: The shard of that batch, as URL or path without query and user info; None for a dataset without
            shards.
        sample: Index, in the shard or the lane's iterable, of the first sample to read for that batch. If
            samples are shuffled, it is the first one of the window.
    """

    worker: int | None
    pid: int | None
    exitcode: int | None
    lane: int | None
    shard: str | None
    sample: int | None


class RanksError(Error, RuntimeError):
    """The ranks of a training cannot continue together: one has left the pass, was lost, or ended early.

    It is also raised before the first batch if ``uneven=`` is not given and the shares of the ranks are
    unknown or too unequal.

    Attributes:
        rank: The rank that raises it.
        step: Number of the batch in this pass, from 0, on which the ranks did not agree.
    """

    rank: int | None
    step: int | None


class SkipBudgetError(Error, RuntimeError):
    """More samples or shards failed than ``al.SkipErrors`` allows. Its cause is the last skipped error.

    Attributes:
        epoch: Number of the epoch, from 0.
        rank: The rank that raises it.
        lane: The lane that skipped the last sample or shard.
    """

    epoch: int | None
    rank: int | None
    lane: int | None


def describe_exit(exitcode: int | None) -> str:
    """A half sentence on how a worker process ended, and what that may mean."""
    if exitcode is None:
        return "was lost together with its fork server"
    if exitcode >= 0:
        return f"ended with exit status {exitcode}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:  # a real-time signal that has no name
        name = str(-exitcode)
    hints = {
        "SIGKILL": " (the kernel's out-of-memory killer sends it; fewer workers or smaller batches help)",
        "SIGSEGV": " (a crash in native code; PYTHONFAULTHANDLER=1 shows where)",
        "SIGBUS": " (shared memory ran out; fewer workers or smaller batches help)",
    }
    return f"was killed by signal {name}{hints.get(name, '')}"


# --- tracebacks: users see their own frames, not the library's ---

_OWN = os.path.dirname(__file__) + os.sep
_STDLIB = sysconfig.get_path("stdlib") + os.sep

# Packages whose frames are not shown: ours, and those of clients and the event loop in between.
_INTERNAL = sys.stdlib_module_names | {"aiohttp", "aiohappyeyeballs", "asyncloader", "obstore", "ray", "yarl"}


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an error of the user's, if that is possible: a frozen dataclass takes none."""
    with suppress(Exception):
        error.add_note(note)


def drop_frames(error: BaseException) -> bool:
    """Remove internal frames from an error of the library's own, and from the errors that it came from.

    The message of such an error says in one line what is wrong; a hundred lines of internal frames would hide
    it. A traceback with a function of the user's in it is kept whole. The same holds for errors raised by
    ``raise_told``.

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
    """Raise an error of another process: its notes have its frames, and those of this process do not help."""
    try:
        raise error
    finally:
        del error  # this frame is in its traceback: a cycle would keep alive what the frames hold


def format_frames(error: BaseException) -> str:
    """The frames of an error to show: from the user's first one on; all if none is theirs."""
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
    """Whether a thread that is at ``frame`` runs the user's code, or code called from it."""
    return any(not _is_internal(each.f_globals) for each, _ in traceback.walk_stack(frame))


def users_stacks(shown: str) -> str:
    """Of the stacks of a process's threads as faulthandler writes them, those with the user's code.

    They are shown from the user's first frame on, the latest call last. If there are none, all stacks are
    returned as they are.
    """
    users, others = [], []
    for stack in shown.rstrip().split("\n\n"):
        frames = [line for line in stack.splitlines() if line.startswith("  File ")]
        own = [index for index, line in enumerate(frames) if not _is_internal_file(line)]
        if own:
            users.append("\n".join(reversed(frames[: own[-1] + 1])))
        else:
            others.append(stack)
    return "\n\n".join(users or others)


def leads_through_users_code(error: BaseException) -> bool:
    """Whether any frame of an error's traceback is the user's."""
    return any(not _is_internal(frame.f_globals) for frame, _ in traceback.walk_tb(error.__traceback__))


def is_on_purpose(error: BaseException) -> bool:
    """Whether a ``raise`` of ours, or of torch's loader, made the error: its message is for users.

    An error that Python or another library raises inside of ours is a fault of ours. An error without frames
    has lost them by ``drop_frames``.
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
    """End a daemon thread of the user's silently when the interpreter ends.

    The interpreter closes the pass that such a thread reads, and stops the thread a moment later. In between
    it would print a traceback. Other threads have ended by then.

    Raises:
        SystemExit: This is such a thread; the exception ends it without a message.
    """
    if not threading.main_thread().is_alive() and threading.current_thread().daemon:
        raise SystemExit


def _is_told(error: BaseException) -> bool:
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(codes) and codes[-1] is raise_told.__code__


def users_level() -> int:
    """The ``stacklevel`` with which a warning of the caller names the line that called the library."""
    return _users_frame()[0] + 1


Line: TypeAlias = tuple[str, int, str, dict[Any, Any]]
"""A line of code, as ``warnings.warn_explicit`` takes it: file, number, module, and its warnings so far."""


def users_line() -> Line:
    """The line that called the library, for a warning that comes later, maybe on another thread."""
    _, frame = _users_frame()
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    return frame.f_code.co_filename, frame.f_lineno, str(frame.f_globals.get("__name__")), registry


def _users_frame() -> tuple[int, FrameType]:
    """The frame of the user's that called the library, and its level above the caller of the caller."""
    level, frame = 0, sys._getframe(2)
    while _is_ours_or_between(frame.f_globals) and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    return level, frame


def _is_ours_or_between(module: dict[str, object]) -> bool:
    return str(module.get("__name__")).partition(".")[0] in ("asyncloader", "contextlib", "torch", "weakref")


def _origins(error: BaseException) -> Iterator[BaseException]:
    """The error and all errors that a traceback could show with it; cycles are allowed."""
    seen: set[int] = set()
    ahead: list[BaseException | None] = [error]
    while ahead:
        one = ahead.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        # A suppressed context is not shown, but still holds its frames and the objects in them.
        ahead += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            ahead += one.exceptions


def _is_internal_file(line: str) -> bool:
    """Whether a frame that faulthandler has written is internal, by its file."""
    path = line.partition('"')[2].partition('"')[0]
    if path.startswith(("<", _OWN)):
        return True
    packages = re.split(r"[/\\\\](?:site|dist)-packages[/\\\\]", path)
    if len(packages) > 1:
        return re.split(r"[/\\\\.]", packages[-1])[0] in _INTERNAL
    return path.startswith(_STDLIB)


def _is_internal(module: dict[str, object]) -> bool:
    return str(module.get("__name__")).partition(".")[0] in _INTERNAL
