"""The user's own parts that can tell where they are, by ``state_dict`` and ``load_state_dict``.

Both a part and its iterator are asked, since either may hold the position. An iterator that is the part
itself is asked once, and told after ``iter()``, which may begin it anew. So does torchdata's loader.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable
from itertools import repeat
from typing import Any

__all__ = ["is_stateful", "pass_over", "reopen", "run_out", "tell", "tell_iterator", "tell_owner", "where"]


def is_stateful(part: Any) -> bool:
    """Whether ``part`` can say where it is, and be told."""
    return callable(getattr(part, "state_dict", None)) and callable(getattr(part, "load_state_dict", None))


def where(owner: Any, iterator: Any) -> bytes | None:
    """Where ``owner`` and its iterator are, pickled; None if neither can say.

    Pickled at once: what a ``state_dict`` returns may be the very dict that the part goes on to change.

    Raises:
        Exception: As pickle raises it, noting whose state it was.
    """
    told: dict[str, Any] = {}
    for name, part in (("owner", owner), ("iterator", iterator)):
        if is_stateful(part) and not (name == "owner" and iterator is owner):
            told[name] = part.state_dict()
    if not told:
        return None
    try:
        return pickle.dumps(told, 5)
    except Exception as error:
        error.add_note(f"while pickling what state_dict() of {type(owner).__name__} or its iterator returned")
        raise


def tell_owner(owner: Any, state: bytes) -> None:
    """Tell ``owner``, before it is iterated, where to go on."""
    told = pickle.loads(state)
    if "owner" in told:
        tell(owner, told["owner"])


def tell_iterator(iterator: Any, state: bytes) -> None:
    """Tell an iterator of its owner's where to go on."""
    told = pickle.loads(state)
    if "iterator" in told:
        tell(iterator, told["iterator"])


def tell(part: Any, state: Any) -> None:
    """Have ``part`` go on from what its ``state_dict`` returned.

    Raises:
        ValueError: It takes no state.
    """
    if not is_stateful(part):
        raise ValueError(
            f"the state holds one of a {type(part).__name__}, which has no load_state_dict now: was it saved "
            "with another class?"
        )
    part.load_state_dict(state)


def reopen(
    owner: Any, state: bytes | None, open_new: Callable[[], Any], *, ended: bool, finished: bool = False
) -> Any:
    """A new iterator of ``owner`` which goes on from ``state``.

    Args:
        owner: What is iterated.
        state: What ``where`` gave; None for the beginning.
        open_new: Opens an iterator of ``owner``.
        ended: Whether the iterator had come to its end when the state was asked for: nothing is left.
        finished: Whether that pass was over: it is run to its end, and the iterator is of the next one.
    """
    if state is None:
        return open_new()
    tell_owner(owner, state)
    if ended:
        return open_new() if finished else iter(())
    iterator = open_new()
    tell_iterator(iterator, state)
    if finished:
        run_out(iterator)
        iterator = open_new()
    return iterator


# Neither calls ``iter()``, with which an iterator that is its own iterable may begin anew.


def pass_over(iterator: Any, count: int) -> None:
    """Draw ``count`` items, or what there is, and drop them."""
    deque(map(next, repeat(iterator, count)), 0)


def run_out(iterator: Any) -> None:
    """Draw all that is left, and drop it."""
    deque(map(next, repeat(iterator)), 0)
