"""Exceptions where a handler of a signal can raise one, each place in turn."""

from __future__ import annotations

import dis
import gc
import sys
from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType
from typing import Any, TypeVar

__all__ = ["Interrupt", "interrupted_at"]

T = TypeVar("T")

# A signal ends their wait, and they raise what its handler has raised.
_WAITING = {"acquire", "poll", "recvmsg", "select", "sleep"}


class Interrupt(BaseException):
    """What a handler of a signal raises."""


def interrupted_at(
    nth: int, call: Callable[[], T], interrupt: type[BaseException] = Interrupt, within: str | None = None
) -> T:
    """What ``call`` gives, unless it has so many places: at the nth one, an exception is raised.

    ``within`` counts only the places in the function of this qualified name.

    Python runs handlers of signals where a function begins, behind a call of one in C, and where a loop
    begins again; and within a wait. Nowhere else: not between two lines, and not behind the return of a
    function to another one in Python.
    """
    at: dict[FrameType, int] = {}
    seen = 0

    def see(frame: FrameType) -> None:
        nonlocal seen
        seen += within is None or frame.f_code.co_qualname == within
        if seen == nth and (within is None or frame.f_code.co_qualname == within):
            sys.settrace(None)
            sys.setprofile(None)
            raise interrupt

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        if event == "opcode":
            before, at[frame] = at.get(frame, 0), frame.f_lasti
            if frame.f_lasti < before and "JUMP_BACKWARD" in dis.opname[_code(frame.f_code)[before]]:
                see(frame)
        return trace

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_return") or (event == "c_call" and argument.__name__ in _WAITING):
            see(frame)

    collects = gc.isenabled()
    gc.disable()  # what is raised in a finalizer that it runs is printed, and lost
    sys.settrace(trace)
    sys.setprofile(profile)
    try:
        return call()
    finally:
        sys.setprofile(None)
        sys.settrace(None)
        for frame in at:  # which else would hold what they have
            frame.f_trace = None
        at.clear()
        if collects:
            gc.enable()


@cache
def _code(code: CodeType) -> bytes:
    return code.co_code  # each time made anew
