"""What ``.map(fn, context=...)`` gives to its function beside the sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._flow.residents import MakeContext
from .op import Lane, name_of

__all__ = ["MakeContext", "given"]


def given(fn: Callable[..., Any], context: MakeContext | None, lane: Lane) -> Callable[[Any], Any]:
    """``fn`` as a function of the sample alone, its context entered.

    Operators and lanes of one process that were given the same ``context`` share what it made.
    """
    if context is None:
        return fn
    key = id(context)  # which may not hash; the recipe keeps it alive
    if key not in lane.shared:
        lane.shared[key] = lane.engine.enter(context)
    value = lane.shared[key]

    def call(sample: Any) -> Any:
        return fn(sample, value)

    call.__qualname__ = name_of(fn)
    return call
