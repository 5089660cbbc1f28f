"""Checks of what the operators of a recipe are given, made with the operator, before anything runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from functools import partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["as_count", "as_counts", "check_count", "check_map", "check_names", "check_plain", "is_async"]


def is_async(fn: object) -> bool:
    """Whether calling it gives a coroutine."""
    target = fn.func if isinstance(fn, partial) else fn
    return iscoroutinefunction(target) or iscoroutinefunction(getattr(target, "__call__", None))  # noqa: B004  # the method itself is asked for


def check_map(fn: object, concurrency: object, context: object) -> None:
    """Check what ``.map`` is given."""
    _check_callable("map", fn, "one sample")
    check_count("concurrency", concurrency)
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


def check_count(name: str, count: object) -> None:
    """Check that it is an int of 1 or more."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"{name} should be a positive integer value, but got {name}={count!r}")


def as_counts(options: DataclassInstance, *names: str) -> None:
    """Check counts of a frozen dataclass, and make ints of NumPy's, which are no JSON in a saved state.

    Args:
        options: The dataclass.
        names: Of the fields; one may be None if that is its default.

    Raises:
        ValueError: One is no whole number of 1 or more.
    """
    optional = {option.name for option in fields(options) if option.default is None}
    for name in names:
        count = getattr(options, name)
        if count is not None or name not in optional:
            object.__setattr__(options, name, as_count(name, count))


def as_count(name: str, count: object) -> int:
    """An int of 1 or more, also from an integer of NumPy.

    Raises:
        ValueError: It is none.
    """
    if isinstance(count, np.integer):
        count = int(count)
    check_count(name, count)
    assert isinstance(count, int)
    return count


def _check_callable(op: str, fn: object, of: str) -> None:
    if not callable(fn):
        raise TypeError(f"{op} should get a function of {of}, but got {type(fn).__name__}")
