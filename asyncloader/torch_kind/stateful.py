"""The user's own parts that can tell where they are, by ``state_dict`` and ``load_state_dict``.

Both a part and its iterator are asked, since either may hold the position. An iterator that is the part
itself is asked once, and told after ``iter()``, which may begin it anew. So does torchdata's loader.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from typing import Any, TypeAlias

from torch.utils.data import get_worker_info as torch_worker_info

from ..tracebacks import add_note
from ..workers._raised import Dumped, dump_error, load_error

__all__ = [
    "Said",
    "Unsaid",
    "is_stateful",
    "pass_over",
    "reopen",
    "run_out",
    "tell",
    "tell_iterator",
    "tell_owner",
    "where",
]


def is_stateful(part: Any) -> bool:
    """Whether ``part`` can say where it is, and be told."""
    return callable(getattr(part, "state_dict", None)) and callable(getattr(part, "load_state_dict", None))


@dataclass(frozen=True)
class Unsaid:
    """What a part raised that was asked where it is. It is raised where a loader's state needs the answer.

    Attributes:
        error: As it travels, also within a process: the frames of one that is kept would keep an iterator.
    """

    error: Dumped

    def told(self) -> Exception:
        """The error, anew each time."""
        return load_error(self.error)


#: What a part answered, pickled, or why it did not.
Said: TypeAlias = bytes | Unsaid


def where(owner: Any, iterator: Any) -> Said | None:
    """Where ``owner`` and its iterator are; None if neither can say.

    Pickled at once: what a ``state_dict`` returns may be the very dict that the part goes on to change.
    Whoever iterates needs no state, so that one which takes arguments, fails or does not pickle is no error
    here.
    """
    told: dict[str, Any] = {}
    try:
        for name, part in (("owner", owner), ("iterator", iterator)):
            if is_stateful(part) and not (name == "owner" and iterator is owner):
                told[name] = part.state_dict()
    except Exception as error:
        add_note(
            error,
            f"raised by state_dict() of {type(part).__name__}, which the loader calls without arguments for "
            "its own state_dict(). Iterating does not need it",
        )
        return Unsaid(dump_error(error, _place()))
    if not told:
        return None
    try:
        return pickle.dumps(told, 5)
    except Exception as error:
        add_note(
            error, f"while pickling what state_dict() of {type(owner).__name__} or its iterator returned"
        )
        return Unsaid(dump_error(error, _place()))


def _place() -> str:
    info = torch_worker_info()
    return "in the loader" if info is None else f"in worker {object.__getattribute__(info, 'id')}"


def tell_owner(owner: Any, state: Said) -> None:
    """Tell ``owner``, before it is iterated, where to go on."""
    told = _answered(state)
    if "owner" in told:
        tell(owner, told["owner"])


def tell_iterator(iterator: Any, state: Said) -> None:
    """Tell an iterator of its owner's where to go on."""
    told = _answered(state)
    if "iterator" in told:
        tell(iterator, told["iterator"])


def _answered(state: Said) -> dict[str, Any]:
    assert isinstance(state, bytes), "a state that was loaded holds answers only"
    told: dict[str, Any] = pickle.loads(state)
    return told


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
    owner: Any, state: Said | None, open_new: Callable[[], Any], *, ended: bool, finished: bool = False
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
