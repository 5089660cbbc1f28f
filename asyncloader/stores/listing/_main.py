"""The program of the process that lists object stores: one order in, one answer out."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
import threading
import traceback
from pathlib import PurePath

import cloudpickle

from ...errors import StoreError
from ..objects.provider import PROVIDER_NOTE
from .answering import answer_order
from .asking import Order

__all__ = ["main"]


def main() -> None:
    """Read an order, and write the answer or the exception that it ended with."""
    # Ctrl-C reaches the whole group; the parent decides, and this process sees its end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What the user's own functions print must not get into the answer.
    answers = os.dup(1)
    os.dup2(2, 1)
    order = pickle.load(sys.stdin.buffer)
    assert isinstance(order, Order)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with open(answers, "wb") as out:
        # An exception of the user's main module has no other way to travel.
        cloudpickle.dump(_answer(order), out)
        out.flush()
    # obstore's threads and the one above have nothing left to do that anybody waits for.
    os._exit(0)


def _answer(order: Order) -> object:
    try:
        return asyncio.run(answer_order(order))
    except Exception as error:
        if PROVIDER_NOTE in getattr(error, "__notes__", ()):
            return _of_user(error)
        if isinstance(error, StoreError | ValueError | TypeError):
            return _bare(error)
        # Its text may be a client library's, and so hold a secret.
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{PurePath(frame.filename).name}:{frame.lineno}"
        return RuntimeError(f"listing failed with {type(error).__name__} at {where}")


def _bare(error: StoreError | ValueError | TypeError) -> Exception:
    """``error`` as a class that the parent knows; a subclass may be any library's."""
    if isinstance(error, StoreError):
        return error
    return (ValueError if isinstance(error, ValueError) else TypeError)(*error.args[:1])


def _of_user(error: Exception) -> Exception:
    """What the user's own function raised, with its frames, which stay behind, as a note."""
    text = "".join(traceback.format_exception(error)).rstrip()
    error.add_note(f"in the process that looks up shards:\n{text}")
    try:
        pickle.loads(cloudpickle.dumps(error))
    except Exception:  # such as one whose arguments are not those of its constructor
        return RuntimeError(text)
    return error


def _end_with_parent() -> None:
    # Reads from the descriptor: a thread that holds the lock of sys.stdin would hang the interpreter's end.
    while os.read(0, 4096):
        pass
    os._exit(1)
