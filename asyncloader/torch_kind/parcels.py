"""Tasks and results as they go over the roads.

Nothing gets lost: what does not pickle raises where the consumer sees it. torch's queue would drop it in a
thread of the worker's, and the consumer wait for ever.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from torch.utils.data import get_worker_info as torch_worker_info

from ..by_value import any_class_came
from ..torch_private import ExceptionWrapper
from ..workers.link import MOST_INLINE_BYTES
from ..workers.packing import Keep, Made, Packed, pack_by
from .sharing import closing_descriptors, plain_pickler
from .timing import Worked
from .travel import HomewardPickler, OutwardPickler

__all__ = ["pack_result", "pack_task"]


def pack_task(task: Any, by_value: bool) -> Packed:
    """A task, for a worker.

    Args:
        task: As torch's loop makes it.
        by_value: Whether the worker was not forked, and so has not what it cannot find by name.
    """
    return _pack(OutwardPickler if by_value else plain_pickler, task)


def pack_result(result: tuple[Any, Any, Worked], made_in: Made | None) -> Packed:
    """The result of a task, for the consumer; or else the error that it could not travel.

    Args:
        result: The task's number, the batch or an error, and what is told beside it.
        made_in: The slot that the batch may lie in.
    """
    try:
        # Only where a class came by value does the slower pickler pay.
        return _pack(HomewardPickler if any_class_came() else plain_pickler, result, made_in)
    except Exception as error:
        number, batch, worked = result
        return _pack(plain_pickler, (number, _untold(batch, error), worked))


def _untold(result: Any, error: Exception) -> Any:
    """What the consumer is told instead of a result that does not pickle."""
    if isinstance(result, ExceptionWrapper):
        # Only its type has no way home: the text names it, and has its traceback.
        result.exc_type = RuntimeError
        return result
    info = torch_worker_info()
    assert info is not None, "called outside a worker"
    kind = type(result)
    error.add_note(
        f"while pickling a batch of type {kind.__module__}.{kind.__qualname__} to send it to the loop. "
        "Classes and functions in it must be found at the top level of a module"
    )
    where = f"in DataLoader worker process {object.__getattribute__(info, 'id')}"
    told = ExceptionWrapper((type(error), error, error.__traceback__), where)  # type: ignore[no-untyped-call]
    told.exc_type = pickle.PicklingError
    return told


def _pack(make_pickler: Callable[[Any, Keep], Any], held: Any, made_in: Made | None = None) -> Packed:
    with closing_descriptors():
        return pack_by(make_pickler, held, made_in, MOST_INLINE_BYTES)
