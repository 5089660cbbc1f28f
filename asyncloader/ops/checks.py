"""Checks of what the operators of a recipe are given, made with the operator, before anything runs."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from inspect import iscoroutinefunction

__all__ = ["check_map", "check_names", "check_plain", "is_async"]


def is_async(fn: object) -> bool:
    """Whether calling it gives a coroutine."""
    target = fn.func if isinstance(fn, partial) else fn
    return iscoroutinefunction(target) or iscoroutinefunction(getattr(target, "__call__", None))  # noqa: B004  # the method itself is asked for


def check_map(fn: object, context: object) -> None:
    """Check what ``.map`` is given."""
    _check_callable("map", fn, "one sample")
    # One that is made already may be callable too: contextlib's are decorators as well.
    made = hasattr(context, "__aenter__") and not isinstance(context, type)
    if context is not None and (made or not callable(context)):
        raise TypeError(
            "context should be a function that makes an asynchronous context manager in each process, "
            f"such as the class itself, but got a {type(context).__name__}"
        )


def check_plain(op: str, fn: object, of: str, hint: str = "") -> None:
    """Check that it is a plain function, of what ``of`` says."""
    _check_callable(op, fn, of)
    if is_async(fn):
        raise TypeError(f"{op} should get a plain function, but got a coroutine function{hint}")


def check_names(op: str, names: Iterable[object]) -> None:
    """Check that they are names of fields."""
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{op} should get field names, but got {type(name).__name__}: {name!r}")


def _check_callable(op: str, fn: object, of: str) -> None:
    if not callable(fn):
        raise TypeError(f"{op} should get a function of {of}, but got {type(fn).__name__}")
